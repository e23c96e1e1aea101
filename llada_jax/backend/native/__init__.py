"""Runs int8 models on this CPU with matrix products that are compiled here by LLVM."""
