"""Backends: where the forward runs. Each one compiles the steps of `steps.py`."""
