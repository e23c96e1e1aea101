"""How a canvas is decoded: a rule, a window, and what they have in common."""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from llada_jax.config import policies
from llada_jax.config.checks import (
    read_object,
    require,
    require_choices,
    require_counts,
    require_multiple,
    require_numbers,
)
from llada_jax.config.timed_buckets import LatencyTable

Remasking = Literal["low_confidence", "random", "entropy", "margin"]
Loop = Literal["compiled", "host"]
FloatDtype = Literal["float32", "float64"]
Progress = Literal["top1", "quota"]
Schedule = Literal["even", "noise"]


@dataclass(frozen=True, kw_only=True)
class Parity:
    """What a reference sampler does that is a choice of its code, not of its method.

    The defaults are this package's own. The presets `llada` and `fast_dllm` copy those two
    token for token, which `tests/sampler/test_goldens.py` holds.

    Attributes:
      confidence_dtype: In which logits become probabilities: `float32`, or `float64` as Fast-dLLM
        does.
      noise_dtype: Precision of the Gumbel noise: `float32`, or `float64` as LLaDA draws it.
      strict_threshold: Accept confidence > threshold instead of >=.
      forced_progress: What a step commits at the least under rules that compare: `top1`, the best
        candidate, or `quota`, what LLaDA's schedule would (Fast-dLLM's code for `threshold`).
      schedule: How `steps` share out a block's masks: `even`, LLaDA's equal parts; or `noise`, the
        share of what is left by which the noise level falls, rounded down (Dream's code: with a
        token a forward its first forward commits none, and its last one two).
      predict_mask: Let the model predict [MASK] itself, as both references do.
    """

    confidence_dtype: FloatDtype = "float32"
    noise_dtype: FloatDtype = "float32"
    strict_threshold: bool = False
    forced_progress: Progress = "top1"
    schedule: Schedule = "even"
    predict_mask: bool = False

    def __post_init__(self) -> None:
        require_choices(self)

    @property
    def wide(self) -> bool:
        """Whether float64 is needed, which JAX has off by default."""
        return "float64" in (self.confidence_dtype, self.noise_dtype)


HOUSE = Parity()
"""This package's own choices."""


