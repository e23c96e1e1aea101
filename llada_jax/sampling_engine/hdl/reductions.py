"""Units that reduce a row: its maximum and the first lane with it, its sum, its k largest keys.

They are pipelined. A `valid` bit travels with the data: through one register after the inputs and
after each level of the maximum, and two after each level of the sum.
"""

from collections.abc import Sequence
from typing import NamedTuple

from llada_jax.sampling_engine.hdl.floats import MINUS_INFINITY, add, order, to_float32
from llada_jax.sampling_engine.hdl.wires import Register, Wire, cat, delay, either, mux


def max_index(lanes: Sequence[Wire], used: Wire, valid: Wire) -> tuple[Wire, Wire, Wire]:
    """Returns the largest BF16 number of the used lanes, its first lane, and the valid bit."""
    numbers = [mux(used[i], lane, MINUS_INFINITY) for i, lane in enumerate(lanes)]
    level = [_KeyedNumber(delay(order(number)), delay(number[-1]), ()) for number in numbers]
    valid = delay(valid)
    while len(level) > 1:
        level = [_larger(*pair) for pair in zip(level[::2], level[1::2], strict=True)]
        valid = delay(valid)
    key, sign, place = level[0]
    return cat(mux(key[-1], key[:-1], ~key[:-1]), sign), cat(*place), valid


class _KeyedNumber(NamedTuple):
    """A number's sort key, its sign (since -0 has the key of 0), and the bits of its lane."""

    key: Wire
    sign: Wire
    place: tuple[Wire, ...]


def _larger(first: _KeyedNumber, second: _KeyedNumber) -> _KeyedNumber:
    """Returns registers with the larger number; the first if they are equal."""
    later = first.key < second.key
    places = (mux(later, b, a) for a, b in zip(first.place, second.place, strict=True))
    return _KeyedNumber(
        delay(mux(later, second.key, first.key)),
        delay(mux(later, second.sign, first.sign)),
        tuple(map(delay, (*places, later))),
    )


def sum_tree(lanes: Sequence[Wire], used: Wire, valid: Wire) -> tuple[Wire, Wire]:
    """Returns the float32 sum of the used lanes, and the valid bit.

    Lane i is added to lane i + half, level by level, as in `machine.tree_sum`.
    """
    level = [to_float32(mux(used[i], lane, 0)) for i, lane in enumerate(lanes)]
    while len(level) > 1:
        half = len(level) // 2
        level = [delay(add(*pair)) for pair in zip(level[:half], level[half:], strict=True)]
        valid = delay(valid, cycles=2)
    return level[0], valid


def top_k(key: Wire, place: Wire, admitted: Wire, start: Wire, k: Wire, lanes: int, slots: int):
    """Returns a mask of lanes with the k largest positive keys since `start`, one key per cycle.

    Slots hold the largest keys so far in descending order. A key that is greater than a slot's
    moves this slot and all later ones down by one. Slots start at 0, so only positive keys enter;
    a later key that is equal stays behind. The lane that leaves the first k slots is cleared.
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
