"""A user's own rule: what it is shown, what it decides, and how it is made of a class; docs/api.md
has one."""

import hashlib
import inspect
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import SamplerConfig, require
from llada_jax.sampler.policy_pytree import policy
from llada_jax.sampler.rules.rule import Rule, require_for_revision

HeadNeed = Literal["top_k", "log_sum_exp", "current", "listed", "divergence"]
Need = Literal["confidence", "entropy", "margin", HeadNeed, "hidden", "drafts"]
T = TypeVar("T")


class Drafts(NamedTuple):
    """What the model last said of the masks of later blocks, by position of the canvas."""

    masked: Bool[Array, "B L"]  # masks of later blocks that were scored; all may be committed
    predicted: Int[Array, "B L"]  # the most probable token, or the sampled one
    confidence: Float[Array, "B L"]  # its probability


@dataclass(frozen=True)
class Seen:
    """What a rule is shown of the current block after a forward, one entry for each position.

    From `entropy` on, what is not among the rule's `needs` is None and was not computed. All is of
    the model's distribution without sampling noise; what was not scored has zeros.

    Attributes:
      position: Index in the canvas, of which the prompt starts at 0.
      token: What stands there now; [MASK] where it is `masked`.
      predicted: The most probable token, or the sampled one; -1 where nothing was scored.
      confidence: Probability of the predicted token.
      masked: Positions that may be committed.
      committed: Tokens of earlier steps that may be replaced or masked again.
      rescored: Those of them that this forward scored.
      step: Forwards that the block has had before this one.
      block_masks: Masks that the block had at its start.
      quota: What LLaDA's schedule commits in this step.
      entropy: Of the distribution, in nats.
      margin: Probability of the best token less that of the second.
      log_sum_exp: Of all logits.
      top_ids: The `top_k` most probable tokens, the best one first.
      top_logits: Their logits.
      current: Log-probability of `token`; -inf for [MASK].
      listed: Logits of the tokens that `ask` lists; -inf where it lists none.
      divergence: Kullback-Leibler divergence of the distribution from that of the position's last
        score in this block (nats); the largest number where there was none.
      hidden: The model's last state, of which the head makes the logits.
      drafts: What is known of later blocks.
    """

    position: Int[Array, "B C"]
    token: Int[Array, "B C"]
    predicted: Int[Array, "B C"]
    confidence: Float[Array, "B C"]
    masked: Bool[Array, "B C"]
    committed: Bool[Array, "B C"]
    rescored: Bool[Array, "B C"]
    step: Int[Array, " B"]
    block_masks: Int[Array, " B"]
    quota: Int[Array, " B"]
    entropy: Any = None  # [B, C], as all that follow, and an axis more where there are several
    margin: Any = None
    log_sum_exp: Any = None
    top_ids: Any = None
    top_logits: Any = None
    current: Any = None
    listed: Any = None
    divergence: Any = None
    hidden: Any = None
    drafts: Drafts | None = None


class Ask(NamedTuple):
    """What a rule asks of the head before a forward, for each position of the block.

    Attributes:
      listed: Tokens whose logits are needed; below 0: none.
      added: What is added to their logits before anything else is made of them, so that it changes
        what is predicted and how sure it is; None: nothing. -inf forbids.
    """

    listed: Int[Array, "B C K"] | None = None
    added: Float[Array, "B C K"] | None = None


class Decision(NamedTuple):
    """What a rule decides of the current block.

    What is not allowed is left undone: commits outside `seen.masked`, other changes outside
    `seen.committed`, and remasking a position too often.

    Attributes:
      commit: Masked positions that become tokens.
      token: What is put there, and where tokens are replaced; None: what was predicted.
      confidence: Of the tokens, as the trace has it; None: of the predicted ones.
      replace: Committed positions whose token changes.
      remask: Committed positions that become masks again.
      end: Rows that are done: masks that are left become EOS.
      ahead: Drafts that are committed as they are predicted, where the rule needs `drafts`.
    """

    commit: Bool[Array, "B C"]
    token: Int[Array, "B C"] | None = None
    confidence: Float[Array, "B C"] | None = None
    replace: Bool[Array, "B C"] | None = None
    remask: Bool[Array, "B C"] | None = None
    end: Bool[Array, " B"] | None = None
    ahead: Bool[Array, "B L"] | None = None


