"""Short names of the decoders in a report, and which of them make one curve.

A method is a preset, or a custom rule by the name of its class: "KLASS" for
`sampler.accept=my_rules:KLASS`. Decoders of one method that differ only in numbers of the sampler
make a curve, so a custom rule never shares a curve with the preset that it was set in. A label
adds to the method what tells its decoder apart from the others in the report: the number
("KLASS 0.7"), and the model, backend or seed if there are several. `shared_settings` states what
all have in common.
"""

import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Settings = Mapping[str, Any]
_ELSEWHERE = ("task.", "model_config.", "fingerprint")  # in the heading, or of no use to readers


class Label(NamedTuple):
    """The names of a decoder and of its curve in figures and tables."""

    text: str
    """Differs between any two decoders of a task."""
    curve: str
    """The same for all decoders of a curve: the method, and the numbers that vary along it."""


def labels(decoders: Mapping[Path, Settings]) -> dict[Path, Label]:
    """Returns the labels of the decoders of one task, by their folders, from their settings."""
    settings = {folder: _flat(of_run) for folder, of_run in decoders.items()}
    several = [k for k in ("model", "backend") if len({s[k] for s in settings.values()}) > 1]
    model, backend = "{model}: " * ("model" in several), " on {backend}" * ("backend" in several)
    names = {f: (_method(s), *(s[key] for key in several)) for f, s in settings.items()}
    fixed = _differences(names, {folder: _fixed(s) for folder, s in settings.items()})
    names = {folder: (name, *fixed[folder].values()) for folder, name in names.items()}
    swept = _differences(names, {folder: _numbers(s) for folder, s in settings.items()})
    names = {folder: (name, *swept[folder].values()) for folder, name in names.items()}
    parent = os.path.commonpath([folder.absolute().parent for folder in decoders])
    runs = {folder: {"run": str(folder.absolute().relative_to(parent))} for folder in decoders}
    repeated = _differences(names, runs)
    result = {}
    for folder, of_run in settings.items():
        before, method, after = model.format(**of_run), _method(of_run), backend.format(**of_run)
        after += _listed(fixed[folder])
        keys, values = swept[folder].keys(), swept[folder].values()
        # The name of a single fraction is left out, since the curve has it: "KLASS 0.7".
        bare = len(keys) == 1 and any(
            isinstance(other.get(*keys), float) for other in swept.values()
        )
        number = f" {next(iter(values))}" if bare else _listed(swept[folder])
        result[folder] = Label(
            before + method + number + after + _listed(repeated[folder]),
            before + method + " by " * bool(keys) + " and ".join(map(_short, keys)) + after,
        )
    return result


def shared_settings(decoders: Sequence[Settings]) -> str:
    """Returns the settings that are the same for all decoders and that readers look for, as one
    line: the model and its surroundings, lengths, and whatever a command line changed."""
    first, *others = map(_flat, decoders)
    changed = {f"sampler.{part.partition(':')[0]}" for name in (s["sampler_name"] for s in decoders)
               for part in name.split("@")[1:]}  # fmt: skip
    stated = {"sampler.gen_length", "sampler.block_length", *changed}
    stated |= {key for key in _fixed(first) if not key.startswith(("sampler.", *_ELSEWHERE))}
    shared = {
        key: first[key] for key in first
        if key in stated and first[key] is not None
        and all(other.get(key) == first[key] for other in others)
    }  # fmt: skip
    return _listed(shared).removeprefix(", ")


def settings_apart(runs: Mapping[Path, Settings]) -> dict[Path, str]:
    """Returns labels of runs of one verb: their folders' names, and the settings that differ."""
    apart = _differences(dict.fromkeys(runs, ()), {f: _flat(of_run) for f, of_run in runs.items()})
    listed = {folder: _listed(differing).removeprefix(", ") for folder, differing in apart.items()}
    return {folder: ": ".join(filter(None, (folder.name, listed[folder]))) for folder in runs}


def _method(settings: Settings) -> str:
    """Returns the preset's name, or a custom rule's class instead; a custom window's is added."""
    preset = settings["sampler_name"].partition("@")[0]
    _, is_custom, rule = str(settings.get("sampler.accept")).rpartition(":")
    _, has_window, window = str(settings.get("sampler.window")).rpartition(":")
    return (rule if is_custom else preset) + f" {window}" * bool(has_window)


def _fixed(settings: Settings) -> dict[str, Any]:
    """Returns the settings that are the same along a curve, those that readers know best first."""
    others = {key: value for key, value in settings.items() if key != "sampler_name"}
    fingerprint = others.pop("fingerprint", None)
    preset = settings["sampler_name"].partition("@")[0]
    numbers = dict.fromkeys(_numbers(settings), "a number")
    return {"preset": preset, **others, **numbers, "fingerprint": fingerprint}


def _numbers(settings: Settings) -> dict[str, Any]:
    """Returns the numbers of the sampler, which may vary along a curve."""
    return {
        key: value for key, value in settings.items()
        if key.startswith("sampler.")
        and isinstance(value, int | float) and not isinstance(value, bool)
    }  # fmt: skip


def _differences(
    names: Mapping[Path, Hashable], settings: Mapping[Path, Settings]
) -> dict[Path, dict[str, Any]]:
    """Returns for each run the settings that tell it apart from the runs of the same name."""
    groups: dict[Hashable, list[Settings]] = {}
    for folder, name in names.items():
        groups.setdefault(name, []).append(settings[folder])
    keys = {name: _distinguishing(group) for name, group in groups.items()}
    return {f: {key: settings[f].get(key) for key in keys[name]} for f, name in names.items()}


def _distinguishing(group: Sequence[Settings]) -> list[str]:
    """Returns the first keys that tell apart as many members of a group as all keys do."""

    def n_different(keys: Sequence[str]) -> int:
        return len({tuple(repr(settings.get(key)) for key in keys) for settings in group})

    kept: list[str] = []
    for key in dict.fromkeys(key for settings in group for key in settings):
        if n_different([*kept, key]) > n_different(kept):
            kept.append(key)
    return kept


def _listed(settings: Settings) -> str:
    """Returns `, seed 0, steps 32`."""
    return "".join(f", {_short(key)} {value}" for key, value in settings.items())


def _short(key: str) -> str:
    return key.removeprefix("sampler.")


def _flat(settings: Settings, prefix: str = "") -> dict[str, Any]:
    """Returns `{"sampler.threshold": 0.9}`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat
