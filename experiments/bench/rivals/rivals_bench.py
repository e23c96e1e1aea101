"""The suite `rivals`: LLaDA-8B's shape with random weights, in our backends and other programs.

Each contender is a process. Our first backend and one other program run in alternation, and ratios
are taken within a round, so that other work on the machine slows both. Only some layers are run,
more than a processor's cache holds; the time in the layers is scaled to the model's depth.
"""

import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast, get_args

import numpy as np

from experiments.bench.peak import Numbers, Peak, instruction_sets, measure_bandwidth, measure_peak
from experiments.bench.random_weights import (
    RandomWeights,
    error_as_stored,
    error_of_gguf,
    export_random,
    write_gguf,
)
from experiments.bench.rivals.contender import (
    Contender,
    ContenderProcess,
    Missing,
    Timed,
    left_out,
    running,
    seconds_a_step,
)
from experiments.harness.results import ResultRow
from experiments.harness.timers import spread
from llada_jax.backend.resources import available_cores, require_disk
from llada_jax.config import ExportConfig, ModelConfig, Quant, ascending_counts, require
from llada_jax.model.architecture.parameters import body_matrices, head_weights
from llada_jax.model.params import named_specs, param_count

PROMPT_LENGTH, GEN_LENGTH, BLOCK_LENGTH, CACHED = 64, 128, 32, 256
CANVAS = PROMPT_LENGTH + GEN_LENGTH
BLOCKS = GEN_LENGTH // BLOCK_LENGTH
DECODINGS = 2
ERROR_ROWS = 32
TORCH_KINDS = {
    "fast_dllm/bfloat16": "bfloat16",
    "torch_compiled/bfloat16": "compiled",
    "torch/int8": "quantize_dynamic",
    "zentorch/int8": "zentorch",
}
"""Contenders in PyTorch, and their products."""
ONNX_KINDS = {
    "openvino/int8": ("openvino", True),
    "openvino_as_exported/int8": ("openvino", False),
    "onnxruntime/int8": ("onnxruntime", True),
}
"""Contenders that read ONNX: the runtime, and whether products with the same inputs are joined."""
REFERENCE = Contender("xla/float32", "ours", "bfloat16", {"kind": "xla/float32"})
_TimedPair = tuple[Timed, Timed]


@dataclass(frozen=True, kw_only=True)
class RivalsBenchConfig:
    """Settings of the verb; conf/bench.yaml explains each."""

    rows: tuple[int, ...] = (32, 64, 128)
    layers: int = 8
    ours: tuple[str, ...] = ("litert/int8",)
    torch_python: str | None = None
    fast_dllm: str | None = None
    onnx_python: str | None = None
    llama_cpp: tuple[str, ...] = ()
    formats: tuple[str, ...] = ("Q4_0", "Q8_0", "Q4_K_M")
    programs: tuple[str, ...] = ()
    tokens_per_step: int = 4
    scratch: str = "outputs/rivals"

    def __post_init__(self) -> None:
        ascending_counts("rows", self.rows)
        require(self.rows[-1] <= CACHED, f"rows is {self.rows}; allowed: up to {CACHED}")
        require(self.layers > 0, f"layers is {self.layers}; allowed: 1 or more")
        require(
            0 < self.tokens_per_step and BLOCK_LENGTH % self.tokens_per_step == 0,
            f"tokens_per_step is {self.tokens_per_step}; allowed: a divisor of {BLOCK_LENGTH}",
        )
        integers = [quant for quant in get_args(Quant) if quant.startswith("int")]
        kinds = [f"litert/{quant}" for quant in integers]
        kinds += ["native/int8", "xla/int8", "xla/bfloat16"]
        for kind in self.ours:
            require(kind in kinds, f"ours has {kind!r}; allowed: {', '.join(kinds)}")
        require(bool(self.ours), f"ours is {self.ours}; allowed: one or more")
        for rival in self.llama_cpp + self.programs:
            require("=" in rival, f"{rival!r} names no rival; allowed: its name, =, and what it is")


def time_rivals(model: ModelConfig, config: RivalsBenchConfig, repeats: int) -> Iterator[ResultRow]:
    """Returns the rows of the suite. Raises ValueError for settings that it cannot time."""
    require(
        config.layers <= model.n_layers,
        f"layers is {config.layers}; allowed: up to the model's {model.n_layers}",
    )
    return _Suite(model, config, repeats).timed()


