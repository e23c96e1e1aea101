"""Models of any architecture, as three functions that the sampler calls."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from jaxtyping import Array, Float

from llada_jax.model.head import ScoreRules
from llada_jax.model.measures import absorb_head, finish_head, start_head
from llada_jax.types import Denoiser, HeadOut, HeadRequest, KVCache, Params, Rows, RowsOut, Scores


class ModelFunctions(NamedTuple):
    """The functions of a custom model: pure, and traceable by JAX.

    Attributes:
      forward_rows: `(params, rows, cache)` to the states of R rows, [B, R, D], and their keys and
        values. A row has to obey `rows.sees_cache` and `rows.sees_rows`, and change nothing if it
        is not `rows.live`; the cache is read only.
      logits: `(params, hidden)`, states [B, Q, D] to logits [B, Q, V].
      empty_cache: `(params, batch, length)` to a cache of zeros, [N, B, L, K, Dh]; `length` may be
        0. N, K and Dh are as in the rows' keys and values, [N, B, R, K, Dh].
    """

    forward_rows: Callable[[Params, Rows, KVCache], RowsOut]
    logits: Callable[[Params, Float[Array, "B Q D"]], Float[Array, "B Q V"]]
    empty_cache: Callable[[Params, int, int], KVCache]


@lru_cache(maxsize=64)
def custom_denoiser(functions: ModelFunctions, rules: ScoreRules) -> Denoiser:
    """Returns the model's `Denoiser`, cached so that each function is compiled once."""

    def measure_rows(params: Params, hidden: Any, noise_keys: Any, request: HeadRequest) -> HeadOut:
        states, running = start_head(hidden, request, rules)
        logits = functions.logits(params, states).astype(rules.confidence_dtype)
        return finish_head(absorb_head(running, logits, 0, noise_keys, request, rules))

    def score_rows(params: Params, hidden: Any, noise_keys: Any) -> Scores:
        return measure_rows(params, hidden, noise_keys, HeadRequest()).scores

    return Denoiser(
        functions.forward_rows, score_rows, functions.empty_cache, measure_rows=measure_rows
    )
