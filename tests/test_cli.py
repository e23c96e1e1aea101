"""The command `llada`: its output, and one sentence with exit code 2 for bad input."""

import argparse
import io
import shlex
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

import llada_jax as lj
from llada_jax import cli
from llada_jax.sampler.state import STABLE

QUICK = ["--set", "gen_length=8", "--set", "block_length=8"]


def run(*arguments: str) -> int:
    """Runs the command in this process; returns its exit code."""
    try:
        cli.main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.fixture(scope="module")
def answer():
    model = lj.load("tiny")
    config = lj.SamplerConfig.preset("blockwise", gen_length=8, block_length=8)
    return lj.generate(model, [model.tokenizer.encode("2+2=", True)], config).text[0]


def test_generate_prints_the_answer(answer, capsys):
    assert run("generate", "tiny", "2+2=", "--raw", *QUICK) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{answer}\n" and "forwards" in printed.err


def test_a_prompt_is_read_from_standard_input(answer, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("2+2="))
    assert run("generate", "tiny", "-", "--raw", *QUICK) == 0
    assert capsys.readouterr().out == f"{answer}\n"


@pytest.mark.slow
def test_generate_writes_a_page_and_a_trace_that_phone_times(tmp_path, capsys):
    page, trace = tmp_path / "run.html", tmp_path / "trace.npz"
    given = ["--choice", "yes", "--choice", "no", "--page", str(page), "--save", str(trace)]
    assert run("generate", "tiny", "Is 7 odd?", *given, *QUICK) == 0
    assert capsys.readouterr().out in ("yes\n", "no\n")
    assert "<!doctype html>" in page.read_text()
    assert run("phone", "--trace", str(trace), "--phone", "SM8650", "--phone", "SM8750") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("SM8650: ") and second.startswith("SM8750: ") and "modelled" in first


def test_chat_answers_each_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Is 7 odd?\n\n/new\n"))
    assert run("chat", "tiny", "--system", "Be brief.", *QUICK) == 0
    model, config = lj.load("tiny"), lj.SamplerConfig.preset("blockwise")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is 7 odd?"},
    ]
    config = config.replace(gen_length=8, block_length=8)
    prompt = model.tokenizer.encode_chat(messages)
    (text,) = lj.generate(model, [prompt], config, loop="host").text  # chat's own programs
    assert capsys.readouterr().out == f"{text}\n"


def test_inspect_describes_a_model(capsys):
    assert run("inspect", "tiny") == 0
    assert "family      llada" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["generate", "nowhere", "Hi"], "no model at 'nowhere'"),
        (["generate", "tiny", " "], "the prompt is empty"),
        (["generate", "tiny", "Hi", "--set", "threshold"], "--set is 'threshold'; allowed: NAME="),
        (["generate", "tiny", "Hi", "--set", "treshold=1"], "did you mean threshold?"),
        (["generate", "tiny", "Hi", "--preset", "best"], "preset is 'best'; allowed: 'llada'"),
        (["generate", "tiny", "Hi", "--backend", "tpu"], "backend is 'tpu'; allowed: 'xla'"),
        (["generate", "tiny", "Hi", "--dtype", "int2"], "dtype is 'int2'; allowed:"),
        (["generate", "tiny", "Hi", "--seed", "x"], "invalid int value: 'x'"),
        (["generate", "tiny", "Hi", "--json-schema", "none.json"], "No such file"),
        (["phone", "tiny"], "neither or both of a prompt and --trace"),
        (["phone", "--phone", "SM1"], "SM1"),
        (["inspect", "nowhere"], "no model at 'nowhere'"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message, capsys):
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert message in line and line.startswith("llada") and printed.out == ""


@pytest.mark.parametrize("name", cli.EXAMPLES)
def test_the_help_of_each_command_has_three_examples_that_parse(name, capsys):
    assert run(name, "--help") == 0
    printed = capsys.readouterr().out
    for example in cli.EXAMPLES[name]:
        assert example in printed
        command = example[example.index("llada ") :].partition(" > ")[0].removesuffix(')"')
        parsed = cli.parser().parse_args(shlex.split(command)[1:])
        assert isinstance(parsed, argparse.Namespace)
    assert len(cli.EXAMPLES[name]) == 3


def test_chat_prints_nothing_after_the_beginning_of_a_stop_string(capsys):
    model = SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda ids: "".join(map(chr, ids))))
    model.config = SimpleNamespace(eos_id=0, eot_id=None, stop_ids=())
    sampler = lj.SamplerConfig.preset("blockwise", stop=("###",))
    printer = cli._Printer(model, sampler)
    for text in ("ab", "ab#", "ab##", "ab#c", "ab#c###d"):
        status = np.full((1, len(text)), STABLE)
        printer(SimpleNamespace(tokens=np.array([[*map(ord, text)]]), state=status))
    assert capsys.readouterr().out == "ab#c"


@pytest.mark.parametrize(
    ("line", "found"), [("llada ge", "generate"), ("llada chat --pre", "--preset"),
                        ("llada chat --preset blo", "blockwise"), ("llada inspect sm", "small")],
)  # fmt: skip
def test_bash_completes(line, found, capsys):
    assert run("completion", "bash") == 0
    words = line.split()
    script = (
        f"{capsys.readouterr().out}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
        '_llada; echo "${COMPREPLY[@]}"'
    )
    finished = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert finished.stdout.split() == [found], finished.stderr


def test_zsh_gets_bash_completion(capsys):
    assert run("completion", "zsh") == 0
    assert capsys.readouterr().out.startswith("autoload -U +X bashcompinit && bashcompinit\n")
