"""A Snapdragon's NPU on this machine: compiled for the phone, run by the vendor's emulator.

Slow, and without a word about a phone's speed; but the numbers are the NPU's own.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from llada_jax.backend.protocol import Executable, Step, Weights
from llada_jax.backend.qnn.compiler import Compilation, compile_contexts
from llada_jax.backend.qnn.context import require_qnn
from llada_jax.backend.qnn.emulator import Emulator
from llada_jax.backend.qnn.quantizer import write_quantized
from llada_jax.backend.recorded_inputs import Inputs
from llada_jax.config import STATIC_PRECISIONS, PhoneConfig, require

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
        self._soc, self._phone = soc, PhoneConfig(socs=(soc,), precision=precision)  # pyright: ignore
        require(
            bool(samples) or precision not in STATIC_PRECISIONS,
            f"precision is {precision!r} without samples; allowed: samples of real forwards "
            "(llada_jax.backend.recorded_inputs), or fp16 and int8 without",
        )
        require_qnn()
        self._samples = samples
        self.compiled: dict[str, Compilation] = {}
        """By step: sizes, seconds, and the compiler's account of DRAM traffic."""

    def compile(self, steps: Sequence[Step], weights: Weights) -> dict[str, Executable]:
        return {step.name: self._compiled(step, weights) for step in steps}

    def _compiled(self, step: Step, weights: Weights) -> Executable:
        with tempfile.TemporaryDirectory() as folder:
            precision, out = self._phone.precision, Path(folder) / "compiled.tflite"
            narrow = write_quantized(Path(folder), [step], weights, precision, self._samples)
            self.compiled[step.name] = compile_contexts(narrow, out, self._soc)
            return Emulator(out)
