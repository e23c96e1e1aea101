"""Calibration knows its own figures only, and still gives the numbers that the profiles hold."""

import ast
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.phone import fit
from llada_jax.phone.forward_timer import ForwardTimer
from llada_jax.phone.graphs import graphs_of
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PUBLISHED, PublishedTasks
from llada_jax.phone.system import System
from llada_jax.phone.workload import vanilla

LLADA = graphs_of("llada_8b")
WORLD = PublishedTasks(LLADA)
FIGURES = WORLD.figures
PHONE = load_profile("SM8750")
TO_FOUR_DIGITS = 1e-3


def test_the_fit_cannot_read_a_validation_figure():
    """It imports no reader and opens no file: figures come as arguments, from `fit.json` alone."""
    tree = ast.parse(Path(fit.__file__).read_text())
    imported = {
        name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)
        for name in node.names
    }  # fmt: skip
    assert not {"PUBLISHED", "PublishedTasks", "json", "Path", "open"} & imported
    called = {node.func.id for node in ast.walk(tree)
              if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
    assert not {"open", "__import__"} & called


def test_calibration_works_where_there_is_no_validation_file(tmp_path):
    """All of it: what is fitted for profiles, and the tasks' prompts and dynamics."""
    shutil.copy(PUBLISHED / "fit.json", tmp_path)
    world = PublishedTasks(LLADA, 1, tmp_path)
    with pytest.raises(FileNotFoundError):
        world.published  # noqa: B018
    for fitted in (fit.fit_cpu, fit.fit_npu, fit.fit_mapping):
        assert min(fitted(world.figures, LLADA, PHONE).values()) > 0
    vendor = graphs_of("llama32_3b", "int4")
    assert min(fit.fit_vendor(world.figures, vendor, PHONE).values()) > 0
    assert world.task("GSM8K").prompt > 0


def test_the_two_files_share_no_number():
    validation = WORLD.published
    assert not set(FIGURES) & set(validation) - {"about", "source"}
    for task, cells in FIGURES["fig11_cells_SM8750_128"].items():
        if task != "kind":
            assert not set(cells) & set(validation["fig11_s"]["values"]["SM8750"][task]["128"])
    assert "w16a16" not in validation["ledger"]["llama32_3b"]
    assert 64 not in validation["fc_sweep"]["rows"]
    assert not {"cpu", "together"} & set(validation["bandwidth_gbps"])
    assert not {"CPU", "+SCR"} & set(dict(validation["table6_s"]["rows"]))
    ends = set(FIGURES["fig13c_ends_ms"]["resident_mib"])
    assert not ends & set(validation["fig13c_ms"]["resident_mib"])


@pytest.mark.parametrize("name", ["fit_cpu", "fit_npu", "fit_mapping"])
def test_the_profile_holds_what_the_fit_gives(name):
    found = getattr(fit, name)(FIGURES, LLADA, PHONE)
    held = {path: PHONE.numbers[path].value for path in found}
    assert held == pytest.approx(found, rel=TO_FOUR_DIGITS)
    assert {PHONE.numbers[path].tag for path in found} == {"derived"}


@pytest.mark.parametrize("soc", ["SM8750", "SM8850"])
def test_the_vendor_class_is_what_genies_3b_gives(soc):
    profile = load_profile(soc)
    found = fit.fit_vendor(FIGURES, graphs_of("llama32_3b", "int4"), profile)
    held = {path: profile.numbers[path].value for path in found}
    assert held == pytest.approx(found, rel=TO_FOUR_DIGITS)
    with pytest.raises(ValueError, match="soc is 'SM8650'; allowed: SM8750, SM8850"):
        fit.fit_vendor(FIGURES, LLADA, load_profile("SM8650"))


@settings(max_examples=10, deadline=None)
@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_least_squares_finds_parameters_golden(a, b):
    x = np.array([1.0, 2.0, 5.0, 9.0])

    def misfit(profile):
        return (profile.power.idle_w + profile.power.npu_w * x) / (a + b * x) - 1

    found = fit.fitted(PHONE, {"power.idle_w": 1.0, "power.npu_w": 1.0}, misfit)
    assert [*found.values()] == pytest.approx([a, b], rel=1e-3)


def test_a_task_is_fitted_to_its_own_two_cells():
    cells = FIGURES["fig11_cells_SM8750_128"]["GSM8K"]
    prompt = fit.fit_prompt(FIGURES, "GSM8K", LLADA, PHONE)
    phone = ForwardTimer(LLADA, PHONE, System(body="cpu"))
    found = phone.latency(vanilla(prompt, 128))
    assert found == pytest.approx(cells["cpu"], rel=0.01)

    dynamics, npu = fit.fit_dynamics(FIGURES), ForwardTimer(LLADA, PHONE, System())
    fitted = fit.fit_reach(FIGURES, "GSM8K", prompt, dynamics, npu, runs=6)
    seconds = fit.mean_latency(fitted, prompt, npu, runs=6)
    assert seconds == pytest.approx(cells["llada_cpp"], rel=0.03)
    assert replace(fitted, reach=dynamics.reach) == dynamics
