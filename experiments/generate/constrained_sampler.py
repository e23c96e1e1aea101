"""A sampler on the command line, and what its text is constrained by."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llada_jax as lj
from llada_jax.config import SamplerConfig, require
from llada_jax.constraint.patterns import Measure


@dataclass(frozen=True, kw_only=True)
class ConstraintSettings:
    """At most one of a regular expression, a JSON schema (a file, or itself) and a list of texts;
    and what confidence is measured in."""

    regex: str | None = None
    json_schema: str | None = None
    choice: tuple[str, ...] | None = None
    confidence: Measure = "allowed"

    def made(self) -> lj.Constraint | None:
        """Returns the constraint that is asked for."""
        makers = {"regex": lj.regex, "json_schema": _json_schema, "choice": lj.choice}
        given = {name: getattr(self, name) for name in makers}
        given = {name: value for name, value in given.items() if value is not None}
        require(len(given) <= 1, f"{', '.join(given)} are set; allowed: one of them")
        for name, value in given.items():
            return makers[name](value, confidence=self.confidence)
        return None


def _json_schema(given: str, **options: Any) -> lj.Constraint:
    is_file = not given.lstrip().startswith("{")
    require(not is_file or Path(given).is_file(), f"json_schema is {given!r}; allowed: a file")
    return lj.json_schema(Path(given).read_text() if is_file else given, **options)


@dataclass(frozen=True, init=False)
class ConstrainedSampler:
    """All settings of a sampler, and `constraint`."""

    config: SamplerConfig
    constraint: lj.Constraint | None

    def __init__(self, constraint: ConstraintSettings | None = None, **settings: Any) -> None:
        object.__setattr__(self, "config", SamplerConfig(**settings))
        object.__setattr__(self, "constraint", constraint and constraint.made())

    @classmethod
    def setting_types(cls, accept: object = None) -> dict[str, Any]:
        """Returns the type of each setting."""
        return {**SamplerConfig.setting_types(accept), "constraint": ConstraintSettings}
