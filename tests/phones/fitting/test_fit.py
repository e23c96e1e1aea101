"""The fit uses only the figures for fitting, and reproduces the numbers of the profiles."""

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
    """The module imports no reader and opens no file: figures are arguments, from `fit.json`."""
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {
        name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)
        for name in node.names
    }  # fmt: skip
    assert not {"PUBLISHED", "PublishedTasks", "json", "Path", "open"} & imported
    called = {node.func.id for node in ast.walk(tree)
              if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
    assert not {"open", "__import__"} & called


def count_numbers(node) -> int:
    """Returns how many published numbers a file contains, without the coordinates of points."""
    if isinstance(node, dict):
        return sum(count_numbers(value) for key, value in node.items() if key not in COORDINATES)
    if isinstance(node, list):
        return sum(map(count_numbers, node))
    return isinstance(node, int | float)


COORDINATES = {
    *("rows", "group", "commit_threshold", "masks_left", "position", "resident_mib", "stable"),
    *("visible", "inputs", "outputs", "staging_mib", "buffers", "buffer_mib"),
}


def test_less_than_a_quarter_of_the_published_figures_is_fitted():
    table7 = len(WORLD.published["table7"]["rows"])
    rest = {
        key: value for key, value in WORLD.published.items() if key not in ("table7", "table6_s")
    }
    predicted = count_numbers(rest) + table7 + len(WORLD.published["table6_s"]["rows"])
    fitted = count_numbers(FIGURES)
    assert fitted < 0.25 * (fitted + predicted)


def cells(soc: str) -> int:
    return count_numbers(FIGURES["fig11_s"][soc])


def count(*names: str) -> int:
    return sum(count_numbers(FIGURES[name]) for name in names)


LINES = [FIGURES[name] for name in
         ("table2_step_ms", "fig3a_ffn_down_ms", "fig3b_ffn_down_32_rows_ms")]  # fmt: skip
FITS = {
    # Number of fitted numbers, and number of published figures that they are fitted to.
    "kernels on the CPU": (3, sum(len(line["cpu"]) for line in LINES)),
    "kernels on the NPU": (3, sum(len(line["npu"]) for line in LINES)),
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
"""Fits with as many numbers as figures, which therefore test nothing (docs/phones.md)."""


def test_fits_have_fewer_numbers_than_figures_except_the_listed_ones():
    assert {name for name, (fitted, known) in FITS.items() if fitted >= known} == BY_CONSTRUCTION
    assert sum(known for _, known in FITS.values()) == count_numbers(FIGURES) - 2


def test_fits_work_without_the_validation_file(tmp_path, monkeypatch):
    for name in ("fit.json", "tasks.json"):
        shutil.copy(PUBLISHED / name, tmp_path)
    monkeypatch.setattr(published_tasks, "PUBLISHED", tmp_path)
    world = PublishedTasks(LLADA, 1)
    with pytest.raises(FileNotFoundError):
        world.published  # noqa: B018
    assert min(fit.fit_mapping(world.figures, LLADA, PHONE).values()) > 0
    assert world.task("GSM8K").prompt > 0


def keys(node, path=()) -> set:
    """Returns the paths of all numbers. Numbers of a list are identified by their coordinate."""
    if isinstance(node, dict):
        coordinates = next(
            (node[name] for name in COORDINATES if isinstance(node.get(name), list)), ()
        )
        return {
            number_path
            for key, value in node.items()
            if key not in COORDINATES
            for number_path in (
                {(*path, key, str(coordinate)) for coordinate in coordinates}
                if isinstance(value, list)
                else keys(value, (*path, key))
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
    fitted_cells = {path[1:] for path in keys(FIGURES) if path[0] == "fig11_s"}
    assert not fitted_cells & {path[2:] for path in keys(WORLD.published) if path[0] == "fig11_s"}
    assert not {"CPU", "+SCR"} & set(dict(WORLD.published["table6_s"]["rows"]))


@pytest.mark.parametrize("name", ["fit_cpu", "fit_npu", "fit_mapping"])
def test_the_profile_contains_the_result_of_the_fit(name):
    fitted = getattr(fit, name)(FIGURES, LLADA, PHONE)
    stored = {path: PHONE.numbers[path].value for path in fitted}
    assert stored == pytest.approx(fitted, rel=TO_FOUR_DIGITS)
    assert {PHONE.numbers[path].tag for path in fitted} == {"derived"}


def test_the_vendor_kernels_are_the_result_of_the_fit():
    profiles = [load_profile(soc) for soc in ("SM8750", "SM8850")]
    fitted = fit.fit_vendor(FIGURES, lambda shape: graphs_of(shape, "int4"), profiles)
    for profile in profiles:
        stored = {path: profile.numbers[path].value for path in fitted[profile.soc]}
        assert stored == pytest.approx(fitted[profile.soc], rel=TO_FOUR_DIGITS)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_fit_numbers_recovers_parameters(a, b):
    x = np.array([1.0, 2.0, 5.0, 9.0])

    def misfit(profile):
        return (profile.power.idle_w + profile.power.npu_w * x) / (a + b * x) - 1

    fitted = fit.fit_numbers(PHONE, {"power.idle_w": 1.0, "power.npu_w": 1.0}, misfit)
    assert [*fitted.values()] == pytest.approx([a, b], rel=1e-3)
