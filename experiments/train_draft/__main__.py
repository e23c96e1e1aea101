"""Trains a drafter for an autoregressive model, on the model's own answers.

    python -m experiments.train_draft model=smollm2 hydra.run.dir=outputs/draft
    python -m experiments.train_draft model=path/to/target data.shards=16 train.steps=500
    python -m experiments.train_draft model=smollm2 data.folder=outputs/answers drafter.n_layers=5
    python -m experiments.train_draft model=smollm2 drafter.kind=gated_lora drafter.block_length=5

First the target answers prompts (`answers.py`); then a drafter of either kind (`kinds.py`) is
trained on blocks at random positions of the answers. The same command resumes an interrupted run,
in both parts. Every `train.evaluate_every` steps the drafts are compared with held-out greedy
answers, which gives the tokens per forward of the target that decoding would have.

In addition to the files of every run, the run folder gets `training.json`, `metrics.jsonl`,
`checkpoints/`, `answers/` (or `data.folder`), and the drafter, `drafter/`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import llada_jax as lj
from experiments.harness.estimates import ratio
from experiments.harness.model_source import ModelSource
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point, resume_command
from experiments.train.resume import TRAINING, Training
from experiments.train_draft import kinds
from experiments.train_draft.answers import (
    SPLITS,
    AnswersConfig,
    Shard,
    make_shards,
    padded_taps,
    read_shards,
)
from experiments.train_draft.kinds import DraftConfig
from llada_jax.config import (
    LoopConfig,
    LoraConfig,
    require,
    require_choices,
    require_counts,
    require_numbers,
)
from llada_jax.draft.blocks import Blocks, greedy_cycles
from llada_jax.draft.gated_lora import GatedLoraConfig
from llada_jax.draft.network import DFlashConfig, default_taps
from llada_jax.model.params import ModelParams
from llada_jax.sampler.drafters.drafter import DraftView
from llada_jax.sampler.drafters.lookup import Lookup
from llada_jax.training.loop import advance, read_metrics, require_steps


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """The shape of the drafter; heads and widths are the target's."""

    kind: Literal["dflash", "gated_lora"] = "dflash"
    rank: int = 32
    """Of the LoRA matrices of `gated_lora`; n_layers and mask_id are those of `dflash`."""
    n_layers: int = 3
    taps: int = 3
    block_length: int = 8
    mask_id: int
    """An id of the target that its texts never contain."""
    n_ids: int | None = 8192
    """Size of the draft vocabulary: the most frequent ids of the answers. None for all ids."""
    start: str | None = None
    """Folder of a drafter of this shape whose weights the training starts from."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_counts(self, "rank", "n_layers", "taps", "n_ids")
        require_counts(self, "block_length", least=2)
        require_counts(self, "mask_id", least=0)


@dataclass(frozen=True, kw_only=True)
class DraftTrainConfig(LoopConfig):
    """Settings of the training (arXiv 2602.06036, appendix A.1)."""

    anchors: int = 32
    """Blocks of a sequence in a step."""
    decay: float = 4.0
    """Drafts at distance k count exp(-(k - 1) / decay): 4 for blocks of 8, 7 for 16."""
    peak_lr: float = 6e-4
    warmup: float = 0.04
    """Share of the steps in which the learning rate rises; then it falls as a cosine."""
    evaluated: int = 32
    """Answers of each held-out set that are scored at `evaluate_every`; all of them at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "anchors", "evaluated")
        require_numbers(self, "decay", "peak_lr", above=0)
        require_numbers(self, "warmup", least=0, most=1)

    @property
    def schedule(self) -> optax.Schedule:
        """The learning rate by step."""
        return optax.warmup_cosine_decay_schedule(
            0.0, self.peak_lr, round(self.warmup * self.steps), self.steps
        )


@dataclass(frozen=True, kw_only=True)
class RunConfig(ModelSource):
    """Settings of the verb; conf/train_draft.yaml explains each."""

    data: AnswersConfig
    drafter: DrafterConfig
    train: DraftTrainConfig


