"""Chat templates, rendered by a process of their own that has limits: they are foreign code.

Jinja's sandbox keeps a template from the machine, but not from its time and memory: nested loops,
powers, fillers and padded formats all take as much as they like. So this file is also a program.
It reads one request a line and answers each; the system ends it where a request takes too long.
"""

import atexit
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial
from threading import Lock
from typing import Any

SECONDS = 5.0
MAX_CHARACTERS = 1 << 22
_MEMORY_BYTES = 1 << 30
_lock = Lock()
_renderers: list[subprocess.Popen[str]] = []


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Renders a Jinja template in its sandbox, with the helpers that Hugging Face gives it.

    Raises ValueError for a template that does not parse, raises, reaches for what the sandbox
    forbids or takes more than its time, memory or length, and for variables that JSON lacks.
    """
    try:
        request = json.dumps([template, variables, SECONDS], default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        allowed = "text, numbers, and lists and mappings of them"
        raise ValueError(f"messages hold what JSON lacks ({error}); allowed: {allowed}") from error
    with _lock:
        if not _renderers:
            _renderers.append(_started())
        answer = _answer(_renderers[0], request)
        if not answer:
            _stop()
    limits = f"{SECONDS:g} seconds of CPU, {_MEMORY_BYTES >> 20} MiB, {MAX_CHARACTERS:,} characters"
    text, problem = json.loads(answer or f'[null, "no end; allowed: {limits}"]')
    if problem:
        raise ValueError(f"the chat template failed with {problem}")
    return text


def _started() -> subprocess.Popen[str]:
    # -P: without this folder on the path, where modules have names of the standard library.
    command = [sys.executable, "-P", __file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _answer(renderer: subprocess.Popen[str], request: str) -> str:
    """Returns a whole line, or nothing where the renderer has ended."""
    assert renderer.stdin is not None and renderer.stdout is not None
    try:
        print(request, file=renderer.stdin, flush=True)
        return renderer.stdout.readline()
    except BrokenPipeError:
        return ""


@atexit.register
def _stop() -> None:
    while _renderers:
        with _renderers.pop() as renderer:
            renderer.kill()


def _serve() -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, most))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks decides when to stop
    for line in sys.stdin:
        template, variables, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # of CPU; not caught: it ends the process
        answer = _rendered(template, variables)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


def _rendered(template: str, variables: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Returns the text, or what went wrong."""
    pieces, characters = [], 0
    try:
        for piece in _compiled(template).generate(variables):
            pieces.append(piece)
            characters += len(piece)
            if characters > MAX_CHARACTERS:
                raise ValueError(f"more than {MAX_CHARACTERS:,} characters")
        return "".join(pieces), None
    except Exception as error:  # a template may raise anything
        return None, f"{type(error).__name__}: {error}"


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # slow to import, here alone needed

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