@dataclass(frozen=True, init=False)
class SamplerConfig:
    """How a canvas is decoded: which rows run, what is committed, when it stops.

    A rule and a window are values that carry their own numbers. They are given as such,
    `SamplerConfig(rule=Threshold(threshold=0.9), window=DualCache())`, or by flat names,
    `SamplerConfig(threshold=0.9, cache="dual")`: each name belongs to the policy in use that has
    it, and is an attribute of the configuration, too. Names of policies that are not in use keep
    their defaults.

    Attributes:
      gen_length: Tokens to generate, a multiple of `block_length`.
      block_length: Tokens of a block; blocks are finished from left to right.
      steps: Forwards over the whole generation under the rule `quota`, a multiple of the number of
        blocks. It follows `gen_length`, one token a forward, unless it is set.
      rule: What commits tokens and what becomes of them, a value of `llada_jax.sampler.rules`.
      accept: The rule by name: `quota`, `threshold`, `staged`, `wino`, `token_edit`,
        `entropy_distance` or `speculate`; or `module:Class`, a rule of one's own. The number
        `threshold` chooses its own.
      window: Which rows a forward runs, a value of `llada_jax.sampler.windows`; or `by_cache`, the
        one that `cache` names; or `multi_block`, which slides with the committed tokens and reaches
        into later blocks, whose predictions are drafts (llada.cpp; with `cache="blockwise"`); or
        `sliding`, whose block begins at the first mask (WeDLM; with `cache="blockwise"`).
      cache: The window by name: `none` the whole canvas; `prefix` the block and what follows it;
        `dual` the block (both Fast-dLLM, refreshed at each block); `blockwise` the block, with keys
        and values of finished tokens only and no masked suffix (llada.cpp).
      parity: On which details of a reference sampler this one agrees with it.
      selective_logits: Score only positions whose decision is open, not the whole block.
      remasking: What candidates are ranked by: `low_confidence` (LLaDA), `random`, `entropy` or
        `margin`.
      temperature: Scale of the Gumbel noise that tokens are sampled with; 0 for the most probable
        ones.
      cfg_scale: Scale of classifier-free guidance; 0 for none.
      logits_eos_inf: Never predict EOS (LLaDA).
      confidence_eos_eot_inf: Commit EOS and EoT last: their probability counts as 0 once they are
        predicted (LLaDA).
      eos_early_stop: Stop a row, and fill it with EOS, once an EOS has only committed tokens before
        it.
      latency_table: What a forward costs by its rows, for windows that grow: a `LatencyTable`, or
        the name of a phone (`SM8750`) for the modelled times of LLaDA-8B on it; None: unknown.
      mask_id: Id of [MASK]; None: the model's own.
      eos_id: Id of EOS; None: the model's own.
      eot_id: Id of the end of a turn; None: the model's own.
    """

    gen_length: int = 128
    block_length: int = 32
    steps: int = 128
    selective_logits: bool = True
    remasking: Remasking = "low_confidence"
    temperature: float = 0.0
    cfg_scale: float = 0.0
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    eos_early_stop: bool = False
    latency_table: LatencyTable | None = None
    mask_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None
    parity: Parity = HOUSE
    rule: Any = None
    window: Any = None

    def __init__(self, **settings: Any) -> None:
        left = dict(settings)
        own = {field.name: left.pop(field.name, field.default) for field in _own_fields()}
        if settings.get("steps") is None:
            own["steps"] = own["gen_length"]
        if isinstance(own["latency_table"], str):
            own["latency_table"] = LatencyTable.named(own["latency_table"])
        given = left.pop("parity", HOUSE)
        details = {name: left.pop(name) for name in _PARITY if name in left}
        own["parity"] = dataclasses.replace(given, **details)
        own["rule"] = policies.take_policy("rule", left)
        own["window"] = policies.take_policy("window", left)
        policies.require_read(left, [*own, *_PARITY])
        for name, value in own.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        require_counts(self, "gen_length", "block_length", "steps")
        require_counts(self, "mask_id", "eos_id", "eot_id", least=0)
        require_multiple(self, "gen_length", of="block_length")
        require(
            self.steps % self.n_blocks == 0,
            f"steps is {self.steps}; allowed: a multiple of the number of blocks ({self.n_blocks})",
        )
        require_choices(self)
        table = self.latency_table
        require(
            table is None or isinstance(table, LatencyTable),
            f"latency_table is {table!r}; allowed: a LatencyTable, a phone's name, or None",
        )
        require_numbers(self, "temperature", "cfg_scale", least=0)
        self.rule.check(self)
        self.window.check(self)

    def __getattr__(self, name: str) -> Any:
        """Returns a setting by its flat name: of a policy in use, or the default of another one."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name in _PARITY:
            return getattr(self.parity, name)
        settings = policies.policy_settings(self.rule, self.window)
        if name not in settings:
            raise AttributeError(f"SamplerConfig has no setting {name!r}")
        return settings[name]

    @property
    def n_blocks(self) -> int:
        """Blocks of the generation."""
        return self.gen_length // self.block_length

    @property
    def steps_per_block(self) -> int:
        """Forwards that LLaDA's schedule gives a block."""
        return self.steps // self.n_blocks

    @property
    def refreshes(self) -> bool:
        """Whether tokens that left the window while they were visible are refreshed."""
        return self.rule.refreshes and self.window.leaves_tokens

    @property
    def has_worker(self) -> bool:
        """Whether a worker of the host refreshes them."""
        return self.refreshes and self.rule.refresh == "worker"

    def replace(self, **changes: Any) -> "SamplerConfig":
        """Returns a copy with some settings changed, by their flat names, and checked again.

        `steps` goes on to follow `gen_length` where the two are equal.
        """
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.steps == self.gen_length:
            del settings["steps"]
        if "window" not in changes or isinstance(changes["window"], str):
            settings |= policies.flat(settings.pop("window"))
        by_name = type(self.rule) in policies.registered["rule"]
        if by_name and "rule" not in changes:
            settings |= policies.flat(self.rule)
        if by_name or "accept" in changes:
            del settings["rule"]
        if policies.chosen_by_number(self.rule):
            settings.pop("accept", None)
        return SamplerConfig(**{**settings, **changes})

    def as_dict(self) -> dict[str, Any]:
        """Returns every setting by its flat name, those of policies that are not in use, too:
        plain values, which `from_dict` takes."""
        settings = {field.name: getattr(self, field.name) for field in _own_fields()}
        settings |= policies.policy_settings(self.rule, self.window)
        plain = {name: policies.plain(value) for name, value in settings.items()}
        return {**plain, **dataclasses.asdict(self.parity)}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "SamplerConfig":
        """Returns the configuration of flat settings, as `as_dict` gives them."""
        table = settings.get("latency_table")
        if isinstance(table, Mapping):
            settings = {**settings, "latency_table": LatencyTable(**table)}
        return cls(**settings)

    @classmethod
    def setting_types(cls, accept: object = None) -> dict[str, Any]:
        """Returns the type of each flat setting, those of the rule `module:Class` among them."""
        hints = get_type_hints(cls)
        own = {field.name: hints[field.name] for field in _own_fields()} | {"steps": int | None}
        return {**own, **policies.policy_types(accept), **get_type_hints(Parity)}

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> "SamplerConfig":
        """Returns a published sampler by name, with some settings changed.

        `llada` is the original LLaDA sampler and `fast_dllm` is Fast-dLLM v1 (June 2025), both
        token for token. `sdar`, `fast_dllm_v2`, `stable_diffcoder`, `bd3lm`, `dream`, `rnd1`,
        `llada2`, `nemotron` and `wedlm` are those of their families, and so are Nemotron's others,
        `autoregressive` and `self_speculation`. `llada_cpp` is llada.cpp's decoding, of which
        `multi_block` and `staged` are one technique each; `wino` and `token_edit` (LLaDA2.1) are
        other rules that revise. All but `llada`, `fast_dllm`, `dream` and `rnd1` stop at EOS.

        Where llada.cpp refreshes by a worker, these presets have `refresh="rows"`: the same tokens,
        while a worker needs the host loop and a model that two threads may call.

        A name that ends in `.json` is a file of one's own, as `experiments.tune` writes it: its
        `sampler` has settings. Raises ValueError for another name, and for a damaged file.
        """
        settings = read_preset(name) if name.endswith(".json") else PRESETS.get(name)
        allowed = ", ".join(map(repr, PRESETS))
        require(settings is not None, f"preset is {name!r}; allowed: {allowed}, or a .json file")
        return cls.from_dict({**(settings or {}), **overrides})


def read_preset(path: str) -> dict[str, Any]:
    """Returns the settings that a preset file has. Raises ValueError for one that is missing or
    damaged."""
    require(Path(path).is_file(), f"preset is {path!r}; allowed: a JSON file")
    content = read_object(Path(path), "is no preset")
    require(
        isinstance(content.get("sampler"), dict),
        f"{path} is no preset; allowed: a mapping whose `sampler` has settings of SamplerConfig",
    )
    return content["sampler"]


_PARITY = tuple(field.name for field in fields(Parity))

PRESETS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
)
"""What each published sampler sets, by flat names; `threshold` and `blockwise` are Fast-dLLM's rule
without a cache, and with llada.cpp's cache of finished tokens."""


def _own_fields() -> list[dataclasses.Field[Any]]:
    parts = ("parity", "rule", "window")
    return [field for field in fields(SamplerConfig) if field.name not in parts]
