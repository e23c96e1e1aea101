"""MX elements and their block's scale as BF16, as a load gives them to the engine."""

from typing import NamedTuple

from llada_jax.sampling_engine.hdl.floats import (
    EXPONENT,
    HALF,
    LARGEST,
    MINUS_INFINITY,
    leading_zeros,
    packed,
    shifted_left,
    shifted_right,
)
from llada_jax.sampling_engine.hdl.wires import Wire, cat, const, mux

_SIGNIFICAND, _GUARDS = 8, 3
_BELOW = EXPONENT + 2
"""Bits of an exponent that may be too large or below 0."""


class Element(NamedTuple):
    """An 8-bit float: its exponent's bits and bias, and whether its highest exponent has numbers
    (all but one, which is NaN) or infinity and NaN."""

    exponent: int
    bias: int
    all_but_one: bool


ELEMENTS = {"mx_e4m3": Element(4, 7, True), "mx_e3m4": Element(3, 3, False)}
"""OCP Microscaling Formats, version 1.0, for E4M3; E3M4 is IEEE 754's pattern."""


def loaded(format: Element, element: Wire, scale: Wire) -> Wire:
    """Returns an element [8] times its scale [8], of bias 127, in BF16: -inf of NaN, and the
    largest number of what is too large."""
    fraction = 7 - format.exponent
    sign, field = element[-1], element[fraction:-1]
    normal, top = field.any(), field.all()
    missing = element[:-1].all() if format.all_but_one else top & element[:fraction].any()
    mantissa = cat(element[:fraction], normal)
    zeros = leading_zeros(mantissa)
    leading = cat(const(0, _SIGNIFICAND - len(mantissa)), shifted_left(mantissa, zeros))

    # The exponent of BF16, less one; a subnormal element's exponent is that of the least normal.
    own = cat(field[0] | ~normal, field[1:]).wide(_BELOW)
    below = own + scale.wide(_BELOW) - zeros.wide(_BELOW) - (format.bias + 1)
    tiny = below[-1]
    places = mux(tiny, const(0, _BELOW) - below, 0)[:4]
    word, lost = shifted_right(cat(const(0, _GUARDS), leading), places)
    up = word[2] & (word[3] | word[:2].any() | lost)
    number = packed(sign, mux(tiny, 0, below[:EXPONENT]), word[_GUARDS:], up)

    large = ~tiny & below[EXPONENT] | number[7:-1].all()
    if not format.all_but_one:
        large |= top
    number = mux(large, mux(sign, MINUS_INFINITY, const(LARGEST, HALF)), number)
    zero = cat(const(0, HALF - 1), sign)
    return mux(missing, MINUS_INFINITY, mux(mantissa.any(), number, zero))
