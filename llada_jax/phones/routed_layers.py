"""Cost of a layer with routed experts (mixture of experts), by the experts that its rows activate.

The layer is assembled from the lowered dense layer. Attention and norms stay. The feed-forward is
replaced by the router, the shared expert for all rows, and three products for every activated
expert. These have the number of rows that take the expert, since its weights are read and
dequantized once for all of them. Work of the host between router and experts is not included,
because no numbers are published.
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
_NEGLIGIBLE = 1e-6
"""Groups of fewer experts than this, on average, are left out."""
Price = Callable[[Lowered], StepCost]


@cache
def experts_by_rows(moe: MoEConfig, rows: int) -> Mapping[int, float]:
    """Returns the mean number of experts that are taken by exactly 1, 2, ... of the rows.

    Each row is assumed to take k of E experts independently, all equally often, so the rows of an
    expert are binomial. The sum is the mean number of different experts, E (1 - (1 - k / E)^rows).
    Rows of one text choose more similar experts, so this is an upper bound.
    """
    share = moe.experts_per_token / moe.n_experts
    n_experts = {
        n: moe.n_experts * math.comb(rows, n) * share**n * (1 - share) ** (rows - n)
        for n in range(1, rows + 1)
    }
    return {n: mean for n, mean in n_experts.items() if mean > _NEGLIGIBLE}


def layer_costs(model: ModelConfig, layer: Lowered, rows: int, price: Price) -> list[StepCost]:
    """Returns the cost of every layer of a forward.

    Args:
      layer: the lowered dense layer, which represents all layers.
      price: the cost of a lowered step on one processor.
    """
    dense, moe = price(layer), model.moe
    if moe is None:
        return [dense] * model.n_layers
    matrices = [matrix for matrix in _ffn_matrices(model) if matrix.of_expert]
    groups = experts_by_rows(moe, rows).items()
    experts = (price(_expert_step(layer, matrices, n)).times(count) for n, count in groups)
    routed = sum_of([price(_without_experts(layer, model, moe, rows)), *experts])
    return [routed if is_routed(model, index) else dense for index in range(model.n_layers)]


def _without_experts(layer: Lowered, model: ModelConfig, moe: MoEConfig, rows: int) -> Lowered:
    """Returns a routed layer without its routed experts.

    It is the dense layer, in which router, selection, shared expert and weighted sum replace the
    feed-forward.
    """
    ffn = [i for i, op in enumerate(layer.operations) if ".ffn." in (op.weight or "")]
    first, last = ffn[0], ffn[-1]
    scope = layer.operations[first].scope
    router = [matrix for matrix in _ffn_matrices(model) if matrix.name.endswith(".router")]
    shared = [matrix for matrix in _ffn_matrices(model) if matrix.of_shared_expert]
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
    weights = {**layer.weights, **_weights(router, 32, None)}  # routers are not quantized
    dense = layer.weights[str(layer.operations[first].weight)]
    weights |= _weights(shared, dense.bits, dense.group)
    return replace(layer, operations=operations, weights=weights)


def _expert_step(layer: Lowered, matrices: list[Matrix], rows: int) -> Lowered:
    """Returns one expert as a step, with the quantization of the layer's matrices."""
    dense = next(weight for weight in layer.weights.values() if len(weight.shape) > 1)
    operations = tuple(_products(matrices, rows, "expert"))
    return Lowered("expert", b"", _weights(matrices, dense.bits, dense.group), {}, {}, operations)


@cache
def _ffn_matrices(model: ModelConfig) -> tuple[Matrix, ...]:
    """Returns the matrices of a routed feed-forward: the one of the last layer."""
    prefix = f"layers.{model.n_layers - 1}.ffn."
    return tuple(matrix for matrix in body_matrices(model) if matrix.name.startswith(prefix))


def _products(matrices: list[Matrix], rows: int, scope: str) -> Iterator[Operation]:
    """Yields the product of each matrix, and the activation or gating after `gate` and `up`."""
    for matrix in matrices:
        product = product_with(matrix.name, rows, matrix.inputs, matrix.outputs, scope)
        yield product
        if matrix.name.endswith((".gate", ".up")):
            yield Operation("multiply", scope, product.outputs, product.outputs)


def _weights(matrices: list[Matrix], bits: int, group: int | None) -> dict[str, LoweredWeight]:
    return {m.name: LoweredWeight((m.outputs, m.inputs), bits, group) for m in matrices}
