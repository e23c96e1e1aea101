"""Renders chat templates in a child process with limits, because a template is untrusted code.

Jinja's sandbox blocks files and the network, but does not limit time and memory: nested loops,
powers and padded formats can use any amount. So this file is also a program, which reads one
request per line and writes one answer per line, and which the operating system kills if a request
takes too long. The template of the bundled models is known to be harmless and needs no child.

Threads, forks and signals must never give one chat the text of another:

- A child renders one template only. Every request has a random id, which the answer must repeat.
- A child is removed from `_idle` while it works, and put back after its answer was checked. Any
  exception in between, including KeyboardInterrupt, kills the child with its late answer.
- A forked process forgets the children of its parent and starts new ones. Forks wait until no
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
"""Maximum number of idle children; the one that was idle longest is killed first."""
BUNDLED_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
"""The template of all bundled models. Its time and memory are linear in the messages."""
_MEMORY_BYTES = 1 << 30
_READ_BYTES = 1 << 16
_lock = RLock()  # a signal handler may render a chat while its thread waits for an answer
_idle: OrderedDict[str, subprocess.Popen[bytes]] = OrderedDict()
"""Idle children by template, in the order in which they became idle."""


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Renders a Jinja template in a sandbox, with the helper functions of Hugging Face.

    Threads may call it concurrently; templates that need a child take turns.

    Raises ValueError if the template does not parse, raises an error, does something that the
    sandbox forbids or exceeds the limits of time, memory or length, and if the variables cannot be
    written as JSON.
    """
    try:
        request = json.dumps([template, variables, SECONDS], default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        allowed = "text, numbers, and lists and mappings of them"
        raise ValueError(f"messages hold what JSON lacks ({error}); allowed: {allowed}") from error
    if template == BUNDLED_TEMPLATE:
        text, problem = _rendered_here(request)
    else:
        answer = _answer_of_child(template, request.encode())
        limits = (
            f"{SECONDS:g} seconds of CPU, {_MEMORY_BYTES >> 20} MiB, {MAX_CHARACTERS:,} characters"
        )
        text, problem = json.loads(answer) if answer else (None, f"no end; allowed: {limits}")
    if text is None:
        raise ValueError(f"the chat template failed with {problem}")
    return text


def _rendered_here(request: str) -> tuple[str | None, str | None]:
    """Returns the text and None, or None and the error. Exceptions of signal handlers pass."""
    from jinja2 import TemplateError  # slow to import

    try:
        template, variables, _ = json.loads(request)  # as in a child
        return _text(template, variables), None
    except (TemplateError, TypeError, ValueError, RecursionError) as error:
        return None, f"{type(error).__name__}: {error}"


def _answer_of_child(template: str, request: bytes) -> bytes:
    """Returns the answer of the template's child, or nothing if the child ends without one."""
    with _lock, ExitStack() as unless_answered:
        child = _idle.pop(template, None)
        if child is not None and child.poll() is not None:  # something else has killed it
            _end(child)
            child = None
        child = child or _start()
        unless_answered.callback(_end, child)
        answer = _exchange(child, request)
        if answer:
            unless_answered.pop_all()
            # A signal handler may have added another child.
            if _idle.setdefault(template, child) is not child:
                _end(child)
            while len(_idle) > MAX_IDLE:
                _end(_idle.popitem(last=False)[1])
        return answer


def _exchange(child: subprocess.Popen[bytes], request: bytes) -> bytes:
    """Sends a request and returns its answer, or nothing if the child ends without one."""
    assert child.stdin is not None and child.stdout is not None
    request_id, answer = token_hex(8).encode(), bytearray()
    unsent = memoryview(b"%s %s\n" % (request_id, request))
    try:
        while unsent:
            unsent = unsent[child.stdin.write(unsent) :]
    except BrokenPipeError:
        return b""
    while not answer.endswith(b"\n"):
        piece = child.stdout.read(_READ_BYTES)
        if not piece:
            return b""
        answer += piece
    answer_id, _, text = bytes(answer).partition(b" ")
    if answer_id != request_id:
        raise RuntimeError(
            f"the chat template's process answered {answer_id!r}, not {request_id!r}"
        )
    return text


def _start() -> subprocess.Popen[bytes]:
    # -P: keep this folder off the path, because some of its modules shadow the standard library.
    command = [sys.executable, "-P", __file__]
    return subprocess.Popen(
        command,
        bufsize=0,  # no buffered bytes are left to write when an interrupted child is killed
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to the parent only
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    with child:  # closes its pipes and waits for it at the end
        child.kill()


@atexit.register
def _end_idle() -> None:
    while _idle:
        _end(_idle.popitem()[1])


def _forget_children() -> None:
    """Drops the parent's children, and the lock that the fork holds, in a forked process."""
    global _lock
    _lock = RLock()
    for child in _idle.values():
        assert child.stdin is not None and child.stdout is not None
        child.stdin.close()  # these are copies: the parent's pipes stay open
        child.stdout.close()
        child.returncode = 0  # so that Popen does not wait for it here
    _idle.clear()


os.register_at_fork(
    # Otherwise a fork could inherit the pipes of a child that is being started. They would stay
    # open, and the parent would not see that child end.
    before=lambda: _lock.acquire(),
    after_in_parent=lambda: _lock.release(),
    after_in_child=_forget_children,
)


def _serve() -> None:
    """Answers requests from standard input, in the child."""
    import resource

    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard_limit))
    for line in sys.stdin.buffer:
        request_id, _, request = line.partition(b" ")
        try:
            template, variables, seconds = json.loads(request)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # CPU time; the signal kills the process
            answer = _text(template, variables), None
        except Exception as error:  # a template may raise anything
            answer = None, f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(b"%s %s\n" % (request_id, json.dumps(answer).encode()))
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
    # Unlike Jinja's filter, this one does not escape `<`, `>`, `&` and non-ASCII letters.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda date_format: datetime.now().strftime(date_format)
    return environment.from_string(template)


def _raise_exception(message: str) -> None:
    raise ValueError(message)


if __name__ == "__main__":
    _serve()
