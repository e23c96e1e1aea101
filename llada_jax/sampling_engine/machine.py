"""A functional interpreter of sampling programs: computes their results, not their time.

Vector memory holds float32 numbers that are rounded to the vector format after every operation;
scalars are float32. Sums are added in the order of the hardware's tree, so results can be compared
bit by bit with the circuit in `hdl`.
"""

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial, partialmethod

import numpy as np
from numpy.typing import NDArray

from llada_jax.config import require
from llada_jax.sampling_engine.formats import Floats, StoredLogits, rounded, sanitized
from llada_jax.sampling_engine.instructions import REGISTERS, Instruction, loops
from llada_jax.sampling_engine.sampling import Domain, EngineConfig


class Machine:
    """Registers, memories and HBM of one engine.

    Each instruction is a method with the lower-case name after an underscore; its arguments are the
    operands, register numbers and immediates. `vector` [rows, vlen], `fp` and `int` are memories.
    """

    def __init__(self, engine: EngineConfig, hbm: StoredLogits) -> None:
        self.engine, self.hbm = engine, hbm
        self.vector = np.zeros((engine.words("vector"), engine.vlen), np.float32)
        self.fp = np.zeros(engine.words("fp"), np.float32)
        self.int = np.zeros(engine.words("int"), np.int64)
        self._gp = [0] * REGISTERS["gp"]
        self._f = [0.0] * REGISTERS["fp"]
        self._lanes = engine.vlen

    def run(self, instructions: Sequence[Instruction]) -> None:
        """Executes a program.

        Raises the errors of `loops`, and ValueError for an address outside its memory.
        """
        starts, place = loops(instructions), 0
        actions = [partial(getattr(self, f"_{name.lower()}"), *to) for name, to in instructions]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            while place < len(actions):
                actions[place]()
                if place in starts and self._gp[instructions[place].operands[0]]:
                    place = starts[place]
                place += 1

    # Checked access to registers and memories.

    def _inside(self, domain: str, address: int, length: int, words: int) -> slice:
        if not 0 <= address <= words - length:
            last = address + length - 1
            raise ValueError(
                f"{domain} memory: words {address} to {last} are used; allowed: 0 to {words - 1}"
            )
        return slice(address, address + length)

    def _words(self, domain: Domain, register: int, offset: int = 0, length: int = 1) -> np.ndarray:
        """Returns a view of words of a memory, from the address in a register."""
        memory = getattr(self, domain)
        return memory[self._inside(domain, self._gp[register] + offset, length, len(memory))]

    def _first_lanes(self, length: int) -> slice:
        return self._inside("vector lanes", 0, length, self._lanes)

    def _row(self, register: int) -> Floats:
        """Returns a view of the used lanes of the vector row at the address in a register."""
        return self._words("vector", register)[0, : self._lanes]

    def _store(self, to: int, numbers: Floats) -> None:
        self._row(to)[:] = rounded(numbers, self.engine.vector_format)

    def _write_int(self, register: int, value: int) -> None:
        if register:
            self._gp[register] = value

    def _write_float(self, register: int, value: float) -> None:
        if register:
            self._f[register] = float(np.float32(value))

    # Vector unit.

    def _v_red_max_idx(self, index: int, row: int, base: int, best: int) -> None:
        lane, top = first_maximum(self._row(row))
        if top > self._f[best]:
            self._write_float(best, top)
            self._write_int(index, self._gp[base] + lane)

    def _v_red_max(self, best: int, row: int) -> None:
        self._write_float(best, max(self._f[best], first_maximum(self._row(row))[1]))

    def _v_pick(self, to: int, row: int, index: int, base: int) -> None:
        lane = self._gp[index] - self._gp[base]
        if 0 <= lane < self._lanes:
            self._write_float(to, float(self._row(row)[lane]))

    def _v_red_sum(self, total: int, row: int) -> None:
        self._write_float(total, self._f[total] + tree_sum(self._row(row), self.engine.vlen))

    def _v_sub_vf(self, to: int, row: int, scalar: int) -> None:
        self._store(to, self._row(row) - np.float32(self._f[scalar]))

    def _v_add_vv(self, to: int, a: int, b: int) -> None:
        self._store(to, self._row(a) + self._row(b))

    def _v_exp_v(self, to: int, row: int) -> None:
        self._store(to, np.exp(self._row(row), dtype=np.float64))

    def _v_topk_mask(self, to: int, row: int, mask: int, k: int, length: int) -> None:
        lanes, count = self._first_lanes(length), self._gp[k]
        require(0 <= count <= length, f"V_TOPK_MASK has k {count}; allowed: 0 to {length}")
        keys = np.where(self._row(mask) != 0, self._row(row), np.float32(0))[lanes]
        chosen, target = top_k_mask(keys, count), self._row(to)
        target[:] = 0
        target[lanes] = chosen

    def _s_select_int(self, to: int, a: int, b: int, mask: int, length: int) -> None:
        chosen = self._row(mask)[self._first_lanes(length)] != 0
        first, second, target = (self._words("int", start, 0, length) for start in (a, b, to))
        target[:] = np.where(chosen, first, second)

    # Scalar unit.

    def _compute_scalar(self, compute: Callable[..., float], to: int, *registers: int) -> None:
        self._write_float(to, compute(*(self._f[register] for register in registers)))

    _s_reci_fp = partialmethod(_compute_scalar, lambda a: 1 / a if a else 0.0)
    _s_exp_fp = partialmethod(_compute_scalar, lambda a: float(np.exp(a)))
    _s_add_fp = partialmethod(_compute_scalar, operator.add)
    _s_sub_fp = partialmethod(_compute_scalar, operator.sub)
    _s_mul_fp = partialmethod(_compute_scalar, operator.mul)

    def _s_ld_fp(self, to: int, address: int, offset: int) -> None:
        self._write_float(to, self._words("fp", address, offset)[0])

    def _s_st_fp(self, value: int, address: int, offset: int) -> None:
        self._words("fp", address, offset)[:] = self._f[value]

    def _s_ld_int(self, to: int, address: int, offset: int) -> None:
        self._write_int(to, int(self._words("int", address, offset)[0]))

    def _s_st_int(self, value: int, address: int, offset: int) -> None:
        self._words("int", address, offset)[:] = self._gp[value]

    def _s_map_v_fp(self, to: int, address: int, length: int) -> None:
        numbers = np.zeros(self._lanes, np.float32)
        numbers[self._first_lanes(length)] = self._words("fp", address, 0, length)
        self._store(to, numbers)

    def _s_addi_int(self, to: int, a: int, value: int) -> None:
        self._write_int(to, self._gp[a] + value)

    # HBM.

    def _h_prefetch_v(self, to: int, address: int, rows: int) -> None:
        read = self._inside("HBM", self._gp[address], rows, len(self.hbm.elements))
        loaded = rounded(self.hbm.read(read.start, read.stop), self.engine.vector_format)
        target = self._words("vector", to, 0, rows)
        target[:] = sanitized(loaded, self.engine.vector_format)

    # Control.

    def _c_loop_start(self, counter: int, count: int) -> None:
        self._gp[counter] = count

    def _c_loop_end(self, counter: int) -> None:
        self._gp[counter] -= 1

    def _c_set_v_mask(self, lanes: int) -> None:
        self._inside("vector lanes", 0, lanes, self.engine.vlen)
        self._lanes = lanes


def first_maximum(numbers: Floats) -> tuple[int, float]:
    """Returns the first lane with the largest number, and the number; NaN counts as -inf."""
    lane = int(numbers.argmax())
    if math.isnan(numbers[lane]):  # argmax treats the first NaN as the largest number
        numbers = np.where(np.isnan(numbers), np.float32(-np.inf), numbers)
        lane = int(numbers.argmax())
    return lane, float(numbers[lane])


def tree_sum(numbers: Floats, vlen: int) -> float:
    """Adds in float32, in the order of the hardware's tree: lane i with lane i + half."""
    if len(numbers) < vlen:
        numbers = np.concatenate([numbers, np.zeros(vlen - len(numbers), np.float32)])
    while len(numbers) > 1:
        half = len(numbers) // 2
        numbers = numbers[:half] + numbers[half:]
    return float(numbers[0])


def top_k_mask(keys: Floats, k: int) -> NDArray[np.bool_]:
    """Marks the k largest positive keys; the first wins ties. Keys must not be NaN."""
    chosen = np.zeros(len(keys), bool)
    chosen[np.argsort(-keys, kind="stable")[:k]] = True
    return chosen & (keys > 0)
