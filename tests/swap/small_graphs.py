"""Random graphs and budgets, small enough to be planned by hundreds."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from random import Random

from hypothesis import strategies as st

from llada_jax.swap.address_space import Budget, Plan, Transfer, assemble
from llada_jax.swap.graph import Graph, Operator


def chain(
    weight_bytes: Sequence[int], compute_ns: Sequence[int], transfer_ns: Sequence[int]
) -> Graph:
    """Operators `A`, `B` ... that do not depend on each other, by sizes and times."""
    columns = zip(weight_bytes, compute_ns, transfer_ns, strict=True)
    return Graph(
        tuple(
            Operator(chr(ord("A") + i) if i < 26 else f"op{i}", size, compute, transfer)
            for i, (size, compute, transfer) in enumerate(columns)
        )
    )


FIGURE_10 = chain([30, 10, 30, 30, 10], [2, 1, 2, 5, 1], [3, 1, 2, 3, 1])
"""llada.cpp (arXiv 2606.13740), Figure 10: megabytes and milliseconds."""


def one_buffer(size: int, alignment: int = 1, **settings: int) -> Budget:
    """A budget in which nothing but the bytes counts."""
    return Budget(
        session_bytes=size,
        alignment=alignment,
        max_buffer_bytes=max(size, 1),
        max_buffers=99,
        **settings,
    )


@st.composite
def graphs(draw, *, most: int = 8) -> Graph:
    """Graphs of some operators; some have no weights, some take no time."""
    small = st.integers(0, 9)
    operators = []
    for index in range(draw(st.integers(1, most))):
        depends = draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else set()
        operators.append(
            Operator(
                f"op{index}",
                draw(small),
                draw(small),
                draw(small),
                tuple(sorted(depends)),
            )
        )
    return Graph(tuple(operators), draw(st.integers(0, 3)))


@st.composite
def budgets(draw) -> Budget:
    """Budgets from too small for anything to large enough for every such graph."""
    return Budget(
        session_bytes=draw(st.integers(1, 100)),
        max_buffers=draw(st.integers(1, 12)),
        max_buffer_bytes=draw(st.integers(4, 100)),
        alignment=draw(st.integers(1, 4)),
        kv_bytes_per_token=draw(st.integers(0, 2)),
        tokens=draw(st.integers(0, 4)),
        temporary_bytes=draw(st.integers(0, 9)),
    )


def tight_instance(seed: int, most: int, alignment: int = 1) -> tuple[Graph, Budget]:
    """A graph of up to so many operators that has to be staged, in one
    buffer. Times are multiples of 12, so that rounding a period up changes it little."""
    rng = Random(seed)
    operators = []
    for index in range(rng.randint(3, most)):
        depends = rng.sample(range(index), rng.randint(0, min(2, index)))
        size, compute, transfer = (rng.randint(1, 9) for _ in range(3))
        operators.append(
            Operator(
                f"op{index}",
                alignment * size,
                12 * compute,
                12 * transfer,
                depends=tuple(sorted(depends)),
            )
        )
    graph = Graph(tuple(operators), 12 * rng.choice((0, 0, 1, 3)))
    largest = max(operator.weight_bytes for operator in operators) // alignment
    room = rng.randint(largest, max(largest, graph.weight_bytes // alignment - 1))
    return graph, one_buffer(alignment * room, alignment)


def in_shared_places(
    graph: Graph, budget: Budget, groups: Sequence[Sequence[int]], offsets: Mapping[int, int]
) -> Plan:
    """A plan in which groups of operators take turns in one buffer, at given offsets; all others
    stay in a buffer of their own."""
    order = range(len(graph))
    sizes = [operator.weight_bytes for operator in graph.operators]
    stays = [i for i in order if i not in offsets]
    starts = accumulate((sizes[i] for i in stays), initial=0)
    placed = dict(zip(stays, starts, strict=False))
    resident = sum(sizes[i] for i in stays)
    placed |= {i: resident + offset for i, offset in offsets.items()}
    shared = max(offset + sizes[i] for i, offset in offsets.items())
    transfers = [Transfer(tuple(group), None) for group in groups]
    return assemble(graph, budget, order, placed, [resident, shared], displaced=transfers)
