"""Random matrices that every interpreter with NumPy generates alike, row by row."""

import zlib
from collections.abc import Iterator

import numpy as np

_PIECE_ELEMENTS = 1 << 24


def random_pieces(
    name: str, shape: tuple[int, ...], start: int = 0, stop: int | None = None, seed: int = 0
) -> Iterator[tuple[np.random.Generator, tuple[int, ...]]]:
    """Yields a generator of numbers for each piece of rows, and the shape of the piece."""
    stop = shape[0] if stop is None else stop
    step = max(1, _PIECE_ELEMENTS // max(1, int(np.prod(shape[1:]))))
    for first in range(start, stop, step):
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), first])
        yield rng, (min(first + step, stop) - first, *shape[1:])


def normal(rng: np.random.Generator, shape: tuple[int, ...], std: float) -> np.ndarray:
    """Returns float32 numbers of a normal distribution, cut to the precision of bfloat16."""
    numbers = rng.standard_normal(shape, np.float32) * np.float32(std)
    bits = numbers.view(np.uint32)
    np.bitwise_and(bits, np.uint32(0xFFFF0000), out=bits)
    return numbers


def normal_matrix(name: str, shape: tuple[int, ...], std: float) -> np.ndarray:
    """Returns a whole matrix in float32."""
    numbers, first = np.empty(shape, np.float32), 0
    for rng, part in random_pieces(name, shape):
        numbers[first : first + part[0]] = normal(rng, part, std)
        first += part[0]
    return numbers
