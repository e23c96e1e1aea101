"""The composition root: names in a configuration become objects that work together."""
