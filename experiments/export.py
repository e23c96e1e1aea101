"""Exports a model to a folder that LiteRT and phones run; every file is run before it has its name.

    python -m experiments.export
    python -m experiments.export model=path/to/LLaDA-8B-Instruct out=llada8b quant=int4_block128
    python -m experiments.export out=tiny-phone phones.socs=[SM8650,SM8750] phones.precision=a8w8

An export that was interrupted goes on with the same command.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import llada_jax as lj
from experiments.harness.recorded_forwards import record_forwards
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.backend.recorded_inputs import Inputs
from llada_jax.config import (
    STATIC_PRECISIONS,
    ExportConfig,
    PhoneConfig,
    SamplerConfig,
    require,
    require_counts,
)
from llada_jax.evaluation.tasks import word_problems


@dataclass(frozen=True, kw_only=True)
class RecordingConfig:
    """What static quantization of activations is made from."""

    prompts: str | None = None
    forwards: int = 64
    sampler: SamplerConfig

    def __post_init__(self) -> None:
        require_counts(self, "forwards")


@dataclass(frozen=True, kw_only=True)
class ExportRunConfig:
    """What to export, and how. The comments are in conf/export.yaml."""

    model: str
    out: str
    quant: str = "int8"
    rows: tuple[int, ...] = ExportConfig().rows
    caches: tuple[int, ...] = ExportConfig().caches
    shard_bytes: int = ExportConfig().shard_bytes
    phones: PhoneConfig = field(default_factory=PhoneConfig)
    recording: RecordingConfig
    verify: bool = True

    @property
    def settings(self) -> ExportConfig:
        return ExportConfig(
            quant=self.quant,  # pyright: ignore[reportArgumentType]
            rows=self.rows,
            caches=self.caches,
            shard_bytes=self.shard_bytes,
            phones=self.phones,
        )


def export(config: ExportRunConfig, run: Run) -> None:
    """Writes the folder, and says what is in it."""
    settings = config.settings
    run.begin()
    samples = _samples(config) if config.phones.socs else []
    manifest = lj.export(config.model, config.out, settings, verify=config.verify, samples=samples)
    rows = [ResultRow(f"file/{file.name}", file.bytes / 1e6, "MB") for file in manifest.files]
    for file in dict.fromkeys(check["file"] for check in manifest.checks):
        error = max(check["error"] for check in manifest.checks if check["file"] == file)
        rows.append(ResultRow(f"error/{file}", error, "relative RMS against JAX"))
    for context in manifest.contexts:
        if context["emulated_error"] is not None:
            rows.append(
                ResultRow(
                    f"error/{context['file']}",
                    context["emulated_error"],
                    "relative RMS against JAX, emulated",
                )
            )
    run.finish(rows)
    print(f"\n{Path(config.out).absolute()} is complete; PUSH.md there says how to use it.")


def _samples(config: ExportRunConfig) -> list[Inputs]:
    if config.phones.precision not in STATIC_PRECISIONS:
        return []
    model = lj.load(config.model, "float32")
    recording = config.recording
    prompts = _prompts(model, recording)
    return record_forwards(model, prompts, recording.sampler, recording.forwards)


def _prompts(model: lj.Model, recording: RecordingConfig) -> Sequence[Sequence[int]]:
    """Returns one prompt a line of the file, or word problems of the training split."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError("the model has no tokenizer; allowed: phones.precision fp16 or int8")
    if recording.prompts is not None:
        texts = [line for line in Path(recording.prompts).read_text().splitlines() if line]
        require(bool(texts), f"{recording.prompts} has no prompts; allowed: one a line")
    else:
        count = recording.forwards // 4 + 1
        texts = [word_problems.TASK.item(0, i, "train").question for i in range(count)]
    return [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]


main = entry_point("export", export, ExportRunConfig)
