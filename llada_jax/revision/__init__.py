"""Revision on the host, beside the forwards: a worker, and a kernel for the NPU's weights."""
