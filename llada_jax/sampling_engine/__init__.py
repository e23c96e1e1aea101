"""A sampling engine for NPUs: vector instructions that turn logits into committed tokens.

The system of arXiv 2601.20706 (version 1, d-PLENA), built from its description: instruction set,
programs, a functional machine, and a cycle model. What the paper does not have is marked `ours`.
"""
