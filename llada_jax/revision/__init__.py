"""Refreshes cached tokens on the host during a decoding run, with weights in the NPU's layout."""
