"""What a user constrains a text by: a regular expression, a JSON schema, or a list of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llada_jax.config import require, require_choices, require_counts
from llada_jax.constraint.schema import schema_pattern

Measure = Literal["raw", "allowed"]
Spelling = Literal["own", "any"]


@dataclass(frozen=True)
class Constraint:
    """Texts that a generation may be; `regex`, `json_schema` and `choice` make one.

    Attributes:
      pattern: A regular expression in Rust's syntax, or the texts themselves.
      confidence: What the confidence of a token is its probability in: `raw` the model's
        distribution; `allowed` that over the tokens which the constraint allows at its position,
        so that a token without alternative has 1, and is committed without a forward.
      spelling: The tokens of what an expression spells in one way only, as the names in an object:
        the tokenizer's `own`, or `any` that spell it. What is free may have any tokens.
      begins: Where the text begins in a canvas that is infilled; a generation's begins behind its
        prompt.
    """

    pattern: str | tuple[str, ...]
    confidence: Measure = "allowed"
    spelling: Spelling = "own"
    begins: int = 0

    @property
    def texts(self) -> tuple[str | tuple[str, ...], Spelling]:
        """Returns what its automaton depends on."""
        return self.pattern, self.spelling

    def __post_init__(self) -> None:
        require_choices(self)
        require_counts(self, "begins", least=0)


def regex(pattern: str, **options: Any) -> Constraint:
    """Returns the constraint that a text matches a regular expression, from its first to its last
    character. Needs the extra `constraint` once a model is to obey it.

    Args:
      pattern: in Rust's syntax, without anchors, look-around and word boundaries.
      options: other attributes of a `Constraint`.
    """
    require(isinstance(pattern, str), f"regex is {pattern!r}; allowed: text")
    return Constraint(pattern, **options)


def json_schema(
    schema: Mapping[str, Any] | str, *, depth: int = 3, spaces: bool | None = False, **options: Any
) -> Constraint:
    """Returns the constraint that a text is JSON of a schema, whose properties have its order.

    Args:
      schema: as an object, or in JSON.
      depth: how often a definition may stand within itself, where the schema is recursive.
      spaces: whether one stands behind each `,` and `:` between values; None: one may.
      options: other attributes of a `Constraint`.

    Raises ValueError, which names the place, as `$.properties.age.enum`, for a malformed schema,
    one that is too large, and keywords that no automaton would guarantee.
    """
    return Constraint(schema_pattern(schema, depth, spaces), **options)


def choice(texts: Sequence[str], **options: Any) -> Constraint:
    """Returns the constraint that a text is one of some texts, in the tokenizer's own tokens.
    `options` are other attributes of a `Constraint`."""
    given = isinstance(texts, Sequence) and not isinstance(texts, str)
    require(
        given and len(texts) > 0 and all(isinstance(each, str) and each for each in texts),
        f"choice is {texts!r}; allowed: a list of texts, none of them empty",
    )
    return Constraint(tuple(texts), **options)