class State(NamedTuple):
    """What a rule remembers: trees of arrays whose first axis is the batch.

    Attributes:
      row: Kept as long as the row is decoded.
      block: As `init` made it wherever a row comes to another block.
    """

    row: Any = ()
    block: Any = ()


class Sizes(NamedTuple):
    """Lengths of the axes of what a rule sees and remembers."""

    batch: int
    block: int
    canvas: int
    vocab: int


class OwnRule(Rule):
    """The defaults of a user's rule; `rule` makes every rule one of these."""

    needs: ClassVar[frozenset[Need] | set[Need]] = frozenset({"confidence"})
    """What is computed for the rule beside the prediction."""
    top_k: ClassVar[int] = 2
    most_remasks: ClassVar[int] = 3
    """How often a position may be masked again, so that decoding ends."""
    no_drafts = "is a rule of one's own that does not need drafts"
    source_hash: ClassVar[str | None] = None

    def init(self, sizes: Sizes) -> State:
        """Returns the state before the first forward."""
        return State()

    def decide(self, seen: Seen, state: State) -> tuple[Decision, State]:
        """Returns what a step commits, replaces and masks again, and the state after it."""
        raise NotImplementedError

    def ask(self, state: State) -> Ask:
        """Returns the tokens of which the rule needs logits."""
        return Ask()

    def require(self, part: str, value: Any, kind: Any, *shape: int | None) -> None:
        """Raises ValueError unless an array has a dtype of this kind and this shape; None stands
        for any length."""
        found, fits = value, False
        if value is not None:
            given = jnp.asarray(value)
            found = f"{given.dtype}{list(given.shape)}"
            fits = given.ndim == len(shape) and jnp.issubdtype(given.dtype, kind)
            fits &= all(
                want in (None, have) for want, have in zip(shape, given.shape, strict=False)
            )
        allowed = ", ".join("any" if length is None else str(length) for length in shape)
        require(
            fits,
            f"rule {type(self).__name__}: {part} is {found}; allowed: {kind.__name__}[{allowed}]",
        )

    @property
    def counts_remasks(self) -> bool:
        return self.revises

    @property
    def head_needs(self) -> frozenset[str]:
        """What only a head that knows rules can give."""
        return frozenset(self.needs) & frozenset(get_args(HeadNeed))

    def check(self, config: SamplerConfig) -> None:
        name = type(self).__name__
        unknown = set(self.needs) - set(get_args(Need))
        require(
            not unknown,
            f"rule {name} needs {sorted(unknown)}; allowed: {', '.join(get_args(Need))}",
        )
        if self.revises:
            require_for_revision(config, f"rule {name} revises")

    def block_steps(self, config: SamplerConfig) -> int:
        """Counts that a forward commits a token at least, and a position is so often committed."""
        return config.block_length * (1 + self.revises * self.most_remasks)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def rule(cls: type[T]) -> type[T]:
    """Makes a class with a function `decide` a rule: a frozen dataclass whose `float` fields
    are numbers that a sweep compiles once for.

    Raises:
      TypeError: the class has no `decide`.
    """
    if not callable(getattr(cls, "decide", None)):
        raise TypeError(f"rule {cls.__name__} has no decide; allowed: decide(self, seen, state)")
    needs = set(getattr(cls, "needs", OwnRule.needs))
    made: Any = cls
    if not issubclass(cls, OwnRule):
        bases = tuple(base for base in cls.__bases__ if base is not object)
        own = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
        made = type(cls.__name__, (*bases, OwnRule), own)
    made.source_hash = _source_hash(cls)
    made.spread = bool(needs & {"entropy", "margin"})
    made.no_drafts = "" if "drafts" in needs else OwnRule.no_drafts
    return policy(made, accept=f"{cls.__module__}:{cls.__qualname__}")


def _source_hash(cls: type) -> str | None:
    try:
        return hashlib.sha256(inspect.getsource(cls).encode()).hexdigest()
    except (OSError, TypeError):  # typed into an interpreter that keeps no source
        return None
