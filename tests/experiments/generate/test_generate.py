"""`python -m experiments.generate`, on a small random model."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import llada_jax as lj
from experiments.generate import __main__ as entry
from experiments.generate.__main__ import ConstrainedSampler, ConstraintSettings
from llada_jax.text import Tokenizer
from tests.experiments.in_process import run_experiment

PROMPT = "Anna has 3 apples, and she's got 5+4=9 (pears). How many?"
SMALL = [
    "sampler=llada", "sampler.gen_length=16", "sampler.block_length=8", "sampler.steps=16",
    "phones=[]", "plain_sampler=false",
]  # fmt: skip
SAMPLER = lj.SamplerConfig.preset("llada", gen_length=16, block_length=8, steps=16)
RUN_FILES = {"config.yaml", "env.json", "results.json", "trace.npz", "answer.txt"}


def run_main(arguments: Sequence[str], output: io.StringIO | None = None) -> str:
    """Returns the command's output."""
    return run_experiment(entry.main, entry.verbatim_prompt([*SMALL, *arguments]), output)


@pytest.fixture(scope="module")
def finished(random_model, tmp_path_factory) -> tuple[Path, str]:
    """The folder of a run, and its output."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    arguments = [f"model={random_model}", f"prompt={PROMPT}", f"hydra.run.dir={folder}"]
    return folder, run_main(arguments)


def expected_result(random_model: Path) -> lj.Result:
    model = lj.load(random_model)
    assert model.tokenizer is not None
    prompt = model.tokenizer.encode_chat([{"role": "user", "content": PROMPT}])
    return lj.generate(model, [prompt], SAMPLER, trace=True)


def test_the_run_folder_has_the_documented_files(finished):
    folder, _ = finished
    assert {path.name for path in folder.iterdir()} == RUN_FILES
    config = OmegaConf.load(folder / "config.yaml")
    assert (config.prompt, config.sampler.gen_length) == (PROMPT, 16)
    assert json.loads((folder / "env.json").read_text())["packages"]["jax"] == jax.__version__


def test_the_answer_and_the_trace_match_the_library(finished, random_model):
    folder, printed = finished
    expected = expected_result(random_model)
    trace = lj.Trace.load(folder / "trace.npz")
    assert trace.same_decoding(expected.trace)
    model = lj.load(random_model)
    ids = expected.generated[0].tolist()
    ids = ids[: ids.index(model.config.eos_id)] if model.config.eos_id in ids else ids
    answer = Tokenizer.from_folder(random_model).decode(ids)
    assert (folder / "answer.txt").read_text() == answer + "\n"
    assert f"\n{answer}\n" in printed
    assert printed.splitlines()[-1].startswith("look at it: python -m experiments.view ")


def test_results_have_units_and_kinds(finished):
    folder, printed = finished
    results = json.loads((folder / "results.json").read_text())
    assert {tuple(row) for row in results} == {("name", "value", "unit", "kind", "fingerprint")}
    values = {row["name"]: row["value"] for row in results}
    assert list(values) == [
        "forwards",
        "tokens",
        "answer_tokens",
        "tokens_per_forward",
        "rows_per_forward",
        "host_loop_with_compilation",
        "host_loop_warm_steps",
        "compiled_loop_with_compilation",
        "compiled_loop",
        "compiled_loop_speed",
    ]
    assert values["forwards"] == 16
    assert values["tokens_per_forward"] == values["tokens"] / 16
    assert values["compiled_loop_speed"] == pytest.approx(
        values["tokens"] / values["compiled_loop"]
    )
    assert all(name in printed for name in values)


def test_a_run_ends_with_modelled_times_on_phones(random_model, tmp_path):
    arguments = [f"model={random_model}", f"prompt={PROMPT}", f"hydra.run.dir={tmp_path}"]
    lines = run_main([*arguments, "loop=host", "phones=[SM8750]", "plain_sampler=true"])
    assert "SM8750, LLaDA-8B (modelled)" in lines
    assert "this machine" not in lines, "the time of the host loop includes compilation"
    rows = {row["name"]: row for row in json.loads((tmp_path / "results.json").read_text())}
    phones = {name: row for name, row in rows.items() if name.startswith("phone/SM8750/")}
    assert {row["kind"] for row in phones.values()} == {"modelled"}
    source = "a trace of llada, 1 layers of width 32, run as if by this model"
    assert {row["trace_source"] for row in phones.values()} == {source}
    run = phones["phone/SM8750/this_run"]
    assert run["interval"][0] < run["value"] < run["interval"][1]
    assert phones["phone/SM8750/plain_sampler"]["value"] > run["value"]


def test_plain_lines_are_printed_without_a_terminal(finished):
    _, printed = finished
    assert printed.startswith("step 1, 1")
    assert "\x1b" not in printed


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_the_live_canvas(random_model, tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    arguments = [f"model={random_model}", "loop=host", f"hydra.run.dir={tmp_path}"]
    printed = run_main([*arguments, f"prompt={PROMPT}"], Terminal())
    frames = [printed.count(f"step {step}, ") for step in range(1, 17)]
    assert frames[:-1] == [1] * 15 and frames[-1] in (1, 2)  # the last one stays
    assert printed.count("compiling the first step") == 1 and "\x1b[2K" in printed
    assert PROMPT in printed and "16 forwards" in printed


def test_the_compiled_loop_has_no_times_of_steps(random_model, tmp_path):
    arguments = [f"model={random_model}", "loop=compiled", f"hydra.run.dir={tmp_path}"]
    printed = run_main([*arguments, f"prompt={PROMPT}"])
    assert "masks left" not in printed and "host_loop" not in printed
    assert np.isnan(lj.Trace.load(tmp_path / "trace.npz").seconds).all()


@pytest.mark.slow
def test_a_refresh_worker_skips_the_compiled_loop_with_a_reason(random_model, tmp_path):
    pytest.importorskip("llvmlite")
    printed = run_main([
        f"model={random_model}", "sampler=staged", "sampler.theta_visible=0.0001",
        "sampler.refresh=worker",
        "tiles=q4_0", "loop=both", f"hydra.run.dir={tmp_path}", f"prompt={PROMPT}",
    ])  # fmt: skip
    assert "the compiled loop is skipped: sampler.refresh=worker runs alongside" in printed
    names = [row["name"] for row in json.loads((tmp_path / "results.json").read_text())]
    assert "host_loop_with_compilation" in names and "compiled_loop" not in names
    model = lj.load(random_model)
    assert model.tokenizer is not None
    expected = lj.generate(
        model,
        [model.tokenizer.encode_chat([{"role": "user", "content": PROMPT}])],
        lj.SamplerConfig.preset(
            "staged", gen_length=16, block_length=8, steps=16, theta_visible=1e-4, refresh="worker"
        ),
        trace=True,
        refresh_on=lj.tiled(model),
    )
    assert expected.trace.refreshed.sum() > 0
    assert lj.Trace.load(tmp_path / "trace.npz").same_decoding(expected.trace)


def test_infilling_keeps_unmasked_tokens(random_model, tmp_path):
    arguments = [f"model={random_model}", "loop=host", f"hydra.run.dir={tmp_path}", "infill=true"]
    run_main([*arguments, "prompt=2+2=<|mask|>, and 3*3=<|mask|>."])
    tokenizer = Tokenizer.from_folder(random_model)
    trace = lj.Trace.load(tmp_path / "trace.npz")
    canvas = np.array(tokenizer.encode("2+2=<|mask|>, and 3*3=<|mask|>."))
    kept = canvas != tokenizer.mask_id
    assert (trace.tokens[0][kept] == canvas[kept]).all()
    answer = (tmp_path / "answer.txt").read_text()
    assert answer.startswith("2+2=") and answer.endswith(".\n")


def test_a_sweep_has_a_folder_for_each_run(random_model, tmp_path):
    arguments = [f"model={random_model}", "loop=host", f"hydra.sweep.dir={tmp_path}"]
    run_main([*arguments, "prompt=Hello", "seed=0,1", "hydra.mode=MULTIRUN"])
    assert [OmegaConf.load(tmp_path / run / "config.yaml").seed for run in "01"] == [0, 1]
    assert list(tmp_path.rglob("multirun.yaml")) == [tmp_path / "multirun.yaml"], "Hydra's own"
    assert "| 0: seed 0 | 1: seed 1 |" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prompt="], "prompt is ''; allowed: some text"),
        (["model=nowhere"], "no model at 'nowhere'; allowed: a bundled model ("),
        (["backend=abacus"], "backend is 'abacus'; allowed: 'xla'"),
        (["tiles=q4_0"], "tiles is 'q4_0', backend is 'xla' and the sampler has no worker"),
        (["loop=fast"], "loop is 'fast'; allowed: 'host', 'compiled', 'both'"),
        (["sampler.gen_length=12"], "sampler: gen_length is 12; allowed: a multiple of block_l"),
        (["dtype=int3"], "dtype is 'int3'; allowed: "),
        (["infill=true"], f'prompt is "{PROMPT}"; allowed with infill: one that contains <|mask|>'),
        (["prompt=2+2=<|mask|>", "chat=false"], "prompt 0 contains [MASK]"),
        ([f"prompt={PROMPT * 20}"], "prompt 0 has "),
        (["+sampler.treshold=1"], "sampler.treshold is no setting; allowed: gen_length, "),
        (["prompt=${seed}", "dtype=${sed}"], "Interpolation key 'sed' not found"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_files(random_model, tmp_path, arguments, message):
    given = {argument.partition("=")[0] for argument in arguments}
    usual = [f"model={random_model}", f"prompt={PROMPT}", f"hydra.run.dir={tmp_path / 'run'}"]
    arguments = [each for each in usual if each.partition("=")[0] not in given] + arguments
    with pytest.raises(SystemExit) as exit_:
        run_main(arguments)
    assert str(exit_.value).startswith(f"error: {message}")
    assert "\n" not in str(exit_.value)
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "a, b = (c)? [d] {e: f}",
        'it\'s "quoted"',
        "'quoted' in part",
        "ends in \\",
        "\\' and \\\\' and \\n",
        "${x} and \\${x} and $x",
        "two\nlines",
        "null",
        "42",
        "1,2",
        "",
        "Größe 数",
    ],
)
def test_a_prompt_reaches_the_configuration_as_it_was_typed(text):
    (argument,) = entry.verbatim_prompt([f"prompt={text}"])
    config = OmegaConf.create({"prompt": OverridesParser.create().parse_override(argument).value()})
    assert config.prompt == text


def test_other_arguments_and_sweeps_stay_as_they_are():
    arguments = ["seed=1,2", "prompt='quoted, for Hydra'", "sampler=llada"]
    assert entry.verbatim_prompt(arguments) == arguments
    sweep = ["-m", "prompt=a,b"]
    assert entry.verbatim_prompt(sweep) == sweep


def test_settings_make_the_requested_constraint(tmp_path):
    assert ConstraintSettings().build() is None
    assert ConstraintSettings(regex="a+", confidence="raw").build() == lj.regex(
        "a+", confidence="raw"
    )
    assert ConstraintSettings(choice=("a", "b")).build() == lj.choice(["a", "b"])
    schema = json.dumps({"type": "integer"})
    (tmp_path / "schema.json").write_text(schema)
    for given in (schema, str(tmp_path / "schema.json")):
        assert ConstraintSettings(json_schema=given).build() == lj.json_schema(schema)


def test_two_constraints_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(ValueError, match="regex, choice are set; allowed: one"):
        ConstraintSettings(regex="a", choice=("a",)).build()
    with pytest.raises(ValueError, match="allowed: a file"):
        ConstraintSettings(json_schema=str(tmp_path / "none.json")).build()


def test_only_generates_sampler_accepts_a_constraint():
    sampler = ConstrainedSampler.from_flat(
        {"constraint": ConstraintSettings(choice=("a",)), "threshold": 0.8}
    )
    assert sampler.config == lj.SamplerConfig.from_flat(threshold=0.8)
    assert sampler.constraint == lj.choice(["a"])
    with pytest.raises((TypeError, ValueError), match="constraint"):
        lj.SamplerConfig.from_flat(constraint=lj.choice(["a"]))  # pyright: ignore
