"""Records that JAX maps over, and the functions that make a model: the data types that packages
exchange.

Shape letters of this module and of the model; the sampler adds Q queried positions:

    B batch     L canvas    R rows of a forward    C candidate rows (decisions of a step)
    P prompt    D width     H heads   K key-value heads   Dh head size   F feed-forward width
    V vocabulary            N layers  E experts           S steps
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import jax
from jaxtyping import Array, Bool, Float, Int, Key

Params = Any
"""A tree of arrays that only the model reads."""


class Rows(NamedTuple):
    """The rows of one forward: canvas positions, their tokens and their visibility.

    Rows that are not `live` pad the forward to a fixed size and change nothing. `writes` marks
    the rows that write keys and values to the cache, or is None for all live ones.
    """

    tokens: Int[Array, "B R"]
    positions: Int[Array, "B R"]
    live: Bool[Array, "B R"]
    sees_cache: Bool[Array, "B R L"]
    sees_rows: Bool[Array, "B R R"]
    writes: Bool[Array, "B R"] | None = None

    @property
    def written(self) -> Bool[Array, "B R"]:
        """Marks live rows that write keys and values to the cache."""
        return self.live if self.writes is None else self.live & self.writes


class KVCache(NamedTuple):
    """Keys (after RoPE) and values of canvas positions, an array for each layer. L may be 0.

    The products of attention read these arrays as they are: with positions before heads, or with
    all layers in one array, XLA would copy the whole cache in each step. A backend that stores keys
    and values itself gives the sampler a cache of one layer without heads (K = 0).
    """

    keys: tuple[Float[Array, "B K L Dh"], ...]
    values: tuple[Float[Array, "B K L Dh"], ...]

    @property
    def length(self) -> int:
        """The number of positions, L."""
        return self.keys[0].shape[2]


class RowsOut(NamedTuple):
    """The output of a forward: states after the final norm, and the rows' keys and values, an array
    for each layer.

    `taps` are further states for a drafter of the model, or None: the outputs of n layers for each
    row, or the states of masks behind some rows.
    """

    hidden: Float[Array, "B R D"]
    keys: tuple[Float[Array, "B R K Dh"], ...]
    values: tuple[Float[Array, "B R K Dh"], ...]
    taps: Float[Array, "B R n D"] | Float[Array, "B G k D"] | None = None


class Scores(NamedTuple):
    """The head's prediction for each row, in the confidence dtype. Entropy is in nats."""

    token: Int[Array, "B C"]
    confidence: Float[Array, "B C"]
    entropy: Float[Array, "B C"]
    margin: Float[Array, "B C"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HeadRequest:
    """What a rule or a constraint requests of the head in addition to the scores; 0 or None for
    nothing."""

    top_k: int = field(default=0, metadata={"static": True})  # number of most probable ids
    n_classes: int = field(default=0, metadata={"static": True})
    listed: Int[Array, "B C K"] | None = None  # ids to compute logits of; negative for none
    added: Float[Array, "B C K"] | None = None  # to their logits, before anything else is computed
    class_of: Int[Array, " V"] | None = None  # class of each id, below `n_classes`
    previous: Float[Array, "B C D"] | None = None  # states to measure the divergence from
    class_mass: bool = field(
        default=False, metadata={"static": True}
    )  # sum the class's probability
    class_samples: bool = field(default=False, metadata={"static": True})
    """Whether sampling noise takes part in choosing the best id of a class."""

    def first(self, count: int) -> "HeadRequest":
        """Returns the request for the first `count` rows."""
        arrays = {name: getattr(self, name) for name in ("listed", "added", "previous")}
        cut = {name: array[:, :count] for name, array in arrays.items() if array is not None}
        return replace(self, **cut)


class HeadExtras(NamedTuple):
    """The results of a `HeadRequest`, in the confidence dtype; None for parts that were not
    requested."""

    log_sum_exp: Float[Array, "B C"]
    top_ids: Int[Array, "B C k"] | None  # the best one first; the lowest id wins ties
    top_logits: Float[Array, "B C k"] | None
    listed: Float[Array, "B C K"] | None  # logits; -inf for no id, and for one never predicted
    class_ids: Int[Array, "B C G"] | None  # the best id of each class; -1 for none
    class_logits: Float[Array, "B C G"] | None
    divergence: Float[Array, "B C"] | None  # Kullback-Leibler, from `previous` (nats)
    class_noisy: Float[Array, "B C G"] | None = None  # logit with noise, if classes are sampled
    class_mass: Float[Array, "B C G"] | None = None  # log of the sum of exp(logit) over each class


class HeadOut(NamedTuple):
    """The head's output for each row."""

    scores: Scores
    measured: HeadExtras | None


Hidden: TypeAlias = Float[Array, "B C D"]
NoiseKeys: TypeAlias = Key[Array, "B C"] | None


@dataclass(frozen=True)
class Denoiser:
    """The model as the sampler sees it: functions of the parameters.

    Functions are compared by identity, so a denoiser that is reused is compiled once.

    Attributes:
      forward_rows: Runs rows against the cache, which it only reads.
      score_rows: Scores hidden states.
      empty_cache: `(params, batch, length)` to a cache of zeros for canvases of `length`.
      measure_rows: As `score_rows`, with a `HeadRequest` in addition to the scores; None if
        the backend cannot.
      traceable: Whether JAX can trace the functions; if not, they run outside JAX.
    """

    forward_rows: Callable[[Params, Rows, KVCache], RowsOut]
    score_rows: Callable[[Params, Hidden, NoiseKeys], Scores]
    empty_cache: Callable[[Params, int, int], KVCache]
    measure_rows: Callable[[Params, Hidden, NoiseKeys, HeadRequest], HeadOut] | None = None
    traceable: bool = True

    def loop_params(self, params: Params) -> Params:
        """Returns the parameters in the form that a compiled loop reads fastest."""
        return params

    def head_params(self, params: Params) -> Params:
        """Returns the part of the parameters that the head reads: the host loop passes it to a
        program of its own in every step."""
        return params
