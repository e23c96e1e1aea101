"""Exports a model for LiteRT and phones. Every file is run and compared with JAX before it is kept.

    python -m experiments.export
    python -m experiments.export model=path/to/LLaDA-8B-Instruct out=llada8b quant=int4_block128
    python -m experiments.export out=tiny-phone phones.socs=[SM8650,SM8750] phones.precision=a8w8

The same command continues an interrupted export.
"""

from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path

import llada_jax as lj
from experiments.harness.questions import prompts_of
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.api.denoisers import score_rules
from llada_jax.backend.litert.runtime import LiteRT
from llada_jax.backend.program import OnDemandProgram, Recorder, bucket_size
from llada_jax.backend.protocol import Bucket, Inputs
from llada_jax.backend.session import Session
from llada_jax.config import (
    STATIC_PRECISIONS,
    ExportConfig,
    numbered_lines,
    require,
    require_counts,
)
from llada_jax.evaluation.tasks import word_problems
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids


@dataclass(frozen=True, kw_only=True)
class RecordingConfig:
    """The forwards that static quantization of activations is calibrated on."""

    prompts: str | None = None
    forwards: int = 64
    sampler: SamplerConfig

    def __post_init__(self) -> None:
        require_counts(self, "forwards")


@dataclass(frozen=True, kw_only=True)
class ExportRunConfig(ExportConfig):
    """Settings of the verb; conf/export.yaml explains each."""

    model: str
    out: str
    recording: RecordingConfig
    verify: bool = True


def export(config: ExportRunConfig, run: Run) -> None:
    """Writes the folder, and reports its files and their errors."""
    run.begin()
    samples = _samples(config) if config.phones.socs else []
    settings = ExportConfig(
        **{field.name: getattr(config, field.name) for field in fields(ExportConfig)}
    )
    manifest = lj.export(config.model, config.out, settings, verify=config.verify, samples=samples)
    run.fingerprint = manifest.fingerprint
    rows = [ResultRow(f"file/{file.name}", file.bytes / 1e6, "MB") for file in manifest.files]
    errors: dict[str, float] = {}
    for check in manifest.checks:
        errors[check["file"]] = max(check["error"], errors.get(check["file"], 0))
    for file, error in errors.items():
        rows.append(ResultRow(f"error/{file}", error, "relative RMS against JAX"))
    for context in manifest.contexts:
        error = context["emulated_error"]
        if error is not None:
            unit = "relative RMS against JAX, emulated"
            rows.append(ResultRow(f"error/{context['file']}", error, unit))
    run.finish(rows)
    print(f"\n{Path(config.out).absolute()} is complete; PUSH.md there explains its use.")


def _samples(config: ExportRunConfig) -> list[Inputs]:
    """Records the inputs of the first float32 forwards, all of one shape. Prompts are the lines of
    the file, or word problems of the training split."""
    if config.phones.precision not in STATIC_PRECISIONS:
        return []
    recording = config.recording
    if recording.prompts is None:
        problems = word_problems.TASK.items(0, "train")
        questions = [item.question for item in islice(problems, recording.forwards // 4 + 1)]
    else:
        questions = [line for _, line in numbered_lines(Path(recording.prompts))]
        require(bool(questions), f"{recording.prompts} has no prompts; allowed: one a line")
    model = lj.load(config.model, "float32")
    sampler, prompts = with_ids(recording.sampler, model.config), prompts_of(model, questions)
    length = bucket_size(max(map(len, prompts)) + sampler.gen_length, ())
    program = OnDemandProgram(model.config, model.params, LiteRT())
    recorder = Recorder(program, Bucket(length, length), recording.forwards)
    denoiser = Session(recorder, score_rules(sampler)).denoiser()
    for prompt in prompts:
        decode(denoiser, None, model.config, [prompt], sampler, loop="host")
    return recorder.samples


main = entry_point("export", export, ExportRunConfig)
