"""A functional interpreter of sampling programs: what they compute, not how long they take.

Vector memory holds float32 numbers that are representable in its format; every result is rounded
to it. Scalars likewise. Time is `timing.py`'s matter.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from llada_jax.config import require
from llada_jax.sampling_engine.assembly import Loop, Node, nested
from llada_jax.sampling_engine.formats import (
    Floats,
    LogitFormat,
    Stored,
    largest,
    rounded,
    sanitized,
    store,
)
from llada_jax.sampling_engine.instructions import (
    FLOAT_REGISTERS,
    INTEGER_REGISTERS,
    Instruction,
)
from llada_jax.sampling_engine.layout import Sampling
from llada_jax.sampling_engine.memories import EngineConfig, ScalarFormat
from llada_jax.sampling_engine.programs import Program
from llada_jax.sampling_engine.reference import Decisions, StepInputs

Action: TypeAlias = Callable[[], None]


class Machine:
    """Registers, memories and HBM of one engine.

    Attributes:
      vector: [rows, vlen], fp: [words], int: [words]; the memories.
    """

    def __init__(self, engine: EngineConfig, hbm: Stored) -> None:
        self.engine = engine
        self.hbm = hbm
        self.vector = np.zeros((engine.memory("vector").words, engine.vlen), np.float32)
        self.fp = [0.0] * engine.memory("fp").words
        self.int = [0] * engine.memory("int").words
        self._gp = [0] * INTEGER_REGISTERS
        self._f = [0.0] * FLOAT_REGISTERS
        self._lanes = engine.vlen
        self._started: deque[tuple[int, int, int]] = deque()

    def run(self, instructions: Sequence[Instruction]) -> None:
        """Execute a program.

        Raises:
          ValueError: an unknown instruction, loops that do not match, or an address outside its
            memory.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._block(nested(instructions))()

    def _block(self, nodes: Sequence[Node]) -> Action:
        actions = [self._loop(n) if isinstance(n, Loop) else self._action(n) for n in nodes]

        def block() -> None:
            for action in actions:
                action()

        return block

    def _loop(self, loop: Loop) -> Action:
        body, gp, counter, count = self._block(loop.body), self._gp, loop.counter, loop.count

        def repeat() -> None:
            for left in range(count, 0, -1):
                gp[counter] = left
                body()
            gp[counter] = 0

        return repeat

    def _action(self, instruction: Instruction) -> Action:
        build = ACTIONS[instruction.name]
        return build(self, *instruction.operands)

    # Access to memories, with their limits.

    def _row(self, register: int) -> Floats:
        """The lanes in use of the vector row that a register points to."""
        address = self._gp[register]
        self._inside("vector", address, 1, len(self.vector))
        return self.vector[address, : self._lanes]

    def _inside(self, domain: str, address: int, length: int, words: int) -> None:
        if not 0 <= address <= words - length:
            last = address + length - 1
            raise ValueError(
                f"{domain} memory: words {address} to {last} are used; allowed: 0 to {words - 1}"
            )

    def _write_int(self, register: int, value: int) -> None:
        if register:
            self._gp[register] = value

    def _write_float(self, register: int, value: float) -> None:
        if register:
            self._f[register] = round_scalar(value, self.engine.scalar_format)

    # Vector unit.

    def _v_red_max_idx(self, index: int, row: int, base: int, best: int) -> Action:
        def run() -> None:
            numbers = self._row(row)
            lane = int(numbers.argmax())
            top = float(numbers[lane])
            if math.isnan(top):
                lane, top = _first_maximum_without_nan(numbers)
            if top > self._f[best]:
                self._write_float(best, top)
                self._write_int(index, self._gp[base] + lane)

        return run

    def _v_red_max(self, best: int, row: int) -> Action:
        def run() -> None:
            _, top = _first_maximum_without_nan(self._row(row))
            self._write_float(best, max(self._f[best], top))

        return run

    def _v_red_sum(self, total: int, row: int) -> Action:
        def run() -> None:
            self._write_float(total, self._f[total] + tree_sum(self._row(row), self.engine.vlen))

        return run

    def _v_sub_vf(self, to: int, row: int, scalar: int, reverse: int) -> Action:
        def run() -> None:
            numbers, value = self._row(row), np.float32(self._f[scalar])
            self._store(to, value - numbers if reverse else numbers - value)

        return run

    def _v_exp_v(self, to: int, row: int) -> Action:
        return lambda: self._store(to, np.exp(self._row(row)))

    def _v_reci_v(self, to: int, row: int) -> Action:
        def run() -> None:
            numbers = self._row(row)
            self._store(to, np.where(numbers == 0, np.float32(0), np.float32(1) / numbers))

        return run

    def _v_add_vv(self, to: int, a: int, b: int) -> Action:
        return lambda: self._store(to, self._row(a) + self._row(b))

    def _v_mul_vv(self, to: int, a: int, b: int) -> Action:
        return lambda: self._store(to, self._row(a) * self._row(b))

    def _v_select_vvm(self, to: int, a: int, b: int, mask: int) -> Action:
        return lambda: self._store(to, np.where(self._row(mask) != 0, self._row(a), self._row(b)))

    def _v_topk_mask(self, to: int, row: int, mask: int, k: int, length: int) -> Action:
        def run() -> None:
            self._inside("vector lanes", 0, length, self._lanes)
            count = self._gp[k]
            require(0 <= count <= length, f"V_TOPK_MASK has k {count}; allowed: 0 to {length}")
            keys = np.where(self._row(mask) != 0, self._row(row), np.float32(0))[:length]
            chosen = top_k_mask(keys, count)
            target = self._row(to)
            target[:] = 0
            target[:length] = chosen

        return run

    def _s_select_int(self, to: int, a: int, b: int, mask: int, length: int) -> Action:
        def run() -> None:
            self._inside("vector lanes", 0, length, self._lanes)
            chosen = self._row(mask)[:length] != 0
            first, second = self._ints(a, length), self._ints(b, length)
            start = self._gp[to]
            self._inside("int", start, length, len(self.int))
            self.int[start : start + length] = [
                x if yes else y for yes, x, y in zip(chosen, first, second, strict=True)
            ]

        return run

    def _ints(self, register: int, length: int) -> list[int]:
        start = self._gp[register]
        self._inside("int", start, length, len(self.int))
        return self.int[start : start + length]

    def _store(self, to: int, numbers: Floats) -> None:
        self._row(to)[:] = rounded(numbers, self.engine.vector_format)

    # Scalar unit.

    def _s_reci_fp(self, to: int, a: int) -> Action:
        def run() -> None:
            value = self._f[a]
            self._write_float(to, 1 / value if value else 0.0)

        return run

    def _s_exp_fp(self, to: int, a: int) -> Action:
        return lambda: self._write_float(to, float(np.exp(self._f[a])))

    def _s_add_fp(self, to: int, a: int, b: int) -> Action:
        return lambda: self._write_float(to, self._f[a] + self._f[b])

    def _s_sub_fp(self, to: int, a: int, b: int) -> Action:
        return lambda: self._write_float(to, self._f[a] - self._f[b])

    def _s_mul_fp(self, to: int, a: int, b: int) -> Action:
        return lambda: self._write_float(to, self._f[a] * self._f[b])

    def _s_ld_fp(self, to: int, address: int, offset: int) -> Action:
        def run() -> None:
            word = self._gp[address] + offset
            self._inside("fp", word, 1, len(self.fp))
            self._write_float(to, self.fp[word])

        return run

    def _s_st_fp(self, value: int, address: int, offset: int) -> Action:
        def run() -> None:
            word = self._gp[address] + offset
            self._inside("fp", word, 1, len(self.fp))
            self.fp[word] = self._f[value]

        return run

    def _s_ld_int(self, to: int, address: int, offset: int) -> Action:
        def run() -> None:
            word = self._gp[address] + offset
            self._inside("int", word, 1, len(self.int))
            self._write_int(to, self.int[word])

        return run

    def _s_st_int(self, value: int, address: int, offset: int) -> Action:
        def run() -> None:
            word = self._gp[address] + offset
            self._inside("int", word, 1, len(self.int))
            self.int[word] = self._gp[value]

        return run

    def _s_map_v_fp(self, to: int, address: int, length: int) -> Action:
        def run() -> None:
            start = self._gp[address]
            self._inside("fp", start, length, len(self.fp))
            self._inside("vector lanes", 0, length, self._lanes)
            numbers = np.zeros(self._lanes, np.float32)
            numbers[:length] = self.fp[start : start + length]
            self._store(to, numbers)

        return run

    def _s_addi_int(self, to: int, a: int, value: int) -> Action:
        gp = self._gp
        if to == 0:
            return lambda: None

        def run() -> None:
            gp[to] = gp[a] + value

        return run

    def _s_add_int(self, to: int, a: int, b: int) -> Action:
        return lambda: self._write_int(to, self._gp[a] + self._gp[b])

    # HBM.

    def _h_prefetch_v(self, to: int, address: int, rows: int) -> Action:
        return lambda: self._fetch(self._gp[to], self._gp[address], rows)

    def _h_start_v(self, to: int, address: int, rows: int) -> Action:
        return lambda: self._started.append((self._gp[to], self._gp[address], rows))

    def _h_wait(self, started: int) -> Action:
        def run() -> None:
            while len(self._started) > started:
                self._fetch(*self._started.popleft())

        return run

    def _fetch(self, to: int, address: int, rows: int) -> None:
        self._inside("HBM", address, rows, len(self.hbm.elements))
        self._inside("vector", to, rows, len(self.vector))
        loaded = rounded(self.hbm.read(address, address + rows), self.engine.vector_format)
        self.vector[to : to + rows] = sanitized(loaded, self.engine.vector_format)

    # Control.

    def _c_set_v_mask(self, lanes: int) -> Action:
        def run() -> None:
            self._inside("vector lanes", 0, lanes, self.engine.vlen)
            self._lanes = lanes

        return run


