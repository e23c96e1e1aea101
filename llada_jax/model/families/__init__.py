"""How each family of dLLMs spells its checkpoints: a table, and what reads configurations by it."""
