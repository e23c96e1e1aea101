"""Renders chat templates. A template is foreign code, so it runs in a child process with limits.

Jinja's sandbox keeps a template from files and the network, but not from time and memory: nested
loops, powers, fillers and padded formats take as much as they like. So this file is also a program,
which reads a request per line and writes an answer per line; the system ends it if a request takes
too long. The template of the bundled models is known to be harmless and needs no child.

No chat may get the text of another one, whatever threads, forks and signals do:

- A child renders one template. Every request carries a random id, which its answer must repeat.
- A child is taken out of `_idle` while it works, and put back once its answer was checked. Any
  exception in between, KeyboardInterrupt included, ends the child, and its late answer with it.
- A forked process forgets the children of its parent and starts its own. No fork happens while a
  child works.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import lru_cache, partial
from secrets import token_hex
from threading import RLock
from typing import Any

SECONDS = 5.0
MAX_CHARACTERS = 1 << 22
MAX_IDLE = 4
"""Most children that wait for a next chat; the one that has waited longest ends first."""
BUNDLED_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
"""The one of all bundled models. Its time and memory grow as the messages do."""
_MEMORY_BYTES = 1 << 30
_READ_BYTES = 1 << 16
_lock = RLock()  # a signal handler may render a chat while its thread waits for an answer
_idle: OrderedDict[str, subprocess.Popen[bytes]] = OrderedDict()
"""Children that wait, by template."""


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Renders a Jinja template in its sandbox, with the helpers that Hugging Face gives it.

    Threads may call it at once; foreign templates then take turns.

    Raises ValueError for a template that does not parse, raises, reaches for what the sandbox
    forbids or takes more than its time, memory or length, and for variables that JSON lacks.
    """
    try:
        request = json.dumps([template, variables, SECONDS], default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        allowed = "text, numbers, and lists and mappings of them"
        raise ValueError(f"messages hold what JSON lacks ({error}); allowed: {allowed}") from error
    if template == BUNDLED_TEMPLATE:
        text, problem = _rendered_here(request)
    else:
        text, problem = json.loads(_answer_of_child(template, request.encode()) or _no_answer())
    if text is None:
        raise ValueError(f"the chat template failed with {problem}")
    return text


def _rendered_here(request: str) -> tuple[str | None, str | None]:
    """Returns the text, or what went wrong. Other exceptions are those of signal handlers."""
    from jinja2 import TemplateError  # slow to import

    try:
        template, variables, _ = json.loads(request)  # as a child gets them
        return _text(template, variables), None
    except (TemplateError, TypeError, ValueError, RecursionError) as error:
        return None, f"{type(error).__name__}: {error}"


def _answer_of_child(template: str, request: bytes) -> bytes:
    """Returns the answer of the template's child, or nothing if the child ends before it."""
    with _lock, ExitStack() as unless_answered:
        child = _idle.pop(template, None)
        if child is not None and child.poll() is not None:  # somebody else has killed it
            _end(child)
            child = None
        child = child or _start()
        unless_answered.callback(_end, child)
        answer = _exchange(child, request)
        if answer:
            unless_answered.pop_all()
            if _idle.setdefault(template, child) is not child:  # a signal handler has left one
                _end(child)
            while len(_idle) > MAX_IDLE:
                _end(_idle.popitem(last=False)[1])
        return answer


def _exchange(child: subprocess.Popen[bytes], request: bytes) -> bytes:
    """Sends a request and returns the answer to it, or nothing if the child ends before it."""
    assert child.stdin is not None and child.stdout is not None
    number, answer = token_hex(8).encode(), bytearray()
    left = memoryview(b"%s %s\n" % (number, request))
    try:
        while left:
            left = left[child.stdin.write(left) :]
    except BrokenPipeError:
        return b""
    while not answer.endswith(b"\n"):
        piece = child.stdout.read(_READ_BYTES)
        if not piece:
            return b""
        answer += piece
    answered, _, text = bytes(answer).partition(b" ")
    if answered != number:
        raise RuntimeError(f"the chat template's process answered {answered!r}, not {number!r}")
    return text


def _no_answer() -> bytes:
    limits = f"{SECONDS:g} seconds of CPU, {_MEMORY_BYTES >> 20} MiB, {MAX_CHARACTERS:,} characters"
    return json.dumps([None, f"no end; allowed: {limits}"]).encode()


def _start() -> subprocess.Popen[bytes]:
    # -P: without this folder on the path, where modules have names of the standard library.
    command = [sys.executable, "-P", __file__]
    return subprocess.Popen(
        command,
        bufsize=0,  # nothing is left to write when a child that was interrupted is ended
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the parent
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    with child:  # waits for it and closes its pipes
        child.kill()


@atexit.register
def _end_idle() -> None:
    while _idle:
        _end(_idle.popitem()[1])


def _leave_to_parent() -> None:
    """Forgets, in a forked process, the children of its parent and the lock that is held there."""
    global _lock
    _lock = RLock()
    for child in _idle.values():
        assert child.stdin is not None and child.stdout is not None
        child.stdin.close()  # copies: the parent keeps its own
        child.stdout.close()
        child.returncode = 0  # so that nobody waits for it here
    _idle.clear()


os.register_at_fork(
    # Else a fork could keep the pipes of a child that is being started, whose end nobody would see.
    before=lambda: _lock.acquire(),
    after_in_parent=lambda: _lock.release(),
    after_in_child=_leave_to_parent,
)


def _serve() -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, most))
    for line in sys.stdin.buffer:
        number, _, request = line.partition(b" ")
        try:
            template, variables, seconds = json.loads(request)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # of CPU; not caught: it ends the process
            answer = _text(template, variables), None
        except Exception as error:  # a template may raise anything
            answer = None, f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(b"%s %s\n" % (number, json.dumps(answer).encode()))
        sys.stdout.buffer.flush()


def _text(template: str, variables: Mapping[str, Any]) -> str:
    pieces, characters = [], 0
    for piece in _compiled(template).generate(variables):
        pieces.append(piece)
        characters += len(piece)
        if characters > MAX_CHARACTERS:
            raise ValueError(f"more than {MAX_CHARACTERS:,} characters")
    return "".join(pieces)


@lru_cache(maxsize=1)
def _compiled(template: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    # Unlike Jinja's own, it leaves `<`, `>`, `&` and non-ASCII letters as they are.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda spelling: datetime.now().strftime(spelling)
    return environment.from_string(template)


def _raise_exception(message: str) -> None:
    raise ValueError(message)


if __name__ == "__main__":
    _serve()
