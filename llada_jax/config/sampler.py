"""How a canvas is decoded."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from llada_jax.config.checks import require, require_choice
from llada_jax.config.latency_table import LatencyTable

Cache = Literal["none", "prefix", "dual", "blockwise"]
Remasking = Literal["low_confidence", "random", "entropy", "margin"]
Window = Literal["by_cache", "multi_block"]
Accept = Literal["quota", "threshold", "factor", "entropy_bound", "staged", "wino", "token_edit"]
NUMBERED_RULES: tuple[Accept, ...] = ("threshold", "factor", "entropy_bound")
"""Accept rules that are chosen by setting the number of the same name."""
REVISING_RULES: tuple[Accept, ...] = ("staged", "wino", "token_edit")
"""Accept rules whose tokens may still change: they are visible before they are stable."""
DraftFeed = Literal["mask", "token"]
DraftScores = Literal["same_forward", "next_forward"]
Rescore = Literal["shadow", "token"]
Refresh = Literal["none", "rows", "worker"]
RefreshOrder = Literal["least_confident", "leftmost", "rightmost"]
Overflow = Literal["carry", "drop"]
FloatDtype = Literal["float32", "float64"]
TieBreak = Literal["lowest_index", "highest_index"]
Progress = Literal["top1", "quota"]
Loop = Literal["compiled", "host"]


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """How a canvas is decoded: which rows run, what is committed, when it stops.

    Exactly one rule accepts tokens. `accept` names it; `quota`, LLaDA's linear schedule (`steps`
    over the whole generation), gives way to `threshold`, `factor` or `entropy_bound` where one of
    these is set. Settings of a window or a rule that is not in use must keep their defaults.

    Attributes:
      gen_length: Tokens to generate, a multiple of `block_length`.
      block_length: Tokens of a block; blocks are finished from left to right.
      steps: Forwards over the whole generation under the rule `quota`, a multiple of the number of
        blocks.
      cache: Rows of a forward: `none` the whole canvas; `prefix` the block and what follows it;
        `dual` the block (both Fast-dLLM, refreshed at each block); `blockwise` the block, with keys
        and values of finished tokens only and no masked suffix (llada.cpp).
      window: `by_cache`: the rows that `cache` says; `multi_block`: a window that slides with the
        committed tokens and reaches into later blocks, whose predictions are drafts (llada.cpp;
        needs `cache="blockwise"`).
      accept: The rule that commits tokens: `quota`, `threshold`, `factor`, `entropy_bound`,
        `staged`, `wino` or `token_edit`.
      threshold: Commit every token whose confidence reaches it (Fast-dLLM).
      factor: Commit the n best tokens while confidence_n >= 1 - factor / (n + 1) (Fast-dLLM).
      entropy_bound: Commit, in order of entropy, while the sum of the other entropies stays within
        it (nats).
      slide: Whether the window of `multi_block` moves with the committed tokens and keeps its size;
        if not, it begins with the block, or with what is still to be fed before it, and holds both.
      lookahead_trigger: Masks left in the current block at which the window grows into later
        blocks; 0 for never.
      latency_table: The buckets that a window grows to, the next one at a time, and what they cost;
        None: doublings of `block_length`.
      latency_allowance: A forward with a grown window may take so many times what it would have
        taken.
      row_budget: Most rows of a forward whose window has grown, those beside it included: what the
        memory of activations allows (`ForwardTimer.row_budget` says it of a phone).
      draft_feed: What the row of a draft feeds: [MASK], or the token that was predicted there last.
      draft_threshold: Drafts of this confidence are accepted when their block becomes current;
        None: those that the accept rule takes, without the progress that it forces.
      draft_scores: Whose scores decide on drafts when their block becomes current: `same_forward`,
        those of the forward that finished the block before, which still saw that block's last
        masks; or `next_forward`, those of a forward that sees its tokens, so that no forward is
        saved.
      lossless: Give exactly the tokens of block-wise decoding. In place of drafts, the late stage
        of a block also computes the step after, as if this one committed what is expected of it;
        the forward is saved where that came true.
      guess_threshold: `lossless` also expects commits of this confidence in the step before; None:
        only what the accept rule says to that step's scores.
      theta_visible: `staged`: masked positions whose confidence reaches it become visible, and
        visible tokens give way to another one that reaches it (llada.cpp).
      theta_stable: `staged`: tokens whose confidence reaches it change no more.
      wino_accept: `wino`: commit tokens whose confidence reaches it.
      wino_verify: `wino`: mask committed tokens again whose probability has fallen below it.
      edit_unmask: `token_edit`: commit tokens whose confidence reaches it.
      edit_replace: `token_edit`: replace a committed token by another one whose confidence reaches
        it.
      edit_steps: `token_edit`: forwards that may follow the last mask of a block, while they change
        tokens.
      rescore: What a visible token's new confidence comes from: `shadow` a further row that feeds
        [MASK] at its position and does not see it; `token` the row that feeds it.
      refresh: What happens to `staged` tokens that are still visible when their block is finished:
        `none` they stay as they are; `rows` further rows of the forwards refresh them; `worker` a
        thread of the host does, with the same result.
      refresh_rows: Tokens that are refreshed beside one forward.
      refresh_order: Which tokens are refreshed first.
      refresh_overflow: Tokens beyond `refresh_rows` wait (`carry`), or stay as they are (`drop`).
      end_steps: `staged`: forwards that may follow the last mask of a canvas, while tokens are
        visible.
      selective_logits: Score only positions whose decision is open, not the whole block.
      remasking: What candidates are ranked by: `low_confidence` (LLaDA), `random`, `entropy` or
        `margin`.
      temperature: Of the Gumbel noise that tokens are sampled with; 0 for the most probable ones.
      cfg_scale: Scale of classifier-free guidance; 0 for none.
      logits_eos_inf: Never predict EOS (LLaDA).
      confidence_eos_eot_inf: Commit EOS and EoT last: their probability counts as 0 once they are
        predicted (LLaDA).
      eos_early_stop: Stop a row, and fill it with EOS, once an EOS has only committed tokens before
        it.
      confidence_dtype: In which logits become probabilities: `float32`, or `float64` as Fast-dLLM
        does.
      noise_dtype: Of the Gumbel noise: `float32`, or `float64` as LLaDA draws it.
      strict_threshold: Accept confidence > threshold instead of >=.
      forced_progress: What a step commits at the least under `threshold`, `factor` and
        `entropy_bound`: `top1`, the best candidate, or `quota`, what the schedule would.
      tie_break: Which of two equal candidates comes first: `lowest_index` or `highest_index`.
      predict_mask: Let the model predict [MASK] itself, as the reference samplers do.
      mask_id: Id of [MASK]; None: the model's own.
      eos_id: Id of EOS; None: the model's own.
      eot_id: Id of the end of a turn; None: the model's own.
    """

    gen_length: int = 128
    block_length: int = 32
    steps: int = 128
    cache: Cache = "none"
    window: Window = "by_cache"
    accept: Accept = "quota"
    threshold: float | None = None
    factor: float | None = None
    entropy_bound: float | None = None
    slide: bool = True
    lookahead_trigger: int = 4
    latency_table: LatencyTable | None = None
    latency_allowance: float = 2.0
    row_budget: int | None = None
    draft_feed: DraftFeed = "mask"
    draft_threshold: float | None = None
    draft_scores: DraftScores = "same_forward"
    lossless: bool = False
    guess_threshold: float | None = None
    theta_visible: float = 0.7
    theta_stable: float = 0.9
    wino_accept: float = 0.6
    wino_verify: float = 0.9
    edit_unmask: float = 0.7
    edit_replace: float = 0.5
    edit_steps: int = 16
    rescore: Rescore = "shadow"
    refresh: Refresh = "rows"
    refresh_rows: int = 4
    refresh_order: RefreshOrder = "least_confident"
    refresh_overflow: Overflow = "carry"
    end_steps: int = 4
    selective_logits: bool = True
    remasking: Remasking = "low_confidence"
    temperature: float = 0.0
    cfg_scale: float = 0.0
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    eos_early_stop: bool = False
    confidence_dtype: FloatDtype = "float32"
    noise_dtype: FloatDtype = "float32"
    strict_threshold: bool = False
    forced_progress: Progress = "top1"
    tie_break: TieBreak = "lowest_index"
    predict_mask: bool = False
    mask_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_lengths()
        self._choose_rule()
        self._check_numbers()
        self._check_window()
        self._check_drafts()
        self._check_revision()
        self._check_what_nothing_reads()

    def _check_choices(self) -> None:
        for name, choices in _CHOICES.items():
            require_choice(name, getattr(self, name), choices)

    def _check_lengths(self) -> None:
        for name, least in _COUNTS.items():
            value = getattr(self, name)
            require(
                isinstance(value, int) and value >= least,
                f"{name} is {value!r}; allowed: {least} or more",
            )
        require(
            self.gen_length % self.block_length == 0,
            f"gen_length is {self.gen_length}; allowed: a multiple of block_length "
            f"({self.block_length})",
        )
        require(
            self.steps % self.n_blocks == 0,
            f"steps is {self.steps}; allowed: a multiple of the number of blocks ({self.n_blocks})",
        )

    def _choose_rule(self) -> None:
        rules = {
            name: getattr(self, name) for name in NUMBERED_RULES if getattr(self, name) is not None
        }
        require(len(rules) <= 1, f"{rules} are set; allowed: at most one of them")
        numbered = next(iter(rules), None)
        if self.accept == "quota" and numbered is not None:
            object.__setattr__(self, "accept", numbered)
        expected = self.accept if self.accept in NUMBERED_RULES else None
        require(
            numbered == expected,
            f"accept is {self.accept!r} and {numbered or expected} is "
            f"{rules.get(numbered) if numbered else None}; allowed: "
            + (f"{numbered} None" if numbered else f"a number for {expected}"),
        )

    def _check_numbers(self) -> None:
        for name in _PROBABILITIES:
            value = getattr(self, name)
            require(
                value is None or 0 < value <= 1, f"{name} is {value}; allowed: above 0, up to 1"
            )
        for name in ("factor", "entropy_bound", "temperature", "cfg_scale"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"{name} is {value}; allowed: 0 or more")

    def _check_window(self) -> None:
        if self.window != "multi_block":
            return
        self._require_with("window is 'multi_block'", "cache", "blockwise")
        require(
            0 <= self.lookahead_trigger <= self.block_length,
            f"lookahead_trigger is {self.lookahead_trigger}; allowed: 0 to block_length "
            f"({self.block_length})",
        )
        self._check_growth()
        if self.lossless:
            require(
                self.accept not in REVISING_RULES,
                f"accept is {self.accept!r} and lossless is True; allowed: a rule that never "
                "changes a token",
            )
            return
        require(
            self.accept != "quota" or self.draft_threshold is not None,
            "window is 'multi_block' and accept is 'quota', which accepts no draft; allowed: with "
            "draft_threshold or lossless, or another rule",
        )
        require(
            self.accept != "entropy_bound"
            or self.draft_threshold is not None
            or self.draft_scores == "next_forward",
            "window is 'multi_block' and accept is 'entropy_bound', which accepts the best draft "
            "however unsure it is; allowed: with draft_threshold, draft_scores 'next_forward' or "
            "lossless, or another rule",
        )

    def _check_growth(self) -> None:
        budget, table, block = self.row_budget, self.latency_table, self.block_length
        require(
            budget is None or (isinstance(budget, int) and budget >= block),
            f"row_budget is {budget!r}; allowed: a whole number from block_length ({block}) on, or "
            "None",
        )
        require(
            table is None or isinstance(table, LatencyTable),
            f"latency_table is {table!r}; allowed: a LatencyTable, or None",
        )
        require(
            table is None or table.rows[-1] >= block,
            f"latency_table.rows is {table and list(table.rows)}; allowed: up to block_length "
            f"({block}) at the least, which every window has",
        )
        require(
            self.latency_allowance >= 1,
            f"latency_allowance is {self.latency_allowance}; allowed: 1 or more",
        )

    def _check_drafts(self) -> None:
        if self.draft_scores == "next_forward":
            self._require_with("draft_scores is 'next_forward'", "draft_threshold", None)

    def _check_revision(self) -> None:
        require(
            self.theta_visible <= self.theta_stable,
            f"theta_visible is {self.theta_visible}; allowed: up to theta_stable "
            f"({self.theta_stable})",
        )
        if self.accept not in REVISING_RULES:
            return
        rule = f"accept is {self.accept!r}"
        require(
            self.cache in ("none", "blockwise"),
            f"cache is {self.cache!r} and {rule}; allowed: 'none', 'blockwise'",
        )
        self._require_with(rule, "temperature", 0)  # a sampled token is not the preferred one
        self._require_with(rule, "predict_mask", False)
        if self.accept == "wino":
            self._require_with(rule, "rescore", "shadow")
            require(
                self.wino_verify > 0.5,
                f"wino_verify is {self.wino_verify}; allowed: above 0.5, so that a token fails "
                "where another one is preferred",
            )
        if self.accept == "staged" and self.refresh == "worker":  # of what left the window
            self._require_with("refresh is 'worker'", "cache", "blockwise")

    def _check_what_nothing_reads(self) -> None:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        unread = (readers for readers in _READERS if not readers.read(self))
        for name, where in ((name, each.where) for each in unread for name in each.settings):
            value, default = getattr(self, name), defaults[name]
            require(
                value == default,
                f"{name} is {value!r}, which nothing reads; allowed: {default!r}, or another one "
                f"where {where}",
            )

    def _require_with(self, reason: str, name: str, allowed: object) -> None:
        value = getattr(self, name)
        require(value == allowed, f"{name} is {value!r} and {reason}; allowed: {allowed!r}")

    @property
    def n_blocks(self) -> int:
        return self.gen_length // self.block_length

    @property
    def steps_per_block(self) -> int:
        return self.steps // self.n_blocks

    @property
    def revises(self) -> bool:
        """Whether committed tokens may change."""
        return self.accept in REVISING_RULES

    @property
    def refreshes(self) -> bool:
        """Whether tokens that left the window while they were visible are refreshed."""
        return self.accept == "staged" and self.cache == "blockwise" and self.refresh != "none"

    @property
    def has_worker(self) -> bool:
        """Whether a worker of the host refreshes them."""
        return self.refreshes and self.refresh == "worker"

    def replace(self, **changes: Any) -> "SamplerConfig":
        """A copy with some fields changed, checked again."""
        if self.accept in NUMBERED_RULES:  # the rule follows its number
            changes = {"accept": "quota", **changes}
        return dataclasses.replace(self, **changes)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> "SamplerConfig":
        """A published sampler by name, with some fields changed.

        `llada` is the original LLaDA sampler and `fast_dllm` is Fast-dLLM v1 (June 2025), both
        token for token. `llada_cpp` is llada.cpp's decoding, of which `multi_block` and `staged`
        are one technique each; `wino` and `token_edit` (LLaDA2.1) are other rules that revise.

        Where llada.cpp refreshes by a worker, these presets have `refresh="rows"`: the same tokens,
        while a worker needs the host loop and a model that two threads may call.
        """
        require(name in PRESETS, f"preset is {name!r}; allowed: {', '.join(map(repr, PRESETS))}")
        return cls(**{**PRESETS[name], **overrides})


_CHOICES: dict[str, Any] = {
    "cache": Cache,
    "window": Window,
    "accept": Accept,
    "draft_feed": DraftFeed,
    "draft_scores": DraftScores,
    "rescore": Rescore,
    "refresh": Refresh,
    "refresh_order": RefreshOrder,
    "refresh_overflow": Overflow,
    "remasking": Remasking,
    "confidence_dtype": FloatDtype,
    "noise_dtype": FloatDtype,
    "forced_progress": Progress,
    "tie_break": TieBreak,
}
_COUNTS = {
    "gen_length": 1,
    "block_length": 1,
    "steps": 1,
    "lookahead_trigger": 0,
    "edit_steps": 0,
    "refresh_rows": 1,
    "end_steps": 0,
}
"""Whole numbers, and the least of each."""
_PROBABILITIES = (
    "threshold",
    "draft_threshold",
    "guess_threshold",
    "theta_visible",
    "theta_stable",
    "wino_accept",
    "wino_verify",
    "edit_unmask",
    "edit_replace",
)


class _Readers(NamedTuple):
    """Settings, and the configurations that read them."""

    where: str
    read: Callable[[SamplerConfig], bool]
    settings: tuple[str, ...]


_READERS = (
    _Readers(
        "window is 'multi_block'",
        lambda config: config.window == "multi_block",
        ("lossless", "lookahead_trigger"),
    ),
    _Readers(
        "window is 'multi_block' and lossless is False",
        lambda config: config.window == "multi_block" and not config.lossless,
        ("slide", "latency_table", "row_budget", "draft_feed", "draft_threshold", "draft_scores"),
    ),
    _Readers(
        "latency_table is given",
        lambda config: config.latency_table is not None,
        ("latency_allowance",),
    ),
    _Readers("lossless is True", lambda config: config.lossless, ("guess_threshold",)),
    _Readers(
        "accept is 'staged'",
        lambda config: config.accept == "staged",
        ("theta_visible", "theta_stable", "refresh", "end_steps"),
    ),
    _Readers(
        "accept is 'staged', cache 'blockwise' and refresh not 'none'",
        lambda config: config.refreshes,
        ("refresh_rows", "refresh_order", "refresh_overflow"),
    ),
    _Readers(
        "accept is 'wino'", lambda config: config.accept == "wino", ("wino_accept", "wino_verify")
    ),
    _Readers(
        "accept is 'token_edit'",
        lambda config: config.accept == "token_edit",
        ("edit_unmask", "edit_replace", "edit_steps"),
    ),
    _Readers(
        "accept is 'staged', 'wino' or 'token_edit'",
        lambda config: config.revises,
        ("rescore",),
    ),
)

PRESETS: dict[str, dict[str, Any]] = {
    "llada": {"predict_mask": True},
    "threshold": {"threshold": 0.9},
    "blockwise": {"cache": "blockwise", "threshold": 0.9},
    "fast_dllm": {
        "predict_mask": True,
        "confidence_dtype": "float64",
        "cache": "dual",
        "threshold": 0.9,
    },
    "llada_cpp": {"cache": "blockwise", "window": "multi_block", "accept": "staged"},
    "multi_block": {"cache": "blockwise", "window": "multi_block", "threshold": 0.9},
    "staged": {"cache": "blockwise", "accept": "staged"},
    "wino": {"accept": "wino"},
    "token_edit": {"cache": "blockwise", "accept": "token_edit", "rescore": "token"},
}
"""What each published sampler sets; `threshold` and `blockwise` are Fast-dLLM's rule without a
cache, and with llada.cpp's cache of finished tokens."""
