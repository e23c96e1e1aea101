"""The sampler: a state machine of rules and windows. It never imports the model or a backend."""
