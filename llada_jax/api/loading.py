"""A model from wherever it is, or in words; and what is done with it: export, tiles, logits."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from llada_jax import checkpoint
from llada_jax.api.custom_model import ModelFunctions
from llada_jax.api.forked import require_own_jax
from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.manifest import MANIFEST, Manifest
from llada_jax.backend.exported.writer import write_export
from llada_jax.backend.protocol import Inputs
from llada_jax.checkpoint import describe_checkpoint, open_checkpoint
from llada_jax.config import ExportConfig, ModelConfig, require
from llada_jax.io.content import content_hash
from llada_jax.model import forward as model_forward
from llada_jax.model.families.family import Family, add_family, families
from llada_jax.model.mesh import agreed, require_device
from llada_jax.model.params import param_count
from llada_jax.programs import kept, own_jit
from llada_jax.revision.tiled_forward import pack_params
from llada_jax.revision.tiles import Tiles
from llada_jax.text import Tokenizer
from llada_jax.types import Params


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("params",),
    meta_fields=("config", "tokenizer", "artifact", "source", "functions"),
    drop_fields=("fingerprint",),
)
@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A model that is ready to run: a pytree whose leaves are the arrays of `params`.

    So `jax.jit`, `jax.grad`, `jax.vmap` and `jax.tree.map` take it as an argument. Its other fields
    are static: a function that is compiled for one model is compiled again for a model that differs
    in them. What they return has no fingerprint, as its arrays need not be those of the files.
    """

    config: ModelConfig
    params: Params
    """Arrays, as `llada_jax.model.params.ModelParams`; None if the model is an export."""
    tokenizer: Tokenizer | None
    """The checkpoint's tokenizer; None if it has none."""
    artifact: Path | None = None
    """Folder that the backend runs; None unless the model is an export."""
    source: str | None = None
    """Name or path that `load` was given."""
    fingerprint: str | None = None
    """Names the content of the files that it was loaded from; of an export, that of its manifest.
    None if it was made in memory."""

    functions: ModelFunctions | None = None
    """What decodes a custom model; None for a model of a known family."""

    @classmethod
    def custom(
        cls,
        config: ModelConfig,
        params: Params,
        *,
        forward_rows: Callable[..., Any],
        logits: Callable[..., Any],
        empty_cache: Callable[..., Any],
        tokenizer: Tokenizer | None = None,
    ) -> "Model":
        """Returns a model of any architecture, which `generate`, `evaluate`, `start` and the like
        decode on XLA.

        Args:
          config: Its vocabulary, special ids, `max_length`, and how its attention and outputs are
            (`block_length`, `causal`, `shift_logits`); the rest of the shape is not read.
          params: A tree of arrays.
          forward_rows, logits, empty_cache: See `llada_jax.api.custom_model.ModelFunctions`.
          tokenizer: For text and chats; None decodes ids alone.

        Raises:
          ValueError: A function that cannot be called.
        """
        functions = ModelFunctions(forward_rows, logits, empty_cache)
        for name, function in functions._asdict().items():
            require(callable(function), f"{name} is {function!r}; allowed: a function")
        return cls(config, params, tokenizer, functions=functions)

    def replace(self, **changes: Any) -> "Model":
        """Returns a copy with some fields changed. It has no fingerprint if `config`, `params` or
        `tokenizer` are among them and `fingerprint` is not."""
        if changes.keys() & {"config", "params", "tokenizer"}:
            changes = {"fingerprint": None} | changes
        return replace(self, **changes)

    @property
    def stored_as(self) -> str:
        """Returns the numbers of its layers: a dtype, the kind of its tiles, or `exported`."""
        if self.params is None:
            return "exported"
        if self.functions is not None:
            return "custom"
        weight = self.params.layers[0].attention.query
        tiled = isinstance(weight, Tiles)
        return f"{weight.kind} tiles" if tiled else str(jax.tree.leaves(weight)[0].dtype)

    def __repr__(self) -> str:
        """Names the model in one line, without its arrays."""
        name = "" if self.source is None else f"{self.source!r}, "
        count = param_count(self.config)
        if self.functions is not None:
            count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        return f"Model({name}family {self.config.family}, {count:,} parameters, {self.stored_as})"


