"""A sampling engine for NPUs: vector instructions that turn logits into committed tokens.

Reimplements the system of arXiv 2601.20706 (version 1, d-PLENA) from its description: instruction
set, programs, a functional machine, and a cycle model. Additions to the paper are marked `ours`.
"""
