"""Runs the forward pass outside of JAX: steps, their lowering, backends, and the host's session."""
