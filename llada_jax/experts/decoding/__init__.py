"""Decoding with routed experts in view: recorded, or with a limited number of them on hand."""
