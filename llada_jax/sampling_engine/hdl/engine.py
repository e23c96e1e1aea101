"""The sampling engine: its units between registers and memories, run by the sequencer.

In order, one instruction at a time, as the functional machine does; how long each takes stands in
`instructions.toml`. An instruction's word stays until it retires, so operands are read from the
registers as long as it runs.
"""

from collections.abc import Mapping
from typing import NamedTuple

from llada_jax.sampling_engine.hdl.floats import (
    HALF,
    WIDTH,
    add,
    narrowed,
    negative,
    order,
    widened,
)
from llada_jax.sampling_engine.hdl.functions import exponential, reciprocal
from llada_jax.sampling_engine.hdl.reductions import MINUS_INFINITY, max_index, sum_tree, top_k
from llada_jax.sampling_engine.hdl.sequencer import Sequencer
from llada_jax.sampling_engine.hdl.wires import (
    Circuit,
    Memory,
    Register,
    Wire,
    cat,
    choose,
    const,
    either,
    held,
    mux,
    source,
    unit,
)
from llada_jax.sampling_engine.instructions import PREFETCH_ROWS, REGISTERS

ONE, LARGEST = 0x3F80, 0x7F7F


class Sizes(NamedTuple):
    """What an engine has room for.

    Attributes:
      vlen: lanes of BF16 in a row of vector memory.
      slots: keys that the top-k unit holds, so the largest k.
      words: of the memories "vector", "fp", "int" and "program".
    """

    vlen: int
    slots: int
    words: Mapping[str, int]


def engine(sizes: Sizes) -> Circuit:
    """Builds the engine.

    Inputs: `hbm_row` while `hbm_valid`, rows from HBM. Outputs: `request` with `address` and
    `rows`; `halted`; `word` and `retires`, an instruction and whether this is its last cycle.
    """
    return _Engine(sizes).circuit()


