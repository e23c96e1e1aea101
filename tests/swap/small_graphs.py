"""Small graphs, budgets and plans for tests, some of them random."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from random import Random

from hypothesis import strategies as st

from llada_jax.swap.address_space import Budget, Plan, Transfer, assemble
from llada_jax.swap.graph import Graph, Operator


def chain(
    weight_bytes: Sequence[int], compute_ns: Sequence[int], transfer_ns: Sequence[int]
) -> Graph:
    """Returns a graph of operators `A`, `B` ... without dependencies, from sizes and times."""
    columns = zip(weight_bytes, compute_ns, transfer_ns, strict=True)
    return Graph(
        tuple(
            Operator(chr(ord("A") + i) if i < 26 else f"op{i}", size, compute, transfer)
            for i, (size, compute, transfer) in enumerate(columns)
        )
    )


FIGURE_10 = chain([30, 10, 30, 30, 10], [2, 1, 2, 5, 1], [3, 1, 2, 3, 1])
"""Figure 10 of arXiv 2606.13740: sizes in MB, times in ms."""


def one_buffer(size: int, alignment: int = 1, **settings: int) -> Budget:
    """Returns a budget in which only the bytes are limited."""
    return Budget(
        session_bytes=size,
        alignment=alignment,
        max_buffer_bytes=max(size, 1),
        max_buffers=99,
        **settings,
    )


@st.composite
def graphs(draw, *, max_operators: int = 8) -> Graph:
    """Draws a graph. Operators may have no weights, or take no time."""
    small = st.integers(0, 9)
    operators = []
    for index in range(draw(st.integers(1, max_operators))):
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
    """Draws a budget, from too small for any graph to large enough for all."""
    return Budget(
        session_bytes=draw(st.integers(1, 100)),
        max_buffers=draw(st.integers(1, 12)),
        max_buffer_bytes=draw(st.integers(4, 100)),
        alignment=draw(st.integers(1, 4)),
        kv_bytes_per_token=draw(st.integers(0, 2)),
        tokens=draw(st.integers(0, 4)),
        temporary_bytes=draw(st.integers(0, 9)),
    )


def tight_instance(seed: int, max_operators: int, alignment: int = 1) -> tuple[Graph, Budget]:
    """Returns a random graph with a budget of one buffer that is too small for its weights.

    Times are multiples of 12, so that rounding a period to whole ns changes it little.
    """
    rng = Random(seed)
    operators = []
    for index in range(rng.randint(3, max_operators)):
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


def with_shared_addresses(
    graph: Graph, budget: Budget, groups: Sequence[Sequence[int]], offsets: Mapping[int, int]
) -> Plan:
    """Returns a plan in which groups of operators displace each other in one buffer.

    All operators without an offset are resident in another buffer.
    """
    order = range(len(graph))
    sizes = [operator.weight_bytes for operator in graph.operators]
    residents = [i for i in order if i not in offsets]
    starts = accumulate((sizes[i] for i in residents), initial=0)
    address = dict(zip(residents, starts, strict=False))
    resident_bytes = sum(sizes[i] for i in residents)
    address |= {i: resident_bytes + offset for i, offset in offsets.items()}
    shared = max(offset + sizes[i] for i, offset in offsets.items())
    transfers = [Transfer(tuple(group), None) for group in groups]
    return assemble(graph, budget, order, address, [resident_bytes, shared], displaced=transfers)
