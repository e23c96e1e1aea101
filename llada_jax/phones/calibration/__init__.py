"""A phone of one's own: measured rows in, a profile with its doubts out."""
