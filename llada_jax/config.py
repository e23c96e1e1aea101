"""Everything a user can set, as frozen dataclasses. Standard library only.

A configuration that exists is valid: each class checks itself when it is built and names the bad
value and what is allowed. All of them are hashable, so they pass to `jax.jit` as static arguments.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

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
Router = Literal["softmax", "sigmoid"]
Quant = Literal["float32", "int8", "int4", "int4_block32", "int4_block128"]
Soc = Literal["SM8550", "SM8650", "SM8750", "SM8850"]
Precision = Literal["fp16", "int8", "a16w8", "a8w8", "a16w4"]
STATIC_PRECISIONS = ("a16w8", "a8w8", "a16w4")
"""Precisions whose activations are integers in ranges that recorded forwards fix."""


def require(condition: bool, message: str) -> None:
    """Raise `ValueError(message)` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def require_choice(name: str, value: object, literal: Any) -> None:
    """Raise `ValueError` unless `value` is one of the strings of a `Literal` type."""
    allowed = get_args(literal)
    require(value in allowed, f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))}")


def ascending_counts(name: str, values: Any, least: int = 1) -> tuple[int, ...]:
    """The values as a tuple. Raises `ValueError` unless they are whole numbers that ascend."""
    counts = list(values) if isinstance(values, Iterable) else []
    require(
        len(counts) > 0
        and all(isinstance(count, Integral) for count in counts)
        and counts[0] >= least
        and all(a < b for a, b in itertools.pairwise(counts)),
        f"{name} is {counts if isinstance(values, Iterable) else values!r}; allowed: ascending, "
        f"from {least} on, at least one whole number",
    )
    return tuple(int(count) for count in counts)


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """Routed experts of the layers from `first_layer` on."""

    n_experts: int
    experts_per_token: int
    expert_width: int
    first_layer: int = 0
    shared_width: int = 0
    """Width of the always-active shared expert; 0 where there is none."""
    router: Router = "softmax"
    n_groups: int = 1
    groups_per_token: int = 1
    """A token's experts come from its best `groups_per_token` of `n_groups` groups of experts."""
    normalize_weights: bool = False
    weight_scale: float = 1.0
    selection_bias: bool = False
    """A learned bias that decides which experts are taken, but does not weigh them."""

    def __post_init__(self) -> None:
        require_choice("router", self.router, Router)
        require(
            0 < self.experts_per_token <= self.n_experts,
            f"experts_per_token is {self.experts_per_token}; allowed: 1 to n_experts "
            f"({self.n_experts})",
        )
        require(
            self.n_groups > 0 and self.n_experts % self.n_groups == 0,
            f"n_groups is {self.n_groups}; allowed: a divisor of n_experts ({self.n_experts})",
        )
        require(
            0 < self.groups_per_token <= self.n_groups,
            f"groups_per_token is {self.groups_per_token}; allowed: 1 to n_groups "
            f"({self.n_groups})",
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of one dLLM. Letters as in `llada_jax.types`."""

    family: str
    vocab_size: int
    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_width: int
    rope_theta: float
    norm_eps: float
    max_length: int
    """Longest canvas (prompt and generation) that the model was made for, in tokens."""
    rotary_dims: int = 0
    """Leading dimensions of each head that RoPE rotates; 0 stands for all of them."""
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    shift_logits: bool = False
    """The output at position i predicts the token at i + 1 (Dream), not the one at i."""
    block_length: int | None = None
    """Block of the block-causal attention mask; None for fully bidirectional families."""
    moe: MoEConfig | None = None
    mask_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None
    pad_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "n_layers", "n_heads", "n_kv_heads", "head_dim",
                     "ffn_width", "max_length"):  # fmt: skip
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: 1 or more")
        require(
            self.n_heads % self.n_kv_heads == 0,
            f"n_kv_heads is {self.n_kv_heads}; allowed: a divisor of n_heads ({self.n_heads})",
        )
        if not self.rotary_dims:
            object.__setattr__(self, "rotary_dims", self.head_dim)
        require(
            self.rotary_dims % 2 == 0 and 0 < self.rotary_dims <= self.head_dim,
            f"rotary_dims is {self.rotary_dims}; allowed: even, up to head_dim ({self.head_dim})",
        )
        for name in ("mask_id", "eos_id", "eot_id", "pad_id"):
            value = getattr(self, name)
            require(
                value is None or 0 <= value < self.vocab_size,
                f"{name} is {value}; allowed: 0 to {self.vocab_size - 1}",
            )

    def replace(self, **changes: Any) -> "ModelConfig":
        """A copy with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class LatencyTable:
    """How long a step takes, by its rows: measured by `lj.latency_table`, or a phone's, by
    `llada_jax.phone.simulate.ForwardTimer.latency_table`."""

    rows: tuple[int, ...]
    """Buckets of rows, ascending."""
    ms: tuple[float, ...]
    """Milliseconds of a step with so many rows."""

    def __post_init__(self) -> None:
        rows = ascending_counts("latency_table.rows", self.rows)
        times = list(self.ms) if isinstance(self.ms, Iterable) else []
        require(
            len(times) == len(rows)
            and all(isinstance(ms, Real) and isfinite(ms) and ms > 0 for ms in times),
            f"latency_table.ms is {times or self.ms!r}; allowed: {len(rows)} numbers above 0, one "
            "for each of latency_table.rows",
        )
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "ms", tuple(float(ms) for ms in times))


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """How a canvas is decoded: which rows run, what is committed, when it stops.

    Exactly one rule accepts tokens. `accept` names it; `quota`, LLaDA's linear schedule (`steps`
    over the whole generation), gives way to `threshold`, `factor` or `entropy_bound` where one of
    these is set. Settings of a window or a rule that is not in use must keep their defaults.
    """

    gen_length: int = 128
    block_length: int = 32
    steps: int = 128
    cache: Cache = "none"
    """Rows of a forward: `none` the whole canvas; `prefix` the block and what follows it; `dual`
    the block (both Fast-dLLM, refreshed at each block); `blockwise` the block, with keys and values
    of finished tokens only and no masked suffix (llada.cpp)."""
    window: Window = "by_cache"
    """`by_cache`: the rows that `cache` says; `multi_block`: a window that slides with the
    committed tokens and reaches into later blocks, whose predictions are drafts (llada.cpp;
    needs `cache="blockwise"`)."""
    accept: Accept = "quota"
    threshold: float | None = None
    """Commit every token whose confidence reaches it (Fast-dLLM)."""
    factor: float | None = None
    """Commit the n best tokens while confidence_n >= 1 - factor / (n + 1) (Fast-dLLM)."""
    entropy_bound: float | None = None
    """Commit, in order of entropy, while the sum of the other entropies stays within it (nats)."""
    slide: bool = True
    """Whether the window of `multi_block` moves with the committed tokens and keeps its size; if
    not, it begins with the block, or with what is still to be fed before it, and holds both."""
    lookahead_trigger: int = 4
    """Masks left in the current block at which the window grows into later blocks; 0 for never."""
    latency_table: LatencyTable | None = None
    """The buckets that a window grows to, the next one at a time, and what they cost; None:
    doublings of `block_length`."""
    latency_allowance: float = 2.0
    """A forward with a grown window may take so many times what it would have taken."""
    row_budget: int | None = None
    """Most rows of a forward whose window has grown, those beside it included: what the memory of
    activations allows (`ForwardTimer.row_budget` says it of a phone)."""
    draft_feed: DraftFeed = "mask"
    """What the row of a draft feeds: [MASK], or the token that was predicted there last."""
    draft_threshold: float | None = None
    """Drafts of this confidence are accepted when their block becomes current; None: those that the
    accept rule takes, without the progress that it forces."""
    draft_scores: DraftScores = "same_forward"
    """Whose scores decide on drafts when their block becomes current: `same_forward`, those of the
    forward that finished the block before, which still saw that block's last masks; or
    `next_forward`, those of a forward that sees its tokens, so that no forward is saved."""
    lossless: bool = False
    """Give exactly the tokens of block-wise decoding. In place of drafts, the late stage of a block
    also computes the step after, as if this one committed what is expected of it; the forward
    is saved where that came true."""
    guess_threshold: float | None = None
    """`lossless` also expects commits of this confidence in the step before; None: only what the
    accept rule says to that step's scores."""
    theta_visible: float = 0.7
    """`staged`: masked positions whose confidence reaches it become visible, and visible tokens
    give way to another one that reaches it (llada.cpp)."""
    theta_stable: float = 0.9
    """`staged`: tokens whose confidence reaches it change no more."""
    wino_accept: float = 0.6
    """`wino`: commit tokens whose confidence reaches it."""
    wino_verify: float = 0.9
    """`wino`: mask committed tokens again whose probability has fallen below it."""
    edit_unmask: float = 0.7
    """`token_edit`: commit tokens whose confidence reaches it."""
    edit_replace: float = 0.5
    """`token_edit`: replace a committed token by another one whose confidence reaches it."""
    edit_steps: int = 16
    """`token_edit`: forwards that may follow the last mask of a block, while they change tokens."""
    rescore: Rescore = "shadow"
    """What a visible token's new confidence comes from: `shadow` a further row that feeds [MASK] at
    its position and does not see it; `token` the row that feeds it."""
    refresh: Refresh = "rows"
    """What happens to `staged` tokens that are still visible when their block is finished: `none`
    they stay as they are; `rows` further rows of the forwards refresh them; `worker` a thread of
    the host does, with the same result."""
    refresh_rows: int = 4
    """Tokens that are refreshed beside one forward."""
    refresh_order: RefreshOrder = "least_confident"
    """Which tokens are refreshed first."""
    refresh_overflow: Overflow = "carry"
    """Tokens beyond `refresh_rows` wait (`carry`), or stay as they are (`drop`)."""
    end_steps: int = 4
    """`staged`: forwards that may follow the last mask of a canvas, while tokens are visible."""
    selective_logits: bool = True
    """Score only positions whose decision is open, not the whole block."""
    remasking: Remasking = "low_confidence"
    temperature: float = 0.0
    cfg_scale: float = 0.0
    logits_eos_inf: bool = False
    """Never predict EOS (LLaDA)."""
    confidence_eos_eot_inf: bool = False
    """Commit EOS and EoT last: their probability counts as 0 once they are predicted (LLaDA)."""
    eos_early_stop: bool = False
    """Stop a row, and fill it with EOS, once an EOS has only committed tokens before it."""
    confidence_dtype: FloatDtype = "float32"
    noise_dtype: FloatDtype = "float32"
    strict_threshold: bool = False
    """Accept confidence > threshold instead of >=."""
    forced_progress: Progress = "top1"
    """What a step commits at the least under threshold, factor and entropy bound."""
    tie_break: TieBreak = "lowest_index"
    predict_mask: bool = False
    """Let the model predict [MASK] itself, as the reference samplers do."""
    mask_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None
    """The three ids override the model's own."""

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
        require(name in _PRESETS, f"preset is {name!r}; allowed: {', '.join(map(repr, _PRESETS))}")
        return cls(**{**_PRESETS[name], **overrides})


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