class HeldOut(NamedTuple):
    """A held-out answer: its tokens, and the accepted drafts of each cycle, by what drafts."""

    domain: str
    answer: Sequence[int]
    network: Sequence[int]
    lookup: Sequence[int]
    both: Sequence[int]  # as decoding does: look-up where the text repeats itself


def train_draft(config: RunConfig, run: Run) -> None:
    """Answers the prompts, trains from the last checkpoint, scores the drafter and writes it."""
    target = run.of(config.load())
    require(
        target.config.autoregressive,
        f"model is {config.model!r}, which is not autoregressive; allowed: an autoregressive one",
    )
    drafter = drafter_config(config.drafter, target)
    start = None if config.drafter.start is None else kinds.read(config.drafter.start)
    require(
        start is None or kinds.network(start[0]) == kinds.network(drafter),
        f"start is {config.drafter.start!r}, with another shape or other taps; allowed: {drafter}",
    )
    parts = {name: asdict(getattr(config, name)) for name in ("data", "drafter", "train")}
    settings = {"model": target.fingerprint, "dtype": config.dtype, **parts}
    training = Training.of(settings, resume_command("train_draft")).resumed(run.folder)
    require_steps(run.folder, config.train)
    run.begin()
    run.write(TRAINING, training.as_json())
    folder = Path(config.data.folder or run.folder / "answers")
    taps = default_taps(target.config.n_layers, config.drafter.taps)
    make_shards(target, config.data, folder, config.train.seed, taps)
    shards = read_shards(folder, range(len(SPLITS) + config.data.shards))
    held_out, shards = shards[: len(SPLITS)], shards[len(SPLITS) :]
    vocab_size = target.config.vocab_size
    ids = None if drafter.n_ids is None else frequent_ids(shards, drafter.n_ids, vocab_size)
    if start is None:
        params = kinds.begin(drafter, target.params, config.train.seed)
    else:
        params = start[1]._replace(ids=None)  # which are chosen anew

    def scored(params: Any, count: int | None) -> dict[str, list[HeldOut]]:
        params = params._replace(ids=ids)
        sets = zip(SPLITS, held_out, strict=True)
        return {name: score(params, drafter, target.params, part, count) for name, part in sets}

    def evaluate(params: Any) -> dict[str, float]:
        return {
            f"{split}_{name}": value
            for split, answers in scored(params, config.train.evaluated).items()
            for name, value in summary(answers, drafter.block_length - 1).items()
        }

    state = TrainState.create(apply_fn=kinds.loss, params=params, tx=optimizer(config.train))
    state = advance(
        run.folder,
        config.train,
        state.replace(step=jnp.zeros((), jnp.int32)),
        make_step(config.train, drafter, target.params, ids),
        partial(batches, shards, config.train),
        config.train.schedule,
        evaluate,
    )
    trained: Any = state.params  # flax does not know their type
    kinds.write(run.folder / "drafter", drafter, trained._replace(ids=ids))
    run.finish(rows(scored(trained, None), drafter, read_metrics(run.folder)))


def drafter_config(config: DrafterConfig, target: lj.Model) -> DraftConfig:
    """Returns the configuration of a drafter. The layers of a DFlash drafter have the target's
    widths and heads."""
    n_ids = config.n_ids and min(config.n_ids, target.config.vocab_size)
    if config.kind == "gated_lora":
        return GatedLoraConfig(
            shape=target.config,
            lora=LoraConfig(rank=config.rank, alpha=config.rank),
            n_masks=config.block_length - 1,
            target=target.fingerprint,
            n_ids=n_ids,
        )
    most = target.config.n_layers
    require(config.n_layers <= most, f"n_layers is {config.n_layers}; allowed: up to {most}")
    shape = target.config.replace(
        family="qwen3", n_layers=config.n_layers, qk_norm=True, tied_embeddings=False
    )
    return DFlashConfig(
        shape=shape,
        taps=default_taps(target.config.n_layers, config.taps),
        block_length=config.block_length,
        mask_id=config.mask_id,
        target_layers=target.config.n_layers,
        target=target.fingerprint,
        n_ids=n_ids,
    )