ACTIONS: dict[str, Callable[..., Action]] = {
    name.upper().removeprefix("_"): action
    for name, action in vars(Machine).items()
    if name.startswith(("_v_", "_s_", "_h_", "_c_"))
}


def round_scalar(value: float, format: str) -> float:
    """The nearest number of a scalar format; ties to even."""
    if format == "float32":
        return float(np.float32(value))
    return float(np.float16(value) if format == "float16" else ml_dtypes.bfloat16(value))


def tree_sum(numbers: Floats, vlen: int) -> float:
    """The sum in float32, in the order of the hardware's tree: lane i with lane i + half."""
    if len(numbers) < vlen:
        numbers = np.concatenate([numbers, np.zeros(vlen - len(numbers), np.float32)])
    while len(numbers) > 1:
        half = len(numbers) // 2
        numbers = numbers[:half] + numbers[half:]
    return float(numbers[0])


def top_k_mask(keys: Floats, k: int) -> NDArray[np.bool_]:
    """The k largest positive keys; the first wins ties. No NaN enters."""
    keys = np.where(keys > 0, keys, np.float32(0))
    order = np.argsort(-keys, kind="stable")[: max(k, 0)]
    chosen = np.zeros(len(keys), bool)
    chosen[order] = True
    return chosen & (keys > 0)


