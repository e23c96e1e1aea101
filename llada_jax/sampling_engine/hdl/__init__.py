"""The engine's units as hardware: written in Amaranth, simulated, and synthesised to gates.

Needs the extra `hdl`.
"""
