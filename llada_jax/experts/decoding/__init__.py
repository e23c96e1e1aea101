"""Decodes with a mixture of experts, and records its routing or limits the experts in memory."""
