"""Policies by their flat names: how `threshold=0.9` or `cache="dual"` finds the value that has it.

`llada_jax.sampler` registers its policies (`rule` or `window`) here, because what a user sets is
known without JAX. Flat names are their fields, and a few that choose the policy itself (`accept`,
or `cache` and `window`): each class has its values of them in `chosen_by`.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from importlib import import_module
from inspect import cleandoc
from typing import Any, Literal, get_type_hints

from llada_jax.config.checks import require

CHOICES: dict[str, dict[str, Any]] = {
    "rule": {"accept": "quota"},
    "window": {"window": "by_cache", "cache": "none"},
}
"""The flat names that choose a policy, by its kind, with their defaults."""

registered: dict[str, tuple[Any, ...]] = {kind: () for kind in CHOICES}
"""The classes of each kind."""


def register(kind: str, policies: Iterable[type]) -> None:
    """Makes policies known by their flat names; the first one is the default."""
    registered[kind] = (*registered[kind], *policies)


def policy_settings(*in_use: Any) -> dict[str, Any]:
    """Returns every flat name that chooses a policy or belongs to one, with its value in those in
    use, or else its default."""
    defaults: dict[str, Any] = {}
    for kind, choices in CHOICES.items():
        defaults |= choices
        for policy in registered[kind]:
            own = ((each.name, each.default) for each in fields(policy))
            defaults |= {name: None if value is MISSING else value for name, value in own}
    for policy in in_use:
        defaults |= flat(policy)
    return defaults


def policy_types(accept: object = None) -> dict[str, Any]:
    """Returns the type of each of those names, and of those of the rule that `accept` names."""
    own = own_rule(accept)
    types = {each.name: get_type_hints(own)[each.name] for each in fields(own)} if own else {}
    for kind, choices in CHOICES.items():
        for name in choices:
            types[name] = Literal[*dict.fromkeys(p.chosen_by[name] for p in registered[kind])]
        for policy in registered[kind]:
            hints = get_type_hints(policy)
            for field in fields(policy):
                required = field.default is MISSING
                types[field.name] = hints[field.name] | None if required else hints[field.name]
    return {**types, "accept": str}


def own_rule(accept: object) -> Any:
    """Returns the rule that `module:Class` names; None for another name.

    Raises ValueError where that is no rule.
    """
    if not isinstance(accept, str) or ":" not in accept:
        return None
    module, _, name = accept.partition(":")
    names = all(part.isidentifier() for part in (*module.split("."), name))
    require(names, f"accept is {accept!r}; allowed: module:Class")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"accept is {accept!r}: {error}; allowed: module:Class") from error
    require(hasattr(found, "chosen_by"), f"accept is {accept!r}; allowed: a class under lj.rule")
    return found


def described(parts: Iterable[type] = ()) -> str:
    """Returns the `Attributes:` of the docstrings of `parts` and all policies, each name once."""
    policies = (policy for kind in CHOICES for policy in registered[kind])
    entries: dict[str, str] = {}
    for part in (*parts, *policies):
        _, _, attributes = cleandoc(part.__doc__ or "").partition("\nAttributes:\n")
        for entry in re.findall(r"^  \w.*(?:\n    .*)*", attributes, re.MULTILINE):
            entries.setdefault(entry.partition(":")[0], entry)
    return "\n".join(entries.values())


def take_policy(kind: str, settings: dict[str, Any]) -> Any:
    """Returns the policy that flat settings mean, and takes its names out of them.

    Raises ValueError where they contradict each other.
    """
    given = settings.pop("rule", None) if kind == "rule" else None
    choices = {name: settings.pop(name, default) for name, default in CHOICES[kind].items()}
    if kind == "window" and not isinstance(choices["window"], str):
        given = choices["window"]
    if given is not None:
        policy, current = type(given), _values(given)
    else:
        policy, current = _choose(kind, choices, settings), {}
    names = [field.name for field in fields(policy) if field.name in settings]
    found = {name: settings.pop(name) for name in names}
    if ":" in policy.chosen_by.get("accept", ""):  # None: as the settings of no rule have it
        found = {name: value for name, value in found.items() if value is not None}
    return policy(**{**current, **found})


def require_read(settings: Mapping[str, Any], own: Iterable[str]) -> None:
    """Raises ValueError unless what is left of the settings are defaults of other policies."""
    defaults = policy_settings()
    for name, value in settings.items():
        if name not in defaults:
            close = difflib.get_close_matches(name, [*own, *defaults], 1)
            allowed = f"allowed: {', '.join([*own, *defaults])}"
            raise ValueError(f"{name}: " + (f"did you mean {close[0]}?" if close else allowed))
        require(
            value == defaults[name],
            f"{name} is {value!r}, which nothing reads; allowed: {defaults[name]!r}, or another "
            f"one where {' or '.join(_owners(name))}",
        )


def flat(policy: Any) -> dict[str, Any]:
    """Returns the flat settings that mean this policy."""
    return {**policy.chosen_by, **_values(policy)}


def chosen_by_number(policy: Any) -> bool:
    """Returns whether the policy has a number without a default, which chooses it."""
    return any(field.default is MISSING for field in fields(policy))


def _values(policy: Any) -> dict[str, Any]:
    return {field.name: getattr(policy, field.name) for field in fields(policy)}


def _choose(kind: str, choices: Mapping[str, Any], settings: dict[str, Any]) -> Any:
    candidates = registered[kind]
    if kind == "rule":
        if own := own_rule(choices["accept"]):
            return own
        choices = {"accept": _numbered(choices["accept"], settings)}
    reasons: list[str] = []
    for name, value in choices.items():
        allowed = list(dict.fromkeys(policy.chosen_by[name] for policy in candidates))
        because = "".join(f" and {reason}" for reason in reasons)
        require(
            value in allowed,
            f"{name} is {value!r}{because}; allowed: {', '.join(map(repr, allowed))}",
        )
        candidates = [policy for policy in candidates if policy.chosen_by[name] == value]
        if value != CHOICES[kind][name]:
            reasons.append(f"{name} is {value!r}")
    return candidates[0]


def _numbered(accept: Any, settings: dict[str, Any]) -> Any:
    """Returns the rule that is meant, which its number without a default, of the same name, chooses
    by itself."""
    for name in (each.chosen_by["accept"] for each in registered["rule"] if chosen_by_number(each)):
        value = settings.pop(name, None)
        if value is not None:
            settings[name] = value
            allowed = accept in (CHOICES["rule"]["accept"], name)
            require(allowed, f"accept is {accept!r} and {name} is {value}; allowed: {name} None")
            return name
        wanted = accept == name
        require(not wanted, f"accept is {name!r} and {name} is None; allowed: a number for {name}")
    return accept


def _owners(name: str) -> list[str]:
    owners = []
    for kind, choices in CHOICES.items():
        for policy in registered[kind]:
            if name in (field.name for field in fields(policy)):
                unusual = {k: v for k, v in policy.chosen_by.items() if v != choices[k]}
                unusual.pop("cache", None) if "window" in unusual else None
                owners.append(" and ".join(f"{k} is {v!r}" for k, v in unusual.items()))
    return owners


def plain(value: Any) -> Any:
    """Returns a record as a dict, and anything else as it is."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
