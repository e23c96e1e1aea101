"""The object that all functions of this package take, and its logits.

A `Model` is a pytree with the parameters as leaves, and the configuration and tokenizer as static
fields. `llada_jax.api.loading` makes one of files, `Model.custom` of functions.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from llada_jax.config import ModelConfig, require
from llada_jax.model import forward as model_forward
from llada_jax.model.params import param_count
from llada_jax.programs import kept, own_jit
from llada_jax.revision.tiles import Tiles
from llada_jax.types import KVCache, Params, Rows, RowsOut

if TYPE_CHECKING:
    from llada_jax.text import Tokenizer


class ModelFunctions(NamedTuple):
    """The functions of a custom model: pure, and traceable by JAX.

    Attributes:
      forward_rows: `(params, rows, cache)` to the states of R rows, [B, R, D], and their keys and
        values. A row has to obey `rows.sees_cache` and `rows.sees_rows`, and change nothing if it
        is not `rows.live`; the cache is read only.
      logits: `(params, hidden)`, states [B, Q, D] to logits [B, Q, V].
      empty_cache: `(params, batch, length)` to a cache of zeros, an array [B, K, L, Dh] for each
        layer; `length` may be 0. Layers, K and Dh are as in the rows' keys and values, an array
        [B, R, K, Dh] for each layer.
    """

    forward_rows: Callable[[Params, Rows, KVCache], RowsOut]
    logits: Callable[[Params, Float[Array, "B Q D"]], Float[Array, "B Q V"]]
    empty_cache: Callable[[Params, int, int], KVCache]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("params", "drafter"),
    meta_fields=("config", "tokenizer", "artifact", "source", "functions"),
    drop_fields=("fingerprint",),
)
@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A model that is ready to run: a pytree whose leaves are the arrays of `params`.

    It can be an argument of `jax.jit`, `jax.grad`, `jax.vmap` and `jax.tree.map`. The other fields
    are static: a function compiled for one model is compiled again for a model with other static
    fields. Models that JAX functions return have no fingerprint, because their arrays can differ
    from those in the files.
    """

    config: ModelConfig
    params: Params
    """Arrays, as `llada_jax.model.params.ModelParams`; None if the model is an export."""
    tokenizer: "Tokenizer | None"
    """The checkpoint's tokenizer; None if it has none."""
    artifact: Path | None = None
    """Folder of the export, which the backend runs; None for models with parameters."""
    source: str | None = None
    """Name or path that was passed to `load`."""
    fingerprint: str | None = None
    """Hash of the files that it was loaded from, or of an export's manifest. None for a model made
    in memory."""

    functions: ModelFunctions | None = None
    """Functions of a custom model; None for a model of a known family."""

    drafter: Any = None
    """A drafter that was trained for this model, such as a `llada_jax.draft.dflash.DFlash`, for
    samplers with `drafter="own"` (preset `draft`); None if it has none."""

    @classmethod
    def custom(
        cls,
        config: ModelConfig,
        params: Params,
        *,
        forward_rows: Callable[..., Any],
        logits: Callable[..., Any],
        empty_cache: Callable[..., Any],
        tokenizer: "Tokenizer | None" = None,
    ) -> "Model":
        """Returns a model of any architecture, decoded on XLA by `generate`, `evaluate` etc.

        Args:
          config: Its vocabulary, special ids, `max_length`, and the form of its attention and
            outputs (`block_length`, `causal`, `shift_logits`). Other fields are not read.
          params: A tree of arrays.
          forward_rows, logits, empty_cache: See `llada_jax.api.model.ModelFunctions`.
          tokenizer: For text and chats; without it, only token ids can be decoded.

        Raises:
          ValueError: One of the functions is not callable.
        """
        functions = ModelFunctions(forward_rows, logits, empty_cache)
        for name, function in functions._asdict().items():
            require(callable(function), f"{name} is {function!r}; allowed: a function")
        return cls(config, params, tokenizer, functions=functions)

    def replace(self, **changes: Any) -> "Model":
        """Returns a copy with some fields changed. If `config`, `params` or `tokenizer` change, the
        copy has no fingerprint unless a new one is passed."""
        if changes.keys() & {"config", "params", "tokenizer"}:
            changes = {"fingerprint": None} | changes
        return replace(self, **changes)

    def with_drafter(self, drafter: Any) -> "Model":
        """Returns the model with a drafter of its own. Raises ValueError if the drafter was trained
        for another model."""
        drafter = drafter.attached(self.config, self.params, self.fingerprint)
        return replace(self, drafter=drafter)

    @property
    def stored_as(self) -> str:
        """How its layers are stored: a dtype, a kind of tiles, `exported` or `custom`."""
        if self.params is None:
            return "exported"
        if self.functions is not None:
            return "custom"
        weight = self.params.layers[0].attention.query
        tiled = isinstance(weight, Tiles)
        return f"{weight.kind} tiles" if tiled else str(jax.tree.leaves(weight)[0].dtype)

    def __repr__(self) -> str:
        """Describes the model in one line, without its arrays."""
        name = "" if self.source is None else f"{self.source!r}, "
        count = param_count(self.config)
        if self.functions is not None:
            count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        return f"Model({name}family {self.config.family}, {count:,} parameters, {self.stored_as})"


