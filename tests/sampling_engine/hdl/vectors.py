"""Test vectors: random streams, and what the interpreter makes of them."""

from collections.abc import Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np
from amaranth.hdl import Elaboratable
from amaranth.sim import Simulator
from numpy.typing import NDArray

from llada_jax.sampling_engine.formats import Floats, largest
from llada_jax.sampling_engine.hdl.max_index import MaxIndex
from llada_jax.sampling_engine.hdl.sum_tree import SumTree
from llada_jax.sampling_engine.hdl.top_k import TopK
from llada_jax.sampling_engine.machine import first_maximum, top_k_mask, tree_sum
from tests.sampling_engine.hdl.netlist import Netlist, NetlistSimulator

Ints = NDArray[np.int64]
ROW_GROUP = 5
"""Rows of a stream of which `MaxIndex` keeps the best."""


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


def _bits(numbers: np.ndarray) -> Ints:
    """Returns BF16 bits of numbers that BF16 can say."""
    return numbers.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.int64)


def _random_rows(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Draws BF16 numbers: of all magnitudes, close ones, equal ones, and zeros of both signs."""
    kinds = rng.integers(0, 4, shape)
    wide = np.ldexp(rng.standard_normal(shape), rng.integers(-140, 100, shape))
    near = rng.standard_normal(shape)
    few = rng.integers(-3, 4, shape) * rng.choice([-0.5, 0.5], shape)
    values = np.select([kinds == 0, kinds == 1], [wide, near], few)
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def sum_tree_vectors(unit: SumTree, rows: int, streams: int, seed: int) -> Vectors:
    """Draws rows, one a cycle, and adds them as V_RED_SUM does."""
    lanes = len(unit.lanes)
    numbers = _random_rows(np.random.default_rng(seed), (rows, streams, lanes))
    totals = np.apply_along_axis(tree_sum, -1, numbers, lanes).astype(np.float32) + np.float32(0)
    outputs = {"total": totals.view(np.uint32).astype(np.int64)}
    return _one_row_a_cycle(_lanes(numbers), unit.latency, outputs)


def max_index_vectors(unit: MaxIndex, rows: int, streams: int, seed: int) -> Vectors:
    """Draws rows, one a cycle, some of which are not valid; every few rows a new stream begins. The
    best so far is V_RED_MAX_IDX's."""
    rng = np.random.default_rng(seed)
    numbers = _random_rows(rng, (rows, streams, len(unit.lanes)))
    numbers[rng.random(numbers.shape) < 0.1] = -np.inf
    numbers[rng.random((rows, streams)) < 0.05] = -np.inf
    valid = rng.random((rows, streams)) < 0.9
    base = rng.integers(0, 100_000, (rows, streams))
    start = np.broadcast_to(np.arange(rows)[:, None] % ROW_GROUP == 0, (rows, streams))
    best, index = np.empty((rows, streams)), np.empty((rows, streams), np.int64)
    for row, stream in np.ndindex(rows, streams):
        begins = start[row, stream]
        top = -largest("bfloat16") if begins else best[row - 1, stream]
        place = 0 if begins else index[row - 1, stream]
        lane, number = first_maximum(numbers[row, stream])
        if valid[row, stream] and number > top:
            top, place = number, base[row, stream] + lane
        best[row, stream], index[row, stream] = top, place
    inputs = {**_lanes(numbers), "base": base, "start": start * 1, "valid": valid * 1}
    return _one_row_a_cycle(inputs, unit.latency, {"best": _bits(best), "index": index})


def top_k_vectors(unit: TopK, blocks: int, streams: int, seed: int) -> Vectors:
    """Draws blocks of keys, one key a cycle, and the masks of V_TOPK_MASK."""
    rng = np.random.default_rng(seed)
    length, slots = len(unit.mask), unit.slots
    keys = np.abs(_random_rows(rng, (blocks, streams, length)))
    keys *= np.where(rng.random(keys.shape) < 0.1, np.float32(-1), np.float32(1))
    admitted = rng.random(keys.shape) < 0.8
    k = rng.integers(0, slots + 1, (blocks, streams))
    masks = np.empty((blocks, streams), np.int64)
    for each in np.ndindex(blocks, streams):
        chosen = top_k_mask(np.where(admitted[each], keys[each], np.float32(0)), k[each])
        masks[each] = chosen @ (1 << np.arange(length))
    inputs = {
        "key": _bits(_one_key_a_cycle(keys)),
        "admitted": _one_key_a_cycle(admitted) * 1,
        "start": np.tile(np.arange(length)[:, None] == 0, (blocks, streams)) * 1,
        "k": np.repeat(k, length, axis=0),
    }
    # The mask is there when the last key is in; k still is the block's then. So the last cycle of
    # each block is repeated, and in the second one its mask is looked at.
    cycles = np.arange(blocks * length)
    held = np.repeat(cycles, np.where(cycles % length == length - 1, 2, 1))
    looked_at = (length + 1) * np.arange(1, blocks + 1) - 1
    return Vectors({name: each[held] for name, each in inputs.items()}, looked_at, {"mask": masks})


def _one_key_a_cycle(values: np.ndarray) -> np.ndarray:
    """Turns [blocks, streams, length] into [blocks * length, streams]."""
    return values.transpose(0, 2, 1).reshape(-1, values.shape[1])


def _lanes(numbers: Floats) -> dict[str, Ints]:
    return {f"lane{i}": _bits(numbers[..., i]) for i in range(numbers.shape[-1])}


def _one_row_a_cycle(
    inputs: Mapping[str, Ints], latency: int, outputs: Mapping[str, Ints]
) -> Vectors:
    """Puts zeros behind the last row, until its result is out."""
    padded = {name: np.pad(each, ((0, latency + 1), (0, 0))) for name, each in inputs.items()}
    rows = len(next(iter(inputs.values())))
    return Vectors(padded, np.arange(rows) + latency, outputs)


def simulated(unit: Elaboratable, vectors: Vectors) -> dict[str, Ints]:
    """Returns what a unit puts out for the first stream, by Amaranth's simulator [len(cycles)]."""
    ports = {port.name: port for port in unit.ports}  # pyright: ignore[reportAttributeAccessIssue]
    seen: dict[str, list[int]] = {name: [] for name in vectors.outputs}

    async def bench(context) -> None:
        for cycle in range(vectors.cycles[-1] + 1):
            for name, values in vectors.inputs.items():
                context.set(ports[name], int(values[cycle, 0]))
            if cycle in vectors.cycles:
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
    simulator = NetlistSimulator(netlist, next(iter(vectors.inputs.values())).shape[1])
    seen: dict[str, list[Ints]] = {name: [] for name in vectors.outputs}
    for cycle in range(vectors.cycles[-1] + 1):
        for name, values in vectors.inputs.items():
            simulator.set(name, values[cycle])
        if cycle in vectors.cycles:
            for name, numbers in seen.items():
                numbers.append(simulator.get(name))
        simulator.tick()
    return {name: np.stack(numbers) for name, numbers in seen.items()}
