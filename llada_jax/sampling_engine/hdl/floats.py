"""Arithmetic on float32 and BF16 as wires: IEEE 754, round to nearest even, with subnormals. Also
the conversion of MX elements with their block's scale to BF16, for loads.

Supports numbers and -inf; loads remove NaN and +inf. Overflow gives infinity.
"""

import math

from llada_jax.sampling_engine.hdl.wires import Register, Wire, cat, const, delay, mux, rom

EXPONENT, FRACTION = 8, 23
WIDTH, HALF = 32, 16
ONE, LARGEST, MINUS_INFINITY = 0x3F80, 0x7F7F, 0xFF80  # in BF16
_MANTISSA = FRACTION + 1
_GUARDED = _MANTISSA + 4  # a carry above; guard, round and sticky bits below
_TOP = (1 << EXPONENT) - 1
_SIGNIFICAND, _GUARDS = 8, 3  # bits in the conversion of MX elements
_BELOW = EXPONENT + 2
"""Bits of an exponent that may overflow or be negative."""

# 2**f for f = high + middle + low of 6, 5 and 11 bits is computed as a table of 2**high, times a
# number slightly above 1, which is a table of 2**middle plus a linear term in low. These widths are
# the smallest for which all 65,536 results are right (a test checks them all), and so are the last
# bits of the constant and of the first table.
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
"""The exponent field of 128, from which on the exponential is infinite."""


def to_float32(bfloat16: Wire) -> Wire:
    """Extends a BF16 number to float32."""
    return cat(const(0, WIDTH - HALF), bfloat16)


def to_bfloat16(number: Wire) -> Wire:
    """Rounds float32 to BF16."""
    up = number[15] & (number[:15].any() | number[16])
    return number[16:] + up.wide(HALF)


def negative(number: Wire) -> Wire:
    return cat(number[:-1], ~number[-1])


def order(number: Wire) -> Wire:
    """Returns bits that are ordered as unsigned integers like the numbers; -0 equals 0."""
    minus = number[-1] & number[:-1].any()
    return cat(mux(minus, ~number[:-1], number[:-1]), ~minus)


def _leading_zeros(word: Wire) -> Wire:
    """Counts leading zeros; if the length is not a power of two, ones are appended."""
    size = 1 << (len(word) - 1).bit_length()
    count, _ = _zeros(cat(const(-1, size - len(word)), word) if size > len(word) else word)
    return count


def _zeros(word: Wire) -> tuple[Wire, Wire]:
    """Returns the number of leading zeros, and whether all bits are zero."""
    if len(word) == 2:
        return ~word[1], ~(word[0] | word[1])
    half = len(word) // 2
    (low, no_low), (high, no_high) = _zeros(word[:half]), _zeros(word[half:])
    return cat(mux(no_high, low, high), no_high), no_high & no_low


def _shifted_left(word: Wire, places: Wire) -> Wire:
    for i in range(len(places)):
        by = 1 << i
        moved = cat(const(0, by), word[:-by]) if by < len(word) else const(0, len(word))
        word = mux(places[i], moved, word)
    return word


def _shifted_right(word: Wire, places: Wire) -> tuple[Wire, Wire]:
    """Returns the shifted word, and whether a one was shifted out."""
    lost = const(0, 1)
    for i in range(len(places)):
        by = min(1 << i, len(word))
        moved = word[by:].wide(len(word)) if by < len(word) else const(0, len(word))
        lost |= places[i] & word[:by].any()
        word = mux(places[i], moved, word)
    return word, lost


def _parts(number: Wire) -> tuple[Wire, Wire]:
    """Returns exponent (1 for subnormals) and mantissa with its leading bit."""
    field = number[FRACTION:-1]
    normal = field.any()
    return cat(field[0] | ~normal, field[1:]), cat(number[:FRACTION], normal)


def _assemble(sign: Wire, below: Wire, mantissa: Wire, up: Wire) -> Wire:
    """Assembles a number from a mantissa with its leading bit, which is added to the exponent.

    `below` is the exponent minus one, or 0 if the mantissa has no leading bit. Rounding `up` may
    carry into the exponent; overflow gives infinity.
    """
    fraction = len(mantissa) - 1
    base = cat(mantissa[:-1], below)
    extra = cat(up, const(0, fraction - 1), mantissa[-1]).wide(len(base) + 1)
    bits = base.wide(len(base) + 1) + extra
    infinite = bits[-1] | bits[fraction : fraction + EXPONENT].all()
    return cat(mux(infinite, _TOP << fraction, bits[: fraction + EXPONENT]), sign)


def add(a: Wire, b: Wire) -> Wire:
    """Returns a + b one cycle later; the aligned operands are stored in registers."""
    swap = a[:-1] < b[:-1]
    large, small = mux(swap, b, a), mux(swap, a, b)
    (exponent, mantissa), (smaller, other) = _parts(large), _parts(small)
    aligned, lost = _shifted_right(cat(const(0, 3), other), (exponent - smaller))
    aligned = delay(cat(aligned[0] | lost, aligned[1:]).wide(_GUARDED))
    subtract, sign = delay(large[-1] ^ small[-1]), delay(large[-1])
    infinite = delay(large[FRACTION:-1].all())
    # A one that limits the normalising shift so that the exponent does not fall below its minimum.
    last = delay(_shifted_right(const(1 << _GUARDED - 1, _GUARDED), exponent)[0])
    exponent, mantissa = delay(exponent), delay(cat(const(0, 3), mantissa).wide(_GUARDED))

    raw = cat(const(1, 1), mantissa) + cat(subtract, mux(subtract, ~aligned, aligned))
    raw = raw[1:]
    zeros = _leading_zeros(raw | last)
    normal = _shifted_left(raw, zeros)
    below = exponent - zeros.wide(EXPONENT)
    up = normal[3] & (normal[:3].any() | normal[4])
    total = _assemble(sign & (raw.any() | ~subtract), below, normal[4:], up)
    magnitude = mux(infinite, _TOP << FRACTION, mux(raw.any(), total[:-1], 0))
    return cat(magnitude, total[-1])


