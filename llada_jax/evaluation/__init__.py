"""Scores a decoder on tasks, compares decoders, and measures how they decode."""
