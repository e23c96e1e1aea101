"""Calibration knows its own figures only, and still gives the numbers that the profiles hold."""

import ast
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.phones import published_tasks
from llada_jax.phones.graphs import graphs_of
from llada_jax.phones.profile import load_profile
from llada_jax.phones.published_tasks import PUBLISHED, PublishedTasks
from tests.phones.fitting import fit, fit_tasks

LLADA = graphs_of("llada_8b")
WORLD = PublishedTasks(LLADA)
FIGURES = WORLD.figures
PHONE = load_profile("SM8750")
TO_FOUR_DIGITS = 1e-3


@pytest.mark.parametrize("module", [fit, fit_tasks])
def test_the_fit_cannot_read_a_validation_figure(module):
    """It imports no reader and opens no file: figures come as arguments, from `fit.json` alone."""
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {
        name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)
        for name in node.names
    }  # fmt: skip
    assert not {"PUBLISHED", "PublishedTasks", "json", "Path", "open"} & imported
    called = {node.func.id for node in ast.walk(tree)
              if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
    assert not {"open", "__import__"} & called


def numbers(node) -> int:
    """Counts the published numbers of a file, without those that say where they were read."""
    if isinstance(node, dict):
        return sum(numbers(each) for key, each in node.items() if key not in PLACES)
    if isinstance(node, list):
        return sum(map(numbers, node))
    return isinstance(node, int | float)


PLACES = {
    *("rows", "group", "commit_threshold", "masks_left", "position", "resident_mib", "stable"),
    *("visible", "inputs", "outputs", "staging_mib", "buffers", "buffer_mib"),
}


def test_less_than_a_quarter_of_the_published_figures_is_fitted():
    table7 = len(WORLD.published["table7"]["rows"])
    rest = {key: each for key, each in WORLD.published.items() if key not in ("table7", "table6_s")}
    predicted = numbers(rest) + table7 + len(WORLD.published["table6_s"]["rows"])
    fitted = numbers(FIGURES)
    assert fitted < 0.25 * (fitted + predicted)


def cells(soc: str) -> int:
    return numbers(FIGURES["fig11_s"][soc])


def count(*names: str) -> int:
    return sum(numbers(FIGURES[name]) for name in names)


LINES = [FIGURES[name] for name in
         ("table2_step_ms", "fig3a_ffn_down_ms", "fig3b_ffn_down_32_rows_ms")]  # fmt: skip
FITS = {
    # what is fitted: how many numbers, and to how many figures
    "kernels on the CPU": (3, sum(len(each["cpu"]) for each in LINES)),
    "kernels on the NPU": (3, sum(len(each["npu"]) for each in LINES)),
    "a mapping event": (1, count("fig5d_ffn_op_ms")),
    "copies": (2, count("fig13c_ends_ms")),
    "decoding": (5, count("fig5a_tail_steps_pct", "fig5b", "fig5c_skippable_decision_pct",
                          "fig8_first_commit_step")),
    "tasks: prompt, reach, answer": (3 * len(WORLD.fitted["tasks"]), cells("SM8750")),
    "SM8850's rates": (1, cells("SM8850")),
    "SM8650's sessions": (4, cells("SM8650")),
    "the vendor's kernels": (5, count("genie_llama_3b", "genie_llama_8b") - 2),  # two are means
    "platform: layer, score and call": (3, count("platform_ledger_3b_w16a16")),
    "platform: stages of a product": (5, count("platform_fc_64_rows")),
    "platform: bandwidths": (2, count("platform_bandwidth_gbps")),
    "platform: a mapping": (1, count("platform_remap_sweep")),
}  # fmt: skip
BY_CONSTRUCTION = {"copies", *(name for name in FITS if name.startswith("platform"))}
"""Fits that meet their figures with as many numbers: docs/phones.md says so."""


def test_fewer_numbers_than_figures_are_fitted_but_for_those_that_are_named():
    assert {name for name, (fitted, known) in FITS.items() if fitted >= known} == BY_CONSTRUCTION
    assert sum(known for _, known in FITS.values()) == numbers(FIGURES) - 2


def test_calibration_works_where_there_is_no_validation_file(tmp_path, monkeypatch):
    for name in ("fit.json", "tasks.json"):
        shutil.copy(PUBLISHED / name, tmp_path)
    monkeypatch.setattr(published_tasks, "PUBLISHED", tmp_path)
    world = PublishedTasks(LLADA, 1)
    with pytest.raises(FileNotFoundError):
        world.published  # noqa: B018
    assert min(fit.fit_mapping(world.figures, LLADA, PHONE).values()) > 0
    assert world.task("GSM8K").prompt > 0


def keys(node, path=()) -> set:
    """Paths of all numbers; those of a list by what they were read at, where that is known."""
    if isinstance(node, dict):
        places = next((node[name] for name in PLACES if isinstance(node.get(name), list)), ())
        return {
            found
            for key, each in node.items()
            if key not in PLACES
            for found in (
                {(*path, key, str(place)) for place in places}
                if isinstance(each, list)
                else keys(each, (*path, key))
            )
        }
    return {path} if isinstance(node, int | float) else set()


def test_the_two_files_share_no_number():
    assert not keys(FIGURES) & keys(WORLD.published)
    assert ("fig3a_ffn_down_ms", "npu", "20") in keys(FIGURES)
    held_out = {
        ("fig11_s", "values", soc, "BoolQ", "64", column)
        for soc in ("SM8650", "SM8850")
        for column in ("cpu", "cpu_cache", "npu", "llada_cpp")
    }
    assert held_out <= keys(WORLD.published)
    of_the_fit = {path[1:] for path in keys(FIGURES) if path[0] == "fig11_s"}
    assert not of_the_fit & {path[2:] for path in keys(WORLD.published) if path[0] == "fig11_s"}
    assert not {"CPU", "+SCR"} & set(dict(WORLD.published["table6_s"]["rows"]))


@pytest.mark.parametrize("name", ["fit_cpu", "fit_npu", "fit_mapping"])
def test_the_profile_holds_what_the_fit_gives(name):
    found = getattr(fit, name)(FIGURES, LLADA, PHONE)
    held = {path: PHONE.numbers[path].value for path in found}
    assert held == pytest.approx(found, rel=TO_FOUR_DIGITS)
    assert {PHONE.numbers[path].tag for path in found} == {"derived"}


def test_the_vendor_class_is_what_genies_models_give():
    profiles = [load_profile(soc) for soc in ("SM8750", "SM8850")]
    found = fit.fit_vendor(FIGURES, lambda shape: graphs_of(shape, "int4"), profiles)
    for profile in profiles:
        held = {path: profile.numbers[path].value for path in found[profile.soc]}
        assert held == pytest.approx(found[profile.soc], rel=TO_FOUR_DIGITS)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_least_squares_finds_parameters_golden(a, b):
    x = np.array([1.0, 2.0, 5.0, 9.0])

    def misfit(profile):
        return (profile.power.idle_w + profile.power.npu_w * x) / (a + b * x) - 1

    found = fit.fitted(PHONE, {"power.idle_w": 1.0, "power.npu_w": 1.0}, misfit)
    assert [*found.values()] == pytest.approx([a, b], rel=1e-3)
