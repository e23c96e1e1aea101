"""Texts that a generation may be: patterns, their automata, and what a canvas may become."""
