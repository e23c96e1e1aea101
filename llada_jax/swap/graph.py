"""The graph of a step for planners: operators with weights, times and dependencies.

Planners need no tensors. An operator is a matrix product, or an expert with its three, and all
times are whole nanoseconds so that stalls can be compared exactly.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from llada_jax.config import ModelConfig, require, require_counts
from llada_jax.model.architecture.parameters import Matrix, body_matrices

ACTIVATION_BYTES = 2
"""llada.cpp stores activations, keys and values as float16 (arXiv 2606.13740, section 4)."""


def kv_bytes_per_token(config: ModelConfig) -> int:
    """Returns the bytes of one token's keys and values in float16: 0.5 MiB for LLaDA-8B."""
    return 2 * config.n_layers * config.n_kv_heads * config.head_dim * ACTIVATION_BYTES


@dataclass(frozen=True)
class Operator:
    """One operator of a step."""

    name: str
    weight_bytes: int
    compute_ns: int
    transfer_ns: int = 0
    """Time to stage the weights, without the fixed time of a transfer (`Graph.map_ns`)."""
    depends: tuple[int, ...] = ()
    """Indices of the operators that it reads."""

    def __post_init__(self) -> None:
        require_counts(self, "weight_bytes", "compute_ns", "transfer_ns", least=0)


@dataclass(frozen=True)
class Graph:
    """The operators of a step, in a valid order."""

    operators: tuple[Operator, ...]
    map_ns: int = 0
    """Fixed time of each transfer: the mapping."""

    def __post_init__(self) -> None:
        require(len(self.operators) > 0, "the graph has 0 operators; allowed: 1 or more")
        require_counts(self, "map_ns", least=0)
        for index, operator in enumerate(self.operators):
            for other in operator.depends:
                require(
                    0 <= other < index,
                    f"operator {operator.name!r} depends on operator {other}; "
                    f"allowed: the {index} before it",
                )

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def weight_bytes(self) -> int:
        return sum(operator.weight_bytes for operator in self.operators)

    @cached_property
    def compute_ns(self) -> int:
        """Compute time of all operators: the time of a step without stalls."""
        return sum(operator.compute_ns for operator in self.operators)

    def transfer_ns(self, operators: Sequence[int]) -> int:
        """Returns the time to stage the weights of these operators in one transfer."""
        return self.map_ns + sum(self.operators[i].transfer_ns for i in operators)

    def is_order(self, order: Sequence[int]) -> bool:
        """Returns whether the operators can run in this order."""
        position = {index: p for p, index in enumerate(order)}
        return sorted(order) == list(range(len(self))) and all(
            position[other] < position[index]
            for index, operator in enumerate(self.operators)
            for other in operator.depends
        )


def model_graph(config: ModelConfig, *, weight_bits: float, step_ns: int) -> Graph:
    """Returns the graph of a model's body, without transfer times.

    Every matrix is an operator, and so is every expert with its three matrices. All experts are in
    the graph, as if a step used all of them. Head and embedding are on the CPU, as in llada.cpp.

    Args:
      weight_bits: bits of a weight with its share of the scale, for example 4.5 for Q4_0.
      step_ns: compute time of the body, which is spread over the operators by their weights.

    Raises ValueError if an argument is not above 0.
    """
    for name, value in (("weight_bits", weight_bits), ("step_ns", step_ns)):
        require(value > 0, f"{name} is {value}; allowed: above 0")
    total = sum(matrix.weights for matrix in body_matrices(config))
    groups = list(_groups(config))
    index_of = {name: index for index, (name, _, _) in enumerate(groups)}
    operators = (
        Operator(
            name=name,
            weight_bytes=math.ceil(weights * weight_bits / 8),
            compute_ns=round(step_ns * weights / total),
            depends=tuple(index_of[other] for other in reads),
        )
        for name, weights, reads in groups
    )
    return Graph(tuple(operators))


_MatrixGroup = tuple[str, int, tuple[str, ...]]
"""Name of an operator, number of its weights, and names of the operators that it reads."""


def _groups(config: ModelConfig) -> Iterator[_MatrixGroup]:
    """Yields the operators of the body.

    A dense matrix is an operator, and the three matrices of an expert are one. A routed layer ends
    with an operator without weights, the sum of its experts.
    """
    previous_layer: tuple[str, ...] = ()
    for number, layer in groupby(body_matrices(config), lambda matrix: matrix.layer):
        experts, last = [], ""
        for matrix in layer:
            if matrix.of_expert or matrix.of_shared_expert:
                experts.append(matrix)
                continue
            last = matrix.name
            reads = tuple(name for name in matrix.reads if name.startswith(f"layers.{number}."))
            yield last, matrix.weights, reads or previous_layer
        previous_layer = (last,)
        if experts:
            yield from _expert_groups(last, experts)
            previous_layer = (f"{last.removesuffix('.router')}.sum",)


def _expert_groups(router: str, matrices: Sequence[Matrix]) -> Iterator[_MatrixGroup]:
    prefix = router.removesuffix(".router")
    routed = [matrix for matrix in matrices if matrix.of_expert]
    weights = sum(matrix.weights // matrix.copies for matrix in routed)
    names = {f"{prefix}.expert{copy}": weights for copy in range(routed[0].copies)}
    if shared := sum(matrix.weights for matrix in matrices if matrix.of_shared_expert):
        names[f"{prefix}.shared"] = shared
    for name, size in names.items():
        yield name, size, (router,)
    yield f"{prefix}.sum", 0, tuple(names)
