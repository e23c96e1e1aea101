"""Families of models: a table of their checkpoint formats, and readers of their configurations."""
