"""Records that JAX maps over, and the callables that the parts of the framework hand each other.

Shape letters, used in every signature of this package:

    B batch     L canvas    R rows of a forward    C candidate rows (decisions of a step)
    P prompt    D width     H heads   K key-value heads   Dh head size   F feed-forward width
    V vocabulary            N layers  E experts           S steps
"""

from typing import Any, NamedTuple, Protocol

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


class ForwardRows(Protocol):
    def __call__(self, params: Params, rows: Rows, cache: KVCache, /) -> RowsOut: ...


class ScoreRows(Protocol):
    def __call__(
        self,
        params: Params,
        hidden: Float[Array, "B C D"],
        noise_keys: Key[Array, "B C"] | None,
        /,
    ) -> Scores: ...


class LogitsRows(Protocol):
    def __call__(
        self, params: Params, hidden: Float[Array, "B C D"], /
    ) -> Float[Array, "B C V"]: ...


class EmptyCache(Protocol):
    def __call__(self, params: Params, batch: int, length: int, /) -> KVCache: ...


class Denoiser(NamedTuple):
    """The model as the sampler knows it: three functions of the parameters.

    The functions are compared by identity, so a denoiser that is kept is compiled once. One that is
    not `traceable` runs outside JAX. One that `keeps_cache` has the keys and values to itself: its
    `empty_cache` forgets them and gives a cache without layers.
    """

    forward_rows: ForwardRows
    score_rows: ScoreRows
    empty_cache: EmptyCache
    traceable: bool = True
    keeps_cache: bool = False
    logits_rows: LogitsRows | None = None
    """For rules that read all logits, -inf for forbidden ids; None where a backend keeps them."""
