"""Names of decoders that are compared: short, and told apart by whatever differs between them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_NAMED = ("model", "sampler_name", "backend")  # each label has them in words


class Label(NamedTuple):
    """Of one decoder."""

    text: str
    """No two decoders have the same."""
    family: str
    """The text without what is set in the sampler; decoders of one family make a curve."""


def labels(decoders: Mapping[Path, Mapping[str, Any]]) -> dict[Path, Label]:
    """Labels decoders on the same task, by what the generations in each folder depend on."""
    families, samplers, inside, outside = {}, {}, {}, {}
    for folder, settings in decoders.items():
        # A sampler's name before what the command line changed in it.
        samplers[folder] = settings["sampler_name"].partition("@")[0]
        where = "" if settings["backend"] == "xla" else f" on {settings['backend']}"
        families[folder] = f"{settings['model']}: {samplers[folder]}{where}"
        plain = _flat(settings)
        inside[folder] = {key: plain[key] for key in plain if key.startswith("sampler.")}
        others = {k: each for k, each in plain.items() if k not in {*inside[folder], *_NAMED}}
        fingerprint = others.pop("fingerprint", None)  # which says least
        outside[folder] = {**others, "fingerprint": fingerprint}
    families = _told_apart(families, outside)
    texts = {
        folder: family.replace(samplers[folder], decoders[folder]["sampler_name"], 1)
        for folder, family in families.items()
    }
    shared = os.path.commonpath([folder.absolute().parent for folder in decoders])
    runs = {folder: {"run": str(folder.absolute().relative_to(shared))} for folder in decoders}
    texts = _told_apart(_told_apart(texts, inside), runs)
    return {folder: Label(texts[folder], families[folder]) for folder in decoders}


def settings_apart(runs: Mapping[Path, Mapping[str, Any]]) -> dict[Path, str]:
    """Labels runs of one verb by their folders' names, and the settings that tell them apart."""
    same = _told_apart(dict.fromkeys(runs, ""), {f: _flat(each) for f, each in runs.items()})
    return {folder: f"{folder.name}{said}".replace(", ", ": ", 1) for folder, said in same.items()}


def _told_apart(
    names: Mapping[Path, str], settings: Mapping[Path, Mapping[str, Any]]
) -> dict[Path, str]:
    """Returns names, those that several have followed by settings that differ between these."""
    result = {}
    for folder, name in names.items():
        group = [settings[other] for other in names if names[other] == name]
        keys = _distinguishing(group)
        result[folder] = ", ".join([name, *(f"{k} {settings[folder].get(k)}" for k in keys)])
    return result


def _distinguishing(group: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns keys, the first ones that suffice, by which as many are told apart as by all."""

    def kinds(keys: Sequence[str]) -> int:
        return len({tuple(repr(each.get(key)) for key in keys) for each in group})

    kept: list[str] = []
    for key in dict.fromkeys(key for each in group for key in each):
        if kinds([*kept, key]) > kinds(kept):
            kept.append(key)
    return kept


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns `{"sampler.threshold": 0.9}`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat
