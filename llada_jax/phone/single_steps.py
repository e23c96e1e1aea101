"""Single steps that figures and measurements are of: a product, a step all mapped, a pass."""

from collections.abc import Iterator, Mapping
from typing import Any

from llada_jax.lowered import Lowered, LoweredWeight, product_with
from llada_jax.phone.cost import price_on_npu
from llada_jax.phone.forward_timer import ForwardTimer, GraphsLike
from llada_jax.phone.profile import Profile
from llada_jax.phone.system import System
from llada_jax.phone.transfers import WeightTransfers
from llada_jax.phone.workload import Forward

ALL_MAPPED = WeightTransfers()
"""Of Table 2's step, which is taken to hold no mapping event, as no session can have it."""


def product_step(rows: int, inputs: int, outputs: int, weight: LoweredWeight, name: str) -> Lowered:
    """Returns a step that is one product with weights, as it would be lowered."""
    operation = product_with(name, rows, inputs, outputs)
    return Lowered(name, b"", {name: weight}, {}, {}, (operation,))


def ffn_down(model: Any, rows: int) -> Lowered:
    """Returns the product of Figure 3, in Q4_0."""
    shape = (model.width, model.ffn_width)
    weight = LoweredWeight(shape, 4, 32)
    return product_step(rows, model.ffn_width, model.width, weight, "layers.0.ffn.down")


def one_pass(
    graphs: GraphsLike,
    profile: Profile,
    rows: int,
    *,
    kernels: str = "vendor",
    context: int = 4096,
    head_rows: int = 1,
) -> float:
    """Returns seconds of a pass with a static context, all computed, and the head of some rows."""
    chosen = profile.npu[kernels]
    layer = price_on_npu(graphs.layer(rows, context - rows), chosen, profile.memory)
    head = price_on_npu(graphs.head(head_rows), chosen, profile.memory)
    call = chosen.step_overhead_us * 1e-6
    return layer.seconds * graphs.model.n_layers + head.seconds * graphs.head_chunks + call


def residuals_of(
    figures: Mapping[str, Any], graphs: GraphsLike, profile: Profile
) -> Iterator[tuple[str, float, float]]:
    """Yields the fitted points of Table 2: name, published and modelled milliseconds."""
    table = figures["table2_step_ms"]
    cpu = table2_seconds(figures, ForwardTimer(graphs, profile, System(body="cpu")))
    npu = table2_seconds(figures, ForwardTimer(graphs, profile, System(), transfers=ALL_MAPPED))
    for index, rows in enumerate(table["rows"]):
        for name, seconds in (("cpu", cpu), ("npu", npu)):
            yield f"table2/{name}/{rows}", table[name][index], seconds[index] * 1e3


def table2_seconds(figures: Mapping[str, Any], phone: ForwardTimer) -> list[float]:
    """Returns seconds of the steps of Table 2."""
    return [phone.step(Forward(n, 0, n)).seconds for n in figures["table2_step_ms"]["rows"]]
