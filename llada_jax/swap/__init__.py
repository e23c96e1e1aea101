"""Plans for models that are larger than the NPU's address space."""
