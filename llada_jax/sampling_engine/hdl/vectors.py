"""Test vectors: random streams, and what the interpreter's instructions make of them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np
from amaranth.hdl import Elaboratable
from amaranth.sim import Simulator
from numpy.typing import NDArray

from llada_jax.sampling_engine.assembly import parse
from llada_jax.sampling_engine.formats import Floats, largest, store
from llada_jax.sampling_engine.hdl.max_index import MaxIndex
from llada_jax.sampling_engine.hdl.netlist import Netlist, NetlistSimulator
from llada_jax.sampling_engine.hdl.sum_tree import SumTree
from llada_jax.sampling_engine.hdl.top_k import TopK
from llada_jax.sampling_engine.machine import Machine
from llada_jax.sampling_engine.memories import EngineConfig

Ints = NDArray[np.int64]


class Vectors(NamedTuple):
    """What goes into a unit, and what has to come out.

    Attributes:
      inputs: [cycles, streams] for each port.
      cycles: when the outputs are looked at, before that cycle's clock edge.
      outputs: [len(cycles), streams] for each port.
    """

    inputs: Mapping[str, Ints]
    cycles: Ints
    outputs: Mapping[str, Ints]


def bits(numbers: Floats) -> Ints:
    """Returns BF16 bits of numbers that BF16 can say."""
    return numbers.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.int64)


def random_rows(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Draws BF16 numbers: of all magnitudes, close ones, equal ones, and zeros of both signs."""
    kinds = rng.integers(0, 4, shape)
    wide = np.ldexp(rng.standard_normal(shape), rng.integers(-140, 100, shape))
    near = rng.standard_normal(shape)
    few = rng.integers(-3, 4, shape) * rng.choice([-0.5, 0.5], shape)
    values = np.select([kinds == 0, kinds == 1], [wide, near], few)
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def _machine(rows: Floats) -> Machine:
    """Returns a machine whose vector memory holds rows [rows, lanes]."""
    count, lanes = rows.shape
    engine = EngineConfig(vlen=lanes, vector_bytes=(count + 1) * lanes * 2, fp_words=count)
    machine = Machine(engine, store(np.zeros((1, lanes), np.float32), "bfloat16"))
    machine.vector[:count] = rows
    return machine


def sum_tree_vectors(unit: SumTree, rows: int, streams: int, seed: int) -> Vectors:
    """Rows, one a cycle, and their sums by V_RED_SUM."""
    numbers = random_rows(np.random.default_rng(seed), (rows, streams, len(unit.lanes)))
    totals = np.empty((rows, streams), np.float32)
    for stream in range(streams):
        machine = _machine(numbers[:, stream])
        one = "S_ADDI_INT gp1, gp0, {}\nS_ADD_FP f1, f0, f0\nV_RED_SUM f1, gp1\nS_ST_FP f1, gp1, 0"
        machine.run(parse("\n".join(map(one.format, range(rows)))))
        totals[:, stream] = machine.fp
    outputs = {"total": (totals + np.float32(0)).view(np.uint32).astype(np.int64)}
    return Vectors(_padded(_lanes(numbers), unit.latency), _after(rows, unit.latency), outputs)


def max_index_vectors(
    unit: MaxIndex, rows: int, streams: int, seed: int, row_group: int = 5
) -> Vectors:
    """Rows, one a cycle, some of which are not valid; a new stream every `row_group` rows. The best
    so far is V_RED_MAX_IDX's."""
    rng = np.random.default_rng(seed)
    lanes = len(unit.lanes)
    numbers = random_rows(rng, (rows, streams, lanes))
    numbers[rng.random(numbers.shape) < 0.1] = -np.inf
    numbers[rng.random((rows, streams)) < 0.05] = -np.inf
    valid = rng.random((rows, streams)) < 0.9
    base = rng.integers(0, 100_000, (rows, streams))
    start = np.broadcast_to(np.arange(rows)[:, None] % row_group == 0, (rows, streams))
    best, index = np.empty((rows, streams), np.float32), np.empty((rows, streams), np.int64)
    for stream in range(streams):
        machine = _machine(numbers[:, stream])
        machine.fp[0] = -largest("bfloat16")
        program = []
        for row in range(rows):
            if start[row, stream]:
                program += ["S_LD_FP f1, gp0, 0", "S_ADDI_INT gp2, gp0, 0"]
            program += [f"S_ADDI_INT gp1, gp0, {row}", f"S_ADDI_INT gp3, gp0, {base[row, stream]}"]
            if valid[row, stream]:
                program += ["V_RED_MAX_IDX gp2, gp1, gp3, f1"]
            program += ["S_ST_INT gp2, gp1, 0"]
            if row:
                program += ["S_ST_FP f1, gp1, 0"]
        machine.run(parse("\n".join(program)))
        index[:, stream] = machine.int[:rows]
        best[:, stream] = machine.fp
    cycles = _after(rows, unit.latency)[1:]  # word 0 of scalar memory holds the lowest number
    inputs = _lanes(numbers) | {
        "base": base,
        "start": start.astype(np.int64),
        "valid": valid.astype(np.int64),
    }
    return Vectors(
        _padded(inputs, unit.latency), cycles, {"best": bits(best[1:]), "index": index[1:]}
    )


