"""The sampler: a state machine made of small policies. It never imports the model or a backend."""
