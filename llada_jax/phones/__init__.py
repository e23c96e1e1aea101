"""How long a lowered step, and a decoding run, take on a phone: a model, never a measurement."""
