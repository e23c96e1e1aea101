"""A user's own rule: what it is shown, what it decides, and how it is made of a class.

@lj.rule
class Anchors:
    threshold: float = 0.9

    def decide(self, seen, state):
        return lj.Decision(commit=seen.confidence >= self.threshold), state

lj.generate(model, prompts, lj.SamplerConfig(rule=Anchors(threshold=0.8)))
"""

import hashlib
import inspect
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, cast, dataclass_transform, get_args

from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import SamplerConfig, require
from llada_jax.sampler.policy import policy
from llada_jax.sampler.rules.base import Rule, require_for_revision

Need = Literal["confidence", "entropy", "margin", "logits"]
T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """What a rule is shown of the current block after a forward, one entry for each position.

    Attributes:
      position: Index in the canvas, of which the prompt starts at 0.
      token: What stands there now; [MASK] where it is `masked`.
      predicted: The most probable token, or the sampled one; -1 where nothing was scored.
      confidence: Probability of the predicted token.
      entropy: Of the distribution, in nats; wrong unless it is among the rule's `needs`.
      margin: Probability of the best token less that of the second; as entropy.
      logits: Of all tokens, -inf for forbidden ones; None unless among `needs`. Zeros where
        nothing was scored.
      masked: Positions that may be committed.
      committed: Tokens of earlier steps that may be replaced or masked again.
      rescored: Those of them that this forward scored.
      step: Forwards that the block has had before this one.
      block_masks: Masks that the block had at its start.
      quota: What LLaDA's schedule commits in this step.
    """

    position: Int[Array, "B C"]
    token: Int[Array, "B C"]
    predicted: Int[Array, "B C"]
    confidence: Float[Array, "B C"]
    entropy: Float[Array, "B C"]
    margin: Float[Array, "B C"]
    logits: Float[Array, "B C V"] | None
    masked: Bool[Array, "B C"]
    committed: Bool[Array, "B C"]
    rescored: Bool[Array, "B C"]
    step: Int[Array, " B"]
    block_masks: Int[Array, " B"]
    quota: Int[Array, " B"]


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
    """

    commit: Bool[Array, "B C"]
    token: Int[Array, "B C"] | None = None
    confidence: Float[Array, "B C"] | None = None
    replace: Bool[Array, "B C"] | None = None
    remask: Bool[Array, "B C"] | None = None
    end: Bool[Array, " B"] | None = None


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
    """What the head computes for the rule beside the prediction."""
    most_remasks: ClassVar[int] = 3
    """How often a position may be masked again, so that decoding ends."""
    no_drafts = "is a rule of one's own, and accepts no draft"
    source_hash: ClassVar[str | None] = None

    def init(self, sizes: Sizes) -> State:
        """Returns the state before the first forward."""
        return State()

    def decide(self, seen: Seen, state: State) -> tuple[Decision, State]:
        """Returns what a step commits, replaces and masks again, and the state after it."""
        raise NotImplementedError

    def check(self, config: SamplerConfig) -> None:
        name = type(self).__name__
        unknown = set(self.needs) - set(get_args(Need))
        require(
            not unknown,
            f"rule {name} needs {sorted(unknown)}; allowed: {', '.join(get_args(Need))}",
        )
        require(not config.window.branches, f"lossless is True with rule {name}; allowed: False")
        if self.revises:
            require_for_revision(config, f"rule {name} revises")

    def block_steps(self, config: SamplerConfig) -> int:
        """Every forward commits a token at the least, and each position at most so often."""
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
    namespace = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    namespace["chosen_by"] = MappingProxyType({"accept": cls.__name__})
    namespace.setdefault("source", cls.__module__)
    namespace["source_hash"] = _source_hash(cls)
    needs = set(getattr(cls, "needs", OwnRule.needs))
    namespace["spread"] = bool(needs & {"entropy", "margin"})
    bases = tuple(base for base in cls.__bases__ if base is not object)
    return cast(type[T], policy(type(cls.__name__, (*bases, OwnRule), namespace)))


def _source_hash(cls: type) -> str | None:
    try:
        return hashlib.sha256(inspect.getsource(cls).encode()).hexdigest()
    except (OSError, TypeError):  # typed into an interpreter that keeps no source
        return None
