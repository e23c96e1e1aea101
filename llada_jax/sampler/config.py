"""The settings of decoding: a rule, a window, and the settings of both."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from inspect import cleandoc
from pathlib import Path
from typing import Any, cast, get_type_hints

from llada_jax.config import (
    HOUSE,
    LatencyTable,
    Parity,
    Remasking,
    read_object,
    require,
    require_choices,
    require_counts,
    require_multiple,
    require_numbers,
)
from llada_jax.sampler import flat
from llada_jax.sampler.drafters.drafter import Drafter
from llada_jax.sampler.policy import register_unchecked
from llada_jax.sampler.rules.committing import Quota
from llada_jax.sampler.rules.rule import Rule
from llada_jax.sampler.windows.single_block import WholeCanvas
from llada_jax.sampler.windows.window import Window, WindowContext


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """How a canvas is decoded: which rows run, what is committed, when it stops.

    A rule and a window are values that carry their own numbers:
    `SamplerConfig(rule=Threshold(threshold=0.9), window=DualCache())`. `from_flat` and `preset`
    take the same as flat settings, `threshold=0.9, cache="dual"`, as configuration files have them:
    each flat name belongs to the policy in use that has it, and names of policies that are not in
    use keep their defaults.

    Attributes:
      gen_length: Tokens to generate, a multiple of `block_length` unless there is a drafter
        (but see `last_block`).
      block_length: Tokens of a block; blocks are finished from left to right. With a drafter, the
        most rows of a forward that verifies drafts, one more than the drafts.
      steps: Forwards over the whole generation under the rule `quota`, a multiple of the number of
        blocks. It follows `gen_length`, one token a forward, unless it is set.
      rule: What commits tokens and what becomes of them, a value of `llada_jax.sampler.rules` or a
        custom rule.
      accept: The rule by its flat name: `quota`, `threshold`, `staged`, `wino`, `token_edit`,
        `entropy_distance`, `entropy_bound`, `p2` or `speculate`; or `module:Class`, a custom rule.
        The number `threshold` chooses its own.
      window: Which rows a forward runs, a value of `llada_jax.sampler.windows` or a custom window.
        As a flat name `by_cache`, the one that `cache` names; `multi_block`, which slides with the
        committed tokens and reaches into later blocks, whose predictions are drafts (llada.cpp;
        with `cache="blockwise"`); `sliding`, whose block begins at the first mask (WeDLM; with
        `cache="blockwise"`); or `module:Class`, a custom window.
      cache: The window by its flat name: `none` the whole canvas; `prefix` the block and what
        follows it; `dual` the block (both Fast-dLLM, refreshed at each block); `blockwise` the
        block, with keys and values of finished tokens only and no masked suffix (llada.cpp).
      drafter: What proposes tokens for the rule `speculate` to verify: a value of
        `llada_jax.sampler.drafters` or a custom drafter; as a flat name `lookup`, `own` (the
        model's own drafter) or `module:Class`. None: the model drafts by itself, with masks
        (Nemotron).
      parity: On which details of a reference sampler this one agrees with it.
      remasking: What candidates are ranked by: `low_confidence` (LLaDA), `random`, `entropy`,
        `margin`, or `sequential`, from left to right (SDAR).
      temperature: Scale of the Gumbel noise that tokens are sampled with; 0 for the most probable
        ones.
      cfg_scale: Scale of classifier-free guidance; 0 for none.
      logits_eos_inf: Never predict EOS (LLaDA).
      confidence_eos_eot_inf: Commit EOS and EoT last: their probability counts as 0 once they are
        predicted (LLaDA).
      eos_early_stop: Stop a sequence, and fill it with EOS, once an EOS has only committed tokens
        before it.
      stop: Stop strings: the text ends before the first one, and a sequence stops at the end of
        the block in which its final tokens have one. Needs a tokenizer; see `Result.text`.
      latency_table: What a forward costs by its rows, for windows that grow: a `LatencyTable`, or
        the name of a phone (`SM8750`) for the modelled times of LLaDA-8B on it, or None if it is
        unknown.
      mask_id: Id of [MASK], or None for the model's own.
      eos_id: Id of EOS, or None for the model's own.
      eot_id: Id of the end of a turn, or None for the model's own.
    """

    gen_length: int = 128
    block_length: int = 32
    steps: int = cast(int, None)  # filled in: it follows `gen_length`
    remasking: Remasking = "low_confidence"
    temperature: float = 0.0
    cfg_scale: float = 0.0
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    eos_early_stop: bool = False
    stop: tuple[str, ...] = ()
    latency_table: LatencyTable | None = None
    mask_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None
    parity: Parity = HOUSE
    rule: Rule = field(default_factory=Quota)
    window: Window = field(default_factory=WholeCanvas)
    drafter: Drafter | None = None

    def __post_init__(self) -> None:
        if self.steps is None:
            object.__setattr__(self, "steps", self.gen_length)
        if isinstance(self.latency_table, str):
            object.__setattr__(self, "latency_table", LatencyTable.named(self.latency_table))
        require(
            isinstance(self.stop, Sequence)
            and not isinstance(self.stop, str)
            and all(isinstance(text, str) and text for text in self.stop),
            f"stop is {self.stop!r}; allowed: a list of texts, none of them empty",
        )
        object.__setattr__(self, "stop", tuple(self.stop))
        require(isinstance(self.parity, Parity), f"parity is {self.parity!r}; allowed: a Parity")
        require_counts(self, "gen_length", "block_length", "steps")
        require_counts(self, "mask_id", "eos_id", "eot_id", least=0)
        if self.drafter is None and self.parity.last_block == "whole":
            require_multiple(self, "gen_length", of="block_length")
            require(
                self.steps % self.n_blocks == 0,
                f"steps is {self.steps}; allowed: a multiple of the number of blocks "
                f"({self.n_blocks})",
            )
        require_choices(self)
        table = self.latency_table
        require(
            table is None or isinstance(table, LatencyTable),
            f"latency_table is {table!r}; allowed: a LatencyTable, a phone's name, or None",
        )
        require_numbers(self, "temperature", "cfg_scale", least=0)
        for name, base in (("rule", Rule), ("window", Window), ("drafter", Drafter)):
            value = getattr(self, name)
            require(
                isinstance(value, base) or (value is None and name == "drafter"),
                f"{name} is {value!r}; allowed: a value of llada_jax.sampler.{name}s or of a class "
                f"under lj.{name} (names are flat settings: SamplerConfig.from_flat)",
            )
        self._check_policies()

    def _check_policies(self) -> None:
        """Raises ValueError if the rule and the window do not work together, or with the rest."""
        rule, window, accept = self.rule, self.window, self.rule.name
        rule.check()
        context = WindowContext(
            self.block_length, 0, self.min_commits, self.latency_table, 0, False
        )
        window.check(context)
        if rule.revises:
            reason = f"rule {type(rule).__name__} revises" if ":" in accept else (
                f"accept is {accept!r}"
            )  # fmt: skip
            require(
                not window.caches or window.caches_finished,
                f"cache is {window.cache!r} and {reason}; allowed: 'none', 'blockwise'",
            )
            require(  # a sampled token is not the preferred one
                self.temperature == 0 or rule.verifies,
                f"temperature is {self.temperature} and {reason}; allowed: 0",
            )
            require(
                not self.parity.predict_mask, f"predict_mask is True and {reason}; allowed: False"
            )
        require(  # nothing leaves another window
            rule.refresh != "worker" or window.caches_finished,
            f"cache is {window.cache!r} and refresh is 'worker'; allowed: 'blockwise'",
        )
        require(
            self.drafter is None or rule.verifies,
            f"drafter is {self.drafter and self.drafter.name!r} and accept is {accept!r}; allowed: "
            "'speculate', which verifies drafts",
        )
        require(
            self.drafter is None or not self.cfg_scale,
            f"cfg_scale is {self.cfg_scale} with a drafter; allowed: 0",
        )
        require(
            not window.drafts or rule.accepts_drafts or window.draft_threshold is not None,
            f"window is {window.name!r} and accept is {accept!r}, which accepts no drafts; "
            "allowed: with draft_threshold, or another rule",
        )
        require(
            not window.slides or not (rule.may_wait or rule.revises),
            f"window is {window.name!r} and accept is {accept!r}; allowed: rules that commit a "
            "token in each step, and never change one",
        )

    @property
    def n_blocks(self) -> int:
        """Blocks of the generation."""
        return -(-self.gen_length // self.block_length)

    @property
    def steps_per_block(self) -> int:
        """Forwards that LLaDA's schedule gives a block."""
        return -(-self.steps // self.n_blocks)

    @property
    def min_commits(self) -> int:
        """Most masks that a step commits however unsure the model is."""
        if not self.rule.may_wait and self.parity.forced_progress == "top1":
            return 1
        if self.parity.schedule != "even":
            return self.block_length
        return -(-self.block_length // self.steps_per_block)

    @property
    def refreshes(self) -> bool:
        """Whether tokens that left the window while they were visible are refreshed."""
        return self.rule.refreshes and self.window.caches_finished

    @property
    def has_worker(self) -> bool:
        """Whether a worker of the host refreshes them."""
        return self.refreshes and self.rule.refresh == "worker"

    def replace(self, **changes: Any) -> "SamplerConfig":
        """Returns a copy with some settings changed, by field or flat name, and checked again.

        `steps` goes on to follow `gen_length` if the two are equal.
        """
        settings = {field_.name: getattr(self, field_.name) for field_ in fields(self)}
        if self.steps == self.gen_length:
            del settings["steps"]
        if "window" not in changes or isinstance(changes["window"], str):
            window = settings.pop("window")
            by_name = ":" not in window.name
            settings |= flat.flat(window) if by_name else {"window": window}
        drafter = settings["drafter"]
        if drafter is not None and ":" not in drafter.name and "drafter" not in changes:
            settings |= flat.flat(drafter)
        by_name = ":" not in self.rule.name
        if by_name and "rule" not in changes:
            settings |= flat.flat(self.rule)
        if by_name or "accept" in changes:
            del settings["rule"]
        if type(self.rule) is flat.Threshold:  # its number chooses it
            settings.pop("accept", None)
        return SamplerConfig.from_flat({**settings, **changes})

    def as_dict(self) -> dict[str, Any]:
        """Returns every setting by its flat name, also of policies that are not in use: plain
        values, which `from_flat` takes."""
        settings = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        settings |= flat.policy_settings(self.rule, self.window, self.drafter)
        plain = {name: flat.plain(value) for name, value in settings.items()}
        plain["stop"] = list(self.stop)  # as JSON has it
        return {**plain, **asdict(self.parity)}

    @classmethod
    def from_flat(
        cls, settings: Mapping[str, Any] | None = None, /, **more: Any
    ) -> "SamplerConfig":
        """Returns the configuration of flat settings, as `as_dict` and configuration files have
        them.

        Raises ValueError for a name that does not exist, for settings that contradict each other,
        and for one that nothing would read.
        """
        every = {**(settings or {}), **more}
        table = every.get("latency_table")
        if isinstance(table, Mapping) and table.keys() == {"rows", "ms"}:
            every["latency_table"] = LatencyTable(**table)
        return cls(**flat.parse(every, _PLAIN_FIELDS))

    @classmethod
    def setting_types(
        cls, accept: object = None, window: object = None, drafter: object = None
    ) -> dict[str, Any]:
        """Returns the type of each flat setting, including custom policies' (`module:Class`)."""
        hints = get_type_hints(cls)
        plain = {name: hints[name] for name in _PLAIN_FIELDS} | {"steps": int | None}
        policies = flat.policy_types(accept, window, drafter)
        return {**plain, **policies, **get_type_hints(Parity)}

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> "SamplerConfig":
        """Returns a published sampler by name, with some flat settings changed.

        `llada` is the original LLaDA sampler and `fast_dllm` is Fast-dLLM v1 (June 2025), both
        token for token. `sdar`, `fast_dllm_v2`, `stable_diffcoder`, `bd3lm`, `dream`, `rnd1`,
        `llada2`, `nemotron` and `wedlm` are those of their families, and so are Nemotron's others,
        `autoregressive` and `self_speculation`, SDAR's other strategies `sdar_static`,
        `sdar_sequential` and `sdar_entropy`, and Open-dCoder's `p2`. `lookup` and `draft` are
        `autoregressive` with drafts, from the text itself or from the model's own drafter: the same
        tokens in fewer forwards. `llada_cpp` is llada.cpp's decoding, of which `multi_block` and
        `staged` are one technique each; `wino` and `token_edit` (LLaDA2.1) are other rules that
        revise. All but `llada`, `fast_dllm`, `dream`, `p2` and `rnd1` stop at EOS.

        llada.cpp refreshes by a worker; these presets have `refresh="rows"`: the same tokens,
        while a worker needs the host loop and a model that two threads may call.

        A name that ends in `.json` is a file, as `experiments.tune` writes it, whose `sampler` has
        settings. Raises ValueError for another name, and for a damaged file.
        """
        settings = _read_preset(name) if name.endswith(".json") else PRESETS.get(name)
        allowed = ", ".join(map(repr, PRESETS))
        require(settings is not None, f"preset is {name!r}; allowed: {allowed}, or a .json file")
        return cls.from_flat({**(settings or {}), **overrides})


def _read_preset(path: str) -> dict[str, Any]:
    """Returns the settings that a preset file has. Raises ValueError for one that is missing or
    damaged."""
    require(Path(path).is_file(), f"preset is {path!r}; allowed: a JSON file")
    content = read_object(Path(path), "is no preset")
    require(
        isinstance(content.get("sampler"), dict),
        f"{path} is no preset; allowed: a mapping whose `sampler` has settings of SamplerConfig",
    )
    return content["sampler"]


_PLAIN_FIELDS = tuple(
    field_.name
    for field_ in fields(SamplerConfig)
    if field_.name not in ("parity", "rule", "window", "drafter")
)

PRESETS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
)
"""What each published sampler sets, by flat names; `threshold` and `blockwise` are Fast-dLLM's rule
without a cache, and with llada.cpp's cache of finished tokens."""

register_unchecked(SamplerConfig, ("rule", "window", "drafter"))
SamplerConfig.__doc__ = f"{cleandoc(SamplerConfig.__doc__ or '')}\n{flat.described([Parity])}"
