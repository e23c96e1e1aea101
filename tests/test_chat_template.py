import asyncio
import gc
import os
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from threading import Thread

import pytest

from llada_jax import chat_template
from llada_jax.chat_template import BUNDLED_TEMPLATE, MAX_IDLE, render
from llada_jax.checkpoint import bundled_names, model_path
from llada_jax.text import Tokenizer

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
SLOW = "{% for i in range(n) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{{ a }}"
SOME_TIME = 50  # rounds of SLOW: half a second or so
LIMIT = 120
"""Seconds after which a chat counts as hung."""


@pytest.fixture(autouse=True)
def none_idle():
    chat_template._end_idle()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.2)


@pytest.mark.parametrize("template", [ENDLESS, "{{ 10 ** (10 ** 10) }}", "{{ lipsum(n=10 ** 7) }}"])
def test_a_template_without_end_is_ended_and_the_next_one_runs(quick, template):
    with pytest.raises(ValueError, match=r"failed with no end; allowed: 0\.2 seconds"):
        render(template, {})
    assert render("{{ a }}", {"a": "next"}) == "next"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ 'a' * 10 ** 10 }}", "MemoryError"),
        ("{{ 'a' | center(10 ** 10) }}", "MemoryError"),
        ("{{ '%10000000000d' | format(1) }}", "MemoryError"),
        ("{{ 'a' * 10 ** 7 }}", "more than 4,194,304 characters"),
        ("{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}", "more than 4,194,304 char"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{" + "(" * 9999, ""),
        ("{{ range(10 ** 9) }}", "OverflowError"),
    ],
)
def test_a_template_that_takes_too_much_is_refused(template, problem):
    with pytest.raises(ValueError, match=f"the chat template failed with .*{problem}"):
        render(template, {})


def echo(n):
    """A chat with a known text, in one of three templates."""
    text = render(f"{{{{ a }}}} in {n % 3}", {"a": str(n)})
    assert text == f"{n} in {n % 3}"
    return os.getpid()


@contextmanager
def on_alarm(seconds, handle):
    # JAX runs a Python function after each garbage collection. What a signal handler raises there
    # is lost, which a chat of many messages meets often.
    gc.disable()
    before = signal.signal(signal.SIGALRM, lambda *_: handle())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()


def interrupted_after(seconds, error):
    def interrupt():
        raise error

    return on_alarm(seconds, interrupt)


def in_fork(work):
    """The exit code of a forked process that works."""
    with warnings.catch_warnings(action="ignore"):  # JAX warns of forks
        pid = os.fork()
    if pid == 0:
        signal.alarm(LIMIT)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_threads_take_turns():
    texts = {}

    def fill(n):
        texts[n] = render("{{ n }}", {"n": n})

    threads = [Thread(target=fill, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {n: str(n) for n in range(8)}


def test_tasks_of_asyncio_get_their_own_texts():
    async def chats():
        await asyncio.gather(*(asyncio.to_thread(echo, n) for n in range(24)))

    asyncio.run(asyncio.wait_for(chats(), LIMIT))


@pytest.mark.filterwarnings("ignore:.*fork")
def test_workers_of_a_fork_pool_and_their_parent_get_their_own_texts():
    echo(0)
    with get_context("fork").Pool(2) as pool:
        workers = pool.map_async(echo, range(60), chunksize=3)
        own = {echo(n) for n in range(60)}
        assert len({*workers.get(LIMIT)} | own) > 1


def test_a_fork_leaves_the_child_of_its_parent_alone():
    echo(0)
    (before,) = chat_template._idle.values()

    def use_own():
        echo(0)
        (own,) = chat_template._idle.values()
        assert own.pid != before.pid
        chat_template._end_idle()

    assert in_fork(use_own) == 0
    echo(0)
    assert [*chat_template._idle.values()] == [before] and before.poll() is None


def test_a_fork_while_a_thread_renders_gets_its_own_text():
    thread = Thread(target=render, args=(SLOW, {"n": SOME_TIME, "a": 1}))
    thread.start()
    while chat_template._lock.acquire(blocking=False):  # not taken yet
        chat_template._lock.release()
        assert thread.is_alive()
    assert in_fork(partial(echo, 1)) == 0
    thread.join()


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_an_interrupted_chat_leaves_no_answer_for_the_next_one(error):
    with pytest.raises(error), interrupted_after(0.2, error):
        while True:
            render(SLOW, {"n": SOME_TIME, "a": "first"})
    assert render(SLOW, {"n": 1, "a": "second"}) == "second"


def test_an_interrupted_chat_of_a_bundled_model_raises_what_interrupted_it():
    many = [{"role": "user", "content": "a"}] * 10_000
    with pytest.raises(TimeoutError), interrupted_after(0.1, TimeoutError):
        while True:
            render(BUNDLED_TEMPLATE, {"messages": many})


def test_a_signal_handler_may_render_a_chat():
    texts = []

    def handle():
        texts.append(render(SLOW, {"n": 1, "a": "inner"}))

    with on_alarm(0.1, handle):
        while not texts:
            assert render(SLOW, {"n": SOME_TIME, "a": "outer"}) == "outer"
    assert texts == ["inner"] and len(chat_template._idle) <= MAX_IDLE


def test_an_answer_to_another_request_is_not_taken(monkeypatch):
    program = "input(); print('0123456789abcdef', '[\"another chat\", null]')"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    child = subprocess.Popen([sys.executable, "-c", program], **pipes)
    monkeypatch.setattr(chat_template, "_start", lambda: child)
    with pytest.raises(RuntimeError, match="answered b'0123456789abcdef', not b'"):
        render("{{ 1 }} of another", {})
    assert child.returncode is not None and child not in chat_template._idle.values()


def test_few_children_are_kept_and_the_others_are_reaped():
    children = []
    for n in range(2 * MAX_IDLE):
        assert render(f"{n}", {}) == f"{n}"
        children.append(chat_template._idle[f"{n}"])
    assert [*chat_template._idle.values()] == children[MAX_IDLE:]
    assert [child.returncode is None for child in children] == [False] * MAX_IDLE + [
        True
    ] * MAX_IDLE


def test_a_killed_child_is_replaced():
    echo(1)
    for child in chat_template._idle.values():
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    echo(1)


@pytest.mark.parametrize("name", bundled_names())
def test_chats_of_bundled_models_need_no_child(name, monkeypatch):
    monkeypatch.setattr(chat_template, "_start", None)
    tokenizer = Tokenizer.from_folder(model_path(name))
    assert tokenizer.chat_template == BUNDLED_TEMPLATE
    assert "user" in tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    with pytest.raises(ValueError, match=r"failed with UndefinedError: .*role"):
        render(BUNDLED_TEMPLATE, {"messages": [{}]})
    with pytest.raises(ValueError, match="10,000,000 characters; allowed with this tokenizer"):
        tokenizer.apply_chat_template([{"role": "user", "content": "a" * 10**7}])


def test_the_child_ends_with_its_parent():
    script = (
        "from llada_jax import chat_template as c; print(c.render('{{ 1 }}', {}));"
        "print(*(child.pid for child in c._idle.values()))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    text, pid = done.stdout.split()
    assert text == "1" and done.stderr == ""
    assert not subprocess.run(["ps", "-p", pid], capture_output=True).stdout.count(pid.encode())
