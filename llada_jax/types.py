"""Records that JAX maps over, and the callables that the parts of the framework hand each other.

Shape letters, used in every signature of this package:

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
    """The rows of one forward: canvas positions, what they feed and what they may see.

    Rows that are not `live` pad the forward to a fixed size and change nothing. `writes` marks
    those whose keys and values enter the cache; None stands for all live ones.
    """

    tokens: Int[Array, "B R"]
    positions: Int[Array, "B R"]
    live: Bool[Array, "B R"]
    sees_cache: Bool[Array, "B R L"]
    sees_rows: Bool[Array, "B R R"]
    writes: Bool[Array, "B R"] | None = None

    @property
    def written(self) -> Bool[Array, "B R"]:
        """Marks live rows whose keys and values enter the cache."""
        return self.live if self.writes is None else self.live & self.writes


class KVCache(NamedTuple):
    """Keys (after RoPE) and values of canvas positions, per layer. L may be 0: nothing cached."""

    keys: Float[Array, "N B L K Dh"]
    values: Float[Array, "N B L K Dh"]


class RowsOut(NamedTuple):
    """What a forward gives: hidden states after the final norm, and each row's keys and values."""

    hidden: Float[Array, "B R D"]
    keys: Float[Array, "N B R K Dh"]
    values: Float[Array, "N B R K Dh"]


class Scores(NamedTuple):
    """What the head says about each row, in the confidence dtype. Entropy is in nats."""

    token: Int[Array, "B C"]
    confidence: Float[Array, "B C"]
    entropy: Float[Array, "B C"]
    margin: Float[Array, "B C"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Asked:
    """What a rule asks of the head beside the scores; 0 or None where it does not."""

    top_k: int = field(default=0, metadata={"static": True})  # of the most probable ids
    n_classes: int = field(default=0, metadata={"static": True})
    listed: Int[Array, "B C K"] | None = None  # ids whose logits are wanted; below 0: none
    added: Float[Array, "B C K"] | None = None  # to their logits, before all else is made of them
    class_of: Int[Array, " V"] | None = None  # of each id, below `n_classes`
    previous: Float[Array, "B C D"] | None = None  # states from which distributions may have moved
    class_mass: bool = field(default=False, metadata={"static": True})  # a class's probability
    class_samples: bool = field(default=False, metadata={"static": True})
    """Whether the best id of a class is the one that sampling noise makes best."""

    def first(self, count: int) -> "Asked":
        """Returns what is asked of so many rows."""
        rows = ("listed", "added", "previous")
        given = {name: getattr(self, name) for name in rows if getattr(self, name) is not None}
        return replace(self, **{name: array[:, :count] for name, array in given.items()})


class Measured(NamedTuple):
    """What was asked of the head, in the confidence dtype; None where it was not."""

    log_sum_exp: Float[Array, "B C"]
    top_ids: Int[Array, "B C k"] | None  # the best one first; of equal ones the lowest
    top_logits: Float[Array, "B C k"] | None
    listed: Float[Array, "B C K"] | None  # logits; -inf for no id, and for one never predicted
    class_ids: Int[Array, "B C G"] | None  # the best id of each class; -1 for none
    class_logits: Float[Array, "B C G"] | None
    divergence: Float[Array, "B C"] | None  # Kullback-Leibler, from the step before (nats)
    class_noisy: Float[Array, "B C G"] | None = None  # logit with noise, where classes are sampled
    class_mass: Float[Array, "B C G"] | None = None  # log of the sum of exp(logit) over each class


class HeadOut(NamedTuple):
    """What the head says of each row."""

    scores: Scores
    measured: Measured | None


Hidden: TypeAlias = Float[Array, "B C D"]
NoiseKeys: TypeAlias = Key[Array, "B C"] | None


class Denoiser(NamedTuple):
    """The model as the sampler knows it: three functions of the parameters.

    The functions are compared by identity, so a denoiser that is kept is compiled once. One that is
    not `traceable` runs outside JAX. One that `keeps_cache` has the keys and values to itself: its
    `empty_cache` forgets them and gives a cache without layers.
    """

    forward_rows: Callable[[Params, Rows, KVCache], RowsOut]
    score_rows: Callable[[Params, Hidden, NoiseKeys], Scores]
    empty_cache: Callable[[Params, int, int], KVCache]  # of a batch, of canvases of a length
    traceable: bool = True
    keeps_cache: bool = False
    measure_rows: Callable[[Params, Hidden, NoiseKeys, Asked], HeadOut] | None = None
    """As `score_rows`, with what a rule asks beside the scores; None where a backend cannot."""
    for_loops: Callable[[Params], Params] = lambda params: params
    """Gives parameters the form in which a compiled loop reads them best."""
    on_mesh: "OnMesh | None" = None  # how a loop runs where the parameters are on a mesh


class OnMesh(NamedTuple):
    """A denoiser's functions as a device runs them on its part, for `llada_jax.on_mesh`."""

    mesh: jax.sharding.Mesh
    part: Denoiser
    params: Params  # the `PartitionSpec` of each
