"""Regular expressions as automata over bytes, by outlines-core.

The automaton of a short expression may have more states than memory. So this file is also a
program, which reads an expression and has limits; the system ends it where it takes too long.
"""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

MOST_STATES = 1 << 14
SECONDS = 10
_MEMORY_BYTES = 2 << 30


def engine_version() -> str:
    """Returns the version of outlines-core. Raises ImportError without it."""
    try:
        return version("outlines-core")
    except PackageNotFoundError as error:
        raise ImportError(
            "a regex needs outlines-core; allowed: pip install 'llada_jax[constraint]'"
        ) from error


def of_regex(pattern: str) -> dict[str, Any]:
    """Returns the automaton of a regular expression, in Rust's syntax: the number of its `states`,
    the one at the `start`, those that `accepts`, and `edges`, triples of state, byte and state.

    Raises ImportError without outlines-core; ValueError for what is no such expression, has
    anchors, look-around or word boundaries, or more than `MOST_STATES` states.
    """
    engine_version()
    shown = pattern if len(pattern) <= 80 else f"{pattern[:77]}..."
    command = [sys.executable, "-P", __file__]
    run = subprocess.run(command, input=json.dumps(pattern), capture_output=True, text=True)
    found = json.loads(run.stdout or "{}")
    if "problem" in found:
        raise ValueError(
            f"regex {shown!r} has no automaton ({found['problem']}); allowed: Rust's syntax "
            r"without anchors, look-around and \b"
        )
    if not found or found["states"] > MOST_STATES:
        many = found.get("states", "more than can be counted")
        raise ValueError(
            f"regex {shown!r}: its automaton over bytes has {many} states; allowed: up to "
            f"{MOST_STATES}, within {SECONDS} seconds"
        )
    return found


def _serve() -> None:
    import resource

    for kind, most in ((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_CPU, SECONDS)):
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    print(json.dumps(found_for(json.loads(sys.stdin.read()))))


def found_for(pattern: str) -> dict[str, Any]:
    """Returns the fields of an automaton, or its number of states alone, or what went wrong.

    outlines-core leaves out steps from a state that may end a text to one that may not. So every
    text gets an end of its own, of a character that no text has, and a state accepts where that
    leads to the end.
    """
    from outlines_core import Index, Vocabulary  # pyright: ignore[reportMissingImports]

    no_byte, end = 256, "\U0010ffff"  # outlines-core wants an id that ends texts
    try:
        vocabulary = Vocabulary(no_byte, {bytes([byte]): [byte] for byte in range(256)})
        index = Index(f"(?:{pattern}){end}", vocabulary)
    except ValueError as error:
        return {"problem": str(error).partition("\n")[0]}
    rows = index.get_transitions()
    if len(rows) > MOST_STATES:
        return {"states": len(rows)}
    number = {name: i for i, name in enumerate(rows)}
    accepts = []
    for name in rows:
        after = name
        for byte in end.encode():
            after = rows.get(after, {}).get(byte)
        accepts += [number[name]] if after in index.get_final_states() else []
    edges = [
        (number[state], byte, number[after])
        for state, row in rows.items()
        for byte, after in row.items()
        if byte != no_byte and after in number
    ]
    start = number[index.get_initial_state()]
    return {"states": len(number), "start": start, "accepts": accepts, "edges": edges}


if __name__ == "__main__":
    _serve()
