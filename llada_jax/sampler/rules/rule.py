"""The rule interface: an observation after each forward, and a decision.

A rule is a class under `@lj.rule` with a function `accept`, for rules that only compare scores, or
`decide`, which may also keep a state, replace tokens and mask them again. Built-in rules and custom
ones use the same interface. Rules see the current block, position by position: C positions for each
of B sequences. Both functions are pure and are traced by JAX.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, dataclass_transform, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import HOUSE, Parity, require
from llada_jax.sampler.policy import Policy, make_policy
from llada_jax.sampler.state import VISIBLE, DecodeState, RuleState

HeadNeed = Literal["top_k", "log_sum_exp", "current", "listed", "divergence"]
Need = Literal["confidence", "entropy", "margin", "probability", HeadNeed, "hidden", "drafts"]
Rescore = Literal["shadow", "token"]
Refresh = Literal["none", "rows", "worker"]


class Drafts(NamedTuple):
    """The model's last predictions for masks of later blocks, by position of the canvas."""

    masked: Bool[Array, "B L"]  # masks of later blocks that were scored; all may be committed
    predicted: Int[Array, "B L"]  # the most probable token, or the sampled one
    confidence: Float[Array, "B L"]  # its probability


class CanvasView(NamedTuple):
    """The whole canvas, for rules that revise tokens outside the current block."""

    state: DecodeState  # before the decision
    predicted: Int[Array, "B L"]  # -1 without a score
    confidence: Float[Array, "B L"]  # of the predicted tokens
    rescored: Bool[Array, "B L"]  # visible tokens that this forward scored again
    probability: Float[Array, "B L"]  # of the current tokens; see `Observation.probability`
    remasks: Int[Array, "B L"]  # how often each position was masked again; 0 if it is not counted
    ends: Bool[Array, "B L"]  # tokens that end an answer, if `eos_early_stop` is set

    @property
    def differs(self) -> Bool[Array, "B L"]:
        """Marks positions at which the model prefers another token than the current one."""
        return self.predicted != self.state.tokens

    @property
    def fed(self) -> Bool[Array, "B L"]:
        """Marks positions before the window: the cache holds keys of the token that was fed."""
        return self.state.positions < self.state.n_cached[:, None]

    def confidence_after(self, replaced: Bool[Array, "B L"]) -> Float[Array, "B L"]:
        """Returns the probability of each token that is left after some were replaced."""
        kept = self.differs & ~replaced
        return jnp.where(kept, self.probability, self.confidence).astype(jnp.float32)


@dataclass(frozen=True)
class Observation:
    """What a rule observes of the current block after a forward, an entry for each position.

    Fields from `entropy` on are None unless the rule lists them among its `needs`. All scores are
    of the model's distribution without sampling noise; positions that were not scored have zeros.

    Attributes:
      position: Index in the canvas; the prompt starts at 0.
      token: Current token; [MASK] where `masked`.
      predicted: The most probable token, or the sampled one; -1 at positions without a score.
      confidence: Probability of the predicted token.
      masked: Positions that may be committed.
      committed: Tokens of earlier steps that may be replaced or masked again.
      rescored: Committed tokens that this forward scored again.
      priority: What the setting `remasking` ranks candidates by, higher first.
      step: Forwards that the block has had before this one.
      block_masks: Masks that the block had at its start.
      quota: Number of tokens that LLaDA's schedule commits in this step.
      canvas: The whole canvas.
      entropy: Of the distribution, in nats.
      margin: Probability of the best token minus the probability of the second.
      probability: Probability of `token`. Exact if the backend's head can measure it, else an upper
        bound: a token that is not the best has at most the rest of the probability.
      log_sum_exp: Of all logits.
      top_ids: The `top_k` most probable tokens, the best one first.
      top_logits: Their logits.
      current: Log-probability of `token`; -inf for [MASK]. Backends that cannot measure it are
        refused.
      listed: Logits of the tokens that `ask` listed; -inf for negative ids.
      divergence: Kullback-Leibler divergence of the distribution from the one at the position's
        last score in this block (nats); the largest number if there was none.
      hidden: The model's last hidden state, the head's input.
      drafts: Predictions for later blocks.
    """

    position: Int[Array, "B C"]
    token: Int[Array, "B C"]
    predicted: Int[Array, "B C"]
    confidence: Float[Array, "B C"]
    masked: Bool[Array, "B C"]
    committed: Bool[Array, "B C"]
    rescored: Bool[Array, "B C"]
    priority: Float[Array, "B C"]
    step: Int[Array, " B"]
    block_masks: Int[Array, " B"]
    quota: Int[Array, " B"]
    canvas: Any = None  # CanvasView
    entropy: Any = None  # [B, C] like all that follow, with one more axis if there are several
    margin: Any = None
    probability: Any = None
    log_sum_exp: Any = None
    top_ids: Any = None
    top_logits: Any = None
    current: Any = None
    listed: Any = None
    divergence: Any = None
    hidden: Any = None
    drafts: Drafts | None = None
    block_length: int = 0
    eos_id: int | None = None
    parity: Parity = HOUSE
    preview: "Callable[[Decision], DecodeState] | None" = None

    def reaches(self, bound: Float[Array, ""] | float) -> Bool[Array, "B C"]:
        """Marks masks with a confidence that reaches a bound, or exceeds it with
        `strict_threshold`."""
        strict = self.parity.strict_threshold
        return self.masked & (self.confidence > bound if strict else self.confidence >= bound)

    def with_progress(
        self, commit: Bool[Array, "B C"], priority: Float[Array, "B C"] | None = None
    ) -> Bool[Array, "B C"]:
        """Returns `commit` with the tokens that every step commits, however unsure the model is.

        They are the best mask by priority, or the schedule's quota with `forced_progress="quota"`.
        """
        least = jnp.ones_like(self.quota)
        if self.parity.forced_progress == "quota":
            least = jnp.maximum(self.quota, least)
        rank = ranks(self.priority if priority is None else priority, self.masked)
        return commit | (self.masked & (rank < least[:, None]))

    def after(self, decision: "Decision") -> DecodeState:
        """Returns the state as a decision would leave it, for rules that look ahead."""
        assert self.preview is not None
        return self.preview(decision)


