"""Flat settings, as `threshold=0.9` or `cache="dual"`: the one place that parses them.

Flat names are the fields of `SamplerConfig`, of `Parity`, and of every built-in rule and window,
and a few that choose a rule (`accept`) or a window (`window` and `cache`).
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from importlib import import_module
from inspect import cleandoc
from typing import Any, Literal, get_type_hints

from llada_jax.config import HOUSE, Parity, require
from llada_jax.sampler.drafters import Lookup, Own
from llada_jax.sampler.drafters.drafter import Drafter
from llada_jax.sampler.policy import Policy
from llada_jax.sampler.rules import (
    EntropyBound,
    EntropyDistance,
    PathPlanning,
    Quota,
    Speculate,
    Staged,
    Threshold,
    TokenEdit,
    Wino,
)
from llada_jax.sampler.rules.rule import Rule
from llada_jax.sampler.windows import (
    Blockwise,
    DualCache,
    MultiBlock,
    PrefixCache,
    Sliding,
    WholeCanvas,
)
from llada_jax.sampler.windows.window import Window

RULES: tuple[type[Rule], ...] = (
    Quota, Threshold, Staged, Wino, TokenEdit, Speculate, EntropyDistance, EntropyBound,
    PathPlanning,
)  # fmt: skip
WINDOWS: tuple[type[Window], ...] = (
    WholeCanvas, PrefixCache, DualCache, Blockwise, MultiBlock, Sliding,
)  # fmt: skip
DRAFTERS: tuple[type[Drafter], ...] = (Lookup, Own)
CHOICES = {"accept": "quota", "window": "by_cache", "cache": "none", "drafter": None}
"""The flat names that choose a policy, with their defaults."""
PARITY = tuple(field.name for field in fields(Parity))
RETIRED = {"selective_logits": True, "refresh_rows": 4}
"""Names that are in stored settings and no longer choose anything, with the value that still holds:
traces and preset files that were written with it can be read."""


def parse(settings: Mapping[str, Any], own: Iterable[str]) -> dict[str, Any]:
    """Returns the fields of `SamplerConfig` that flat settings mean; `own` are its plain fields.

    Raises ValueError for a name that does not exist, a contradiction, and a setting that nothing
    would read.
    """
    left = dict(settings)
    parsed = {name: left.pop(name) for name in own if name in left}
    parity = left.pop("parity", HOUSE)
    details = {name: left.pop(name) for name in PARITY if name in left}
    parsed["parity"] = dataclasses.replace(parity, **details)
    chosen = {name: left.pop(name, default) for name, default in CHOICES.items()}
    parsed["rule"] = _built(left.pop("rule", None) or _rule(chosen["accept"], left), left)
    window = chosen["window"]
    if isinstance(window, str):
        window = _window(window, chosen["cache"])
    parsed["window"] = _built(window, left)
    drafter = chosen["drafter"]
    if isinstance(drafter, str):
        drafter = _drafter(drafter)
    parsed["drafter"] = drafter if drafter is None else _built(drafter, left)
    policies = [parsed[name] for name in ("rule", "window", "drafter") if parsed[name] is not None]
    in_use = [name for policy in policies for name in _values_of(policy)]
    _require_defaults(left, list(dict.fromkeys((*own, *PARITY, *in_use))))
    return parsed


def rule_of(settings: Mapping[str, Any]) -> Rule:
    """Returns the built-in rule that flat settings mean, whatever else they have."""
    left = dict(settings)
    return _built(_rule(left.pop("accept", CHOICES["accept"]), left), left)


def _built(policy: Any, settings: dict[str, Any]) -> Any:
    """Returns a policy with its flat settings, which are taken out of `settings`.

    `policy` is a class, or a value that provides the defaults.
    """
    made = policy if isinstance(policy, type) else type(policy)
    current = {} if isinstance(policy, type) else _values_of(policy)
    names = [field.name for field in fields(made) if field.name in settings]
    found = {name: settings.pop(name) for name in names}
    if ":" in made.name:  # None is how configurations of other rules spell such a name
        found = {name: value for name, value in found.items() if value is not None}
    return made(**{**current, **found})


def _rule(accept: Any, settings: dict[str, Any]) -> Any:
    if custom := imported(accept, "accept", Rule):
        return custom
    for rule in RULES:  # a number without a default, of the rule's name, chooses it by itself
        if not _has_required(rule):
            continue
        name = rule.name
        if (value := settings.pop(name, None)) is not None:
            settings[name] = value
            allowed = accept in (CHOICES["accept"], name)
            require(allowed, f"accept is {accept!r} and {name} is {value}; allowed: {name} None")
            return rule
        require(accept != name, f"accept is {name!r} and {name} is None; allowed: a number for it")
    by_name = {rule.name: rule for rule in RULES}
    _require_among("accept", accept, by_name, "")
    return by_name[accept]


def _window(name: str, cache: Any) -> Any:
    if custom := imported(name, "window", Window):
        require(
            cache in (CHOICES["cache"], custom.cache),
            f"cache is {cache!r} and window is {name!r}; allowed: {CHOICES['cache']!r}",
        )
        return custom
    _require_among("window", name, dict.fromkeys(window.name for window in WINDOWS), "")
    by_cache = {window.cache: window for window in WINDOWS if window.name == name}
    because = "" if name == CHOICES["window"] else f" and window is {name!r}"
    _require_among("cache", cache, by_cache, because)
    return by_cache[cache]


def _drafter(name: str) -> Any:
    if custom := imported(name, "drafter", Drafter):
        return custom
    by_name = {drafter.name: drafter for drafter in DRAFTERS}
    _require_among("drafter", name, by_name, "")
    return by_name[name]


def _require_among(name: str, value: Any, allowed: Iterable[str], because: str) -> None:
    names = ", ".join(map(repr, allowed))
    require(
        isinstance(value, str) and value in allowed,
        f"{name} is {value!r}{because}; allowed: {names}",
    )


def imported(name: object, setting: str, base: type[Policy]) -> Any:
    """Returns the policy that `module:Class` names, or None for a name without a colon.

    Raises ValueError for a class that does not exist, or is not a policy of this kind.
    """
    if not isinstance(name, str) or ":" not in name:
        return None
    module, _, attribute = name.partition(":")
    names = all(part.isidentifier() for part in (*module.split("."), attribute))
    require(names, f"{setting} is {name!r}; allowed: module:Class")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{setting} is {name!r}: {error}; allowed: module:Class") from error
    kind = base.__name__.lower()
    is_policy = isinstance(found, type) and issubclass(found, base)
    require(is_policy, f"{setting} is {name!r}; allowed: a class under lj.{kind}")
    return found


def _require_defaults(settings: Mapping[str, Any], own: Iterable[str]) -> None:
    """Raises ValueError unless the settings are defaults of policies that are not in use, or
    retired ones."""
    defaults = policy_settings()
    for name, value in settings.items():
        if name in RETIRED:
            held = RETIRED[name]
            require(value == held, f"{name} is {value!r}, which nothing reads; allowed: {held!r}")
            continue
        if name not in defaults:
            close = difflib.get_close_matches(name, [*own, *defaults], 1)
            allowed = f"allowed: {', '.join(dict.fromkeys([*own, *defaults]))}"
            raise ValueError(f"{name}: " + (f"did you mean {close[0]}?" if close else allowed))
        require(
            value == defaults[name],
            f"{name} is {value!r}, which nothing reads; allowed: {defaults[name]!r}, or another "
            f"one where {' or '.join(_owners(name))}",
        )


def policy_settings(*in_use: Policy | None) -> dict[str, Any]:
    """Returns every flat name of policies, with its value in the ones in use, or else its
    default."""
    settings: dict[str, Any] = {}
    kinds = ((RULES, ("accept",)), (WINDOWS, ("window", "cache")), (DRAFTERS, ("drafter",)))
    for policies, choices in kinds:
        settings |= {name: CHOICES[name] for name in choices}
        for policy in policies:
            own = ((field.name, field.default) for field in fields(policy))  # pyright: ignore
            settings |= {name: None if value is MISSING else value for name, value in own}
    for policy in in_use:
        settings |= {} if policy is None else flat(policy)
    return settings


def policy_types(
    accept: object = None, window: object = None, drafter: object = None
) -> dict[str, Any]:
    """Returns the type of each flat name of policies, including custom ones."""
    types: dict[str, Any] = {}
    named = ((accept, "accept", Rule), (window, "window", Window), (drafter, "drafter", Drafter))
    for custom in (imported(*each) for each in named):
        if custom is not None:
            hints = get_type_hints(custom)
            types |= {field.name: hints[field.name] for field in fields(custom)}
    types |= {"accept": str, "window": str, "drafter": str | None}
    types["cache"] = Literal[*dict.fromkeys(window.cache for window in WINDOWS), "custom"]
    for policy in (*RULES, *WINDOWS, *DRAFTERS):
        hints = get_type_hints(policy)
        for field in fields(policy):  # pyright: ignore
            required = field.default is MISSING
            types[field.name] = hints[field.name] | None if required else hints[field.name]
    return types


def flat(policy: Policy) -> dict[str, Any]:
    """Returns the flat settings that mean this policy."""
    chosen = {"drafter" if isinstance(policy, Drafter) else "accept": policy.name}
    if isinstance(policy, Window):
        chosen = {"window": policy.name, "cache": policy.cache}
    return {**chosen, **_values_of(policy)}


def _values_of(policy: Any) -> dict[str, Any]:
    """Returns the fields of a policy, by name."""
    return {field.name: getattr(policy, field.name) for field in fields(policy)}


def plain(value: Any) -> Any:
    """Returns a record as a dict, and anything else as it is."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def described(parts: Iterable[type] = ()) -> str:
    """Returns the `Attributes:` of the docstrings of `parts` and all policies, each name once."""
    entries: dict[str, str] = {}
    for part in (*parts, *RULES, *WINDOWS, *DRAFTERS):
        _, _, attributes = cleandoc(part.__doc__ or "").partition("\nAttributes:\n")
        for entry in re.findall(r"^  \w.*(?:\n    .*)*", attributes, re.MULTILINE):
            entries.setdefault(entry.partition(":")[0], entry)
    return "\n".join(entries.values())


def _has_required(policy: Any) -> bool:
    return any(field.default is MISSING for field in fields(policy))


def _owners(name: str) -> list[str]:
    """Returns the choices that would read a setting, as `accept is 'wino'`."""
    owners = [f"accept is {rule.name!r}" for rule in RULES if name in _names(rule)]
    owners += [f"drafter is {one.name!r}" for one in DRAFTERS if name in _names(one)]
    for window in WINDOWS:
        if name in _names(window):
            by_cache = window.name == CHOICES["window"]
            owners.append(
                f"cache is {window.cache!r}" if by_cache else f"window is {window.name!r}"
            )
    return owners


def _names(policy: Any) -> list[str]:
    return [field.name for field in fields(policy)]
