"""Drafters that guess the next tokens of an autoregressive model, for it to verify."""
