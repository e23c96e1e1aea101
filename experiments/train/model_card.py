"""The model card of a trained model: everything that is needed to train and to judge it again."""

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np

from experiments.train.mixture import MixtureConfig, Stage, TaskShare
from experiments.train.scores import ScoreConfig, TaskScore
from llada_jax.config import ModelConfig, TrainConfig
from llada_jax.evaluation.metrics import wilson_interval
from llada_jax.evaluation.reliability_diagram import Reliability
from llada_jax.evaluation.tasks import load_task
from llada_jax.model.params import param_count

CURVE_ROWS = 16
EXACT_MATCH = "/exact_match"

TEMPLATE = """\
---
license: apache-2.0
library_name: llada_jax
pipeline_tag: text-generation
tags: [diffusion-language-model, llada, masked-diffusion]
---

# {name}

A masked-diffusion language model of {parameters:.2f} M parameters in the architecture of
{architecture} (width {model.width}, {model.n_layers} layers, {model.n_heads} heads,
{feed_forward}, vocabulary {model.vocab_size}), trained from scratch on generated tasks. It is meant
for tests, notebooks and studies of decoding, and can do nothing else.

```python
import llada_jax as lj

model = lj.load("{name}")
question = "Anna had 4 apples. She bought 5 more apples. She gave 3 apples to Ben. " \\
    "How many apples did Anna have in the end?"
prompt = model.tokenizer.encode_chat([{{"role": "user", "content": question}}])
result = lj.generate(model, [prompt])
print(model.tokenizer.decode(result.generated[0]))
```

## Quality

Share of items of the test split (each task's default difficulty, seed {score_seed}) whose generated
answer passes the task's verifier. What an item is about, as its task's docstring defines it, occurs
nowhere in training. One token a step; `llada` sees the whole canvas, `blockwise` the prefix and the
block that is decoded.

| task | items | sampler | settings | exact match | 95 % interval (Wilson) |
|---|---|---|---|---|---|
{scores}

Confidence against truth, on masked tokens of the same items' answers (expected calibration error in
15 bins; `python -m experiments.reliability` draws the diagram):

| canvas | masked tokens | right | calibration error |
|---|---|---|---|
{reliability}

## Training

    {commands}
{continued}
- Loss: LLaDA's masked-diffusion loss on answers, weighted 1/t, answers padded with
  `<|endoftext|>` to the canvas's end; {other_terms}, no weights on tokens.
- Data: `llada_jax.evaluation.tasks`, split `train`, seed {data_seed}, {examples:,} examples, each
  seen once: the mixture and its stages are below.
- Canvases: answer regions of random length up to {train.max_gen_length} tokens.
  {block_share:.0%} of them stand where a block-wise decoder stands (blocks of {train.block_length}:
  earlier ones clean, one partly masked), and {cut_share:.0%} of those end with that block. So whole
  canvases of any such length, and blocks with nothing but their prefix, are both in distribution;
  prompts of other kinds and longer canvases are not.
- Start: {start}.
- Optimizer: {train.optimizer}, peak learning rate {train.peak_lr:g}, {train.warmup_steps} steps of
  warmup, decay to zero over the last {train.decay_steps} steps; batches of {train.batch_size};
  weight decay {train.weight_decay:g}, gradients clipped at {train.clip_norm:g}; seed {train.seed};
  float32, the layers' matrix products in {train.matmul_dtype}.
- {train.steps:,} steps in {minutes:.0f} minutes on {machine}.
- Code and versions: {environment}.

| task | what it is | version | weight | difficulties drawn |
|---|---|---|---|---|
{mixture}

In each stage some examples only repeat sentences of a question (retell), and some are drills: many
small decisions of a task in one example. The last stage lasts to the end.

| steps | tasks, by weight (difficulties) | retell | drill | drills, by weight (difficulties) |
|---|---|---|---|---|
{stages}

| step | minutes | loss (nats per token) | accuracy on masked tokens |
|---|---|---|---|
{curve}

{probes}
`training_log.jsonl` has the whole curve{after}.
{before}"""


STARTS = {
    "random": "random weights",
    "copying": "random weights, but for heads in the first three layers that copy what stands\n"
    "  between the same neighbours, written by hand (`llada_jax/training/copying.py`)",
}


TRAINING_HEADING = "## Training\n"

CONTINUED = """
Each went on in the same folder, from the last checkpoint of the one before.
"""


class Parent(NamedTuple):
    """The model whose parameters a training began with, the text of its card, and its log."""

    name: str
    card: str
    log: Sequence[Mapping[str, Any]]

    @property
    def training(self) -> str:
        """Returns what its card says of its own training, and of those before."""
        return self.card.partition(TRAINING_HEADING)[2]


