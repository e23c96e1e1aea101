"""The command `llada`: chat, generate, serve, inspect, phone, and completion.

Models are the sources that `llada_jax.load` accepts. A sampler is a preset in which single settings
can be changed: `--preset blockwise --set threshold=0.95`. Bad input gives one sentence on standard
error and exit code 2; Ctrl-C gives exit code 130.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import yaml

import llada_jax as lj
from llada_jax.backend.compilation_cache import enable_compilation_cache
from llada_jax.checkpoint import PACKAGED, bundled_names
from llada_jax.config import require
from llada_jax.model.families.family import families
from llada_jax.sampler.config import PRESETS
from llada_jax.sampler.prompts import end_ids
from llada_jax.sampler.record import StepView
from llada_jax.sampler.stops import before_end, final_tokens, settled_text
from llada_jax.serve.settings import ServerSettings
from llada_jax.text import TOKENIZER_SOURCES

BAD_INPUT = (ValueError, FloatingPointError, OSError, ImportError)
DEFAULT_PRESET = "blockwise"
EXAMPLES = {
    "chat": (
        "llada chat",
        "llada chat smollm2",
        "llada chat model.gguf --dtype int8 --set gen_length=256",
    ),
    "generate": (
        'llada generate small "Anna had 6 apples. She gave 3 to Ben. How many are left?"',
        "echo '2+2=' | llada generate tiny - --raw --set threshold=0.95",
        "llada generate small 'Is 7 odd?' --regex '(yes|no)' --page run.html",
    ),
    "serve": (
        "llada serve",
        "llada serve small --port 9000 --api-key SECRET",
        "llada serve path/to/export --backend litert",
    ),
    "inspect": (
        "llada inspect small",
        "llada inspect path/to/folder",
        "llada inspect model.gguf",
    ),
    "phone": (
        'llada phone small "Anna had 6 apples. How many are left?"',
        "llada phone small 'Is 7 odd?' --phone SM8650 --phone SM8850",
        "llada phone --trace trace.npz --shape llada_8b",
    ),
    "completion": (
        'eval "$(llada completion bash)"',
        'eval "$(llada completion zsh)"',
        "llada completion bash > ~/.local/share/bash-completion/completions/llada",
    ),
}


class _Parser(argparse.ArgumentParser):
    """A parser that prints an error as one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands; `arguments.run` is the function of the command."""
    top = _Parser(
        prog="llada", description="Diffusion language models: decoded, served, and timed on phones."
    )
    top.add_argument("--version", action="version", version=f"llada_jax {lj.__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)

    def add(name: str, run: Callable[[argparse.Namespace], None], about: str) -> Any:
        command = commands.add_parser(
            name,
            help=about,
            description=about,
            epilog="examples:\n  " + "\n  ".join(EXAMPLES[name]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        return command

    command = add("chat", chat, "Chats with a model in this terminal.")
    _add_model(command)
    _add_sampler(command)
    command.add_argument("--system", metavar="TEXT", help="a system message before the chat")

    command = add("generate", generate, "Answers one prompt.")
    _add_model(command)
    command.add_argument("prompt", help="the prompt; - reads standard input")
    _add_prompt(command)
    _add_sampler(command)
    command.add_argument("--stop", action="append", metavar="TEXT", help="ends the text before it")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json-schema", metavar="FILE", help="JSON of this schema is answered")
    form.add_argument("--regex", metavar="PATTERN", help="the answer matches this expression")
    form.add_argument("--choice", action="append", metavar="TEXT", help="one of these is answered")
    command.add_argument("--page", metavar="FILE", help="writes the run as a page that replays it")
    command.add_argument("--save", metavar="FILE", help="writes the trace, as .npz")

    command = add("serve", serve, "Serves the OpenAI interface, and a page with a live canvas.")
    _add_model(command)
    _add_sampler(command)
    _add_server(command)

    command = add("inspect", inspect, "Describes a model without reading its weights.")
    command.add_argument("model", help="name, folder, .gguf file or export")

    command = add("phone", phone, "Models how long a run takes on phones.")
    _add_model(command)
    command.add_argument("prompt", nargs="?", help="what is decoded here and timed there")
    _add_prompt(command)
    _add_sampler(command)
    command.add_argument("--trace", metavar="FILE", help="times this trace instead of a prompt")
    command.add_argument("--phone", action="append", metavar="SOC", help="default: SM8750")
    command.add_argument("--shape", default="llada_8b", help="the model on the phone")

    command = add("completion", completion, "Prints a script that completes commands in a shell.")
    command.add_argument("shell", choices=("bash", "zsh"))
    return top


def _add_model(command: argparse.ArgumentParser) -> None:
    names = ", ".join((*bundled_names(), *PACKAGED))
    about = f"name ({names}), folder, .gguf file or export; default: small"
    command.add_argument("model", nargs="?", default="small", help=about)
    command.add_argument("--dtype", help="float32, bfloat16, int8 or int4; default: as stored")
    command.add_argument(
        "--backend", help="xla, litert, qnn or native; default: xla, litert for an export"
    )


def _add_prompt(command: argparse.ArgumentParser) -> None:
    command.add_argument("--raw", action="store_true", help="the prompt is plain text, no chat")


def _add_sampler(command: argparse.ArgumentParser) -> None:
    names = ", ".join(PRESETS)
    about = f"{names}, or a .json file; default: {DEFAULT_PRESET}, or the model's own"
    command.add_argument("--preset", help=about)
    about = "a flat setting of the sampler, as threshold=0.9"
    command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=about)
    command.add_argument("--seed", type=int, default=0)


def _add_server(command: argparse.ArgumentParser) -> None:
    for option in fields(ServerSettings):
        name, default = option.name.replace("_", "-"), option.default
        kind = str if default is None else type(default)
        about = f"{option.metadata['about']}; default: {default}"
        command.add_argument(f"--{name}", type=kind, default=default, help=about)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command, and ends the process with exit code 2 after bad input."""
    parsed = parser().parse_args(arguments)
    enable_compilation_cache()
    try:
        parsed.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except BAD_INPUT as error:
        print(f"llada: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _load(arguments: argparse.Namespace) -> tuple[lj.Model, str, lj.SamplerConfig]:
    """Returns the model, its backend and the sampler that the arguments name."""
    settings = _parsed_settings(arguments.set)  # checked before a large model is read
    if arguments.preset is not None:
        lj.SamplerConfig.preset(arguments.preset, **settings)
    model = lj.load(arguments.model, arguments.dtype)
    require(
        model.tokenizer is not None,
        f"{arguments.model} has no tokenizer; allowed: one with {TOKENIZER_SOURCES}",
    )
    sampler = lj.SamplerConfig.preset(arguments.preset or _default_preset(model), **settings)
    return model, arguments.backend or ("litert" if model.artifact else "xla"), sampler


def _default_preset(model: lj.Model) -> str:
    """Returns `blockwise` if the model's family supports it, else the family's first preset."""
    family = families().get(model.config.family)
    presets = family.presets if family else ()
    return DEFAULT_PRESET if DEFAULT_PRESET in presets or not presets else presets[0]


def _parsed_settings(assignments: Sequence[str]) -> dict[str, Any]:
    """Parses texts of the form NAME=VALUE into settings by name; values have YAML's syntax."""
    settings = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        require(
            bool(name and equals), f"--set is {assignment!r}; allowed: NAME=VALUE, as threshold=0.9"
        )
        try:
            settings[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            settings[name.strip()] = value
    return settings


def _encoded(model: lj.Model, prompt: str, raw: bool) -> list[int]:
    """Encodes a prompt: as a chat if the model has a template, and as plain text if `raw`."""
    assert model.tokenizer is not None
    require(bool(prompt.strip()), "the prompt is empty; allowed: some text")
    if raw or model.tokenizer.chat_template is None:
        return model.tokenizer.encode(prompt, add_special_tokens=True)
    return model.tokenizer.encode_chat([{"role": "user", "content": prompt}])


def _constraint_of(arguments: argparse.Namespace) -> lj.Constraint | None:
    """Returns the constraint that the arguments name, or None."""
    if arguments.json_schema is not None:
        return lj.json_schema(json.loads(Path(arguments.json_schema).read_text("utf-8")))
    if arguments.regex is not None:
        return lj.regex(arguments.regex)
    return lj.choice(arguments.choice) if arguments.choice else None


def generate(arguments: argparse.Namespace) -> None:
    """Prints one answer, and its tokens, forwards and time on standard error."""
    constraint = _constraint_of(arguments)
    text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    model, backend, sampler = _load(arguments)
    if arguments.stop:
        sampler = sampler.replace(stop=tuple(arguments.stop))
    result = lj.generate(
        model,
        [_encoded(model, text, arguments.raw)],
        sampler,
        backend=backend,
        seed=arguments.seed,
        constraint=constraint,
        trace="scores" if arguments.page or arguments.save else False,
    )
    print(result.text[0])
    if arguments.page:
        result.show(arguments.page)
    if arguments.save:
        result.trace.save(arguments.save)
    n_forwards, tokens = int(result.nfe[0]), len(result.answers[0])
    print(f"{tokens} tokens, {n_forwards} forwards, {result.seconds:.2f} s", file=sys.stderr)


class _Printer:
    """Prints the text of a run that further tokens cannot change, after each of its steps."""

    def __init__(self, model: lj.Model, sampler: lj.SamplerConfig) -> None:
        assert model.tokenizer is not None
        self._decode, self._stops, self._printed = model.tokenizer.decode, sampler.stop, 0
        self._ends = end_ids(sampler, model.config)

    def __call__(self, view: StepView) -> None:
        tokens = before_end(final_tokens(view.tokens[0], view.state[0]), self._ends)
        self.show(settled_text(self._decode(tokens), self._stops))

    def show(self, text: str) -> None:
        print(text[self._printed :], end="", flush=True)
        self._printed = max(self._printed, len(text))


def chat(arguments: argparse.Namespace) -> None:
    """Reads messages until Ctrl-D, and prints each answer as its tokens become final."""
    model, backend, sampler = _load(arguments)
    assert model.tokenizer is not None
    messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401 (line editing)

        print(f"{model!r}; /new begins again, Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            text = input("> " if interactive else "")
        except EOFError:
            return
        if text.strip() == "/new":
            messages = [message for message in messages if message["role"] == "system"]
            continue
        if not text.strip():
            continue
        messages.append({"role": "user", "content": text})
        prompt = model.tokenizer.encode_chat(messages)
        printer = _Printer(model, sampler)
        result = lj.generate(
            model, [prompt], sampler, backend=backend, seed=arguments.seed, on_step=printer
        )
        printer.show(result.text[0])
        print()
        messages.append({"role": "assistant", "content": result.text[0]})


def serve(arguments: argparse.Namespace) -> None:
    """Serves until Ctrl-C or SIGTERM."""
    from llada_jax.serve.server import Service, run_server

    options = {option.name: getattr(arguments, option.name) for option in fields(ServerSettings)}
    options["api_key"] = options["api_key"] or os.environ.get("LLADA_API_KEY") or None
    settings = ServerSettings(**options)
    model, backend, sampler = _load(arguments)
    run_server(Service(model, sampler, settings, backend=backend, seed=arguments.seed))


def inspect(arguments: argparse.Namespace) -> None:
    """Prints a description of a model."""
    from llada_jax.backend.exported.manifest import MANIFEST

    is_export = (Path(arguments.model) / MANIFEST).is_file()
    print(lj.load(arguments.model) if is_export else lj.describe(arguments.model))


def phone(arguments: argparse.Namespace) -> None:
    """Prints the modelled time of a run on each phone."""
    phones = [lj.phone(name) for name in arguments.phone or ["SM8750"]]
    require(
        (arguments.prompt is None) != (arguments.trace is None),
        "neither or both of a prompt and --trace are given; allowed: one of them",
    )
    if arguments.trace is not None:
        trace = lj.Trace.load(arguments.trace)
    else:
        model, backend, sampler = _load(arguments)
        prompt = _encoded(model, arguments.prompt, arguments.raw)
        options = {"backend": backend, "seed": arguments.seed, "trace": True}
        trace = lj.generate(model, [prompt], sampler, **options).trace
    for simulated_phone in phones:
        run = simulated_phone.time(trace, arguments.shape)
        low, high = run.interval
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in run.breakdown.items())
        print(
            f"{run.soc}: {run.seconds:.2f} s ({low:.2f} to {high:.2f}), modelled, for "
            f"{run.workload.tokens} tokens of {run.shape} in {len(run.workload.forwards)} forwards "
            f"({run.tokens_per_second:.1f} tokens/s); {parts}"
        )


def completion(arguments: argparse.Namespace) -> None:
    """Prints a shell's completion script, which is generated from the parser."""
    (commands,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    cases = []
    for name, command in commands.choices.items():
        words = [option for action in command._actions for option in action.option_strings]
        models = (*bundled_names(), *PACKAGED) if name != "completion" else ("bash", "zsh")
        cases.append(f'    {name}) words="{" ".join([*words, *models])}" ;;')
    lines = [
        "_llada() {",
        '  local words current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '  case "${COMP_WORDS[1]}" in',
        *cases,
        f'    *) words="{" ".join(commands.choices)}" ;;',
        "  esac",
        f'  [ "$COMP_CWORD" -eq 1 ] && words="{" ".join(commands.choices)}"',
        f'  [ "$before" = "--preset" ] && words="{" ".join(PRESETS)}"',
        '  [ "$before" = "--backend" ] && words="xla litert qnn native"',
        '  [ "$before" = "--dtype" ] && words="float32 bfloat16 int8 int4"',
        '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o default -F _llada llada",
    ]
    if arguments.shell == "zsh":
        lines = ["autoload -U +X bashcompinit && bashcompinit", *lines]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