class Ask(NamedTuple):
    """A rule's request to the head before a forward, for each position of the block.

    Attributes:
      listed: Tokens to compute logits of; negative for none.
      added: Added to their logits before anything else is computed, so that it changes predictions
        and confidences; -inf forbids a token. None adds nothing.
    """

    listed: Int[Array, "B C K"] | None = None
    added: Float[Array, "B C K"] | None = None


class Revision(NamedTuple):
    """Changes of tokens anywhere on the canvas, for rules that revise outside the current block.

    Attributes:
      replace: Rescored tokens that the predicted ones replace.
      stable: Visible tokens that become stable.
      remask: Committed tokens that become masks again.
      confidence: New confidence of rescored tokens; None keeps the old one.
      restart: Position at which the current block starts anew, or L for none; for rules that
        verify drafts.
    """

    replace: Bool[Array, "B L"]
    stable: Bool[Array, "B L"]
    remask: Bool[Array, "B L"] | None = None
    confidence: Float[Array, "B L"] | None = None
    restart: Int[Array, " B"] | None = None


class Decision(NamedTuple):
    """A rule's decision about the current block.

    Parts that are not allowed are ignored: commits outside `Observation.masked`, other changes
    outside `Observation.committed`, and remasking a position too often.

    Attributes:
      commit: Masked positions that become tokens.
      token: Token to commit, or to put in place of another one; None for the predicted one.
      confidence: Of committed, replaced and rescored tokens; None for the confidence of the
        predicted tokens, and to leave rescored tokens as they are.
      stable: Committed tokens that never change; None for all of a rule that does not revise, and
        none of one that does.
      replace: Committed positions that get another token.
      remask: Committed positions that become masks again.
      end: Sequences that are done: masks that are left become EOS.
      ahead: Drafts to commit as predicted, if the rule needs `drafts`.
      canvas: Changes anywhere on the canvas.
    """

    commit: Bool[Array, "B C"]
    token: Int[Array, "B C"] | None = None
    confidence: Float[Array, "B C"] | None = None
    stable: Bool[Array, "B C"] | None = None
    replace: Bool[Array, "B C"] | None = None
    remask: Bool[Array, "B C"] | None = None
    end: Bool[Array, " B"] | None = None
    ahead: Bool[Array, "B L"] | None = None
    canvas: Revision | None = None


class Sizes(NamedTuple):
    """Lengths of the axes of observations and rule states."""

    batch: int
    block: int
    canvas: int
    vocab: int
    width: int
    """Of hidden states."""


