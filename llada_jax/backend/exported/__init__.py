"""A model as a folder that phones and this machine run: written, verified, described, opened."""