def exponential(number: Wire) -> Wire:
    """Returns exp of a BF16 number three cycles later: exp(x) = 2**k * 2**f."""
    sign, exponent = number[-1], number[7:-1]
    scaled = cat(number[:7], exponent.any()) * const(_LOG2_E, _LOG2_E_BITS + 1)
    places = const(_LARGE + _LOG2_E_BITS - _FRACTION, EXPONENT) - exponent
    power = _shifted_right(scaled, places)[0][: _FRACTION + EXPONENT]
    power = delay(mux(sign, ~power, power))
    sign, large = delay(sign), delay(~(exponent < _LARGE))

    low, middle = power[:_LOW], power[_LOW : _LOW + _MIDDLE]
    line = (low * const(_SLOPE, _SLOPE_BITS))[_SLOPE_BITS + _FRACTION - _LITTLE_BITS :]
    little_bits = _LITTLE_BITS - _HIGH
    little = delay(rom(middle, _LITTLE, little_bits) + line.wide(little_bits))
    first = delay(rom(power[_LOW + _MIDDLE : _FRACTION], _TABLE, _TABLE_BITS + 1))
    whole, sign, large = delay(cat(power[_FRACTION:], sign)), delay(sign), delay(large)

    more = (first * little)[_LITTLE_BITS:]
    mantissa = delay((first + more.wide(len(first)))[-9:])
    whole, sign, large = delay(whole), delay(sign), delay(large)

    below = whole.signed(10) + 126
    tiny = below[-1]
    places = const(-126, EXPONENT) - whole[:EXPONENT]
    shifted = _shifted_right(mantissa, places)[0]
    mantissa = mux(tiny, shifted, mantissa)
    result = _assemble(const(0, 1), mux(tiny, 0, below[:EXPONENT]), mantissa[1:], mantissa[0])
    infinite = ~sign & (large | below[EXPONENT])
    return mux(infinite, _TOP << 7, mux(large, 0, result))


def reciprocal(number: Wire, start: Wire) -> tuple[Wire, Wire]:
    """Returns 1 / number (0 for 0), and when it is ready; the number must not change until then.

    Long division with two bits per cycle.
    """
    exponent, mantissa = _parts(number)
    zeros = _leading_zeros(mantissa)
    divisor = delay(_shifted_left(mantissa, zeros))
    exponent = delay(exponent.wide(EXPONENT + 2) - zeros.wide(EXPONENT + 2))
    bits = FRACTION + 3
    rest, quotient, left = Register(FRACTION + 2), Register(bits), Register(4)
    following, digits = rest, []
    for _ in range(2):
        less = following < divisor.wide(len(rest))
        difference = mux(less, following, following - divisor.wide(len(rest)))
        following = cat(const(0, 1), difference[:-1])
        digits = [~less, *digits]
    rest.set(mux(start, 1 << FRACTION, following))
    quotient.set(mux(start, 0, cat(*digits, quotient[:-2])))
    left.set(mux(start, bits // 2 + 1, mux(left.any(), left - 1, 0)))

    exact = quotient[-1]
    word = mux(exact, quotient[1:], quotient[:-1])
    below = const(252, EXPONENT + 2) - exponent + exact.wide(EXPONENT + 2)
    tiny = below[-1]
    places = cat(below[0] & tiny, ~below[0] & tiny)
    word, lost = _shifted_right(word, places)
    up = word[0] & (word[1] | lost | rest.any())
    result = _assemble(number[-1], mux(tiny, 0, below[:EXPONENT]), word[1:], up)
    infinite = ~tiny & below[EXPONENT:-1].any()
    result = mux(infinite, cat(const(_TOP << FRACTION, WIDTH - 1), number[-1]), result)
    return mux(number[:-1].any(), result, 0), left.equals(1)


def load_element(element: Wire, scale: Wire) -> Wire:
    """Converts an element [8] in E4M3 (OCP Microscaling Formats, version 1.0) times its scale [8],
    of bias 127, to BF16; NaN becomes -inf, and overflow the largest number."""
    fraction, bias = 3, 7
    sign, field = element[-1], element[fraction:-1]
    normal, missing = field.any(), element[:-1].all()
    mantissa = cat(element[:fraction], normal)
    zeros = _leading_zeros(mantissa)
    leading = cat(const(0, _SIGNIFICAND - len(mantissa)), _shifted_left(mantissa, zeros))

    # The exponent of BF16 minus one; subnormal elements have the exponent of the smallest normal.
    element_exponent = cat(field[0] | ~normal, field[1:]).wide(_BELOW)
    below = element_exponent + scale.wide(_BELOW) - zeros.wide(_BELOW) - (bias + 1)
    tiny = below[-1]
    places = mux(tiny, const(0, _BELOW) - below, 0)[:4]
    word, lost = _shifted_right(cat(const(0, _GUARDS), leading), places)
    up = word[2] & (word[3] | word[:2].any() | lost)
    number = _assemble(sign, mux(tiny, 0, below[:EXPONENT]), word[_GUARDS:], up)

    large = ~tiny & below[EXPONENT] | number[7:-1].all()
    number = mux(large, mux(sign, MINUS_INFINITY, const(LARGEST, HALF)), number)
    zero = cat(const(0, HALF - 1), sign)
    return mux(missing, MINUS_INFINITY, mux(mantissa.any(), number, zero))
