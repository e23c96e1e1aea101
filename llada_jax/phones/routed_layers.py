"""What routed experts cost: a layer of a mixture, by the experts that its rows activate.

Attention and norms are the lowered dense layer's own. In place of its feed-forward come the
router, the shared expert for all rows, and the three products of every expert that any row takes,
with as many rows as take it: its weights are fetched and unpacked once for them. Of the host's work
between router and experts nothing is published, and nothing is counted.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache

from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.lowered import Lowered, LoweredWeight, Operation, TensorType, product_with
from llada_jax.model.architecture.parameters import Matrix, body_matrices, is_routed
from llada_jax.phones.cost import StepCost, sum_of

EXPERTS_ASSUMPTION = "experts assumed to be taken independently and equally often"
NEGLIGIBLE = 1e-6
"""Experts of a layer that are fewer, on average, are left out."""
Price = Callable[[Lowered], StepCost]


@cache
def experts_by_rows(moe: MoEConfig, rows: int) -> Mapping[int, float]:
    """Returns how many experts of a layer are taken by 1, 2, ... rows of so many, on average, where
    each row takes its experts by chance, all equally often. Their sum is the mean number of
    different experts, `E * (1 - (1 - k / E) ** rows)`.

    Rows of one text agree more than that, so it is an upper bound of what decoding activates.
    """
    share = moe.experts_per_token / moe.n_experts
    found = {
        n: moe.n_experts * math.comb(rows, n) * share**n * (1 - share) ** (rows - n)
        for n in range(1, rows + 1)
    }
    return {n: experts for n, experts in found.items() if experts > NEGLIGIBLE}


def layer_costs(model: ModelConfig, layer: Lowered, rows: int, price: Price) -> list[StepCost]:
    """Prices every layer of a forward, from the lowered dense layer that stands for all."""
    dense, moe = price(layer), model.moe
    if moe is None:
        return [dense] * model.n_layers
    experts = [each for each in _ffn(model) if each.of_expert]
    taken = experts_by_rows(moe, rows).items()
    costs = (price(_feed_forward(layer, experts, n)).times(count) for n, count in taken)
    routed = sum_of([price(without_experts(layer, model, moe, rows)), *costs])
    return [routed if is_routed(model, each) else dense for each in range(model.n_layers)]


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