class _Engine:
    """The wires of one engine."""

    def __init__(self, sizes: Sizes) -> None:
        self._vlen, self._slots = sizes.vlen, sizes.slots
        row = sizes.vlen * HALF
        words = sizes.words
        self._vector = Memory("vector", words["vector"], row, sizes.vlen)
        self._fp, self._int = (Memory(name, words[name], WIDTH) for name in ("fp", "int"))
        self._sequencer = Sequencer(words["program"])
        with unit("registers"):
            self._gp = [const(0, WIDTH), *(Register(WIDTH) for _ in range(REGISTERS["gp"] - 1))]
            self._f = [const(0, WIDTH), *(Register(WIDTH) for _ in range(REGISTERS["fp"] - 1))]
            fields = self._sequencer.fields
            self._g = [choose(field, self._gp) for field in fields]
            self._x = [choose(field[:3], self._f) for field in fields]
        with unit("elements"):
            self._used = Register(sizes.vlen)

    def circuit(self) -> Circuit:
        self._scalar_unit()
        self._read_rows()
        self._elements()
        self._vector_unit()
        request = self._load()
        outputs = self._sequencer.close(self._gp)
        self._write_registers()
        return Circuit({**request, **outputs})

    # Scalars.

    def _scalar_unit(self) -> None:
        """Adds integers, for addresses too, and reads and writes the scalar memories."""
        sequencer, element = self._sequencer, self._sequencer.count.wide(WIDTH)
        is_, issues = sequencer.is_, sequencer.issues
        with unit("scalar"):
            number = sequencer.number("S_ADDI_INT").signed(WIDTH)
            by_element = is_("S_SELECT_INT", "S_MAP_V_FP")
            self._sum = self._g[1] + mux(by_element, element, number)
            self._fp_word, self._int_word = self._fp.read(self._sum), self._int.read(self._sum)
            self._other_int = self._int.read(self._g[2] + element)
            self._fp.write(issues("S_ST_FP"), self._sum, self._x[0])
            for name in ("S_ADDI_INT", "S_ST_FP", "S_ST_INT", "C_SET_V_MASK"):
                sequencer.finishes(is_(name))
            loads = held(issues("S_LD_FP", "S_LD_INT"))
            sequencer.finishes(loads)
            self._loads_fp, self._loads_int = loads & is_("S_LD_FP"), loads & is_("S_LD_INT")
        with unit("elements"):
            lanes = sequencer.number("C_SET_V_MASK")[: self._vlen.bit_length()]
            mask = cat(*(const(i, len(lanes)) < lanes for i in range(self._vlen)))
            self._used.set(mux(is_("C_SET_V_MASK"), mask, self._used))
        with unit("reciprocal"):
            self._reciprocal, done = reciprocal(self._x[1], issues("S_RECI_FP"))
            self._gives_reciprocal = done & is_("S_RECI_FP")
            sequencer.finishes(self._gives_reciprocal)

    # Rows.

    def _read_rows(self) -> None:
        is_ = self._sequencer.is_
        with unit("vector_memory"):
            row = self._vector.read(self._g[1])
            other = self._vector.read(mux(is_("S_SELECT_INT"), self._g[3], self._g[2]))
        self._row, self._other = self._lanes_of(row), self._lanes_of(other)

    def _lanes_of(self, row: Wire) -> list[Wire]:
        return [row[i * HALF : (i + 1) * HALF] for i in range(self._vlen)]

    def _elements(self) -> None:
        """Goes through lanes: of keys, of a mask that selects, of a row that is put together."""
        sequencer, count = self._sequencer, self._sequencer.count
        is_ = sequencer.is_
        place_bits = (self._vlen - 1).bit_length()
        with unit("elements"):
            element = count - 1
            place = element[:place_bits]
            number = sequencer.number("S_MAP_V_FP")[: len(count)]
            length = mux(
                is_("S_MAP_V_FP"), number, sequencer.number("V_TOPK_MASK").wide(len(count))
            )
            begun, last = count.any(), count.equals(length)
            self._at = [place.equals(i) for i in range(self._vlen)]
            admitted = choose(place, [lane[:-1].any() for lane in self._other])
            key = choose(place, self._row)
            self._maps = is_("S_MAP_V_FP") & begun
            self._first = count.equals(1)
            sequencer.finishes(is_("S_MAP_V_FP", "S_SELECT_INT") & begun & last)
            ended = element.equals(length)
            self._gives_mask = held(is_("V_TOPK_MASK") & ended)
            sequencer.finishes(self._gives_mask)
        with unit("select"):
            selects = is_("S_SELECT_INT") & begun
            stores = sequencer.issues("S_ST_INT")
            chosen = mux(admitted, self._int_word, self._other_int)
            address = mux(stores, self._sum, self._g[0] + element.wide(WIDTH))
            self._int.write(stores | selects, address, mux(stores, self._g[0], chosen))
        with unit("top_k"):
            start = sequencer.issues("V_TOPK_MASK")
            k = held(self._g[3][: self._slots.bit_length()])
            takes = held(admitted & begun & ~ended)
            keys = held(key), held(place), takes
            self._mask = top_k(*keys, start, k, self._vlen, self._slots)

    def _vector_unit(self) -> None:
        sequencer = self._sequencer
        used, row = self._used, self._row
        with unit("subtract"):
            scalar = negative(self._x[2])
            self._less = [narrowed(held(add(widened(lane), scalar))) for lane in row]
            self._subtracts = held(sequencer.issues("V_SUB_VF"), cycles=3)
        with unit("exponential"):
            self._exponentials = [exponential(lane) for lane in row]
            self._exponentiates = held(sequencer.issues("V_EXP_V"), cycles=4)
        with unit("max_index"):
            valid = held(sequencer.issues("V_RED_MAX_IDX"))
            best, lane, valid_best = max_index(row, used, valid)
            better = order(widened(best)) > order(self._x[3])
            self._best, self._is_better = widened(best), valid_best & better
            self._index = self._g[2] + lane.wide(WIDTH)
        with unit("sum_tree"):
            total, valid_total = sum_tree(row, used, held(sequencer.issues("V_RED_SUM")))
        with unit("scalar"):
            second = mux(sequencer.is_("S_SUB_FP"), negative(self._x[2]), self._x[2])
            first = mux(valid_total, total, self._x[1])
            self._added = add(first, mux(valid_total, self._x[0], second))
            self._adds = held(valid_total | sequencer.issues("S_ADD_FP", "S_SUB_FP"))
        for done in (self._subtracts, self._exponentiates, valid_best, self._adds):
            sequencer.finishes(done)

    def _load(self) -> dict[str, Wire]:
        """Asks for rows of HBM, and writes vector memory: with them, or with a unit's result."""
        sequencer = self._sequencer
        with unit("dma"):
            valid, row = source("hbm_valid", 1), source("hbm_row", self._vlen * HALF)
            asks, received = sequencer.issues("H_PREFETCH_V"), Register(PREFETCH_ROWS.bit_length())
            following = received + valid.wide(len(received))
            received.set(mux(asks, 0, following))
            rows = sequencer.number("H_PREFETCH_V")[: len(received)]
            sequencer.finishes(sequencer.is_("H_PREFETCH_V") & valid & following.equals(rows))
            loaded = [_sanitized(lane) for lane in self._lanes_of(row)]
        with unit("vector_memory"):
            mapped = narrowed(self._fp_word)
            lanes = [
                mux(
                    valid,
                    loaded[i],
                    mux(
                        self._subtracts,
                        self._less[i],
                        mux(
                            self._exponentiates,
                            self._exponentials[i],
                            mux(
                                self._maps,
                                mux(self._at[i], mapped, 0),
                                mux(self._mask[i], const(ONE, HALF), 0),
                            ),
                        ),
                    ),
                )
                for i in range(self._vlen)
            ]
            writes = self._subtracts | self._exponentiates | self._gives_mask
            whole = writes | self._maps & self._first
            enables = [
                valid | self._used[i] & (whole | self._maps & self._at[i])
                for i in range(self._vlen)
            ]
            address = self._g[0] + received.wide(WIDTH)
            address = mux(valid, address, self._g[0])
            self._vector.write(cat(*enables), address, cat(*lanes))
        return {"request": asks, "address": self._g[1], "rows": rows}

    # Results.

    def _write_registers(self) -> None:
        sequencer, is_ = self._sequencer, self._sequencer.is_
        begins, leaves = is_("C_LOOP_START"), is_("C_LOOP_END")
        with unit("registers"):
            number = sequencer.number("C_LOOP_START").wide(WIDTH)
            integer = _first_of(
                (is_("S_ADDI_INT"), self._sum),
                (self._loads_int, self._int_word),
                (self._is_better, self._index),
                (begins, number),
                (leaves, const(0, WIDTH)),
            )
            writes = either([is_("S_ADDI_INT"), self._loads_int, self._is_better, begins, leaves])
            for i, register in enumerate(self._gp):
                if isinstance(register, Register):
                    kept = sequencer.counted(i, register)
                    register.set(mux(writes & sequencer.fields[0].equals(i), integer, kept))
            number = _first_of(
                (self._adds, self._added),
                (self._loads_fp, self._fp_word),
                (self._gives_reciprocal, self._reciprocal),
                (self._is_better, self._best),
            )
            writes = either([self._adds, self._loads_fp, self._gives_reciprocal, self._is_better])
            to = mux(is_("V_RED_MAX_IDX"), sequencer.fields[3], sequencer.fields[0])
            for i, register in enumerate(self._f):
                if isinstance(register, Register):
                    register.set(mux(writes & to.equals(i), number, register))


def _first_of(*choices: tuple[Wire, Wire]) -> Wire:
    """Returns the word of the first condition that holds; the last word where none does."""
    *rest, (_, word) = choices
    for condition, each in reversed(rest):
        word = mux(condition, each, word)
    return word


def _sanitized(number: Wire) -> Wire:
    """Turns NaN into -inf, and +inf into the largest number."""
    lowest, largest = const(MINUS_INFINITY, HALF), const(LARGEST, HALF)
    none = number[:7].any() | number[-1]
    return mux(number[7:-1].all(), mux(none, lowest, largest), number)
