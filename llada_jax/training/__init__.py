"""Training of masked-diffusion models: tokenizer, data, loss and loop."""
