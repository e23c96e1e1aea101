"""Calibration: from times measured on a phone to its profile."""
