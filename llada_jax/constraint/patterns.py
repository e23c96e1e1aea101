"""The constraints that users write: a regular expression, a JSON schema, or a list of choices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llada_jax.config import require, require_choices, require_counts
from llada_jax.constraint.expression import Node, parse_regex
from llada_jax.constraint.schema import JsonSchema, json_schema_of, schema_node

Measure = Literal["raw", "allowed"]
Spelling = Literal["own", "any"]


@dataclass(frozen=True)
class Constraint:
    """A set of allowed texts; made by `regex`, `json_schema` and `choice`.

    Attributes:
      pattern: A regular expression, a checked JSON schema, or the texts themselves.
      confidence: Distribution in which a token's confidence is its probability. `raw`: the model's.
        `allowed`: the model's, restricted to the tokens that the constraint allows at the position,
        so that a token without alternatives has confidence 1 and needs no forward pass.
      spelling: Tokens for parts of an expression without alternatives, such as names in an object:
        the tokenizer's `own`, or `any` with the same characters. Other parts may have any tokens.
      begins: Position at which the text begins in a canvas that is infilled; in generation it
        begins after the prompt.
    """

    pattern: str | JsonSchema | tuple[str, ...]
    confidence: Measure = "allowed"
    spelling: Spelling = "own"
    begins: int = 0

    @property
    def texts(self) -> tuple[Any, Spelling]:
        """The fields on which the automaton depends."""
        return self.pattern, self.spelling

    @property
    def node(self) -> Node | None:
        """The tree of the expression or schema, or None for a list of texts."""
        if isinstance(self.pattern, JsonSchema):
            return schema_node(self.pattern)
        return parse_regex(self.pattern) if isinstance(self.pattern, str) else None

    def __post_init__(self) -> None:
        require_choices(self)
        require_counts(self, "begins", least=0)
        _ = self.node  # raises an error for what has no tree


def regex(pattern: str, **options: Any) -> Constraint:
    """Returns the constraint that the whole text matches a regular expression.

    Args:
      pattern: Characters, classes, groups, alternatives and repetitions, without anchors,
        look-around, references and word boundaries; `\\d`, `\\w` and `\\s` are ASCII.
      options: Other attributes of `Constraint`.

    Raises ValueError for anything else in the pattern.
    """
    require(isinstance(pattern, str), f"regex is {pattern!r}; allowed: text")
    return Constraint(pattern, **options)


def json_schema(
    schema: Mapping[str, Any] | str, *, depth: int = 3, spaces: bool | None = False, **options: Any
) -> Constraint:
    """Returns the constraint that a text is JSON of a schema, with properties in its order.

    Args:
      schema: An object, or its JSON.
      depth: Maximum nesting of a recursive definition in itself.
      spaces: Whether a space follows each `,` and `:` between values; None allows both.
      options: Other attributes of `Constraint`.

    Raises ValueError, which names the location (as `$.properties.age.enum`), for a malformed or too
    large schema, and for keywords that an automaton cannot guarantee.
    """
    return Constraint(json_schema_of(schema, depth, spaces), **options)


def choice(texts: Sequence[str], **options: Any) -> Constraint:
    """Returns the constraint that a text is one of several, in the tokenizer's own tokens.
    `options` are other attributes of `Constraint`."""
    is_list = isinstance(texts, Sequence) and not isinstance(texts, str)
    require(
        is_list and len(texts) > 0 and all(isinstance(text, str) and text for text in texts),
        f"choice is {texts!r}; allowed: a list of texts, none of them empty",
    )
    return Constraint(tuple(texts), **options)
