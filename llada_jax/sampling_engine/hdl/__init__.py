"""The engine's units as hardware: wires, simulated, counted as gates, and written as Verilog."""
