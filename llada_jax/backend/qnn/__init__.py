"""Qualcomm's QNN: steps compiled for the Hexagon NPU of Snapdragon phones, and emulated here."""
