"""A step as a planner sees it: operators in order, what each one needs and how long each takes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from llada_jax.config import ModelConfig, require

ACTIVATION_BYTES = 2
"""float16, in which llada.cpp keeps activations, keys and values (arXiv 2606.13740, section 4): for
plans here, and for what `llada_jax.phone.memory` maps."""


@dataclass(frozen=True)
class Operator:
    """One operator of a step. Times are whole nanoseconds, so that sums and optima are exact."""

    name: str
    weight_bytes: int
    compute_ns: int
    transfer_ns: int = 0
    """Time to stage its weights, beside what every mapping takes (`Graph.map_ns`)."""
    temporary_bytes: int = 0
    """Its output, which lives until the last operator that depends on it has run."""
    depends: tuple[int, ...] = ()
    """Numbers of the operators whose outputs it reads."""

    def __post_init__(self) -> None:
        for name in ("weight_bytes", "compute_ns", "transfer_ns", "temporary_bytes"):
            value = getattr(self, name)
            require(
                isinstance(value, int) and value >= 0,
                f"{name} of operator {self.name!r} is {value!r}; allowed: a whole number from 0",
            )


@dataclass(frozen=True)
class Graph:
    """The operators of a step, in an order in which they can run."""

    operators: tuple[Operator, ...]
    map_ns: int = 0
    """Time that each transfer takes whatever its size: the mapping."""

    def __post_init__(self) -> None:
        require(len(self.operators) > 0, "the graph has 0 operators; allowed: 1 or more")
        require(self.map_ns >= 0, f"map_ns is {self.map_ns}; allowed: 0 or more")
        for index, operator in enumerate(self.operators):
            for other in operator.depends:
                require(
                    0 <= other < index,
                    f"operator {operator.name!r} depends on operator {other}; "
                    f"allowed: those before it (0 to {index - 1})",
                )

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def weight_bytes(self) -> int:
        """Of all operators."""
        return sum(operator.weight_bytes for operator in self.operators)

    @cached_property
    def compute_ns(self) -> int:
        """Of all operators: a step without a stall."""
        return sum(operator.compute_ns for operator in self.operators)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Of each operator: the operators that depend on it."""
        readers: list[list[int]] = [[] for _ in self.operators]
        for index, operator in enumerate(self.operators):
            for other in set(operator.depends):
                readers[other].append(index)
        return tuple(map(tuple, readers))

    def transfer_ns(self, operators: Sequence[int]) -> int:
        """Time to stage the weights of some operators as one mapping."""
        return self.map_ns + sum(self.operators[i].transfer_ns for i in operators)

    def is_order(self, order: Sequence[int]) -> bool:
        """Whether the operators can run in this order."""
        position = {index: place for place, index in enumerate(order)}
        return sorted(order) == list(range(len(self))) and all(
            position[other] < position[index]
            for index, operator in enumerate(self.operators)
            for other in operator.depends
        )

    def staged_at(self, bytes_per_second: float, map_ns: int) -> "Graph":
        """The graph with the transfer times of a way to stage; `math.inf` where bytes cost nothing.

        Raises ValueError for a speed of 0 or less.
        """
        require(bytes_per_second > 0, f"bytes_per_second is {bytes_per_second}; allowed: above 0")
        operators = tuple(
            replace(operator, transfer_ns=round(operator.weight_bytes / bytes_per_second * 1e9))
            for operator in self.operators
        )
        return Graph(operators, map_ns)


def chain(
    weight_bytes: Sequence[int], compute_ns: Sequence[int], transfer_ns: Sequence[int]
) -> Graph:
    """Operators `A`, `B` and so on that do not depend on each other, by their sizes and times."""
    columns = zip(weight_bytes, compute_ns, transfer_ns, strict=True)
    return Graph(
        tuple(
            Operator(chr(ord("A") + i) if i < 26 else f"op{i}", size, compute, transfer)
            for i, (size, compute, transfer) in enumerate(columns)
        )
    )


def model_graph(config: ModelConfig, *, rows: int, weight_bits: float, step_ns: int) -> Graph:
    """The matrix products of a model's body, without transfer times.

    Every matrix of the dense layers is an operator, and so is every expert: as if a step ran all
    of them. The head and the embedding stay on the CPU, as in llada.cpp.

    Args:
      rows: rows of the step; they size the temporaries.
      weight_bits: stored bits a weight, with its share of the scales (4.5 for Q4_0).
      step_ns: compute time of the whole body, spread over the operators by their weights.

    Raises ValueError for rows, bits or a time of 0 or less.
    """
    for name, value in (("rows", rows), ("weight_bits", weight_bits), ("step_ns", step_ns)):
        require(value > 0, f"{name} is {value}; allowed: above 0")
    shapes = list(_matrices(config))
    total = sum(shape.weights for shape in shapes)
    number = {shape.name: index for index, shape in enumerate(shapes)}
    return Graph(
        tuple(
            Operator(
                name=shape.name,
                weight_bytes=math.ceil(shape.weights * weight_bits / 8),
                compute_ns=round(step_ns * shape.weights / total),
                temporary_bytes=rows * shape.outputs * ACTIVATION_BYTES,
                depends=tuple(number[name] for name in shape.reads),
            )
            for shape in shapes
        )
    )


@dataclass(frozen=True)
class _Matrix:
    name: str
    weights: int
    outputs: int
    """Numbers that it gives for each row."""
    reads: tuple[str, ...]


def _matrices(config: ModelConfig) -> Iterator[_Matrix]:
    before: tuple[str, ...] = ()
    for layer in range(config.n_layers):
        mixed = f"layers.{layer}.attention.output"
        yield from _attention(config, layer, before)
        moe = config.moe
        if moe is None or layer < moe.first_layer:
            yield from _feed_forward(config, f"layers.{layer}.ffn", config.ffn_width, mixed)
            before = (f"layers.{layer}.ffn.down",)
        else:
            yield from _experts(config, layer, mixed)
            before = (f"layers.{layer}.ffn.sum",)


def _attention(config: ModelConfig, layer: int, before: tuple[str, ...]) -> Iterator[_Matrix]:
    prefix = f"layers.{layer}.attention"
    query, key = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    for name, width in (("query", query), ("key", key), ("value", key)):
        yield _Matrix(f"{prefix}.{name}", config.width * width, width, before)
    inputs = tuple(f"{prefix}.{name}" for name in ("query", "key", "value"))
    yield _Matrix(f"{prefix}.output", config.width * query, config.width, inputs)


def _feed_forward(config: ModelConfig, prefix: str, width: int, mixed: str) -> Iterator[_Matrix]:
    size = config.width * width
    yield _Matrix(f"{prefix}.gate", size, width, (mixed,))
    yield _Matrix(f"{prefix}.up", size, width, (mixed,))
    yield _Matrix(f"{prefix}.down", size, config.width, (f"{prefix}.gate", f"{prefix}.up"))


def _experts(config: ModelConfig, layer: int, mixed: str) -> Iterator[_Matrix]:
    """An operator for each expert: its three matrices are always used together."""
    moe, prefix = config.moe, f"layers.{layer}.ffn"
    assert moe is not None
    router = f"{prefix}.router"
    yield _Matrix(router, config.width * moe.n_experts, moe.n_experts, (mixed,))
    widths = {f"{prefix}.expert{e}": moe.expert_width for e in range(moe.n_experts)}
    if moe.shared_width:
        widths[f"{prefix}.shared"] = moe.shared_width
    for name, width in widths.items():
        yield _Matrix(name, 3 * config.width * width, config.width, (router,))
    yield _Matrix(f"{prefix}.sum", 0, config.width, tuple(widths))
