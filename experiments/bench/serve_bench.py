"""The suite `serve`: `llada serve` under load, against `lj.generate_stream`.

Concurrent clients ask chat questions of mixed lengths for some seconds. In turns with that, the
same model answers the questions as streams with the server's places, one for each answer length.
Speeds are answer tokens per second; the server's memory is the memory of its process.
"""

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

import llada_jax as lj
from experiments.harness.questions import prompts_of
from experiments.harness.results import ResultRow
from experiments.harness.timers import spread
from llada_jax.config import ascending_counts, require, require_counts
from llada_jax.evaluation.evaluate import PLACES
from llada_jax.evaluation.task import TaskItems
from llada_jax.evaluation.tasks import load_task

TASKS = ("word_problems", "yes_no", "long_addition")
QUESTIONS_PER_TASK = 40
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServeBenchConfig:
    """Settings of the verb; conf/bench.yaml explains each."""

    clients: int = 64
    seconds: int = 20
    rounds: int = 6
    max_tokens: tuple[int, ...] = (32, 64)
    places: int = PLACES
    sampler: str = "blockwise"

    def __post_init__(self) -> None:
        require_counts(self, "clients", "seconds", "places")
        require_counts(self, "rounds", least=2)
        ascending_counts("max_tokens", self.max_tokens)
        _ = [self.config(length) for length in self.max_tokens]

    def config(self, length: int) -> lj.SamplerConfig:
        """Returns the sampler of answers of this length."""
        return lj.SamplerConfig.preset(self.sampler, gen_length=length, steps=length)


class Question(NamedTuple):
    text: str
    max_tokens: int


class Load(NamedTuple):
    """What the clients got, in how many seconds, and the server's memory after it."""

    answers: list[tuple[Question, str]]
    errors: list[str]
    seconds: float
    memory: int


def time_serving(source: str, config: ServeBenchConfig) -> Iterator[ResultRow]:
    """Yields speed, correctness and memory of a server for the model `source`."""
    items = [TaskItems(task=load_task(name), count=QUESTIONS_PER_TASK) for name in TASKS]
    texts = [task.item(index).question for index in range(QUESTIONS_PER_TASK) for task in items]
    lengths = config.max_tokens
    questions = [Question(t, lengths[i % len(lengths)]) for i, t in enumerate(texts)]
    model, loads, seconds = lj.load(source), [], []
    with _server(source, config) as (address, pid):
        _ask_all(address, pid, questions, config, seconds=None)  # compiles
        expected, n_tokens, _ = _stream(model, questions, config)
        for _ in range(config.rounds):
            loads.append(_ask_all(address, pid, questions, config, config.seconds))
            seconds.append(_stream(model, questions, config)[2])
    answers = [answer for load in loads for answer in load.answers]
    same = sum(text == expected[question] for question, text in answers)
    yield ResultRow("serve/requests", len(answers), "requests")
    yield ResultRow("serve/errors", sum(len(load.errors) for load in loads), "requests")
    yield ResultRow("serve/same_answers", same / len(answers), "of requests", n=len(answers))
    served = [sum(n_tokens[q] for q, _ in load.answers) / load.seconds for load in loads]
    streamed = [sum(n_tokens.values()) / each for each in seconds]
    yield from spread("serve/speed", served, "tokens/s")
    yield from spread("stream/speed", streamed, "tokens/s")
    ratios = [one / other for one, other in zip(served, streamed, strict=True)]
    yield from spread("serve/against_stream", ratios, "x as fast")
    for number in (0, len(loads) // 2, len(loads) - 1):
        yield ResultRow(f"serve/memory/{number + 1}", loads[number].memory / _MIB, "MiB")


def _stream(
    model: lj.Model, questions: list[Question], config: ServeBenchConfig
) -> tuple[dict[Question, str], dict[Question, int], float]:
    """Returns the answers, their numbers of tokens, and the seconds."""
    answers, n_tokens, start = {}, {}, time.perf_counter()
    for length in config.max_tokens:
        part = [question for question in questions if question.max_tokens == length]
        prompts = prompts_of(model, [question.text for question in part])
        results = lj.generate_stream(model, prompts, config.config(length), places=config.places)
        for question, result in zip(part, results, strict=True):
            answers[question] = result.text[0]
            n_tokens[question] = len(result.generated[0])
    return answers, n_tokens, time.perf_counter() - start


def _ask_all(
    address: str,
    pid: int,
    questions: list[Question],
    config: ServeBenchConfig,
    seconds: int | None,
) -> Load:
    """Asks from all clients until the time is up, or each question once if `seconds` is None."""
    answers: list[tuple[Question, str]] = []
    errors: list[str] = []
    numbers, start = count(), time.perf_counter()
    progress = tqdm(desc="load", unit="request", total=None if seconds else len(questions))

    def client() -> None:
        while True:
            number = next(numbers)
            passed = time.perf_counter() - start
            if passed > seconds if seconds else number >= len(questions):
                return
            question = questions[number % len(questions)]
            try:
                text = _ask(address, question, config)
            except OSError as error:
                errors.append(str(error))
            else:
                answers.append((question, text))
                progress.update()

    clients = [threading.Thread(target=client) for _ in range(config.clients)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    passed = time.perf_counter() - start
    progress.close()
    require(bool(answers), f"no request was answered: {errors[:1]}")
    return Load(answers, errors, passed, _resident_bytes(pid))


def _ask(address: str, question: Question, config: ServeBenchConfig) -> str:
    body = {
        "messages": [{"role": "user", "content": question.text}],
        "max_tokens": question.max_tokens,
        "llada": {"preset": config.sampler},
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def _resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process. Linux only."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@contextmanager
def _server(source: str, config: ServeBenchConfig) -> Iterator[tuple[str, int]]:
    """Runs `llada serve` on a free port; yields its address and process id."""
    command = [sys.executable, "-m", "llada_jax.cli", "serve", source, "--port", "0"]
    command += ["--places", str(config.places), "--queue", str(2 * config.clients)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            found = re.search(r"http://\S+", line)
            require(found is not None, f"llada serve printed {line!r}; allowed: its address")
            assert found is not None
            yield found[0], process.pid
        finally:
            process.terminate()
