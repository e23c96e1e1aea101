"""The units that are more than an adder: exponential, reciprocal, and those that reduce a row.

The maximum of a row and where it first is, its sum, and its k largest keys come with a token that
was `valid` where the row was: a register behind the inputs of the maximum and behind each of its
levels, two behind each level of the sum.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from llada_jax.sampling_engine.hdl.floats import (
    EXPONENT,
    FRACTION,
    MINUS_INFINITY,
    WIDTH,
    add,
    leading_zeros,
    order,
    packed,
    parts,
    shifted_left,
    shifted_right,
    widened,
)
from llada_jax.sampling_engine.hdl.wires import Register, Wire, cat, const, either, held, mux, rom

_INFINITY = 255

# 2**f for f = high + middle + low of 6, 5 and 11 bits: a table, times one and a little, which is
# a table and a straight line. These widths are the smallest found for which all 65,536 results
# are right, which a test shows; so is the last bit of the constant and of the first table.
_FRACTION, _HIGH, _MIDDLE = 22, 6, 5
_LOW = _FRACTION - _HIGH - _MIDDLE
_TABLE_BITS, _LITTLE_BITS, _SLOPE_BITS = 17, 19, 5
_LOG2_E_BITS = 24
_LOG2_E = round(math.log2(math.e) * 2**_LOG2_E_BITS) - 1
_TABLE = [round(2 ** (i / 2**_HIGH + _TABLE_BITS)) + 1 for i in range(1 << _HIGH)]
_LITTLE = [
    round((2 ** (i / 2 ** (_HIGH + _MIDDLE)) - 1) * 2**_LITTLE_BITS) for i in range(1 << _MIDDLE)
]
_SLOPE = round(math.log(2) * 2**_SLOPE_BITS)
_LARGE = 134
"""The exponent field of 128, whose exponential is infinite."""


def exponential(number: Wire) -> Wire:
    """Returns exp of a BF16 number, three cycles later: exp(x) = 2**k * 2**f."""
    sign, exponent = number[-1], number[7:-1]
    scaled = cat(number[:7], exponent.any()) * const(_LOG2_E, _LOG2_E_BITS + 1)
    places = const(_LARGE + _LOG2_E_BITS - _FRACTION, EXPONENT) - exponent
    power = shifted_right(scaled, places)[0][: _FRACTION + EXPONENT]
    power = held(mux(sign, ~power, power))
    sign, large = held(sign), held(~(exponent < _LARGE))

    low, middle = power[:_LOW], power[_LOW : _LOW + _MIDDLE]
    line = (low * const(_SLOPE, _SLOPE_BITS))[_SLOPE_BITS + _FRACTION - _LITTLE_BITS :]
    little_bits = _LITTLE_BITS - _HIGH
    little = held(rom(middle, _LITTLE, little_bits) + line.wide(little_bits))
    first = held(rom(power[_LOW + _MIDDLE : _FRACTION], _TABLE, _TABLE_BITS + 1))
    whole, sign, large = held(cat(power[_FRACTION:], sign)), held(sign), held(large)

    more = (first * little)[_LITTLE_BITS:]
    mantissa = held((first + more.wide(len(first)))[-9:])
    whole, sign, large = held(whole), held(sign), held(large)

    below = whole.signed(10) + 126
    tiny = below[-1]
    places = const(-126, EXPONENT) - whole[:EXPONENT]
    shifted = shifted_right(mantissa, places)[0]
    mantissa = mux(tiny, shifted, mantissa)
    result = packed(const(0, 1), mux(tiny, 0, below[:EXPONENT]), mantissa[1:], mantissa[0])
    infinite = ~sign & (large | below[EXPONENT])
    return mux(infinite, _INFINITY << 7, mux(large, 0, result))


def reciprocal(number: Wire, start: Wire) -> tuple[Wire, Wire]:
    """Returns 1 / number, and 0 for 0, as long as the number stays; and when it is there.

    Long division, two bits a cycle.
    """
    exponent, mantissa = parts(number)
    zeros = leading_zeros(mantissa)
    divisor = held(shifted_left(mantissa, zeros))
    exponent = held(exponent.wide(EXPONENT + 2) - zeros.wide(EXPONENT + 2))
    bits = FRACTION + 3
    rest, quotient, left = Register(FRACTION + 2), Register(bits), Register(4)
    following, found = rest, []
    for _ in range(2):
        less = following < divisor.wide(len(rest))
        difference = mux(less, following, following - divisor.wide(len(rest)))
        following = cat(const(0, 1), difference[:-1])
        found = [~less, *found]
    rest.set(mux(start, 1 << FRACTION, following))
    quotient.set(mux(start, 0, cat(*found, quotient[:-2])))
    left.set(mux(start, bits // 2 + 1, mux(left.any(), left - 1, 0)))

    exact = quotient[-1]
    word = mux(exact, quotient[1:], quotient[:-1])
    below = const(252, EXPONENT + 2) - exponent + exact.wide(EXPONENT + 2)
    tiny = below[-1]
    places = cat(below[0] & tiny, ~below[0] & tiny)
    word, lost = shifted_right(word, places)
    up = word[0] & (word[1] | lost | rest.any())
    result = packed(number[-1], mux(tiny, 0, below[:EXPONENT]), word[1:], up)
    infinite = ~tiny & below[EXPONENT:-1].any()
    result = mux(infinite, cat(const(_INFINITY << FRACTION, WIDTH - 1), number[-1]), result)
    return mux(number[:-1].any(), result, 0), left.equals(1)


def max_index(lanes: Sequence[Wire], used: Wire, valid: Wire) -> tuple[Wire, Wire, Wire]:
    """Returns the largest BF16 number of the lanes in use, its first lane, and the token."""
    numbers = [mux(used[i], lane, MINUS_INFINITY) for i, lane in enumerate(lanes)]
    level = [_Best(held(order(number)), held(number[-1]), ()) for number in numbers]
    valid = held(valid)
    while len(level) > 1:
        level = [_larger(*pair) for pair in zip(level[::2], level[1::2], strict=True)]
        valid = held(valid)
    key, sign, place = level[0]
    return cat(mux(key[-1], key[:-1], ~key[:-1]), sign), cat(*place), valid


class _Best(NamedTuple):
    """A number's key, its sign (as -0 has the key of 0), and the bits of its place."""

    key: Wire
    sign: Wire
    place: tuple[Wire, ...]


