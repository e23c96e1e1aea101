"""Float32 and BF16 as wires: IEEE 754, nearest even, with subnormals; and MX elements with their
block's scale as BF16, as a load gives them to the engine.

For numbers and -inf: loads leave no NaN and no +inf. What is too large becomes infinity.
"""

import math

from llada_jax.sampling_engine.hdl.wires import Register, Wire, cat, const, held, mux, rom

EXPONENT, FRACTION = 8, 23
WIDTH, HALF = 32, 16
ONE, LARGEST, MINUS_INFINITY = 0x3F80, 0x7F7F, 0xFF80  # in BF16
_MANTISSA = FRACTION + 1
_GUARDED = _MANTISSA + 4  # a carry above; guard, round and sticky bits below
_TOP = (1 << EXPONENT) - 1
_SIGNIFICAND, _GUARDS = 8, 3  # of a load
_BELOW = EXPONENT + 2
"""Bits of an exponent that may be too large or below 0."""

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


def widened(bfloat16: Wire) -> Wire:
    """Returns a BF16 number in float32."""
    return cat(const(0, WIDTH - HALF), bfloat16)


def narrowed(number: Wire) -> Wire:
    """Rounds float32 to BF16."""
    up = number[15] & (number[:15].any() | number[16])
    return number[16:] + up.wide(HALF)


def negative(number: Wire) -> Wire:
    return cat(number[:-1], ~number[-1])


def order(number: Wire) -> Wire:
    """Returns bits whose order as whole numbers is that of the numbers; -0 equals 0."""
    minus = number[-1] & number[:-1].any()
    return cat(mux(minus, ~number[:-1], number[:-1]), ~minus)


def leading_zeros(word: Wire) -> Wire:
    """Counts the zeros above the highest one, in a word that is padded below with ones."""
    size = 1 << (len(word) - 1).bit_length()
    count, _ = _zeros(cat(const(-1, size - len(word)), word) if size > len(word) else word)
    return count


def _zeros(word: Wire) -> tuple[Wire, Wire]:
    """Returns how many zeros are above the highest one, and whether there is none."""
    if len(word) == 2:
        return ~word[1], ~(word[0] | word[1])
    half = len(word) // 2
    (low, no_low), (high, no_high) = _zeros(word[:half]), _zeros(word[half:])
    return cat(mux(no_high, low, high), no_high), no_high & no_low


def shifted_left(word: Wire, places: Wire) -> Wire:
    for i in range(len(places)):
        by = 1 << i
        moved = cat(const(0, by), word[:-by]) if by < len(word) else const(0, len(word))
        word = mux(places[i], moved, word)
    return word


def shifted_right(word: Wire, places: Wire) -> tuple[Wire, Wire]:
    """Returns the word shifted, and whether a one fell off."""
    lost = const(0, 1)
    for i in range(len(places)):
        by = min(1 << i, len(word))
        moved = word[by:].wide(len(word)) if by < len(word) else const(0, len(word))
        lost |= places[i] & word[:by].any()
        word = mux(places[i], moved, word)
    return word, lost


def parts(number: Wire) -> tuple[Wire, Wire]:
    """Returns exponent, 1 for subnormals too, and mantissa with its leading bit."""
    field = number[FRACTION:-1]
    normal = field.any()
    return cat(field[0] | ~normal, field[1:]), cat(number[:FRACTION], normal)


def packed(sign: Wire, below: Wire, mantissa: Wire, up: Wire) -> Wire:
    """Puts a number together, from a mantissa whose leading bit counts the exponent up.

    `below` is the exponent less one, and 0 where the mantissa has no leading bit. Rounding `up` may
    carry into the exponent; what is too large is infinite.
    """
    fraction = len(mantissa) - 1
    base = cat(mantissa[:-1], below)
    extra = cat(up, const(0, fraction - 1), mantissa[-1]).wide(len(base) + 1)
    bits = base.wide(len(base) + 1) + extra
    infinite = bits[-1] | bits[fraction : fraction + EXPONENT].all()
    return cat(mux(infinite, _TOP << fraction, bits[: fraction + EXPONENT]), sign)


def add(a: Wire, b: Wire) -> Wire:
    """Returns a + b, a cycle later: what is aligned lies in registers."""
    swap = a[:-1] < b[:-1]
    large, small = mux(swap, b, a), mux(swap, a, b)
    (exponent, mantissa), (smaller, other) = parts(large), parts(small)
    aligned, lost = shifted_right(cat(const(0, 3), other), (exponent - smaller))
    aligned = held(cat(aligned[0] | lost, aligned[1:]).wide(_GUARDED))
    subtract, sign = held(large[-1] ^ small[-1]), held(large[-1])
    infinite = held(large[FRACTION:-1].all())
    # A one that stops the shift where the exponent would fall below its least.
    last = held(shifted_right(const(1 << _GUARDED - 1, _GUARDED), exponent)[0])
    exponent, mantissa = held(exponent), held(cat(const(0, 3), mantissa).wide(_GUARDED))

    raw = cat(const(1, 1), mantissa) + cat(subtract, mux(subtract, ~aligned, aligned))
    raw = raw[1:]
    zeros = leading_zeros(raw | last)
    normal = shifted_left(raw, zeros)
    below = exponent - zeros.wide(EXPONENT)
    up = normal[3] & (normal[:3].any() | normal[4])
    total = packed(sign & (raw.any() | ~subtract), below, normal[4:], up)
    magnitude = mux(infinite, _TOP << FRACTION, mux(raw.any(), total[:-1], 0))
    return cat(magnitude, total[-1])


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
    return mux(infinite, _TOP << 7, mux(large, 0, result))


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
    result = mux(infinite, cat(const(_TOP << FRACTION, WIDTH - 1), number[-1]), result)
    return mux(number[:-1].any(), result, 0), left.equals(1)


def loaded(element: Wire, scale: Wire) -> Wire:
    """Returns an element [8] in E4M3 (OCP Microscaling Formats, version 1.0) times its scale [8],
    of bias 127, in BF16: -inf of NaN, and the largest number of what is too large."""
    fraction, bias = 3, 7
    sign, field = element[-1], element[fraction:-1]
    normal, missing = field.any(), element[:-1].all()
    mantissa = cat(element[:fraction], normal)
    zeros = leading_zeros(mantissa)
    leading = cat(const(0, _SIGNIFICAND - len(mantissa)), shifted_left(mantissa, zeros))

    # The exponent of BF16, less one; a subnormal element's exponent is that of the least normal.
    own = cat(field[0] | ~normal, field[1:]).wide(_BELOW)
    below = own + scale.wide(_BELOW) - zeros.wide(_BELOW) - (bias + 1)
    tiny = below[-1]
    places = mux(tiny, const(0, _BELOW) - below, 0)[:4]
    word, lost = shifted_right(cat(const(0, _GUARDS), leading), places)
    up = word[2] & (word[3] | word[:2].any() | lost)
    number = packed(sign, mux(tiny, 0, below[:EXPONENT]), word[_GUARDS:], up)

    large = ~tiny & below[EXPONENT] | number[7:-1].all()
    number = mux(large, mux(sign, MINUS_INFINITY, const(LARGEST, HALF)), number)
    zero = cat(const(0, HALF - 1), sign)
    return mux(missing, MINUS_INFINITY, mux(mantissa.any(), number, zero))
