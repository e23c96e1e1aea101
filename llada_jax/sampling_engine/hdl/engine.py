"""The sampling engine as a circuit: units between registers and memories, run by the sequencer.

Instructions run one at a time. An instruction's word is held until it retires, so that its operands
can be read in any of its cycles.
"""

from collections.abc import Mapping
from typing import NamedTuple

from llada_jax.sampling_engine.hdl.floats import (
    HALF,
    LARGEST,
    MINUS_INFINITY,
    ONE,
    WIDTH,
    add,
    exponential,
    negative,
    order,
    reciprocal,
    to_bfloat16,
    to_float32,
)
from llada_jax.sampling_engine.hdl.reductions import max_index, sum_tree, top_k
from llada_jax.sampling_engine.hdl.sequencer import Sequencer
from llada_jax.sampling_engine.hdl.wires import (
    Circuit,
    Memory,
    Register,
    Wire,
    cat,
    choose,
    const,
    delay,
    either,
    mux,
    source,
    unit,
)
from llada_jax.sampling_engine.instructions import PREFETCH_ROWS, REGISTERS

_Choice = tuple[Wire, Wire]
"""The condition under which a word is the result, and the word."""


class EngineSizes(NamedTuple):
    """Capacities of an engine."""

    vlen: int
    """Lanes of BF16 in a row of vector memory."""
    slots: int
    """Keys in the top-k unit, and so the maximum k."""
    words: Mapping[str, int]
    """Sizes of the memories "vector", "fp", "int" and "program"."""


def engine(sizes: EngineSizes) -> Circuit:
    """Builds the engine.

    Inputs: `hbm_row` with `hbm_valid`, rows from HBM. Outputs: `request` with `address` and `rows`;
    `halted`; `word` and `retires`, the current instruction and whether this is its last cycle.
    """
    return _Engine(sizes).circuit()


