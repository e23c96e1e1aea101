"""An adder of float32 numbers: IEEE 754, nearest even, with subnormals.

For finite inputs, which is what the engine has: loads leave no NaN and no infinity but -inf, and a
maximum is subtracted before a sum. What is too large becomes infinity.
"""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal

EXPONENT, FRACTION = 8, 23
WIDTH = 1 + EXPONENT + FRACTION
_MANTISSA = FRACTION + 1
_EXTENDED = _MANTISSA + 3  # guard, round and sticky bits
_INFINITY = (1 << EXPONENT) - 1


class FloatAdder(Elaboratable):
    """`total = a + b`, without registers."""

    def __init__(self) -> None:
        self.a = Signal(WIDTH)
        self.b = Signal(WIDTH)
        self.total = Signal(WIDTH)

    def elaborate(self, platform) -> Module:
        m = Module()
        swap = Signal()
        large, small = Signal(WIDTH), Signal(WIDTH)
        m.d.comb += [
            swap.eq(self.b[:-1] > self.a[:-1]),
            large.eq(Mux(swap, self.b, self.a)),
            small.eq(Mux(swap, self.a, self.b)),
        ]
        exponent, mantissa = _parts(m, large)
        small_exponent, small_mantissa = _parts(m, small)
        aligned = _aligned(m, small_mantissa, exponent - small_exponent)

        subtract, raw = Signal(), Signal(_EXTENDED + 1)
        m.d.comb += subtract.eq(large[-1] ^ small[-1])
        wide = Cat(Const(0, 3), mantissa)
        m.d.comb += raw.eq(Mux(subtract, wide - aligned, wide + aligned))

        normal, exponent = _normalised(m, raw, exponent)
        magnitude = _rounded(m, normal, exponent)
        m.d.comb += self.total.eq(Cat(magnitude, large[-1] & ((raw != 0) | ~subtract)))
        return m


def _parts(m: Module, number: Signal) -> tuple[Signal, Signal]:
    """Returns exponent, 1 for subnormals too, and mantissa with its leading bit."""
    exponent, mantissa = Signal(EXPONENT), Signal(_MANTISSA)
    field = number[FRACTION:-1]
    m.d.comb += exponent.eq(Mux(field == 0, 1, field))
    m.d.comb += mantissa.eq(Cat(number[:FRACTION], field != 0))
    return exponent, mantissa


def _aligned(m: Module, mantissa: Signal, distance) -> Signal:
    """Shifts the mantissa right; what falls off is remembered in the last bit."""
    places, shifted, aligned = Signal(5), Signal(2 * _EXTENDED), Signal(_EXTENDED)
    m.d.comb += places.eq(Mux(distance > _EXTENDED, _EXTENDED, distance))
    m.d.comb += shifted.eq(Cat(Const(0, _EXTENDED + 3), mantissa) >> places)
    lost = shifted[:_EXTENDED].any()
    m.d.comb += aligned.eq(shifted[_EXTENDED:] | lost)
    return aligned


def _normalised(m: Module, raw: Signal, exponent: Signal) -> tuple[Signal, Signal]:
    """Puts the sum's leading bit in place, as far as the smallest exponent allows."""
    zeros, left = Signal(5), Signal(5)
    m.d.comb += zeros.eq(_EXTENDED)
    for place in range(_EXTENDED):
        with m.If(raw[place]):
            m.d.comb += zeros.eq(_EXTENDED - 1 - place)
    m.d.comb += left.eq(Mux(zeros >= exponent, exponent - 1, zeros))
    normal, moved = Signal(_EXTENDED), Signal(EXPONENT + 1)
    with m.If(raw[-1]):
        m.d.comb += normal.eq(Cat(raw[0] | raw[1], raw[2:]))
        m.d.comb += moved.eq(exponent + 1)
    with m.Else():
        m.d.comb += normal.eq((raw << left)[:_EXTENDED])
        m.d.comb += moved.eq(exponent - left)
    return normal, moved


def _rounded(m: Module, normal: Signal, exponent: Signal) -> Signal:
    """Rounds the bits of exponent and fraction. A carry out of the fraction counts up the exponent,
    and a leading bit that is missing (a subnormal number) leaves it 0."""
    up, packed = Signal(), Signal(EXPONENT + 1 + FRACTION)
    m.d.comb += up.eq(normal[2] & (normal[0] | normal[1] | normal[3]))
    m.d.comb += packed.eq(((exponent - 1) << FRACTION) + normal[3:] + up)
    magnitude = Signal(WIDTH - 1)
    infinite = packed[FRACTION:] >= _INFINITY
    finite = Mux(normal == 0, 0, packed[: WIDTH - 1])
    m.d.comb += magnitude.eq(Mux(infinite, _INFINITY << FRACTION, finite))
    return magnitude
