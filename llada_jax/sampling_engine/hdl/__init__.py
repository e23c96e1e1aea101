"""The engine as hardware: described as wires, which are simulated, reduced to gates, or written as
Verilog."""
