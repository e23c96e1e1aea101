"""A Snapdragon's NPU on this machine: compiled for the phone, run by the vendor's emulator.

Slow, and without a word about a phone's speed; but the numbers are the NPU's own.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from llada_jax.backend.litert import tflite
from llada_jax.backend.lower import check, lower
from llada_jax.backend.protocol import Bucket, Executable, Step, Weights
from llada_jax.backend.qnn.compiler import Compilation, compile_contexts
from llada_jax.backend.qnn.context import check_soc, require_qnn
from llada_jax.backend.qnn.emulator import Emulator
from llada_jax.backend.qnn.quantizer import quantize
from llada_jax.backend.recorded_inputs import Inputs
from llada_jax.backend.steps import resized
from llada_jax.config import STATIC_PRECISIONS, Precision, require, require_choice

ROW_BUCKETS = (32, 64, 96, 128)
"""Few, because each compiles for seconds; 16 rows are wrong with int16 activations (see `qnn`)."""


class EmulatedNpu:
    """The backend. Each step becomes a context binary of its own."""

    def __init__(
        self, soc: str = "SM8750", precision: str = "fp16", samples: Sequence[Inputs] = ()
    ):
        """Takes a recorder's inputs as `samples`, for a16w8, a8w8 and a16w4.

        Raises ValueError for an unknown SoC or precision, or where samples are needed; ImportError
        or RuntimeError where the extra `qnn` is missing or cannot run.
        """
        check_soc(soc)
        require_choice("precision", precision, Precision)
        needs_samples = precision in STATIC_PRECISIONS
        require(
            bool(samples) or not needs_samples,
            f"precision is {precision!r} without samples; allowed: samples of real forwards "
            "(llada_jax.backend.recorded_inputs), or fp16 and int8 without",
        )
        require_qnn()
        self._soc = soc
        self._precision: Precision = precision  # pyright: ignore[reportAttributeAccessIssue]
        self._samples = samples if needs_samples else ()
        self.compiled: dict[str, Compilation] = {}
        """By step: sizes, seconds, and the compiler's account of DRAM traffic."""

    def compile(self, steps: Sequence[Step], weights: Weights) -> dict[str, Executable]:
        return {step.name: self._compiled(step, weights) for step in steps}

    def _compiled(self, step: Step, weights: Weights) -> Executable:
        lowered = lower(step)
        check(lowered, "qnn")
        bucket = _bucket_of(step)
        samples = {step.name: [resized(sample, bucket) for sample in self._samples]}
        with tempfile.TemporaryDirectory() as folder:
            wide, narrow, out = (Path(folder) / name for name in ("wide", "narrow", "compiled"))
            tflite.write(wide, tflite.convert([lowered]), lowered.weights, weights)
            quantize(wide, narrow, self._precision, samples if self._samples else None)
            self.compiled[step.name] = compile_contexts(narrow, out, self._soc)
            return _Graph(Emulator(out), step)


class _Graph:
    """One step on the emulator: an `Executable`."""

    def __init__(self, emulator: Emulator, step: Step):
        self._emulator, self._step = emulator, step

    def allocate(self, name: str) -> np.ndarray:
        return np.zeros(self._step.inputs[name], np.float32)

    def run(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return self._emulator.run(self._step.name, arrays)


def _bucket_of(step: Step) -> Bucket:
    rows, width = step.inputs["bias"]
    return Bucket(rows, width - rows)
