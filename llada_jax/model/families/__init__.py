"""Families of models: a table of the names in their checkpoints."""
