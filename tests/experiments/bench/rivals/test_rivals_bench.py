"""The suite times contenders in turns, scales only the layers, and lists missing contenders."""

import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from experiments.bench.peak import Peak, instruction_sets
from experiments.bench.rivals import rivals_bench
from experiments.bench.rivals.contender import Contender, Missing, Timed, running, seconds_a_step
from experiments.bench.rivals.rivals_bench import RivalsBenchConfig, time_rivals
from llada_jax.config import ModelConfig

SHAPE = ModelConfig(
    family="llada", vocab_size=96, width=64, n_layers=4, n_heads=2, n_kv_heads=2, head_dim=32,
    ffn_width=96, rope_theta=5e5, norm_eps=1e-5, max_length=512, mask_id=95,
)  # fmt: skip
CONFIG = RivalsBenchConfig(
    rows=(2, 4), layers=2, ours=("litert/int8", "xla/bfloat16"), torch_python="torch",
    llama_cpp=("llama.cpp=plain", "amx=crashes"), formats=("Q4_0",),
)  # fmt: skip


class Pretended:
    """Takes a second for each row, four fifths of it in layers; others take thrice as long."""

    about = "pretended"

    def __init__(self, contender, calls, hidden):
        self.contender, self._calls, self._hidden = contender, calls, hidden

    def ask(self, work, number):
        self._calls.append((self.contender.name, work, number))
        if self.contender.python == "crashes":
            raise Missing(f"{work} of {number}: no message (status -11)")
        if work == "hidden":
            exact = self.contender.name == "xla/float32"
            np.save(self._hidden, np.full((number, 4), 1.0 if exact else 1.1))
        seconds = number * (1 if self.contender.name == "litert/int8" else 3)
        return Timed(seconds, 0.8 * seconds)


@pytest.fixture
def timed(monkeypatch, tmp_path):
    calls = []

    @contextmanager
    def running(self, contender):
        yield Pretended(contender, calls, self._hidden)

    monkeypatch.setattr(rivals_bench._Suite, "_running", running)
    monkeypatch.setattr(rivals_bench, "error_of_gguf", lambda shape, path: 0.07)
    monkeypatch.setattr(rivals_bench, "measure_peak", lambda numbers, cores: Peak(1e6, "pretended"))

    def run(**changes):
        config = replace(CONFIG, scratch=str(tmp_path / "scratch"), **changes)
        return {row.name: row for row in time_rivals(SHAPE, config, repeats=3)}, calls

    return run


def test_seconds_are_for_the_whole_depth(timed):
    rows, _ = timed()
    assert rows["forward/litert/int8/4"].value == pytest.approx(4 * (0.2 + 0.8 * 2))
    assert rows["forward/litert/int8/4"].source == "pretended"
    assert rows["decode/litert/int8"].value == pytest.approx(32 * 1.8)


def test_others_are_compared_turn_by_turn(timed):
    rows, calls = timed()
    assert rows["ratio/forward/fast_dllm/bfloat16/2"].value == pytest.approx(3)
    assert rows["ratio/forward/fast_dllm/bfloat16/2/upper_quartile"].value == pytest.approx(3)
    names = [name for name, work, rows in calls if (work, rows) == ("forward", 2)]
    first = names.index("fast_dllm/bfloat16")
    one, other = "litert/int8", "fast_dllm/bfloat16"
    assert names[first - 1 : first + 7] == [one, other, other, one, one, other, other, one]


def test_the_head_is_reported_separately(timed):
    rows, _ = timed()
    assert rows["head/litert/int8/4"].value == pytest.approx(4 * 0.2)
    assert rows["ratio/head/fast_dllm/bfloat16/4"].value == pytest.approx(3)
    assert not any(name.startswith("head/") and "decode" in name for name in rows)


def test_a_contender_without_decoding_runs_the_canvas_in_each_step(timed):
    rows, calls = timed()
    assert ("llama.cpp/Q4_0", "forward", 192) in calls
    assert rows["decode/llama.cpp/Q4_0"].value == pytest.approx(32 * 192 * 3 * 1.8)


