"""A target's own answers to many prompts, with its states: the training data of a drafter.

Prompts are templates with slots (`prompts.yaml`) and questions of the bundled tasks. The answers
are decoded in batches, in shards that are complete or absent, so an interrupted run continues. The
first shard has templates that training never sees, the second one domains that it never sees.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
from jaxtyping import Float, Int
from tqdm import tqdm

import llada_jax as lj
from llada_jax.config import require, require_counts, require_numbers
from llada_jax.config_files import read_yaml
from llada_jax.draft.network import tapped
from llada_jax.evaluation.stored import first_difference
from llada_jax.evaluation.tasks import load_task, task_names
from llada_jax.io import atomic
from llada_jax.sampler.config import SamplerConfig
from llada_jax.text import Tokenizer

SPLITS = ("templates", "domains")
"""The held-out shards: new templates of the training domains, and new domains."""
TASKS = "tasks"
_HELD_OUT = 6  # one of so many templates of a training domain
_PERIODS = range(1, 41)
_MIN_LOOP = 16
_TAP_BATCH = 16
_TAP_WIDTH = 64  # lengths are multiples of it, so few programs are compiled


@dataclass(frozen=True, kw_only=True)
class AnswersConfig:
    """Settings of the data. The same shards serve any larger number of them."""

    folder: str | None = None
    """Folder of the shards, which several runs may share; None for the run's own."""
    shards: int = 64
    """Training shards."""
    shard_size: int = 128
    """Prompts in a shard, and in each held-out set; they are decoded in one batch."""
    gen_length: int = 160
    max_prompt: int = 160
    """Tokens of the longest prompt; longer ones are left out."""
    temperature: float = 0.0

    def __post_init__(self) -> None:
        require_counts(self, "shards", "shard_size", "gen_length", "max_prompt")
        require_numbers(self, "temperature", least=0)

    @property
    def max_length(self) -> int:
        """Length of a padded sequence."""
        return self.max_prompt + self.gen_length


class Shard(NamedTuple):
    """Answered prompts."""

    tokens: Int[np.ndarray, "n L"]
    starts: Int[np.ndarray, " n"]  # of the answers
    ends: Int[np.ndarray, " n"]
    domains: list[str]
    rows: Int[np.ndarray, " n"]  # the first row of each sequence in `taps`
    taps: Float[np.ndarray, "rows n_taps D"]  # bfloat16, mapped from the file


def drawn_prompts(split: str, seed: int) -> Iterator[tuple[str, str]]:
    """Yields different prompts with their domains, without end: of "train" or one of `SPLITS`."""
    table, rng, seen = (
        read_yaml(Path(__file__).with_name("prompts.yaml")),
        Random(f"{seed} {split}"),
        set(),
    )
    slots = table["slots"]
    if split == "domains":
        templates = dict(table["new"])
    else:
        held_out = split == "templates"
        templates = {
            domain: [t for i, t in enumerate(every) if (i % _HELD_OUT == _HELD_OUT - 1) == held_out]
            for domain, every in table["domains"].items()
        }
        if split == "train":
            more = table["train_only"]
            slots, templates = _joined(slots, more["slots"]), _joined(templates, more["domains"])
        templates[TASKS] = list(task_names())
    while True:
        domain = rng.choice([*templates])
        prompt = rng.choice(templates[domain])
        if domain == TASKS:
            item_split = "train" if split == "train" else "test"
            prompt = load_task(prompt).item(seed, rng.randrange(1 << 20), item_split).question
        else:
            prompt = re.sub(r"\{(\w+)\}", lambda slot: rng.choice(slots[slot[1]]), prompt)
        if prompt not in seen:
            seen.add(prompt)
            yield domain, prompt


def _joined(lists: Mapping[str, list], more: Mapping[str, list]) -> dict[str, list]:
    return {name: [*values, *more.get(name, ())] for name, values in lists.items()}


def without_loop(answer: Sequence[int]) -> Sequence[int]:
    """Returns an answer cut after the second period of the loop that it ends in, if it does: small
    models often repeat themselves without end, which would count as easy tokens."""
    for period in _PERIODS:
        same = 0
        while same + period < len(answer) and answer[-1 - same] == answer[-1 - same - period]:
            same += 1
        if same >= max(2 * period, _MIN_LOOP):
            return answer[: len(answer) - same + period]
    return answer


