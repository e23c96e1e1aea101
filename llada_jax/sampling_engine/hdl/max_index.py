"""The unit behind V_RED_MAX_IDX: the largest number of a stream of rows, and where it first is.

A tree of comparisons over the lanes of a row, a register behind the inputs and each level, and a
register that keeps the best row so far: log2(lanes) + 2 cycles, a row every cycle.
"""

from typing import NamedTuple

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal

from llada_jax.sampling_engine.hdl.sum_tree import LANE_WIDTH

INDEX_WIDTH = 20
LOWEST = 0xFF7F
"""The lowest finite BF16 number, from which the running maximum starts."""


class _Best(NamedTuple):
    number: Signal
    index: Signal


class MaxIndex(Elaboratable):
    """`best` and `index` of the rows with `valid` up to `latency` cycles ago, since `start`.

    `base` is the index of a row's lane 0. A row with `start` is the first of a new stream.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = [Signal(LANE_WIDTH, name=f"lane{i}") for i in range(lanes)]
        self.base = Signal(INDEX_WIDTH)
        self.start = Signal()
        self.valid = Signal()
        self.best = Signal(LANE_WIDTH, init=LOWEST)
        self.index = Signal(INDEX_WIDTH)
        self.latency = lanes.bit_length() + 1

    @property
    def ports(self) -> list[Signal]:
        return [*self.lanes, self.base, self.start, self.valid, self.best, self.index]

    def elaborate(self, platform) -> Module:
        m = Module()
        row, start, valid = self._row(m)
        before, index_before = Signal(LANE_WIDTH), Signal(INDEX_WIDTH)
        m.d.comb += [
            before.eq(Mux(start, LOWEST, self.best)),
            index_before.eq(Mux(start, 0, self.index)),
        ]
        better = valid & (_order(row.number) > _order(before))
        m.d.sync += [
            self.best.eq(Mux(better, row.number, before)),
            self.index.eq(Mux(better, row.index, index_before)),
        ]
        return m

    def _row(self, m: Module) -> tuple[_Best, Signal, Signal]:
        """Returns the best lane of a row, and the row's `start` and `valid` delayed as much."""
        level = []
        for i, lane in enumerate(self.lanes):
            best = _Best(Signal(LANE_WIDTH, name=f"input{i}"), Signal(INDEX_WIDTH, name=f"at{i}"))
            m.d.sync += [best.number.eq(lane), best.index.eq(self.base + i)]
            level.append(best)
        start, valid = _delayed(m, self.start), _delayed(m, self.valid)
        while len(level) > 1:
            level = [_better(m, *pair) for pair in zip(level[::2], level[1::2], strict=True)]
            start, valid = _delayed(m, start), _delayed(m, valid)
        return level[0], start, valid


def _order(number: Signal):
    """Bits whose order as whole numbers is that of BF16 numbers; -0 equals 0."""
    zero = number[:-1] == 0
    negative = number[-1] & ~zero
    return Cat(Mux(negative, ~number[:-1], number[:-1]), ~negative)


def _better(m: Module, first: _Best, second: _Best) -> _Best:
    """Returns a register with the larger; the first, whose index is lower, where they are equal."""
    best = _Best(Signal(LANE_WIDTH), Signal(INDEX_WIDTH))
    later = _order(second.number) > _order(first.number)
    m.d.sync += [
        best.number.eq(Mux(later, second.number, first.number)),
        best.index.eq(Mux(later, second.index, first.index)),
    ]
    return best


def _delayed(m: Module, signal: Signal) -> Signal:
    register = Signal()
    m.d.sync += register.eq(signal)
    return register
