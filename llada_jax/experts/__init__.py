"""Routed experts that do not all fit on the accelerator: where each one lies, and who runs it.

HybriMoE (arXiv 2504.05897) rebuilt from its description, what came after it, and a policy for
models that denoise one block again and again. Planners know numbers only: no JAX here.
"""