def _larger(first: _Best, second: _Best) -> _Best:
    """Returns registers with the larger number; the first where they are equal."""
    later = first.key < second.key
    places = (mux(later, b, a) for a, b in zip(first.place, second.place, strict=True))
    return _Best(
        held(mux(later, second.key, first.key)),
        held(mux(later, second.sign, first.sign)),
        tuple(map(held, (*places, later))),
    )


def sum_tree(lanes: Sequence[Wire], used: Wire, valid: Wire) -> tuple[Wire, Wire]:
    """Returns the float32 sum of the lanes in use, and the token.

    Lane i is added to lane i + half, level by level, as `machine.tree_sum` does.
    """
    level = [widened(mux(used[i], lane, 0)) for i, lane in enumerate(lanes)]
    while len(level) > 1:
        half = len(level) // 2
        level = [held(add(*pair)) for pair in zip(level[:half], level[half:], strict=True)]
        valid = held(valid, cycles=2)
    return level[0], valid


def top_k(key: Wire, place: Wire, admitted: Wire, start: Wire, k: Wire, lanes: int, slots: int):
    """Returns a bit a lane for the k largest positive keys since `start`, one key a cycle.

    Slots hold the largest keys so far in order. A key that is greater than a slot's moves that slot
    and all after it down by one. Slots start at 0, so that only positive keys enter, and an equal
    key that comes later stays behind. What falls out of the first k slots leaves the mask.
    """
    bits = len(place)
    held_keys = [Register(bits + len(key)) for _ in range(slots)]
    takes = admitted & ~key[-1]
    passes = [takes & (slot[bits:] < key) for slot in held_keys]
    new = cat(place, key)
    moved = [new, *(mux(a, b, new) for a, b in zip(passes, held_keys, strict=True))]
    for slot, passed, above in zip(held_keys, passes, moved, strict=False):
        slot.set(mux(start, 0, mux(passed, above, slot)))

    last = [k.equals(count) for count in range(1, slots + 1)]
    enters = either([a & b for a, b in zip(last, passes, strict=True)])
    leaving = either([mux(a, slot, 0) for a, slot in zip(last, held_keys, strict=True)])
    mask, leaves = Register(lanes), leaving[bits:].any()
    kept = (mask[i] & ~(leaves & leaving[:bits].equals(i)) for i in range(lanes))
    changed = cat(*(place.equals(i) | bit for i, bit in enumerate(kept)))
    mask.set(mux(start, 0, mux(enters, changed, mask)))
    return mask
