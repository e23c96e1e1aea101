"""Profiles load, and numbers without unit, tag or source are refused."""

from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.phones.profile import PROFILES, load_profile

FILES = sorted(PROFILES.glob("*.yaml"))
CONTENT = yaml.safe_load((PROFILES / "SM8650.yaml").read_text())


def paths(node, path=()):
    if isinstance(node, dict) and "value" in node:
        yield path
    elif isinstance(node, dict):
        for name, part in node.items():
            yield from paths(part, (*path, name))


PATHS = list(paths(CONTENT))


def with_entries(path: tuple[str, ...], **entries) -> dict:
    """Returns the profile with some keys of one number replaced, or removed if they are None."""
    content = deepcopy(CONTENT)
    node = content
    for name in path:
        node = node[name]
    for key, value in entries.items():
        if value is None:
            del node[key]
        else:
            node[key] = value
    return content


def write_profile(folder: Path, content) -> Path:
    path = folder / "phone.yaml"
    path.write_text(yaml.dump(content, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    return path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_profile_of_the_package_loads(path):
    profile = load_profile(path)
    assert profile.soc == path.stem
    assert {"llada_cpp", "vendor"} <= set(profile.npu)
    assert set(profile.cpu) == {"plain", "tuned"}


@settings(max_examples=20, deadline=None)
@given(path=st.sampled_from(PATHS), key=st.sampled_from(["unit", "tag", "source"]))
def test_a_number_without_unit_tag_or_source_is_refused(tmp_path_factory, path, key):
    file = write_profile(tmp_path_factory.mktemp("profile"), with_entries(path, **{key: None}))
    with pytest.raises(ValueError, match=rf"{'.'.join(path)} has no {key}$"):
        load_profile(file)


@settings(max_examples=10, deadline=None)
@given(path=st.sampled_from(PATHS))
def test_a_missing_number_is_refused(tmp_path_factory, path):
    content = with_entries(path)
    node = content
    for name in path[:-1]:
        node = node[name]
    del node[path[-1]]
    file = write_profile(tmp_path_factory.mktemp("profile"), content)
    with pytest.raises(ValueError, match=rf"{'.'.join(path[:-1])}.* is missing"):
        load_profile(file)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"tag": "guessed"}, r"'guessed'; allowed: 'measured', 'vendor', 'derived', 'inferred'"),
        ({"unit": "MB/s"}, r"unit of memory\.dram_gbps is 'MB/s'; allowed: 'GB/s'"),
        ({"value": -1}, r"memory\.dram_gbps is -1; allowed: a number, above 0"),
        ({"value": float("nan")}, r"memory\.dram_gbps is nan; allowed: a number"),
        ({"value": "fast"}, r"memory\.dram_gbps is 'fast'; allowed: a number"),
        ({"value": True}, r"memory\.dram_gbps is True; allowed: a number"),
        ({"source": "  "}, r"memory\.dram_gbps has no source"),
        ({"note": "mine"}, r"memory\.dram_gbps has \['note'\]; allowed: value, unit"),
    ],
)
def test_bad_entries_are_named(tmp_path, entries, message):
    with pytest.raises(ValueError, match=message):
        load_profile(write_profile(tmp_path, with_entries(("memory", "dram_gbps"), **entries)))


def test_bad_files_are_named(tmp_path):
    extra = {**CONTENT, "camera": {"mpix": {"value": 50, "unit": "-", "tag": "vendor",
                                            "source": "box"}}}  # fmt: skip
    for content, message in (
        (extra, r"camera\.mpix: not a number of a profile"),
        ([1], r"is \[1\]; allowed: a mapping"),
        ({"soc": "SM1"}, "phone is missing"),
        ({**CONTENT, "power": 3}, r"power is 3; allowed: value, unit"),
    ):
        with pytest.raises(ValueError, match=message):
            load_profile(write_profile(tmp_path, content))
    (tmp_path / "phone.yaml").write_text("a: [")
    with pytest.raises(ValueError, match="is no YAML"):
        load_profile(tmp_path / "phone.yaml")


def test_with_values_changes_nothing_else():
    phone = load_profile("SM8750")
    changed = phone.with_values({"memory.dram_gbps": 1.5})
    assert changed.memory.dram_gbps == 1.5 != phone.memory.dram_gbps
    assert changed.npu == phone.npu
    assert changed.numbers["memory.dram_gbps"].source == phone.numbers["memory.dram_gbps"].source
    with pytest.raises(ValueError, match=r"memory\.speed is not a number of SM8750"):
        phone.with_values({"memory.speed": 1})


def test_errors_of_unknown_names_list_the_known_ones():
    phone = load_profile("SM8750")
    with pytest.raises(ValueError, match="phone is 'SM1'; allowed: SM8550, SM8650, SM8750, SM8850"):
        load_profile("SM1")
    with pytest.raises(ValueError, match="kernels is 'mine'; allowed: hexkl, llada_cpp"):
        phone.kernels("mine")
    with pytest.raises(ValueError, match="cpu is 'mine'; allowed: plain, tuned"):
        phone.cpu_kernels("mine")


@pytest.mark.parametrize("soc", ["SM8550", "SM8650", "SM8750", "SM8850"])
def test_numbers_of_0_are_not_tagged_as_measured(soc):
    """0 means that a stage is absent or included elsewhere: a conclusion, not a measurement."""
    numbers = load_profile(soc).numbers
    zeros = {path: entry.tag for path, entry in numbers.items() if entry.value == 0}
    assert zeros and "measured" not in zeros.values()
