"""The unit behind V_TOPK_MASK: the k largest positive keys of a stream, one key a cycle.

Slots hold the largest keys so far in order. A key that is greater than a slot's moves that slot
and all after it down by one. Slots start at 0, so that only positive keys enter, and an equal key
that comes later stays behind.
"""

from typing import NamedTuple

from amaranth.hdl import Elaboratable, Module, Mux, Signal

from llada_jax.sampling_engine.hdl.sum_tree import LANE_WIDTH


class _Slot(NamedTuple):
    key: Signal
    index: Signal


class TopK(Elaboratable):
    """`mask` has a bit for each of the best `k` keys since `start`, a cycle after the last one.

    A key comes every cycle; one with `start` is the first of a new stream, and one without
    `admitted` only takes its place.
    """

    latency = 1

    def __init__(self, slots: int, length: int) -> None:
        self.key = Signal(LANE_WIDTH)
        self.admitted = Signal()
        self.start = Signal()
        self.k = Signal(range(slots + 1))
        self.mask = Signal(length)
        self.slots = slots
        self._slots = [
            _Slot(Signal(LANE_WIDTH, name=f"key{i}"), Signal(range(length), name=f"index{i}"))
            for i in range(slots)
        ]
        self._place = Signal(range(length))

    @property
    def ports(self) -> list[Signal]:
        return [self.key, self.admitted, self.start, self.k, self.mask]

    def elaborate(self, platform) -> Module:
        m = Module()
        place = Signal.like(self._place)
        m.d.comb += place.eq(Mux(self.start, 0, self._place))
        m.d.sync += self._place.eq(place + 1)

        takes = self.admitted & ~self.key[-1]
        new = _Slot(self.key, place)
        before, passes_before = new, None
        for slot in self._slots:
            held = Signal(LANE_WIDTH)
            m.d.comb += held.eq(Mux(self.start, 0, slot.key))
            passes = Signal()
            m.d.comb += passes.eq(takes & (self.key > held))
            from_above = before if passes_before is None else _chosen(passes_before, before, new)
            m.d.sync += [
                slot.key.eq(Mux(passes, from_above.key, held)),
                slot.index.eq(Mux(passes, from_above.index, slot.index)),
            ]
            before, passes_before = _Slot(held, slot.index), passes
        self._show(m)
        return m

    def _show(self, m: Module) -> None:
        for i, slot in enumerate(self._slots):
            with m.If((i < self.k) & (slot.key != 0)):
                m.d.comb += self.mask.bit_select(slot.index, 1).eq(1)


def _chosen(condition: Signal, yes: _Slot, no: _Slot) -> _Slot:
    return _Slot(*(Mux(condition, a, b) for a, b in zip(yes, no, strict=True)))