def test_shares_are_relative_to_the_peak_of_the_number_format(timed):
    rows, _ = timed()
    matrices = 4 * (4 * 64 * 64 + 3 * 64 * 96) + 96 * 64
    expected = 2 * 4 * matrices / rows["forward/litert/int8/4"].value / 1e6
    assert rows["peak_share/litert/int8/4"].value == pytest.approx(expected)


def test_weight_errors_are_reported_with_the_speed(timed):
    rows, _ = timed()
    assert rows["weight_error/xla/bfloat16"].value == 0
    assert 0 < rows["weight_error/litert/int8"].value < rows["weight_error/llama.cpp/Q4_0"].value


def test_errors_of_hidden_states_are_relative_to_float32(timed):
    rows, _ = timed(fast_dllm="a checkout")
    for name in ("litert/int8", "zentorch/int8", "llama.cpp/Q4_0"):
        assert rows[f"hidden_error/{name}"].value == pytest.approx(0.1)
    assert "hidden_error/fast_dllm/bfloat16" not in rows


def test_a_missing_or_crashing_contender_does_not_stop_the_others(timed, capsys):
    rows, _ = timed(torch_python=None, llama_cpp=("amx=crashes", "llama.cpp=plain"))
    assert "forward/llama.cpp/Q4_0/2" in rows and "forward/amx/Q4_0/2" not in rows
    lines = capsys.readouterr().err.splitlines()
    assert "left out: amx/Q4_0: hidden of 32: no message (status -11)" in lines
    assert "left out: zentorch/int8: rivals.torch_python names no interpreter" in lines


@pytest.mark.parametrize("tokens_per_step", [4, 32])
def test_a_program_is_timed_by_its_steps(tokens_per_step, timed, capsys):
    sleeps = f"{sys.executable} -c 'import time; time.sleep(0.01*{{steps}})'"
    programs = (f"slow={sleeps}", "gone=/no/program {gguf}")
    rows, _ = timed(programs=programs, tokens_per_step=tokens_per_step)
    assert 0.005 < rows["step/slow"].value < 0.05
    assert rows["ratio/step/slow"].value == pytest.approx(rows["step/slow"].value / 192)
    assert "left out: gone: " in capsys.readouterr().err


def test_a_failing_program_is_reported_with_the_reason():
    with pytest.raises(Missing, match=r"no such model \(status 3\)"):
        seconds_a_step(
            f"{sys.executable} -c 'import sys; print(\"no such model\"); sys.exit(3)'", {}, 1, 2
        )


@pytest.mark.parametrize(
    ("python", "message"),
    [("/no/python", "No such file"), (sys.executable, r"the start: .*Error: .* \(status 1\)")],
)
def test_a_child_that_cannot_start(python, message):
    child = Contender("x", "torch_forward", "bfloat16", python=python)
    with pytest.raises(Missing, match=message), running(child, {}):
        raise AssertionError("it ran")


def test_files_in_the_scratch_folder_are_kept(timed, tmp_path):
    theirs = tmp_path / "scratch" / "theirs.txt"
    theirs.parent.mkdir()
    theirs.write_text("kept")
    timed()
    assert list(theirs.parent.iterdir()) == [theirs]


def test_units_of_this_machine():
    assert instruction_sets()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ()}, r"rows is \[\]; allowed: ascending"),
        ({"rows": (32, 512)}, "allowed: up to 256"),
        ({"layers": 0}, "layers is 0; allowed: 1 or more"),
        ({"ours": ("litert/float32",)}, "ours has 'litert/float32'; allowed: litert/int8,"),
        ({"ours": ()}, "ours is .*; allowed: one or more"),
        ({"llama_cpp": ("/a/path",)}, "'/a/path' names no rival"),
        ({"tokens_per_step": 5}, "tokens_per_step is 5; allowed: a divisor of 32"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)


def test_too_many_layers_are_refused():
    with pytest.raises(ValueError, match="layers is 5; allowed: up to the model's 4"):
        time_rivals(SHAPE, replace(CONFIG, layers=5), 3)
