"""The reduction unit behind V_RED_SUM: a row of BF16 lanes to its float32 sum.

Lane i is added to lane i + half, level by level, as `machine.tree_sum` does. A register behind
the inputs and behind each level: log2(lanes) + 1 cycles, a row every cycle.
"""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Signal

from llada_jax.sampling_engine.hdl.float_adder import WIDTH, FloatAdder

LANE_WIDTH = 16


class SumTree(Elaboratable):
    """`total` is the sum of the lanes of `latency` cycles ago."""

    def __init__(self, lanes: int) -> None:
        self.lanes = [Signal(LANE_WIDTH, name=f"lane{i}") for i in range(lanes)]
        self.total = Signal(WIDTH)
        self.latency = lanes.bit_length()

    @property
    def ports(self) -> list[Signal]:
        return [*self.lanes, self.total]

    def elaborate(self, platform) -> Module:
        m = Module()
        level = [Signal(WIDTH, name=f"input{i}") for i in range(len(self.lanes))]
        for register, lane in zip(level, self.lanes, strict=True):
            m.d.sync += register.eq(Cat(Const(0, WIDTH - LANE_WIDTH), lane))
        while len(level) > 1:
            half = len(level) // 2
            level = [_added(m, *pair) for pair in zip(level[:half], level[half:], strict=True)]
        m.d.comb += self.total.eq(level[0])
        return m


def _added(m: Module, a: Signal, b: Signal) -> Signal:
    """Returns a register with the sum."""
    adder, register = FloatAdder(), Signal(WIDTH)
    m.submodules += adder
    m.d.comb += [adder.a.eq(a), adder.b.eq(b)]
    m.d.sync += register.eq(adder.total)
    return register