def top_k_vectors(unit: TopK, blocks: int, streams: int, seed: int) -> Vectors:
    """Draws blocks of keys, one key a cycle, and the masks of V_TOPK_MASK."""
    rng = np.random.default_rng(seed)
    length, slots = len(unit.mask), unit.slots
    keys = np.abs(random_rows(rng, (blocks, streams, length)))
    keys *= np.where(rng.random(keys.shape) < 0.1, np.float32(-1), np.float32(1))
    admitted = rng.random(keys.shape) < 0.8
    k = rng.integers(0, slots + 1, (blocks, streams))
    masks = np.empty((blocks, streams), np.int64)
    for block, stream in np.ndindex(blocks, streams):
        machine = _machine(
            np.stack([keys[block, stream], admitted[block, stream].astype(np.float32)])
        )
        registers = enumerate((0, 1, 2, k[block, stream]), 1)
        program = [f"S_ADDI_INT gp{register}, gp0, {value}" for register, value in registers]
        machine.run(parse("\n".join([*program, f"V_TOPK_MASK gp3, gp1, gp2, gp4, {length}"])))
        masks[block, stream] = machine.vector[2].astype(np.int64) @ (1 << np.arange(length))
    inputs = {
        "key": bits(_one_a_cycle(keys)),
        "admitted": _one_a_cycle(admitted).astype(np.int64),
        "start": np.tile((np.arange(length) == 0).astype(np.int64), blocks)[:, None]
        * np.ones(streams, np.int64),
        "k": np.repeat(k, length, axis=0),
    }
    # The mask is there when the last key is in; k still is the block's then.
    cycles = length * np.arange(1, blocks + 1)
    held = {name: _held(values, length) for name, values in inputs.items()}
    return Vectors(held, cycles + np.arange(blocks), {"mask": masks})


def _one_a_cycle(values: np.ndarray) -> np.ndarray:
    """Turns [blocks, streams, length] into [blocks * length, streams]."""
    return values.transpose(0, 2, 1).reshape(-1, values.shape[1])


def _held(values: Ints, length: int) -> Ints:
    """Repeats each block's last cycle: in the second one its mask is looked at."""
    cycles = np.arange(len(values))
    return values[np.repeat(cycles, np.where(cycles % length == length - 1, 2, 1))]


def _lanes(numbers: Floats) -> dict[str, Ints]:
    return {f"lane{i}": bits(numbers[..., i]) for i in range(numbers.shape[-1])}


def _padded(inputs: Mapping[str, Ints], latency: int) -> dict[str, Ints]:
    """Zeros after the last row, until its result is out."""
    return {name: np.pad(values, ((0, latency + 1), (0, 0))) for name, values in inputs.items()}


def _after(rows: int, latency: int) -> Ints:
    return np.arange(rows) + latency


def simulated(unit: Elaboratable, vectors: Vectors, stream: int = 0) -> dict[str, Ints]:
    """Returns what a unit puts out for one stream, by Amaranth's simulator [len(cycles)]."""
    ports = {port.name: port for port in unit.ports}  # pyright: ignore[reportAttributeAccessIssue]
    seen: dict[str, list[int]] = {name: [] for name in vectors.outputs}
    wanted = set(vectors.cycles.tolist())

    async def bench(context) -> None:
        for cycle in range(vectors.cycles[-1] + 1):
            for name, values in vectors.inputs.items():
                context.set(ports[name], int(values[cycle, stream]))
            if cycle in wanted:
                for name, numbers in seen.items():
                    numbers.append(context.get(ports[name]))
            await context.tick()

    simulator = Simulator(unit)
    simulator.add_clock(1e-9)
    simulator.add_testbench(bench)
    simulator.run()
    return {name: np.array(numbers) for name, numbers in seen.items()}


def run_netlist(netlist: Netlist, vectors: Vectors) -> dict[str, Ints]:
    """Returns what the gates put out, for all streams [len(cycles), streams]."""
    streams = next(iter(vectors.inputs.values())).shape[1]
    simulator = NetlistSimulator(netlist, streams)
    seen: dict[str, list[Ints]] = {name: [] for name in vectors.outputs}
    wanted: Sequence[int] = vectors.cycles.tolist()
    for cycle in range(wanted[-1] + 1):
        for name, values in vectors.inputs.items():
            simulator.set(name, values[cycle])
        if cycle in wanted:
            for name, numbers in seen.items():
                numbers.append(simulator.get(name))
        simulator.tick()
    return {name: np.stack(numbers) for name, numbers in seen.items()}