class Rule(Policy):
    """Decides which predictions are committed, and what becomes of committed tokens.

    Class attributes describe the rule's kind; annotated fields are its parameters, and `float` ones
    are arrays in a program.
    """

    needs: ClassVar[frozenset[Need] | set[Need]] = frozenset({"confidence"})
    """Fields of `Observation` to compute in addition to the prediction."""
    top_k: ClassVar[int] = 2
    """How many tokens `top_ids` has."""
    may_wait: ClassVar[bool] = False
    """Whether a step may commit nothing. Such a rule has to follow `Observation.quota`."""
    revises: ClassVar[bool] = False
    """Whether committed tokens may change: they are visible before they are stable."""
    verifies: ClassVar[bool] = False
    """Whether a block is drafted in one forward and verified as finished tokens in the next."""
    waits: ClassVar[bool] = False
    """Whether a sequence with visible tokens goes on after its last mask, for `end_steps`."""
    max_remasks: int | None = 3
    """How often a position may be masked again, so that decoding ends. None does not count."""
    rescore: Rescore | Literal["none"] = "shadow"
    """How a visible token is scored again: by an extra row with [MASK] in its place, by its own
    row, or not at all."""
    refresh: Refresh = "none"
    """How tokens that left the window while they were visible are recomputed."""
    refresh_rows: int = 0
    """Tokens that are refreshed with one forward."""
    edit_steps: int = 0
    """Forwards that may follow the last mask of a block, while they change tokens."""
    end_steps: int = 0
    """Forwards that may follow the last mask of a sequence, if the rule `waits`."""

    def init(self, sizes: Sizes) -> RuleState:
        """Returns the state before the first forward."""
        return RuleState()

    def accept(self, seen: Observation) -> Bool[Array, "B C"]:
        """Marks masks to commit, by their scores alone. It also accepts drafts."""
        raise NotImplementedError

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        """Returns the decision of a step, and the state after it."""
        return Decision(commit=seen.with_progress(self.accept(seen))), state

    def ask(self, state: RuleState) -> Ask:
        """Returns the rule's request to the head."""
        return Ask()

    def rescorable(self, state: DecodeState, eos_id: int | None) -> Bool[Array, "B L"]:
        """Marks visible tokens that are worth scoring again."""
        return state.status == VISIBLE

    def is_stable(self, confidence: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
        """Marks tokens that never change if they are committed with this confidence."""
        return jnp.full(confidence.shape, not self.revises)

    def max_block_steps(self, block_length: int) -> int:
        """Returns the largest number of forwards that a block may take."""
        remasks = self.max_remasks or 0 if self.revises else 0
        return block_length * (1 + remasks) + self.edit_steps

    @property
    def refreshes(self) -> bool:
        """Whether tokens that left the window while they were visible are recomputed."""
        return self.refresh != "none"

    @property
    def counts_remasks(self) -> bool:
        return self.revises and self.max_remasks is not None

    @property
    def accepts_drafts(self) -> bool:
        """Whether the rule can decide about drafts of later blocks."""
        return "drafts" in self.needs or type(self).accept is not Rule.accept

    @property
    def head_needs(self) -> frozenset[str]:
        """The needs that only a head that measures rules' requests can fulfil."""
        return frozenset(self.needs) & frozenset(get_args(HeadNeed))

    def check(self) -> None:
        """Raises ValueError for a need that does not exist."""
        unknown = set(self.needs) - set(get_args(Need))
        require(
            not unknown,
            f"rule {type(self).__name__} needs {sorted(unknown)}; allowed: "
            f"{', '.join(get_args(Need))}",
        )


@dataclass_transform(kw_only_default=True, frozen_default=True)
def rule(cls: Any = None, *, name: str | None = None) -> Any:
    """Makes a class with a function `accept` or `decide` a rule: a frozen dataclass. A sweep over
    its `float` fields compiles once.

    Args:
      cls: The class, if the decorator is used without parentheses.
      name: How configurations spell it; by default `module:Class`, which can be imported.

    Raises:
      TypeError: The class has neither function.
    """
    if cls is None:
        return lambda decorated: rule(decorated, name=name)
    if not any(callable(getattr(cls, function, None)) for function in ("accept", "decide")):
        raise TypeError(f"rule {cls.__name__} has no decide; allowed: decide(self, seen, state)")
    return make_policy(cls, Rule, name)


def ranks(priority: Float[Array, "B C"], chosen: Bool[Array, "B C"]) -> Int[Array, "B C"]:
    """Returns how many chosen positions come before each one: 0 for the highest priority.

    Positions of equal priority keep their order. Counting the positions ahead takes C**2
    comparisons, but unlike a sort and a scatter it fixes the order of ties, and NPU compilers
    support it.
    """
    index = jnp.arange(priority.shape[1], dtype=jnp.int32)
    mine, other = priority[:, :, None], priority[:, None, :]
    earlier = (index[None, :] < index[:, None])[None]
    ahead = (other > mine) | ((other == mine) & earlier)
    return (ahead & chosen[:, None, :]).sum(axis=-1, dtype=jnp.int32)
