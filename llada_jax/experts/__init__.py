"""Routed experts that do not all fit on the accelerator: where each one lies, and who runs it.

HybriMoE (arXiv 2504.05897) rebuilt from its description, and what came before and after it.
Planners know numbers only: no JAX here.
"""
