"""Qualcomm's QNN: compiles steps for the Hexagon NPU of Snapdragon phones, and emulates it."""
