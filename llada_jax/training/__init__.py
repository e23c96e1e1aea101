"""Trains masked-diffusion models: data, objectives, the loop, adapters, and policy gradients."""