def make_shards(
    model: lj.Model, config: AnswersConfig, folder: Path, seed: int, taps: tuple[int, ...]
) -> None:
    """Answers the prompts of all shards that the folder lacks. Raises ValueError if the folder has
    shards of another model or with other settings."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError("the model has no tokenizer; allowed: one that has")
    settings = {**asdict(config), "seed": seed, "taps": list(taps), "model": model.fingerprint}
    settings = {key: settings[key] for key in settings if key not in ("folder", "shards")}
    stored = folder / "settings.json"
    if stored.exists():
        difference = first_difference(json.loads(stored.read_text()), settings)
        require(difference is None, f"{folder} has other answers: {difference}; allowed: the same")
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_text(stored, json.dumps(settings, indent=2) + "\n")
    size = config.shard_size
    n_shards = len(SPLITS) + config.shards
    missing = [index for index in range(n_shards) if not _file(folder, index).exists()]
    if not missing:
        return
    chats = [
        *_chats("templates", size, config, seed, tokenizer),
        *_chats("domains", size, config, seed, tokenizer),
        *_chats("train", size * config.shards, config, seed, tokenizer),
    ]
    longest = max(len(ids) for _, ids in chats)
    read_taps = jax.jit(partial(tapped, model=model.config, taps=taps))
    sampler = SamplerConfig.preset(
        "autoregressive", gen_length=config.gen_length, temperature=config.temperature
    )
    for index in tqdm(missing, unit="shard"):
        part = chats[index * size : (index + 1) * size]
        prompts = [ids for _, ids in part]
        # A seed for each prompt, so that answers do not depend on the shards that are missing.
        numbers = (seed * 1_000_003 + index * size + np.arange(len(prompts))).astype(np.uint32)
        seeds = jax.vmap(jax.random.key)(numbers)
        result = lj.generate(model, prompts, sampler, seed=seeds, prompt_length=longest)
        tokens, ends = _sequences(part, result, config)
        states = _states(partial(read_taps, model.params), tokens, ends)
        with atomic.new_file(_file(folder, index, "taps.npy")) as path, path.open("wb") as file:
            np.save(file, np.concatenate(states).astype(ml_dtypes.bfloat16).view(np.uint16))
        starts = np.array([len(prompt) for _, prompt in part])
        domains = np.array([domain for domain, _ in part])
        with atomic.new_file(_file(folder, index)) as path, path.open("wb") as file:
            np.savez(file, tokens=tokens, starts=starts, ends=ends, domains=domains)


def _sequences(
    chats: Sequence[tuple[str, list[int]]], result: lj.Result, config: AnswersConfig
) -> tuple[Int[np.ndarray, "n L"], Int[np.ndarray, " n"]]:
    """Returns the prompts with their answers, padded, and their lengths."""
    tokens = np.zeros((len(chats), config.max_length), np.int32)
    ends = np.zeros(len(chats), np.int64)
    answers = zip(chats, result.answers, result.generated, strict=True)
    for row, ((_, prompt), ids, raw) in enumerate(answers):
        # Only an answer that ended in time is followed by the token that ended it.
        answer = without_loop([*ids.tolist(), *raw[len(ids) : len(ids) + 1].tolist()])
        ends[row] = len(prompt) + len(answer)
        tokens[row, : ends[row]] = [*prompt, *answer]
    return tokens, ends


def _states(
    read_taps: Callable[..., Float[jax.Array, "B L n D"]],
    tokens: Int[np.ndarray, "n L"],
    ends: Int[np.ndarray, " n"],
) -> list[Float[np.ndarray, "l n D"]]:
    """Returns the taps of each sequence. Sequences of about the same length run together, so that
    few rows are padding."""
    states = {}
    order = np.argsort(ends)
    for rows in np.split(order, range(_TAP_BATCH, len(order), _TAP_BATCH)):
        width = -(-ends[rows].max() // _TAP_WIDTH) * _TAP_WIDTH
        out = np.asarray(read_taps(tokens=tokens[rows, :width]))
        states |= {row: taps[: ends[row]] for row, taps in zip(rows.tolist(), out, strict=True)}
    return [states[row] for row in range(len(ends))]


def _chats(
    split: str, count: int, config: AnswersConfig, seed: int, tokenizer: Tokenizer
) -> list[tuple[str, list[int]]]:
    """Returns the first `count` prompts of a split that are short enough, with their domains."""
    encoded = (
        (domain, tokenizer.encode_chat([{"role": "user", "content": prompt}]))
        for domain, prompt in drawn_prompts(split, seed)
    )
    return list(islice((chat for chat in encoded if len(chat[1]) <= config.max_prompt), count))


def read_shards(folder: Path, indices: Sequence[int]) -> list[Shard]:
    """Returns shards by index; the held-out ones come first, in the order of `SPLITS`."""
    shards = []
    for index in indices:
        with np.load(_file(folder, index)) as stored:
            tokens, starts, ends, domains = (
                stored[name] for name in ("tokens", "starts", "ends", "domains")
            )
        taps = np.load(_file(folder, index, "taps.npy"), mmap_mode="r").view(ml_dtypes.bfloat16)
        rows = np.concatenate([[0], np.cumsum(ends)[:-1]])
        shards.append(Shard(tokens, starts, ends, domains.tolist(), rows, taps))
    return shards


def padded_taps(shard: Shard, rows: Sequence[int]) -> Float[np.ndarray, "B L n D"]:
    """Returns the taps of some sequences of a shard, with zeros after their ends."""
    taps = np.zeros((len(rows), shard.tokens.shape[1], *shard.taps.shape[1:]), shard.taps.dtype)
    for out, row in zip(taps, rows, strict=True):
        first, length = shard.rows[row], shard.ends[row]
        out[:length] = shard.taps[first : first + length]
    return taps


def _file(folder: Path, index: int, suffix: str = "npz") -> Path:
    return folder / f"{index:05}.{suffix}"