def load(
    source: str | os.PathLike[str],
    dtype: str | None = None,
    *,
    family: Family | str | None = None,
    block_length: int | None = None,
    experts: bool = True,
    mesh: Mesh | None = None,
    ignore_keys: Collection[str] = (),
    adapter: str | os.PathLike[str] | None = None,
) -> Model:
    """Loads a model.

    Args:
      source: a bundled name (`"tiny"`), a folder in the Hugging Face layout, a `.gguf` file, a
        folder that `export` wrote, or a model of the Hugging Face hub, `org/name[@revision]`: out
        of the hub's cache, or downloaded into it (extra `hub`).
      dtype: `float32`, `bfloat16`, `int8` or `int4` (quantized while loading); default: as stored,
        and float32 for bundled models.
      family: how a checkpoint that no known family answers to is spelled, known from then on; or
        the name of the family that it is of, whatever its configuration looks like. Other
        distributions add families by entry points of the group `llada_jax.families`.
      block_length: the block of block-causal attention, where the checkpoint does not say it
        (dllm's BD3LM), or another one than its family's usual (Stable-DiffCoder in blocks of 8).
      experts: False leaves the routed experts of a mixture out: `generate_within_budget` reads
        them from a file of their own.
      mesh: the devices that share the model, of `llada_jax.mesh`; default: one has it whole.
      ignore_keys: keys of `config.json` that are not known, and that change no output. A key that
        is known, or that decides what is computed, cannot be ignored.
      adapter: the folder, or the name in the hub, of a LoRA adapter in peft's layout, which is
        merged into the matrices as they are read.

    Raises:
      FileNotFoundError, ValueError: one message that names the file and what is wrong with it,
        before any tensor is read; NaN, infinity, and a file that is written meanwhile are found as
        they are.
    """
    require_own_jax()
    require_device()
    name = None if family is None else add_family(family)
    if (Path(source) / MANIFEST).is_file():
        require(mesh is None, f"{source} is an export; allowed on a mesh: a checkpoint")
        require(adapter is None, f"{source} is an export; allowed with an adapter: a checkpoint")
        return _load_exported(Path(source), dtype)
    settings = f"model {source}, dtype {dtype}, mesh {mesh and dict(mesh.shape)}"
    before = checkpoint.file_states(source, adapter)
    config, params, tokenizer_folder = checkpoint.load_params(
        source, dtype, name, experts, mesh, ignore_keys, adapter
    )
    tokenizer = _for_family(checkpoint.read_tokenizer(tokenizer_folder), config)
    fingerprint = agreed(settings, partial(checkpoint.fingerprint, source, adapter))
    require(
        checkpoint.file_states(source, adapter) == before,
        f"{source} was changed while it was loaded; allowed: files that nobody writes meanwhile",
    )
    config = _with_tokenizers_ids(config, tokenizer, name)
    if block_length is not None:
        usual = families()[config.family].facts.get("block_length")  # which no file says
        require(
            config.block_length in (None, usual, block_length),
            f"block_length is {block_length}; allowed: {config.block_length}, the checkpoint's own",
        )
        config = config.replace(block_length=block_length)
    for field in families()[config.family].required:
        require(
            getattr(config, field) is not None,
            f"{field} is in no file of {source}, and family {config.family!r} needs it; allowed: "
            f"{field}=...",
        )
    return Model(config, params, tokenizer, source=str(source), fingerprint=fingerprint)


def _with_tokenizers_ids(
    config: ModelConfig, tokenizer: Tokenizer | None, family: str | None = None
) -> ModelConfig:
    """Returns the configuration with the tokenizer's [MASK] and EOS if it has none of its own.

    Raises ValueError for an autoregressive model whose tokenizer has [MASK], unless the caller
    named the family: it may be a diffusion model in that family's names.
    """
    if tokenizer is None:
        return config
    require(
        not config.autoregressive or tokenizer.mask_id is None or family is not None,
        f"the tokenizer has [MASK], which no model of family {config.family!r} has: perhaps it is "
        f"Open-dCoder; allowed: family='dream' if it is (full attention, shifted outputs), "
        f"family={config.family!r} if it predicts one token after another",
    )
    names = ("eos_id",) if config.autoregressive else ("mask_id", "eos_id")
    ids = {name: getattr(tokenizer, name) for name in names}
    return config.replace(**{k: v for k, v in ids.items() if getattr(config, k) is None})