class _Suite:
    def __init__(self, model: ModelConfig, config: RivalsBenchConfig, repeats: int):
        self._model, self._config, self._repeats = model, config, repeats
        self._shape = model.replace(n_layers=config.layers)
        self._deeper = model.n_layers / config.layers
        self._products = sum(matrix.weights for matrix in body_matrices(model)) + head_weights(
            model
        )
        self._scratch = self._gguf = Path(config.scratch).resolve()
        self._steps = GEN_LENGTH // config.tokens_per_step
        self._peaks: dict[str, Peak] = {}
        self._matrices = {
            name: (spec.shape, spec.init_std)
            for name, spec in named_specs(self._shape).items()
            if len(spec.shape) > 1
        }

    def timed(self) -> Iterator[ResultRow]:
        """Yields all rows. The weights are in a temporary folder."""
        require_disk(self._scratch, 12 * param_count(self._shape), "weights in all their formats")
        self._scratch.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self._scratch) as folder:
            self._scratch = Path(folder)
            self._gguf = self._scratch / "bfloat16.gguf"
            self._hidden = self._scratch / "hidden.npy"
            with self._running(REFERENCE) as reference:
                self._exact = self._states(reference)
            yield from self._machine()
            mine, *others = self._contenders()
            with self._running(mine) as ours:
                yield from self._errors(ours)
                for work, number, times in self._works():
                    times_taken = [ours.ask(work, number) for _ in range(times + 1)]
                    yield from self._seconds(ours, work, number, times_taken[1:])
                for other in others:
                    yield from self._compare(ours, other)
                for program in self._config.programs:
                    yield from self._canvas_steps(ours, *program.split("=", 1))

    def _machine(self) -> Iterator[ResultRow]:
        cores = available_cores()
        yield ResultRow("cores", cores, "cores", source=instruction_sets())
        yield ResultRow("load_average", os.getloadavg()[0], "processes")
        yield ResultRow("layers", self._config.layers, f"scaled to {self._model.n_layers}")
        yield ResultRow("read_bandwidth", measure_bandwidth(cores) / 1e9, "GB/s")
        for numbers in get_args(Numbers):
            peak = measure_peak(numbers, cores)
            if peak is not None:
                self._peaks[numbers] = peak
                speed = peak.ops_per_second / 1e9
                yield ResultRow(f"peak/{numbers}", speed, "GOP/s", source=peak.how)

    def _contenders(self) -> Iterator[Contender]:
        for kind in self._config.ours:
            numbers = "bfloat16" if kind == "xla/bfloat16" else "int8"
            settings = {"kind": kind, "folder": str(self._scratch / kind)}
            yield Contender(kind, "ours", numbers, settings)
        for name, kind in TORCH_KINDS.items():
            settings = {"kind": kind, "checkout": None, "device": "cpu"}
            if kind == "bfloat16":
                settings["checkout"] = self._config.fast_dllm
            numbers = "int8" if name.endswith("int8") else "bfloat16"
            yield from self._foreign("torch", Contender(name, "torch_forward", numbers, settings))
        for name, (runtime, joined) in ONNX_KINDS.items():
            settings = {"runtime": runtime, "joined": joined, "scratch": str(self._scratch)}
            yield from self._foreign(
                "onnx", Contender(name, "onnx_forward", "int8", settings, decodes=False)
            )
        if not self._config.llama_cpp:
            left_out("llama.cpp", "rivals.llama_cpp names no interpreter")
        for rival in self._config.llama_cpp:
            build, python = rival.split("=", 1)
            for kind in self._config.formats:
                settings = {"gguf": str(self._gguf), "kind": kind, "most_rows": CACHED}
                name = f"{build}/{kind}"
                yield Contender(name, "llama_cpp_forward", "int8", settings, python, decodes=False)

    def _foreign(self, kind: str, contender: Contender) -> Iterator[Contender]:
        """Yields a contender with its interpreter, if the settings name one."""
        python = getattr(self._config, f"{kind}_python")
        if python is None:
            return left_out(contender.name, f"rivals.{kind}_python names no interpreter")
        yield replace(contender, python=python)

    @contextmanager
    def _running(self, contender: Contender) -> Iterator[ContenderProcess]:
        """Runs a contender, after writing the weights that it reads."""
        runtime, _, quant = contender.name.partition("/")
        folder = self._scratch / contender.name
        if runtime == "litert":
            rows = tuple(sorted({*self._config.rows, BLOCK_LENGTH, CANVAS}))
            settings = ExportConfig(quant=cast(Quant, quant), rows=rows, caches=(CACHED,))
            folder.parent.mkdir(exist_ok=True)
            export_random(folder, self._shape, settings)
        elif "gguf" in contender.options and not self._gguf.exists():
            write_gguf(self._gguf, self._shape, RandomWeights(self._shape, "float32"))
        settings = {"model": asdict(self._shape), "cached": CACHED, "prompt_length": PROMPT_LENGTH}
        settings |= {"gen_length": GEN_LENGTH, "block_length": BLOCK_LENGTH}
        settings |= {"matrices": self._matrices, "hidden": str(self._hidden)}
        with running(contender, settings) as process:
            yield process
        shutil.rmtree(folder, ignore_errors=True)

    def _compare(self, ours: ContenderProcess, other: Contender) -> Iterator[ResultRow]:
        """Times another contender in alternation with ours. Prints a line if it cannot run."""
        try:
            with self._running(other) as process:
                yield from self._errors(process)
                for work, number, times in self._works():
                    times_taken = self._in_turns(ours, process, work, number, times)
                    yield from self._seconds(
                        process, work, number, [theirs for _, theirs in times_taken]
                    )
                    for part, of in self._parts(work).items():
                        ratios = [of(theirs) / of(ours) for ours, theirs in times_taken]
                        name = f"ratio/{_named(part, other, number)}"
                        yield from spread(name, ratios, f"x {ours.contender.name}")
        except Missing as error:
            left_out(other.name, str(error))

    def _parts(self, work: str) -> dict[str, Callable[[Timed], float]]:
        """Returns the reported parts of a task: its seconds, and for forwards those of the head."""
        parts = {work: lambda timed: timed.at_depth(self._deeper)}
        return parts | ({"head": lambda timed: timed.head} if work == "forward" else {})

    def _works(self) -> Iterator[tuple[str, int, int]]:
        """Yields each task with its number of rows or steps, and the number of rounds."""
        yield from (("forward", rows, self._repeats) for rows in self._config.rows)
        yield "decode", self._steps, DECODINGS

    def _in_turns(
        self, ours: ContenderProcess, other: ContenderProcess, work: str, number: int, times: int
    ) -> list[_TimedPair]:
        def theirs() -> Timed:
            if work == "forward" or other.contender.decodes:
                return other.ask(work, number)
            one = other.ask("forward", CANVAS)
            return Timed(*(number * seconds for seconds in one))

        calls = partial(ours.ask, work, number), theirs
        for call in calls:
            call()  # compiles, and replaces the other contender's data in the caches
        times_taken = []
        for turn in range(times):
            first, second = calls if turn % 2 else reversed(calls)
            pair = first(), second()
            times_taken.append(pair if turn % 2 else pair[::-1])
        return times_taken

    def _errors(self, process: ContenderProcess) -> Iterator[ResultRow]:
        """Yields the error of the stored weights, and of the layers' outputs with them."""
        contender = process.contender
        kind = contender.name.partition("/")[2]
        if contender.module == "llama_cpp_forward":
            error = error_of_gguf(self._shape, self._gguf.with_name(f"{kind}.gguf"))
        else:
            exact = contender.numbers == "bfloat16"
            error = 0.0 if exact else error_as_stored(self._shape, cast(Quant, kind))
        yield ResultRow(f"weight_error/{contender.name}", error, "of the weights' size")
        if not contender.options.get("checkout"):  # which makes its own weights
            difference = np.linalg.norm(self._states(process) - self._exact)
            error = float(difference / np.linalg.norm(self._exact))
            yield ResultRow(f"hidden_error/{contender.name}", error, "of the hidden states' size")

    def _states(self, process: ContenderProcess) -> np.ndarray:
        """Returns the layers' outputs for the same rows in each contender."""
        process.ask("hidden", ERROR_ROWS)
        return np.load(self._hidden)

    def _seconds(
        self, process: ContenderProcess, work: str, number: int, times_taken: list[Timed]
    ) -> Iterator[ResultRow]:
        contender, about = process.contender, process.about
        for part, of in self._parts(work).items():
            yield from spread(
                _named(part, contender, number), list(map(of, times_taken)), "s", about
            )
        if work == "forward" and contender.numbers in self._peaks:
            seconds = statistics.median(timed.at_depth(self._deeper) for timed in times_taken)
            speed = 2 * number * self._products / seconds
            share = speed / self._peaks[contender.numbers].ops_per_second
            yield ResultRow(f"peak_share/{contender.name}/{number}", share, "of the peak")

    def _canvas_steps(self, ours: ContenderProcess, name: str, command: str) -> Iterator[ResultRow]:
        """Times a program's step of the whole canvas and ours, both with the few layers."""
        values = {
            "gguf": self._scratch / f"{self._config.formats[-1]}.gguf",
            "prompt": ",".join(map(str, range(PROMPT_LENGTH))),
            "tokens": GEN_LENGTH,
            "threads": available_cores(),
        }
        try:
            step = seconds_a_step(command, values, BLOCKS, max(self._steps, 2 * BLOCKS))
        except Missing as error:
            return left_out(name, str(error))
        ratio = step / ours.ask("forward", CANVAS).seconds
        yield ResultRow(f"step/{name}", step, f"s, {CANVAS} rows, {self._config.layers} layers")
        yield ResultRow(f"ratio/step/{name}", ratio, f"x {ours.contender.name}")


def _named(part: str, contender: Contender, number: int) -> str:
    return f"{part}/{contender.name}" + ("" if part == "decode" else f"/{number}")
