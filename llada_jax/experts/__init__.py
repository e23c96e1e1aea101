"""Mixtures of experts that do not fit on the accelerator: which experts are resident there, and
which processor runs each expert.

Reimplements HybriMoE (arXiv 2504.05897) from its paper, and earlier and later policies. Planners
compute with numbers only, without JAX.
"""
