"""The model card of a trained model: everything that is needed to train and to judge it again."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, NamedTuple

from llada_jax.config import ModelConfig, SamplerConfig, TrainConfig
from llada_jax.model.params import param_count

CURVE_ROWS = 16

TEMPLATE = """\
---
license: apache-2.0
library_name: llada_jax
pipeline_tag: text-generation
tags: [diffusion-language-model, llada, masked-diffusion]
---

# {name}

A masked-diffusion language model of {parameters:.2f} M parameters in LLaDA's architecture (width
{model.width}, {model.n_layers} layers, {model.n_heads} heads, feed-forward {model.ffn_width}, \
vocabulary {model.vocab_size}), trained from
scratch on templated arithmetic word problems. It is meant for tests, notebooks and studies of
decoding, and can do nothing else.

```python
import llada_jax as lj

model = lj.load("tiny")
question = "Anna had 4 apples. She bought 5 more apples. She gave 3 apples to Ben. " \\
    "How many apples did Anna have in the end?"
prompt = model.tokenizer.encode_chat([{{"role": "user", "content": question}}])
result = lj.generate(model, [prompt])
print(model.tokenizer.decode(result.generated[0]))
```

## Quality

Exact match of the number after `####`, on problems of the test split, whose chains of equations
occur nowhere in training (single equations do):

| problems | sampler | exact match | 95 % interval (Wilson) |
|---|---|---|---|
{scores}

## Training

    {command}

- Loss: LLaDA's masked-diffusion loss on answers, weighted 1/t, answers padded with
  `<|endoftext|>` to the canvas's end; no other term, no weights on tokens.
- Data: `llada_jax.evaluation.tasks.word_problems`, split `train`, seed {data_seed}, difficulty
  {difficulty} (no number above {largest}); {examples:,} problems, each seen once.
- Canvases: answer regions of random length up to {train.max_gen_length} tokens.
  {block_share:.0%} of them stand where a block-wise decoder stands (blocks of {train.block_length}:
  earlier ones clean, one partly masked), and {cut_share:.0%} of those end with that block. So whole
  canvases of any such length, and blocks with nothing but their prefix, are both in distribution;
  prompts of other kinds and longer canvases are not.
- Optimizer: {train.optimizer}, peak learning rate {train.peak_lr:g}, {train.warmup_steps} steps of
  warmup, decay to zero over the last {train.decay_steps} steps; batches of {train.batch_size};
  seed {train.seed}; float32.
- {train.steps:,} steps in {minutes:.0f} minutes on {machine}.
- Code and versions: {environment}.

| step | minutes | loss (nats per token) | accuracy on masked tokens |
|---|---|---|---|
{curve}

`training_log.jsonl` has the whole curve.
"""


class Score(NamedTuple):
    """Right answers among so many problems, under one sampler."""

    sampler: SamplerConfig
    right: int
    problems: int


def wilson_interval(right: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a proportion (E. B. Wilson, 1927)."""
    share = right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return middle - half, middle + half


def model_card(
    *,
    name: str,
    command: str,
    model: ModelConfig,
    train: TrainConfig,
    data_seed: int,
    difficulty: int,
    largest: int,
    machine: str,
    environment: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    scores: Sequence[Score],
) -> str:
    """Markdown with the front matter that the Hugging Face hub reads."""
    minutes = _minutes(metrics)
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    commit = f"commit {environment['git_sha']}" + (", changed" if environment["git_dirty"] else "")
    return TEMPLATE.format(
        name=name,
        command=command,
        model=model,
        train=train,
        data_seed=data_seed,
        difficulty=difficulty,
        largest=largest,
        machine=machine,
        parameters=param_count(model) / 1e6,
        examples=train.steps * train.batch_size,
        block_share=train.block_share,
        cut_share=train.cut_share,
        minutes=minutes[-1],
        environment=f"{commit}; Python {environment['python']}, {packages}",
        scores="\n".join(map(_score_line, scores)),
        curve=_curve(metrics, minutes),
    )


def _score_line(score: Score) -> str:
    low, high = wilson_interval(score.right, score.problems)
    s = score.sampler
    rule = f"{s.steps} steps" if s.accept == "quota" else f"{s.accept} {getattr(s, s.accept)}"
    sampler = f"gen_length {s.gen_length}, block_length {s.block_length}, cache {s.cache}, {rule}"
    share = score.right / score.problems
    return f"| {score.problems} | {sampler} | {share:.1%} | {low:.1%} to {high:.1%} |"


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