class _Engine:
    """Builds the wires of one engine. Each unit adds choices for registers and vector rows."""

    def __init__(self, sizes: EngineSizes) -> None:
        self._vlen, self._slots, words = sizes.vlen, sizes.slots, sizes.words
        self._vector = Memory("vector", words["vector"], sizes.vlen * HALF, sizes.vlen)
        self._fp, self._int = (Memory(name, words[name], WIDTH) for name in ("fp", "int"))
        self._sequencer = Sequencer(words["program"])
        self._integers: list[_Choice] = []
        self._numbers: list[_Choice] = []
        self._rows: list[tuple[Wire, list[Wire]]] = []
        with unit("registers"):
            self._gp, self._f = ([Register(WIDTH) for _ in range(n)] for n in REGISTERS.values())
            fields = self._sequencer.fields
            zero = const(0, WIDTH)
            self._g = [choose(field, [zero, *self._gp[1:]]) for field in fields]
            self._x = [choose(field[:3], [zero, *self._f[1:]]) for field in fields]

    def circuit(self) -> Circuit:
        self._scalars()
        with unit("vector_memory"):
            selects = self._sequencer.is_("S_SELECT_INT")
            row = self._lanes_of(self._vector.read(self._g[1]))
            mask = self._lanes_of(self._vector.read(mux(selects, self._g[3], self._g[2])))
        self._elements(row, mask)
        self._vectors(row)
        request = self._load()
        outputs = self._sequencer.close([const(0, WIDTH), *self._gp[1:]])
        self._write_registers()
        return Circuit({**request, **outputs})

    def _add_result(self, choices: list, done: Wire, result) -> None:
        """Adds a result, which is available in the last cycle of an instruction (`done`)."""
        choices.append((done, result))
        self._sequencer.finishes(done)

    def _lanes_of(self, row: Wire) -> list[Wire]:
        return [row[i * HALF : (i + 1) * HALF] for i in range(self._vlen)]

    def _scalars(self) -> None:
        """Adds integers, including addresses, and accesses the scalar memories."""
        sequencer, element = self._sequencer, self._sequencer.count.wide(WIDTH)
        is_, issues = sequencer.is_, sequencer.issues
        with unit("scalar"):
            number = sequencer.number("S_ADDI_INT").signed(WIDTH)
            by_element = is_("S_SELECT_INT", "S_MAP_V_FP")
            self._sum = self._g[1] + mux(by_element, element, number)
            self._fp_word, self._int_word = self._fp.read(self._sum), self._int.read(self._sum)
            self._other_int = self._int.read(self._g[2] + element)
            self._fp.write(issues("S_ST_FP"), self._sum, self._x[0])
            sequencer.finishes(is_("S_ST_FP", "S_ST_INT", "C_SET_V_MASK"))
            self._add_result(self._integers, is_("S_ADDI_INT"), self._sum)
            self._add_result(self._integers, delay(issues("S_LD_INT")), self._int_word)
            self._add_result(self._numbers, delay(issues("S_LD_FP")), self._fp_word)
        with unit("reciprocal"):
            result, done = reciprocal(self._x[1], issues("S_RECI_FP"))
            self._add_result(self._numbers, done & is_("S_RECI_FP"), result)

    def _elements(self, row: list[Wire], mask: list[Wire]) -> None:
        """Processes one lane per cycle: keys of the top-k, a mask that selects integers, and a row
        that is assembled from scalars."""
        sequencer, count = self._sequencer, self._sequencer.count
        is_ = sequencer.is_
        with unit("elements"):
            lanes = sequencer.number("C_SET_V_MASK")[: self._vlen.bit_length()]
            self._used = Register(self._vlen)
            used = cat(*(const(i, len(lanes)) < lanes for i in range(self._vlen)))
            self._used.set(mux(is_("C_SET_V_MASK"), used, self._used))

            element = count - 1
            place = element[: (self._vlen - 1).bit_length()]
            number = sequencer.number("S_MAP_V_FP")[: len(count)]
            length = sequencer.number("V_TOPK_MASK").wide(len(count))
            length = mux(is_("S_MAP_V_FP"), number, length)
            is_started, is_last = count.any(), element.equals(length)
            self._at = cat(*(place.equals(i) for i in range(self._vlen)))
            admitted = choose(place, [lane[:-1].any() for lane in mask])
            key = choose(place, row)
            self._maps, self._first = is_("S_MAP_V_FP") & is_started, count.equals(1)
            last = is_started & count.equals(length)
            sequencer.finishes(is_("S_MAP_V_FP", "S_SELECT_INT") & last)
        with unit("select"):
            stores = sequencer.issues("S_ST_INT")
            chosen = mux(admitted, self._int_word, self._other_int)
            address = mux(stores, self._sum, self._g[0] + element.wide(WIDTH))
            writes = stores | is_("S_SELECT_INT") & is_started
            self._int.write(writes, address, mux(stores, self._g[0], chosen))
        with unit("top_k"):
            keys = delay(key), delay(place), delay(admitted & is_started & ~is_last)
            start = sequencer.issues("V_TOPK_MASK")
            k = delay(self._g[3][: self._slots.bit_length()])
            best = top_k(*keys, start, k, self._vlen, self._slots)
            ones = [mux(best[i], const(ONE, HALF), 0) for i in range(self._vlen)]
            self._add_result(self._rows, delay(is_("V_TOPK_MASK") & is_last), ones)

    def _vectors(self, row: list[Wire]) -> None:
        """Processes all lanes at once. The sum of a row uses the scalar adder."""
        is_, issues = self._sequencer.is_, self._sequencer.issues
        with unit("subtract"):
            scalar = negative(self._x[2])
            less = [to_bfloat16(delay(add(to_float32(lane), scalar))) for lane in row]
            self._add_result(self._rows, delay(issues("V_SUB_VF"), cycles=3), less)
        with unit("exponential"):
            powers = [exponential(lane) for lane in row]
            self._add_result(self._rows, delay(issues("V_EXP_V"), cycles=4), powers)
        with unit("max_index"):
            best, lane, valid = max_index(row, self._used, delay(issues("V_RED_MAX_IDX")))
            better = valid & (order(to_float32(best)) > order(self._x[3]))
            self._integers.append((better, self._g[2] + lane.wide(WIDTH)))
            self._numbers.append((better, to_float32(best)))
            self._sequencer.finishes(valid)
        with unit("sum_tree"):
            total, valid = sum_tree(row, self._used, delay(issues("V_RED_SUM")))
        with unit("scalar"):
            second = mux(is_("S_SUB_FP"), negative(self._x[2]), self._x[2])
            added = add(mux(valid, total, self._x[1]), mux(valid, self._x[0], second))
            self._add_result(self._numbers, delay(valid | issues("S_ADD_FP", "S_SUB_FP")), added)

    def _load(self) -> dict[str, Wire]:
        """Requests rows of HBM, and writes vector memory with them or with a unit's result."""
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
            whole = either([done for done, _ in self._rows]) | self._maps & self._first
            mapped, lanes, enables = to_bfloat16(self._fp_word), [], []
            for i in range(self._vlen):
                results = [(done, each[i]) for done, each in self._rows]
                at = mux(self._at[i], mapped, 0)
                lanes.append(_chosen([(valid, loaded[i]), *results, (self._maps, at)]))
                enables.append(valid | self._used[i] & (whole | self._maps & self._at[i]))
            address = self._g[0] + mux(valid, received.wide(WIDTH), 0)
            self._vector.write(cat(*enables), address, cat(*lanes))
        return {"request": asks, "address": self._g[1], "rows": rows}

    def _write_registers(self) -> None:
        sequencer, is_ = self._sequencer, self._sequencer.is_
        with unit("registers"):
            count = sequencer.number("C_LOOP_START").wide(WIDTH)
            self._integers.append((is_("C_LOOP_START"), count))
            self._integers.append((is_("C_LOOP_END"), const(0, WIDTH)))
            to = sequencer.fields[0]
            best = mux(is_("V_RED_MAX_IDX"), sequencer.fields[3], to)
            counted = [sequencer.counted(i, register) for i, register in enumerate(self._gp)]
            for registers, kept, number, results in (
                (self._gp, counted, to, self._integers),
                (self._f, self._f, best, self._numbers),
            ):
                writes, word = either([done for done, _ in results]), _chosen(results)
                for i, register in enumerate(registers):
                    register.set(mux(writes & number.equals(i), word, kept[i]))


def _chosen(choices: list[_Choice]) -> Wire:
    """Returns the word of the last choice with a true condition. Later choices pass fewer gates, so
    slow results should come last."""
    (_, word), *rest = choices
    for condition, result in rest:
        word = mux(condition, result, word)
    return word


def _sanitized(number: Wire) -> Wire:
    """Replaces NaN by -inf, and +inf by the largest number."""
    lowest, largest = const(MINUS_INFINITY, HALF), const(LARGEST, HALF)
    none = number[:7].any() | number[-1]
    return mux(number[7:-1].all(), mux(none, lowest, largest), number)