_PRESETS: dict[str, dict[str, Any]] = {
    "llada": {"predict_mask": True},
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


@dataclass(frozen=True, kw_only=True)
class PhoneConfig:
    """Snapdragons whose NPU an export is compiled for."""

    socs: tuple[str, ...] = ()
    """`SM8550`, `SM8650`, `SM8750`, `SM8850`."""
    precision: Precision = "fp16"
    """How products with weights are computed; see `llada_jax.backend.qnn`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "socs", tuple(self.socs))
        for soc in self.socs:
            require_choice("soc", soc, Soc)
        require_choice("precision", self.precision, Precision)


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What an exported model can run, and how its weights are stored."""

    quant: Quant = "int8"
    """`int8` and `int4` have one scale for each output row, the others one for each block of
    inputs. The head is int8 where the layers are integers: it decides, and costs little."""
    rows: tuple[int, ...] = (1, 4, 8, 16, 32, 64, 96, 128)
    """Rows of a forward, ascending. A forward takes the smallest bucket that holds it."""
    caches: tuple[int, ...] = (512,)
    """Cached positions, ascending: the longest canvas that can be decoded, and shorter ones."""
    shard_bytes: int = 2_000_000_000
    """Largest file of layers; TFLite ends at 2 GiB."""
    phones: PhoneConfig = PhoneConfig()

    def __post_init__(self) -> None:
        require_choice("quant", self.quant, Quant)
        for name, least in (("rows", 1), ("caches", 0)):
            buckets = ascending_counts(name, getattr(self, name), least)
            object.__setattr__(self, name, buckets)
        require(
            0 < self.shard_bytes < 2**31,
            f"shard_bytes is {self.shard_bytes}; allowed: 1 to {2**31 - 1}",
        )


MatmulDtype = Literal["float32", "bfloat16"]
Optimizer = Literal["adamw", "muon"]
Start = Literal["random", "copying"]
Objective = Literal["finetune", "pretrain"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a masked-diffusion model is trained. The same values give the same run, bit for bit."""

    seed: int = 0
    steps: int
    batch_size: int = 32
    matmul_dtype: MatmulDtype = "float32"
    """Of the layers' matrix products; parameters, sums and everything else stay float32."""
    start: str = "random"
    """`random` parameters, or `copying`: random but for heads that copy, in the first three layers
    (`llada_jax.training.copying`)."""
    objective: str = "finetune"
    """`finetune` masks answers only, `pretrain` any token of the canvas."""
    optimizer: str = "muon"
    peak_lr: float = 3e-3
    warmup_steps: int = 100
    decay_steps: int = 1000
    """Last steps, over which the learning rate falls linearly to zero; constant before them."""
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    ema_decay: float | None = None
    """Also keep an exponential moving average of the parameters."""
    balance_weight: float = 0.01
    """Of the loss that keeps the loads of routed experts even; as LLaDA-MoE (arXiv 2509.24389)."""
    router_z_weight: float = 0.001
    """Of the loss that keeps router logits small; as LLaDA-MoE."""
    min_mask_probability: float = 1e-3
    """Masking probabilities are uniform from here to 1."""
    block_length: int = 32
    """Grid, counted from the answer's start, on which canvases are cut."""
    max_gen_length: int = 160
    """Longest answer region, padding included; a multiple of `block_length`."""
    block_share: float = 0.5
    """Share of canvases with clean earlier blocks and one block partly masked (`finetune`)."""
    cut_share: float = 0.5
    """Share of those that end with that block; the others go on with masks only."""
    length_multiple: int = 32
    """Batches are padded to such a length: fewer shapes to compile, more padding."""
    group_steps: int = 8
    """Batches drawn together and sorted by length, against padding."""
    log_every: int = 50
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    evaluate_every: int = 0
    """Steps between calls of the caller's evaluation; 0 for none."""

    def __post_init__(self) -> None:
        require_choice("matmul_dtype", self.matmul_dtype, MatmulDtype)
        require_choice("start", self.start, Start)
        require_choice("optimizer", self.optimizer, Optimizer)
        require_choice("objective", self.objective, Objective)
        self._check_counts()
        self._check_fractions()
        require(
            self.warmup_steps + self.decay_steps <= self.steps,
            f"warmup_steps + decay_steps is {self.warmup_steps + self.decay_steps}; allowed: up to "
            f"steps ({self.steps})",
        )
        require(
            self.max_gen_length % self.block_length == 0,
            f"max_gen_length is {self.max_gen_length}; allowed: a multiple of block_length "
            f"({self.block_length})",
        )
        # Running means restart at each log line, so a resumed run must start right after one.
        for name in ("checkpoint_every", "evaluate_every"):
            value = getattr(self, name)
            require(
                value % self.log_every == 0,
                f"{name} is {value}; allowed: a multiple of log_every ({self.log_every})",
            )

    def _check_counts(self) -> None:
        for name in ("steps", "batch_size", "block_length", "max_gen_length", "length_multiple",
                     "group_steps", "log_every", "checkpoint_every",
                     "keep_checkpoints"):  # fmt: skip
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: 1 or more")
        for name in ("seed", "warmup_steps", "decay_steps", "evaluate_every", "weight_decay",
                     "balance_weight", "router_z_weight"):  # fmt: skip
            value = getattr(self, name)
            require(value >= 0, f"{name} is {value}; allowed: 0 or more")

    def _check_fractions(self) -> None:
        for name in ("block_share", "cut_share"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} is {value}; allowed: 0 to 1")
        for name in ("peak_lr", "clip_norm"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: above 0")
        require(
            0 < self.min_mask_probability < 1,
            f"min_mask_probability is {self.min_mask_probability}; allowed: between 0 and 1",
        )
        require(
            self.ema_decay is None or 0 < self.ema_decay < 1,
            f"ema_decay is {self.ema_decay}; allowed: between 0 and 1, or None",
        )

    def replace(self, **changes: Any) -> "TrainConfig":
        """A copy with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)
