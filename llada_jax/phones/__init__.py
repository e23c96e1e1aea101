"""The phone model: time, energy and memory of decoding runs, computed from a phone's profile."""
