"""The sampler: a state machine made of rules and windows. It never imports the model or a backend."""