_started_in: int | None = None


def require_own_jax() -> None:
    """Raises ValueError in a fork of a process that has loaded or run a model: JAX's threads do not
    exist there, and its computations would wait for them without end."""
    global _started_in
    _started_in = _started_in or os.getpid()
    require(
        _started_in == os.getpid(),
        f"process {os.getpid()} was forked from process {_started_in}, which uses JAX, and would "
        "hang; allowed: processes that multiprocessing starts by spawn or forkserver",
    )


def forward(
    model: Model, tokens: Int[Array, "B L"], block_length: int | None = None
) -> Float[Array, "B L V"]:
    """Returns the logits of every position: [B, L] ids to [B, L, V] float32.

    Attention is bidirectional or block-causal, by the family. With `block_length` it is
    block-causal with blocks of that length, counted from position 0.

    This is a pure function: `jax.jit(lj.forward)(model, tokens)` compiles it (with
    `static_argnames="block_length"` if that is passed), and `jax.vmap(lj.forward, (None, 0))` runs
    batches [N, B, L]. With float parameters, `jax.grad` of a function of the model returns a model
    whose arrays are the gradients.

    Raises:
      ValueError: The model is an export, custom or made of tiles; the tokens are not integers
        [B, L] or longer than `max_length`; or an id is outside the vocabulary. Ids of traced tokens
        cannot be checked, and an invalid one is read as some other id.
    """
    require_own_jax()
    require(model.artifact is None, f"{model.artifact} is an export: it has no parameters for JAX")
    require(not has_tiles(model.params), "the model has tiles; allowed: the model they are made of")
    require(model.functions is None, "the model is custom; allowed: a model of a known family")
    config, traced = model.config, isinstance(tokens, Tracer)
    ids = tokens if traced else np.asarray(tokens)  # NumPy arrays can be checked within any trace
    require(
        ids.ndim == 2 and ids.size > 0 and np.issubdtype(ids.dtype, np.integer),
        f"tokens are {ids.dtype} of shape {ids.shape}; allowed: integers [B, L], not empty",
    )
    config.require_room("each row of tokens", ids.shape[1])
    low, high = (0, 0) if traced else (ids.min(), ids.max())
    require(
        bool(low >= 0 and high < config.vocab_size),
        f"tokens span {low} to {high}; allowed: 0 to {config.vocab_size - 1} (the vocabulary)",
    )
    require(
        block_length is None or block_length > 0,
        f"block_length is {block_length}; allowed: 1 or more",
    )
    config = config.replace(block_length=block_length or config.block_length)
    return _forward(ids.shape)(model.params, config, ids.astype(np.int32))


def has_tiles(params: Params) -> bool:
    """Returns whether the matrices are stored as the NPU's tiles."""
    return any(isinstance(leaf, Tiles) for leaf in jax.tree.leaves(params))


@kept
def _forward(*shape: Any) -> Callable[..., Array]:
    return own_jit(model_forward.forward, static_argnums=1)
