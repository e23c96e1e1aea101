"""Revision on the host, beside the forwards: a kernel for the NPU's weights."""