def _for_family(tokenizer: Tokenizer | None, config: ModelConfig) -> Tokenizer | None:
    """Returns the tokenizer with what the family's template is given."""
    family = families().get(config.family)
    return tokenizer and replace(tokenizer, variables=family.template if family else {})


def _load_exported(folder: Path, dtype: str | None) -> Model:
    manifest = Manifest.load(folder)
    quant = manifest.settings.quant
    require(
        dtype in (None, quant),
        f"dtype is {dtype!r}, but {folder} is exported as {quant!r}; allowed: None",
    )
    has_tokenizer = {"tokenizer.json", "vocab.json"} & {file.name for file in manifest.others}
    tokenizer = checkpoint.read_tokenizer(folder if has_tokenizer else None)
    tokenizer = _for_family(tokenizer, manifest.model)
    fingerprint = content_hash(folder, [folder / MANIFEST])
    return Model(manifest.model, None, tokenizer, folder, str(folder), fingerprint)


def export(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    settings: ExportConfig | None = None,
    *,
    verify: bool = True,
    samples: Sequence[Inputs] = (),
) -> Manifest:
    """Writes a model as a folder of `.tflite` files, which `load` takes.

    A checkpoint of any size is read tensor by tensor; see `llada_jax.backend.exported.writer`.

    Args:
      settings: default: int8, for the CPU.
      verify: run every file against JAX before the folder gets its name.
      samples: forwards that `llada_jax.backend.program.Recorder` recorded, for phones with static
        quantization.

    Raises:
      FileNotFoundError, ValueError: one message that names what is wrong, before anything is
        written; an export that was interrupted goes on with the same call.
      ImportError: the extra `npu` is not installed.
    """
    weights, tokenizer_path = open_checkpoint(source)
    tokenizer = checkpoint.read_tokenizer(tokenizer_path)
    config = _with_tokenizers_ids(weights.config, tokenizer)
    settings = settings or ExportConfig()
    fingerprint = partial(checkpoint.fingerprint, source)
    what = Export(config, weights, settings, str(source), tokenizer, verify, samples, fingerprint)
    return write_export(Path(folder), what)


def forward(
    model: Model, tokens: Int[Array, "B L"], block_length: int | None = None
) -> Float[Array, "B L V"]:
    """Returns the logits of every position: [B, L] ids to [B, L, V] float32.

    Attention is bidirectional, or block-causal if the family is; `block_length` makes it
    block-causal with blocks of that length, counted from position 0.

    A pure function: `jax.jit(lj.forward)(model, tokens)` compiles it (with
    `static_argnames="block_length"` if that is given), `jax.vmap(lj.forward, (None, 0))` runs
    batches [N, B, L], and `jax.grad` of a function of the model gives a model whose arrays are the
    gradients, if its parameters are floats.

    Raises:
      ValueError: an export, or a model of tiles; tokens that are not integers [B, L], or are longer
        than the model's `max_length`; an id outside the vocabulary, unless the tokens are traced:
        then it is read as some other id.
    """
    require_own_jax()
    require(model.artifact is None, f"{model.artifact} is an export: it has no parameters for JAX")
    require(not has_tiles(model.params), "the model has tiles; allowed: the model they are made of")
    require(model.functions is None, "the model is custom; allowed: a model of a known family")
    config, traced = model.config, isinstance(tokens, Tracer)
    ids = tokens if traced else np.asarray(tokens)  # as NumPy, ids can be checked in any trace
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
    """Returns whether the matrices are tiles."""
    return any(isinstance(leaf, Tiles) for leaf in jax.tree.leaves(params))


@kept
def _forward(*shape: Any) -> Callable[..., Array]:
    return own_jit(model_forward.forward, static_argnums=1)