def _first_maximum_without_nan(numbers: Floats) -> tuple[int, float]:
    numbers = np.where(np.isnan(numbers), np.float32(-np.inf), numbers)
    lane = int(numbers.argmax())
    return lane, float(numbers[lane])


# Running a sampler: what the host writes before, and reads after.


def store_logits(
    sampling: Sampling, vlen: int, logits: NDArray[np.float32], format: LogitFormat
) -> Stored:
    """Logits [steps, batch, rows, vocab] as HBM holds them: vector rows of VLEN, the last of each
    position padded, and room for a chunk that is loaded ahead."""
    shape = (sampling.steps, sampling.batch, sampling.rows, sampling.vocab)
    require(logits.shape == shape, f"logits have shape {logits.shape}; allowed: {shape}")
    per_position = sampling.vector_rows(vlen)
    positions = math.prod(shape[:-1])
    padded = np.zeros((positions + 1, per_position * vlen), np.float32)
    padded[:-1, : sampling.vocab] = logits.reshape(positions, sampling.vocab)
    return store(padded.reshape(-1, vlen), format)


def run_sampler(program: Program, inputs: StepInputs, hbm: Stored) -> Decisions:
    """All steps of a program.

    Args:
      inputs: its logits are not read; `hbm` has them, from `store_logits`.

    Raises:
      ValueError: shapes that are not the program's, or k outside 0 to rows.
    """
    sampling, layout = program.sampling, program.layout
    block = (sampling.batch, sampling.rows)
    for name, array, shape in (
        ("tokens", inputs.tokens, block),
        ("open", inputs.open, block),
        ("k", inputs.k, (sampling.steps, sampling.batch)),
    ):
        require(array.shape == shape, f"{name} has shape {array.shape}; allowed: {shape}")
    for k in (int(inputs.k.min()), int(inputs.k.max())):
        require(0 <= k <= sampling.rows, f"k is {k}; allowed: 0 to rows ({sampling.rows})")

    machine = Machine(program.engine, hbm)
    masks = slice(layout.mask, layout.mask + sampling.batch)
    machine.vector[masks, : sampling.rows] = inputs.open
    positions = sampling.batch * sampling.rows
    machine.int[layout.tokens : layout.tokens + positions] = inputs.tokens.ravel().tolist()
    machine.int[layout.k : layout.k + inputs.k.size] = inputs.k.ravel().tolist()
    machine.fp[layout.fp_constants : layout.fp_words] = _constants(program)
    machine.run(program.instructions)

    def integers(start: int) -> NDArray[np.int32]:
        return np.array(machine.int[start : start + positions], np.int32).reshape(block)

    transfer = machine.vector[layout.transfer : layout.transfer + sampling.batch, : sampling.rows]
    still_open = machine.vector[masks, : sampling.rows] != 0
    return Decisions(
        tokens=integers(layout.tokens),
        predictions=integers(layout.predictions),
        transfer=transfer != 0,
        open=still_open | (transfer != 0),
    )


