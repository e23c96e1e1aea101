"""2,000 chats over threads, asyncio, pools and interrupts: each gets the same text as alone."""

import asyncio
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from random import Random

import pytest

from llada_jax.checkpoint import model_path
from llada_jax.text import Tokenizer

EACH, WORKERS = 400, 4
LIMIT = 600
"""Seconds after which a chat counts as hung."""
TINY = Tokenizer.from_folder(model_path("tiny"))
TEMPLATES = {
    TINY.chat_template: "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>",
    "[{{ messages[0].content }}]": "[{}]",
    "{% for message in messages %}<{{ message['content'] | upper }}>{% endfor %}": "<{}>",
}
"""The bundled template, and two that run in child processes and return the message in capitals."""
TOKENIZERS = [replace(TINY, chat_template=template) for template in TEMPLATES]


class Interrupt(BaseException):
    pass


def content_of(number: int) -> str:
    """Texts from a few letters to more than the buffer of a pipe."""
    return f"CHAT {number} " * (1 + number % 7 * 2_000)


def text_of(number: int) -> str:
    chat = [{"role": "user", "content": content_of(number)}]
    tokenizer = TOKENIZERS[number % len(TOKENIZERS)]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=False)


def outcome(number: int) -> str:
    content, alone = content_of(number), [*TEMPLATES.values()][number % len(TEMPLATES)]
    content = content.strip() if "eot" in alone else content
    return "right" if text_of(number) == alone.format(content) else "wrong"


def by_threads(numbers):
    with ThreadPoolExecutor(2 * WORKERS) as pool:
        return pool.map(outcome, numbers, timeout=LIMIT)


def by_asyncio(numbers):
    async def gather():
        return await asyncio.gather(*(asyncio.to_thread(outcome, number) for number in numbers))

    return asyncio.run(asyncio.wait_for(gather(), LIMIT))


def by_pool(method, numbers):
    """Chats of a pool's workers, and every fourth time also of their parent."""
    outcome(numbers[0])  # so that forks inherit a child of their parent
    with get_context(method).Pool(WORKERS) as pool:
        own, others = numbers[::4], [number for i, number in enumerate(numbers) if i % 4]
        found = pool.map_async(outcome, others, chunksize=5)
        beside = [outcome(number) for number in own]
        return [*beside, *found.get(LIMIT)]


def by_interrupts(numbers):
    """Chats that an exception may end anywhere, after 0.1 ms to 1 s, half of them within 10 ms: a
    chat that it ends is asked for again."""

    def interrupt(*_):
        raise rng.choice([Interrupt, KeyboardInterrupt, TimeoutError])

    rng, before = Random(0), signal.signal(signal.SIGALRM, interrupt)
    found, left = [], list(numbers)
    try:
        while left:
            try:
                signal.setitimer(signal.ITIMER_REAL, 10 ** rng.uniform(-4, 0))
                result = outcome(left[-1])
                signal.setitimer(signal.ITIMER_REAL, 0)
            except (Interrupt, KeyboardInterrupt, TimeoutError):
                continue
            found.append(result)
            left.pop()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return found


WAYS = {
    "threads": by_threads,
    "asyncio": by_asyncio,
    "fork": lambda numbers: by_pool("fork", numbers),
    "spawn": lambda numbers: by_pool("spawn", numbers),
    "interrupts": by_interrupts,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork", "ignore::ResourceWarning")
@pytest.mark.parametrize("way", WAYS)
def test_every_chat_has_the_text_that_it_has_alone(way):
    first = EACH * [*WAYS].index(way)
    assert Counter(WAYS[way](range(first, first + EACH))) == {"right": EACH}
