"""Revision on the host, beside the forwards: a worker, and a kernel that reads the NPU's weights."""