def frequent_ids(shards: Sequence[Shard], count: int, vocab_size: int) -> jax.Array:
    """Returns the most frequent ids of the answers, ascending; ties and ids that do not occur by
    their number."""
    counts = np.zeros(vocab_size, np.int64)
    for shard in shards:
        for row, start, end in zip(shard.tokens, shard.starts, shard.ends, strict=True):
            np.add.at(counts, row[start:end], 1)
    return jnp.asarray(np.sort(np.argsort(-counts, kind="stable")[:count]), jnp.int32)


def optimizer(config: DraftTrainConfig) -> optax.GradientTransformation:
    """Returns AdamW after clipping the global gradient norm; only matrices decay."""
    matrices = partial(jax.tree.map, lambda leaf: leaf.ndim > 1)
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(config.schedule, b2=0.98, weight_decay=0.01, mask=matrices),
    )


def make_step(
    config: DraftTrainConfig, drafter: DraftConfig, target: ModelParams, ids: jax.Array | None
) -> Any:
    """Compiles `(state, blocks) -> (state, metrics)`. Matrices have the target's dtype in products;
    stored parameters, activations between products and the loss are float32."""
    dtype = target.embedding.dtype

    @partial(jax.jit, donate_argnums=0)
    def step(
        state: TrainState, blocks: Blocks, target: ModelParams
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        def loss(params: Any) -> Any:
            cast = jax.tree.map(
                lambda leaf: leaf.astype(dtype if leaf.ndim > 1 else leaf.dtype), params
            )
            cast = cast._replace(ids=ids)
            return kinds.loss(cast, drafter, target, blocks, config.decay)

        (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        metrics["gradient_norm"] = optax.tree.norm(gradient)
        return state.apply_gradients(grads=gradient), metrics

    return lambda state, blocks: step(state, blocks, target)


def batches(
    shards: Sequence[Shard], config: DraftTrainConfig, first_step: int = 0
) -> Iterator[Blocks]:
    """Yields the blocks of steps `first_step`, `first_step + 1` and so on: each is a function of
    the seed and the step. Every answer comes once an epoch, with other anchors."""
    places = [(shard, row) for shard in shards for row in range(len(shard.ends))]
    size = config.batch_size
    per_epoch = len(places) // size
    require(per_epoch > 0, f"batch_size is {size}; allowed: up to {len(places)}, the answers")
    step = first_step
    while True:
        epoch, index = divmod(step, per_epoch)
        order = np.random.default_rng([config.seed, epoch]).permutation(len(places))
        chosen = [places[i] for i in order[index * size : (index + 1) * size]]
        rng = np.random.default_rng([config.seed, 1, step])
        anchors = np.full((size, config.anchors), -1, np.int32)
        for out, (shard, row) in zip(anchors, chosen, strict=True):
            # Positions i with tokens i and i + 1 in the answer.
            positions = np.arange(shard.starts[row], shard.ends[row] - 1)
            drawn = rng.permutation(positions)[: config.anchors]
            out[: len(drawn)] = np.sort(drawn)
        yield Blocks(
            np.stack([shard.tokens[row] for shard, row in chosen]),
            np.concatenate([padded_taps(shard, [row]) for shard, row in chosen]),
            np.array([shard.ends[row] for shard, row in chosen], np.int32),
            anchors,
        )
        step += 1


_drafts = jax.jit(kinds.drafts, static_argnums=1)


@partial(jax.jit, static_argnums=2)
def _copied(tokens: jax.Array, anchors: jax.Array, count: int) -> jax.Array:
    """Returns the drafts of look-up after each anchor."""
    texts = jnp.broadcast_to(tokens, (len(anchors), len(tokens)))
    return Lookup().draft((), DraftView(texts, anchors), count)


def score(
    params: Any,
    drafter: DraftConfig,
    target: ModelParams,
    shard: Shard,
    count: int | None = None,
) -> list[HeldOut]:
    """Returns the cycles of decoding of the first `count` answers (default: all)."""
    ids, dtype = params.ids, target.embedding.dtype
    cast = jax.tree.map(lambda leaf: leaf.astype(dtype), params._replace(ids=None))
    cast, most = cast._replace(ids=ids), int((shard.ends - shard.starts).max())
    answers = []
    for row in range(len(shard.ends))[:count]:
        start, end, tokens = shard.starts[row], shard.ends[row], shard.tokens[row]
        anchors = np.full((1, most), -1, np.int32)
        anchors[0, : end - start] = np.arange(start, end)
        blocks = Blocks(tokens[None], padded_taps(shard, [row]), np.array([end], np.int32), anchors)
        drafts = np.asarray(_drafts(cast, drafter, target, blocks))[0]
        answer = tokens[start:end]
        copied = _copied(tokens, np.maximum(anchors[0], 0), drafter.block_length - 1)
        both = np.where(copied[:, :1] >= 0, copied, drafts)
        kinds = (np.asarray(kind)[: len(answer)] for kind in (drafts, copied, both))
        cycles = (greedy_cycles(kind, answer) for kind in kinds)
        answers.append(HeldOut(shard.domains[row], answer, *cycles))
    return answers


def tokens_per_forward(answers: Sequence[HeldOut], kind: str = "both") -> float:
    """Returns the tokens after the first one of each answer, divided by forwards of the target."""
    forwards = sum(len(getattr(answer, kind)) for answer in answers)
    return sum(len(answer.answer) - 1 for answer in answers) / max(1, forwards)


def summary(answers: Sequence[HeldOut], k: int) -> dict[str, float]:
    """Returns tokens per forward, also of network and look-up alone, and the share of cycles whose
    first 1, 2, ... k drafts are accepted."""
    cycles = [accepted for answer in answers for accepted in answer.both]
    shares = {f"accepted_{i}": float(np.mean(np.array(cycles) >= i)) for i in range(1, k + 1)}
    alone = {f"{kind}_tpf": tokens_per_forward(answers, kind) for kind in ("network", "lookup")}
    return {"tpf": tokens_per_forward(answers), **alone, **shares}


def rows(
    scored: Mapping[str, Sequence[HeldOut]],
    drafter: DraftConfig,
    metrics: Sequence[Mapping[str, Any]],
) -> list[ResultRow]:
    """Returns the results: tokens per forward by held-out set and domain, acceptance by position,
    and the time per step."""
    results = []
    for split, answers in scored.items():
        by_domain = defaultdict(list)
        for answer in answers:
            by_domain[answer.domain].append(answer)
        for domain, part in {"all": answers, **dict(sorted(by_domain.items()))}.items():
            for kind in ("both", "network", "lookup"):
                tokens = [len(answer.answer) - 1 for answer in part]
                found = ratio(tokens, [len(getattr(answer, kind)) for answer in part])
                name, unit, interval = (
                    f"{split}/{domain}/{kind}",
                    "tokens per forward",
                    found.interval,
                )
                results.append(ResultRow(name, found.value, unit, n=found.n, interval=interval))
        n_cycles = sum(len(answer.both) for answer in answers)
        for name, share in summary(answers, drafter.block_length - 1).items():
            if name.startswith("accepted_"):
                results.append(ResultRow(f"{split}/{name}", share, "of cycles", n=n_cycles))
    seconds = [row["seconds_per_step"] for row in metrics]
    results.append(ResultRow("seconds_per_step", float(np.median(seconds)), "s", n=len(seconds)))
    return results


main = entry_point("train_draft", train_draft, RunConfig)