def tiled(model: Model) -> Model:
    """Returns the model with its matrices as the NPU's tiles, for `generate(refresh_on=)`: int4 in
    groups of 32. A model loaded as int4 keeps its integers.

    Raises:
      ValueError: an export, a model with experts, or a matrix that has no tiles.
    """
    require(model.artifact is None, "the model is an export; allowed: a model with parameters")
    require(model.functions is None, "the model is custom; allowed: a model of a known family")
    tiles = pack_params(model.params, model.config)
    return model.replace(params=tiles, fingerprint=model.fingerprint)


@dataclass(frozen=True)
class Description:
    """A checkpoint that was looked through."""

    config: ModelConfig
    parameters: int
    bytes: int | None
    """Of its tensors, as they are stored; None if neither they nor an index of them are there."""
    kinds: dict[str, int]
    """How many tensors there are of each number type."""
    presets: tuple[str, ...]
    """Presets of `SamplerConfig` that decode it, the published one first."""
    missing: tuple[str, ...]
    """What decoding or a chat needs and the folder does not have."""
    ignored_keys: tuple[str, ...] = ()
    """Unknown keys of `config.json` that were ignored, as the caller wished."""

    def __str__(self) -> str:
        """Says it in lines."""
        config, moe = self.config, self.config.moe
        experts = f", {moe.n_experts} experts, {moe.experts_per_token} a token" if moe else ""
        ids = {name: getattr(config, f"{name}_id") for name in ("mask", "eos", "eot", "pad")}
        ids |= {"stop": ", ".join(map(str, config.stop_ids)) or None}
        blocks = f"causal between blocks of {config.block_length}"
        own = "predict the next position" if config.shift_logits else "predict their own"
        kind = "autoregressive" if config.autoregressive else config.causal
        attention, outputs = {
            "autoregressive": ("causal", "predict the next position"),
            "finished": ("causal before the current block, which sees itself whole",
                         "predict the next position before the current block, there their own"),
            "filled": ("causal, tokens before masks", own),
        }.get(kind or "", (blocks if config.block_length else "full", own))  # fmt: skip
        kinds = ", ".join(f"{n} {k}" for k, n in self.kinds.items()) or "by the index"
        lines = {
            "family": config.family,
            "shape": f"{config.n_layers} layers, width {config.width}, {config.n_heads} heads on "
            f"{config.n_kv_heads} of {config.head_dim}, feed-forward {config.ffn_width}, "
            f"vocabulary {config.vocab_size:,}, up to {config.max_length:,} tokens{experts}",
            "parameters": f"{self.parameters:,}",
            "bytes": "unknown" if self.bytes is None else f"{self.bytes:,} ({kinds})",
            "ids": ", ".join(f"{name} {id_}" for name, id_ in ids.items() if id_ is not None),
            "attention": attention,
            "outputs": outputs,
            "decoded by": ", ".join(self.presets) or "no preset",
            "missing": "; ".join(self.missing) or "nothing",
        }
        if self.ignored_keys:
            lines["ignored"] = ", ".join(self.ignored_keys)
        return "\n".join(f"{name:<11} {text}" for name, text in lines.items())


def describe(
    source: str | os.PathLike[str],
    *,
    family: Family | str | None = None,
    ignore_keys: Collection[str] = (),
) -> Description:
    """Looks a checkpoint through without loading it: the header of each file, no weight.

    A folder of `config.json` alone, or of that and the index of the shards, is described from
    these; the weights are then what is missing.

    Arguments and errors as `load`: what would not load is refused in the same sentence. Exports are
    refused.
    """
    name = None if family is None else add_family(family)
    opened, tokenizer_path, size = describe_checkpoint(source, name, ignore_keys)
    tokenizer = checkpoint.read_tokenizer(tokenizer_path)
    config, stored = _with_tokenizers_ids(opened.config, tokenizer, name), opened.stored.values()
    needed = {
        "the weights": opened.stored or None,
        "a mask id (SamplerConfig.from_flat(mask_id=...))": config.autoregressive or config.mask_id,
        "an EOS id": config.eos_id,
        "tokenizer.json": tokenizer,
        "a chat template": tokenizer and tokenizer.chat_template,
    }
    return Description(
        config,
        param_count(config),
        size,
        dict(Counter(tensor.kind for tensor in stored)),
        tuple(families()[config.family].presets),
        tuple(what for what, found in needed.items() if found is None),
        opened.ignored_keys,
    )
