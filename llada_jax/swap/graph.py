"""A step as a planner sees it: operators in order, what each one needs and how long each takes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from llada_jax.config import ModelConfig, require, require_counts
from llada_jax.model.architecture.parameters import Matrix, body_matrices

ACTIVATION_BYTES = 2
"""float16, in which llada.cpp keeps activations, keys and values (arXiv 2606.13740, section 4)."""


def kv_bytes_per_token(config: ModelConfig) -> int:
    """Returns the bytes of one token's keys and values in float16: 0.5 MiB for LLaDA-8B."""
    return 2 * config.n_layers * config.n_kv_heads * config.head_dim * ACTIVATION_BYTES


@dataclass(frozen=True)
class Operator:
    """One operator of a step. Times are whole nanoseconds, so that sums and optima are exact."""

    name: str
    weight_bytes: int
    compute_ns: int
    transfer_ns: int = 0
    """Time to stage its weights, beside what every mapping takes (`Graph.map_ns`)."""
    depends: tuple[int, ...] = ()
    """Numbers of the operators whose outputs it reads."""

    def __post_init__(self) -> None:
        require_counts(self, "weight_bytes", "compute_ns", "transfer_ns", least=0)


@dataclass(frozen=True)
class Graph:
    """The operators of a step, in an order in which they can run."""

    operators: tuple[Operator, ...]
    map_ns: int = 0
    """Time that each transfer takes whatever its size: the mapping."""

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
        """Bytes of all operators."""
        return sum(operator.weight_bytes for operator in self.operators)

    @cached_property
    def compute_ns(self) -> int:
        """Time of all operators: a step without a stall."""
        return sum(operator.compute_ns for operator in self.operators)

    def transfer_ns(self, operators: Sequence[int]) -> int:
        """Returns the time to stage the weights of some operators as one mapping."""
        return self.map_ns + sum(self.operators[i].transfer_ns for i in operators)

    def is_order(self, order: Sequence[int]) -> bool:
        """Returns whether the operators can run in this order."""
        position = {index: place for place, index in enumerate(order)}
        return sorted(order) == list(range(len(self))) and all(
            position[other] < position[index]
            for index, operator in enumerate(self.operators)
            for other in operator.depends
        )


def model_graph(config: ModelConfig, *, weight_bits: float, step_ns: int) -> Graph:
    """Returns the matrix products of a model's body, without transfer times.

    Every matrix is an operator, and so is every expert with its three: as if a step ran all of
    them. The head and the embedding stay on the CPU, as in llada.cpp.
    A weight's bits are with its share of the scales (4.5 for Q4_0). The body's compute time is
    spread over the operators by their weights. Raises ValueError where one of them is 0 or less.
    """
    for name, value in (("weight_bits", weight_bits), ("step_ns", step_ns)):
        require(value > 0, f"{name} is {value}; allowed: above 0")
    total = sum(matrix.weights for matrix in body_matrices(config))
    groups = list(_groups(config))
    number = {name: index for index, (name, _, _) in enumerate(groups)}
    operators = (
        Operator(
            name=name,
            weight_bytes=math.ceil(weights * weight_bits / 8),
            compute_ns=round(step_ns * weights / total),
            depends=tuple(number[each] for each in reads),
        )
        for name, weights, reads in groups
    )
    return Graph(tuple(operators))


_MatrixGroup = tuple[str, int, tuple[str, ...]]
"""Name of matrices that are always used together, their weights, and names of what they read."""


def _groups(config: ModelConfig) -> Iterator[_MatrixGroup]:
    """Yields what the body's matrices are grouped into: dense ones alone, an expert's together, and
    for each routed layer the sum of its experts, which has no weights."""
    before: tuple[str, ...] = ()
    for number, layer in groupby(body_matrices(config), lambda matrix: matrix.layer):
        experts, last = [], ""
        for matrix in layer:
            if matrix.of_expert or matrix.of_shared_expert:
                experts.append(matrix)
                continue
            last = matrix.name
            inside = tuple(name for name in matrix.reads if name.startswith(f"layers.{number}."))
            yield last, matrix.weights, inside or before
        before = (last,)
        if experts:
            yield from _expert_groups(last, experts)
            before = (f"{last.removesuffix('.router')}.sum",)


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
