"""Decodes one prompt, shows each step on the screen, and reports the speed.

    python -m experiments.generate
    python -m experiments.generate prompt="Anna has 3 apples. ..." sampler=llada
    python -m experiments.generate model=path/to/folder sampler.cache=blockwise pause=0.05
    python -m experiments.generate sampler=llada_cpp sampler.refresh=worker tiles=q4_0
    python -m experiments.generate dtype=int8 mesh.data=2 mesh.model=4
    python -m experiments.generate infill=true prompt="2+2=<|mask|> and 3*3=<|mask|>"
    python -m experiments.generate 'sampler.constraint.regex="[A-Z][^#]*#### [0-9]+"'
    python -m experiments.generate -m sampler=llada,fast_dllm seed=0,1

In addition to the files of every run, the run folder gets `trace.npz` (`lj.Trace.load` reads it)
and `answer.txt`. With `loop=both` the prompt is decoded three times: in the host loop, which shows
the steps, and, if the backend and the sampler allow it, twice in the compiled loop, because the
first time includes compilation. A table at the end compares the run with LLaDA's plain sampler, on
this machine and on phones (modelled, for LLaDA-8B).
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from hydra.core.override_parser.types import Quote, QuotedString

import llada_jax as lj
from experiments.generate.live_canvas import CanvasPage, printable, watching
from experiments.harness.model_source import ModelSource
from experiments.harness.questions import tokenizer_of
from experiments.harness.results import ResultRow, table, traces
from experiments.harness.run import Run, entry_point
from experiments.harness.tiled import check_tiles
from llada_jax.config import ONE_DEVICE, MeshConfig, require
from llada_jax.constraint.patterns import Measure
from llada_jax.phones.profile import load_profile
from llada_jax.revision.tiles import Kind
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.trace import Event
from llada_jax.text import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ConstraintSettings:
    """At most one of a regular expression, a JSON schema (its text or a file) and a list of texts;
    and the distribution that confidence is measured in."""

    regex: str | None = None
    json_schema: str | None = None
    choice: tuple[str, ...] | None = None
    confidence: Measure = "allowed"

    def build(self) -> lj.Constraint | None:
        """Returns the constraint, or None if none is set."""
        makers = {"regex": lj.regex, "json_schema": _json_schema, "choice": lj.choice}
        values = {name: getattr(self, name) for name in makers if getattr(self, name) is not None}
        require(len(values) <= 1, f"{', '.join(values)} are set; allowed: one of them")
        for name, value in values.items():
            return makers[name](value, confidence=self.confidence)
        return None


def _json_schema(schema: str, **options: Any) -> lj.Constraint:
    is_file = not schema.lstrip().startswith("{")
    require(not is_file or Path(schema).is_file(), f"json_schema is {schema!r}; allowed: a file")
    return lj.json_schema(Path(schema).read_text() if is_file else schema, **options)


@dataclass(frozen=True)
class ConstrainedSampler:
    """A sampler and a constraint, whose settings are one flat mapping."""

    config: SamplerConfig
    constraint: lj.Constraint | None

    @classmethod
    def from_flat(cls, settings: dict[str, Any]) -> "ConstrainedSampler":
        """Returns the sampler and the constraint of flat settings."""
        constraint = settings.pop("constraint", None)
        return cls(SamplerConfig.from_flat(settings), constraint and constraint.build())

    @classmethod
    def setting_types(cls, *policies: object) -> dict[str, Any]:
        """Returns the type of each setting."""
        return {**SamplerConfig.setting_types(*policies), "constraint": ConstraintSettings}


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(ModelSource):
    """Settings of the verb; conf/generate.yaml explains each."""

    prompt: str
    chat: bool = True
    infill: bool = False
    sampler: ConstrainedSampler
    seed: int = 0
    backend: str = "xla"
    tiles: Kind | None = None
    mesh: MeshConfig = ONE_DEVICE
    loop: Literal["host", "compiled", "both"] = "both"
    pause: float = 0.0
    phones: tuple[str, ...] = ()
    plain_sampler: bool = True

    def __post_init__(self) -> None:
        require(self.prompt.strip() != "", f"prompt is {self.prompt!r}; allowed: some text")
        require(self.pause >= 0, f"pause is {self.pause}; allowed: 0 or more")
        check_tiles(self.tiles, self.backend, self.sampler.config)
        for soc in self.phones:
            load_profile(soc)

    @property
    def reason_for_host_loop(self) -> str | None:
        """Why `loop=both` leaves out the compiled loop, or None if it does not."""
        if self.backend != "xla":
            return f"backend={self.backend} runs outside XLA"
        if self.sampler.config.has_worker:
            return "sampler.refresh=worker runs alongside the steps of the host loop"
        if self.sampler.constraint is not None:
            return "it would be compiled for each size of a constraint"
        return None


def generate(config: GenerateConfig, run: Run) -> None:
    """Decodes the prompt, prints the answer and the results, and writes the run folder."""
    model = run.of(config.load(config.mesh))
    tokenizer = tokenizer_of(model)
    sampler = config.sampler.config
    decode = partial(
        lj.infill if config.infill else lj.generate,
        model,
        [_encode_prompt(tokenizer, config)],
        sampler,
        constraint=config.sampler.constraint,
        backend=config.backend,
        seed=config.seed,
        refresh_on=lj.tiled(model) if config.tiles else None,
    )
    result, speed = None, []
    if config.loop != "compiled":
        added = tokenizer.backend.get_added_tokens_decoder()
        page = CanvasPage(
            decode=partial(tokenizer.decode, skip_special_tokens=False),
            special_ids=frozenset(i for i, token in added.items() if token.special),
            prompt=None if config.infill else config.prompt,
        )
        with watching(page, sys.stdout, config.pause) as show:
            result = decode(loop="host", on_step=show, trace="scores")
        speed += _host_speed(result)
    if config.loop == "both" and config.reason_for_host_loop:
        print(f"the compiled loop is skipped: {config.reason_for_host_loop}", flush=True)
    elif config.loop != "host":
        print("compiling the loop and timing it", flush=True)
        first, second = (decode(loop="compiled", trace=True) for _ in range(2))
        result = result or second
        speed += [
            ResultRow("compiled_loop_with_compilation", first.seconds, "s"),
            ResultRow("compiled_loop", second.seconds, "s"),
            ResultRow("compiled_loop_speed", _tokens(second) / second.seconds, "tokens/s"),
        ]
    assert result is not None
    rows = [*_counts(result), *speed]
    from experiments.generate import elsewhere  # here, so that the first tokens are shown earlier

    if not config.infill:
        if config.plain_sampler and config.backend == "xla":
            rows += elsewhere.plain_sampler_time(
                model, int(result.trace.prompt_lengths[0]), sampler
            )
        rows += elsewhere.phone_times(result.trace, config.phones)
    _write(run, result, rows, elsewhere.side_by_side(rows))


def _encode_prompt(tokenizer: Tokenizer, config: GenerateConfig) -> list[int]:
    """Encodes the prompt as a chat if there is a template, else as text; a canvas unchanged."""
    if config.infill:
        mask = tokenizer.special_tokens.get("mask_token")
        require(
            mask is not None and mask in config.prompt,
            f"prompt is {config.prompt!r}; allowed with infill: one that contains {mask}",
        )
        return tokenizer.encode(config.prompt)
    if config.chat and tokenizer.chat_template is not None:
        return tokenizer.encode_chat([{"role": "user", "content": config.prompt}])
    return tokenizer.encode(config.prompt, add_special_tokens=True)


def _host_speed(result: lj.Result) -> list[ResultRow]:
    """Returns the wall time of the host loop, and the speed of the steps without compilation."""
    trace = result.trace
    rows = [ResultRow("host_loop_with_compilation", trace.seconds.sum(), "s")]
    first_of_bucket = np.unique(trace.rows, return_index=True)[1]
    warm = np.delete(np.arange(len(trace.rows)), first_of_bucket)
    if len(warm):
        tokens = np.isin(trace.event_step[trace.event_kind == Event.COMMIT], warm).sum()
        speed = tokens / trace.seconds[warm].sum()
        rows.append(ResultRow("host_loop_warm_steps", speed, "tokens/s"))
    return rows


def _counts(result: lj.Result) -> list[ResultRow]:
    return [
        ResultRow("forwards", result.nfe[0], "forwards"),
        ResultRow("tokens", _tokens(result), "tokens"),
        ResultRow("answer_tokens", len(result.answers[0]), "tokens"),
        ResultRow("tokens_per_forward", result.tpf, "tokens/forward"),
        ResultRow("rows_per_forward", result.trace.rows.mean(), "rows/forward"),
    ]


def _tokens(result: lj.Result) -> int:
    """Returns the number of committed tokens, including those after the answer's end."""
    return int((result.trace.event_kind == Event.COMMIT).sum())


def _write(run: Run, result: lj.Result, rows: list[ResultRow], compared: str) -> None:
    (answer,) = result.text
    run.begin()
    result.trace.save(run.folder / "trace.npz")
    run.write("answer.txt", answer + "\n")
    print(f"\n{printable(answer)}\n")
    here = [row for row in rows if not row.name.startswith("phone/")]
    run.finish(rows, "\n\n".join(filter(None, [table(here), compared, *traces(rows)])))


def verbatim_prompt(arguments: Sequence[str]) -> list[str]:
    """Returns the command line with its prompt quoted, because Hydra parses commas and `=`. Sweeps
    are unchanged: their commas separate prompts."""
    if {"-m", "--multirun"} & set(arguments):
        return list(arguments)
    return [_quoted(argument) for argument in arguments]


def _quoted(argument: str) -> str:
    key, _, text = argument.partition("=")
    has_quotes = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if key != "prompt" or has_quotes:
        return argument
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # an interpolation, unless it is escaped
    return f"prompt={QuotedString(text, Quote.single).with_quotes()}"


if __name__ == "__main__":
    sys.argv[1:] = verbatim_prompt(sys.argv[1:])
main = entry_point("generate", generate, GenerateConfig)