def model_card(
    *,
    name: str,
    commands: Sequence[str],
    model: ModelConfig,
    train: TrainConfig,
    data: MixtureConfig,
    environment: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    score: ScoreConfig,
    scores: Sequence[TaskScore],
    reliability: Mapping[str, Reliability],
    parent: Parent | None = None,
) -> str:
    """Writes Markdown with the front matter that the Hugging Face hub reads."""
    minutes = _minutes(metrics)
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    commit = f"commit {environment['git_sha']}" + (", changed" if environment["git_dirty"] else "")
    return TEMPLATE.format(
        name=name,
        commands="\n    ".join(commands),
        continued=CONTINUED if len(commands) > 1 else "",
        model=model,
        architecture=model.family,
        feed_forward=_feed_forward(model),
        other_terms=_other_terms(model, train),
        train=train,
        start=STARTS[train.start] if parent is None else _started_from(parent),
        data_seed=data.seed,
        mixture="\n".join(map(_mixture_line, data.tasks)),
        stages="\n".join(map(_stage_line, data.stages)),
        machine=environment["machine"],
        parameters=param_count(model) / 1e6,
        examples=train.steps * train.batch_size,
        block_share=train.block_share,
        cut_share=train.cut_share,
        minutes=minutes[-1],
        environment=f"{commit}; Python {environment['python']}, {packages}",
        score_seed=score.seed,
        scores="\n".join(map(_score_line, scores)),
        reliability="\n".join(starmap(_reliability_line, reliability.items())),
        curve=_curve(metrics, minutes),
        probes=_probes(metrics, score),
        after="" if parent is None else ", after that of the training before",
        before="" if parent is None else f"\n## Training before, of its start\n{parent.training}",
    )


def _started_from(parent: Parent) -> str:
    return (
        f"the parameters of `{parent.name}` as of the commit below; how they were trained stands\n"
        "  at the end"
    )


def _feed_forward(model: ModelConfig) -> str:
    moe = model.moe
    if moe is None:
        return f"feed-forward {model.ffn_width}"
    return f"{moe.n_experts} experts of width {moe.expert_width}, {moe.experts_per_token} a token"


def _other_terms(model: ModelConfig, train: TrainConfig) -> str:
    if model.moe is None:
        return "no other term"
    return (
        f"with {train.balance_weight:g} times the routers' balance loss and "
        f"{train.router_z_weight:g} times their z-loss"
    )


def _score_line(score: TaskScore) -> str:
    low, high = wilson_interval(score.right, score.items)
    s = score.sampler
    settings = f"gen_length {s.gen_length}, block_length {s.block_length}, cache {s.cache}"
    settings += f", {s.rule.label(s)}"
    columns = (
        score.task,
        score.items,
        score.name,
        settings,
        f"{score.right / score.items:.1%}",
        f"{low:.1%} to {high:.1%}",
    )
    return f"| {' | '.join(map(str, columns))} |"


def _reliability_line(name: str, diagram: Reliability) -> str:
    n = int(diagram.counts.sum())
    right = float(np.nansum(diagram.accuracy * diagram.counts)) / n
    error = 100 * diagram.expected_calibration_error
    return f"| {name} | {n:,} | {right:.1%} | {error:.1f} points |"


def _mixture_line(share: TaskShare) -> str:
    task = load_task(share.name)
    levels = "; ".join(f"{level}: {task.difficulties[level]}" for level in share.drawn)
    levels += _containing(share)
    return f"| `{share.name}` | {task.about} | {task.version} | {share.weight:g} | {levels} |"


def _stage_line(stage: Stage) -> str:
    tasks = _weights(stage.tasks) or "as above"
    shares = f"{stage.retell_share:.0%} | {stage.drill_share:.0%}"
    return f"| {stage.steps:,} | {tasks} | {shares} | {_weights(stage.drills)} |"


def _weights(shares: Sequence[TaskShare]) -> str:
    return ", ".join(
        f"{share.name} {share.weight:g} ({'/'.join(map(str, share.drawn))}{_containing(share)})"
        for share in shares
    )


def _containing(share: TaskShare) -> str:
    return "" if share.containing is None else f', only with "{share.containing}"'


def _minutes(metrics: Sequence[Mapping[str, Any]]) -> list[float]:
    total, previous, minutes = 0.0, 0, []
    for row in metrics:
        total += row["seconds_per_step"] * (row["step"] - previous) / 60
        previous = row["step"]
        minutes.append(total)
    return minutes


def _curve(metrics: Sequence[Mapping[str, Any]], minutes: Sequence[float]) -> str:
    stride = -(-len(metrics) // CURVE_ROWS)
    chosen = range((len(metrics) - 1) % stride, len(metrics), stride)
    return "\n".join(
        f"| {metrics[i]['step']:,} | {minutes[i]:.0f} | {metrics[i]['loss']:.3f} "
        f"| {metrics[i]['accuracy']:.3f} |"
        for i in chosen
    )


def _probes(metrics: Sequence[Mapping[str, Any]], score: ScoreConfig) -> str:
    """Returns exact match by step, where training measured it."""
    measured = [row for row in metrics if any(name.endswith(EXACT_MATCH) for name in row)]
    if not measured:
        return ""
    tasks = [name.removesuffix(EXACT_MATCH) for name in measured[0] if name.endswith(EXACT_MATCH)]
    head = [f"| step | {' | '.join(tasks)} |", "|---" * (1 + len(tasks)) + "|"]
    lines = [_probe_line(row, tasks) for row in measured]
    probe = score.probe
    of = (
        f"{probe.items} items of seed {probe.seed}, block-wise, threshold {probe.probe_threshold:g}"
    )
    return "\n".join([f"Exact match by step, of {of}:", "", *head, *lines, ""])


def _probe_line(row: Mapping[str, Any], tasks: Sequence[str]) -> str:
    shares = " | ".join(f"{row[task + EXACT_MATCH]:.0%}" for task in tasks)
    return f"| {row['step']:,} | {shares} |"
