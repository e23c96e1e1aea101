"""What routed experts cost: a layer of a mixture, by the experts that its rows activate.

Attention and norms are the lowered dense layer's own. In place of its feed-forward come the
router, the shared expert for all rows, and the three products of every expert that any row takes,
with as many rows as take it: its weights are fetched and unpacked once for them. How many experts
that are, and how many rows each one has, is the routing's to say. Of the host's work between
router and experts nothing is published, and nothing is counted.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from jaxtyping import Int

from llada_jax.config import ModelConfig, MoEConfig, require
from llada_jax.lowered import Lowered, LoweredWeight, Operation, TensorType, product_with
from llada_jax.model.architecture.parameters import Matrix, body_matrices, is_routed
from llada_jax.phone.cost import StepCost, sum_of

NEGLIGIBLE = 1e-6
"""Experts of a layer that are fewer, on average, are left out."""
Price = Callable[[Lowered], StepCost]


@dataclass(frozen=True)
class IndependentRouting:
    """Assumes that each row takes its experts by chance, all equally often.

    A layer then runs `E * (1 - (1 - k / E) ** rows)` different experts. Rows of one text agree more
    than that, so this is an upper bound of what decoding activates.
    """

    n_experts: int
    experts_per_token: int

    @property
    def source(self) -> str:
        return "experts assumed to be taken independently and equally often"

    def experts_by_rows(self, rows: int) -> Mapping[int, float]:
        """Returns how many experts of a layer are taken by 1, 2, ... rows of so many, on average.

        Their sum is the mean number of different experts.
        """
        share = self.experts_per_token / self.n_experts
        found = {
            n: self.n_experts * math.comb(rows, n) * share**n * (1 - share) ** (rows - n)
            for n in range(1, rows + 1)
        }
        return {n: experts for n, experts in found.items() if experts > NEGLIGIBLE}


@dataclass(frozen=True, eq=False)
class RecordedRouting:
    """Takes the experts of forwards that were run.

    Of each step it takes as many rows as are asked for; where no step has as many, those that have
    the most stand for it, each expert with proportionally more rows.
    """

    experts: Int[np.ndarray, "S N R k"]
    """Of each step, routed layer and row; below 0 for a row that the step did not run."""
    n_experts: int

    def __post_init__(self) -> None:
        require(
            self.experts.ndim == 4 and bool((self.experts >= 0).any()),
            f"experts has shape {self.experts.shape}; allowed: [steps, layers, rows, k], not empty",
        )

    @property
    def source(self) -> str:
        return f"experts by the routing of {len(self.experts)} recorded forwards"

    def experts_by_rows(self, rows: int) -> Mapping[int, float]:
        """Returns the same as `IndependentRouting.experts_by_rows`, by what was recorded."""
        live = (self.experts[:, 0, :, 0] >= 0).sum(axis=-1)
        taken = min(rows, int(live.max()))
        found: dict[int, float] = {}
        layers = [
            layer[layer[:, 0] >= 0][:taken]
            for step in self.experts[live >= taken]
            for layer in step
        ]
        for layer in layers:
            counts = np.bincount(layer.ravel(), minlength=self.n_experts)
            for n in counts[counts > 0].tolist():
                scaled = math.ceil(n * rows / taken)
                found[scaled] = found.get(scaled, 0.0) + 1 / len(layers)
        return found


AnyRouting = IndependentRouting | RecordedRouting
"""Which experts rows take."""


def routing_of(model: ModelConfig, routing: AnyRouting | None) -> AnyRouting | None:
    """Returns the routing that a model is priced by; None for a model without experts.

    Raises ValueError for a routing of another model's experts.
    """
    moe = model.moe
    if moe is None:
        require(routing is None, "routing is given; allowed: None, for a model without experts")
        return None
    if isinstance(routing, RecordedRouting):
        found = routing.n_experts, routing.experts.shape[-1]
        require(
            found == (moe.n_experts, moe.experts_per_token),
            f"routing has {found[0]} experts, {found[1]} a row; allowed for this model: "
            f"{moe.n_experts} experts, {moe.experts_per_token} a row",
        )
    return routing or IndependentRouting(moe.n_experts, moe.experts_per_token)


def layer_costs(
    model: ModelConfig, layer: Lowered, rows: int, price: Price, routing: AnyRouting | None
) -> list[StepCost]:
    """Prices every layer of a forward, from the lowered dense layer that stands for all."""
    dense, moe = price(layer), model.moe
    if moe is None or routing is None:
        return [dense] * model.n_layers
    experts = [each for each in _ffn(model) if each.of_expert]
    taken = _experts_by_rows(routing, rows).items()
    costs = (price(_feed_forward(layer, experts, n)).times(count) for n, count in taken)
    routed = sum_of([price(without_experts(layer, model, moe, rows)), *costs])
    return [routed if is_routed(model, each) else dense for each in range(model.n_layers)]


@cache
def _experts_by_rows(routing: AnyRouting, rows: int) -> Mapping[int, float]:
    return routing.experts_by_rows(rows)


def without_experts(layer: Lowered, model: ModelConfig, moe: MoEConfig, rows: int) -> Lowered:
    """Returns a routed layer but for its routed experts: the dense layer, its feed-forward replaced
    by router, choice, shared expert and weighted sum."""
    inside = [i for i, each in enumerate(layer.operations) if ".ffn." in (each.weight or "")]
    first, last = inside[0], inside[-1]
    scope = layer.operations[first].scope
    router = [each for each in _ffn(model) if each.name.endswith(".router")]
    shared = [each for each in _ffn(model) if each.of_shared_expert]
    chosen = TensorType((rows * moe.experts_per_token, model.width), "f32")
    scores = TensorType((rows, moe.n_experts), "f32")
    operations = (
        *layer.operations[:first],
        *_products(router, rows, scope),
        *(Operation(name, scope, (scores,), (scores,)) for name in ("logistic", "reduce")),
        Operation("gather", scope, (chosen,), (chosen,)),
        *_products(shared, rows, scope),
        *(Operation(name, scope, (chosen,), (chosen,)) for name in ("multiply", "reduce")),
        *layer.operations[last + 1 :],
    )
    weights = {**layer.weights, **_weights(router, 32, None)}
    like = layer.weights[str(layer.operations[first].weight)]
    weights |= _weights(shared, like.bits, like.group)
    return replace(layer, operations=operations, weights=weights)


def _feed_forward(layer: Lowered, matrices: list[Matrix], rows: int) -> Lowered:
    """Returns one expert's feed-forward as a step of its own, stored as the layer's matrices."""
    like = next(weight for weight in layer.weights.values() if len(weight.shape) > 1)
    operations = tuple(_products(matrices, rows, "expert"))
    return Lowered("expert", b"", _weights(matrices, like.bits, like.group), {}, {}, operations)


@cache
def _ffn(model: ModelConfig) -> tuple[Matrix, ...]:
    """Returns the matrices of the last layer's feed-forward, which is routed."""
    last = f"layers.{model.n_layers - 1}.ffn."
    return tuple(each for each in body_matrices(model) if each.name.startswith(last))


def _products(matrices: list[Matrix], rows: int, scope: str) -> Iterator[Operation]:
    """Yields a product for each matrix, each but the router and the last with an activation."""
    for each in matrices:
        product = product_with(each.name, rows, each.inputs, each.outputs, scope)
        yield product
        if each.name.endswith((".gate", ".up")):
            yield Operation("multiply", scope, product.outputs, product.outputs)


def _weights(matrices: list[Matrix], bits: int, group: int | None) -> dict[str, LoweredWeight]:
    return {each.name: LoweredWeight((each.outputs, each.inputs), bits, group) for each in matrices}