def _constants(program: Program) -> list[float]:
    """`layout.CONSTANTS`, in scalar memory before the first instruction.

    Odds subtract the number below 1 and not 1: then a position that is sure has finite odds, and
    one without any number, whose sum is 0, negative ones.
    """
    sampling, scalars = program.sampling, program.engine.scalar_format
    below_one = _before(1.0, scalars)
    exceeded = 0.0
    if sampling.threshold is not None:
        exceeded = bound_to_exceed(sampling.threshold, sampling.strict_threshold, scalars)
        if sampling.key == "odds":
            exceeded = round_scalar(1 / (1 / exceeded - below_one), scalars) if exceeded else 0.0
    return [-largest(program.engine.vector_format), exceeded, 1.0, below_one]


def bound_to_exceed(threshold: float, strict: bool, format: ScalarFormat) -> float:
    """The number b of a format for which x > b says x > threshold, or x >= threshold unless strict.

    For the top-k unit admits what is greater than 0, and nothing else. Never below 0.
    """
    bound = round_scalar(threshold, format)
    if bound > threshold or (bound == threshold and not strict):
        bound = _before(bound, format)
    return max(bound, 0.0)


def _before(value: float, format: ScalarFormat) -> float:
    """The largest number of a format below a number of it."""
    dtype = np.dtype(ml_dtypes.bfloat16 if format == "bfloat16" else format)
    return float(np.nextafter(dtype.type(value), dtype.type(-1)))
