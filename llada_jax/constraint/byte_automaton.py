"""Builds automata of regular expressions over bytes, with outlines-core, in a subprocess.

The automaton of a short expression may have more states than fit into memory: `(a|b)*a(a|b){30}`
has 2^31. outlines-core has no limit of its own. Therefore this file is also a program that reads an
expression, and builds its automaton within limits of memory and time.
"""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

MAX_STATES = 1 << 14
SECONDS = 10
_MEMORY_BYTES = 2 << 30
_NO_BYTE = 256  # outlines-core requires an id that ends texts
_BEGIN, _END = ord("a"), "\U0010ffff"
# Two properties of outlines-core require a wrapped pattern. First, it drops the transitions from a
# state in which a text may end to one in which it may not. So every text gets the suffix `_END`,
# and a state accepts if the suffix leads from it to the end.
#
# Second, it builds an automaton that finds a match at any position, so a new match may begin at
# each byte: for `[^a]*a[^b]{30}`, or a JSON string of up to 30 characters, that has 2^30 states,
# although the anchored automaton has a few hundred. The empty last alternative prevents this: it
# matches before the first byte, and an earlier match is preferred to a later one. Then the
# transition by "a" leads to a state after a match, which outlines-core keeps only if a match may
# also end there. The alternative `a\z` makes that so.
_WRAPPED = rf"a(?:{{}}){_END}|a\z|"


def engine_version() -> str:
    """Returns the version of outlines-core. Raises ImportError if it is not installed."""
    try:
        return version("outlines-core")
    except PackageNotFoundError as error:
        raise ImportError(
            "a regex needs outlines-core; allowed: pip install 'llada_jax[constraint]'"
        ) from error


def regex_automaton(pattern: str) -> dict[str, Any]:
    """Returns the automaton of a regular expression in Rust's syntax: the number of `states`, the
    `start` state, the list of states that it `accepts`, and `edges` (state, byte, next state).

    Raises ImportError without outlines-core; ValueError for an invalid expression, for anchors,
    look-around or word boundaries, and for more than `MAX_STATES` states.
    """
    engine_version()
    shown = pattern if len(pattern) <= 80 else f"{pattern[:77]}..."
    command = [sys.executable, "-P", __file__]
    try:
        run = subprocess.run(
            command, input=json.dumps(pattern), capture_output=True, text=True, timeout=SECONDS
        )
        automaton = json.loads(run.stdout or "{}")
    except subprocess.TimeoutExpired:
        automaton = {}
    if "problem" in automaton:
        raise ValueError(
            f"regex {shown!r} has no automaton ({automaton['problem']}); allowed: Rust's syntax "
            r"without anchors, look-around and \b"
        )
    if "edges" not in automaton:
        states = automaton.get("states", "more than can be counted")
        raise ValueError(
            f"regex {shown!r}: its automaton over bytes has {states} states; allowed: up to "
            f"{MAX_STATES}, within {SECONDS} seconds"
        )
    return automaton


def _serve() -> None:
    import resource

    # The parent process enforces wall time; the CPU limit ends this one if its parent has died.
    for kind, limit in ((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_CPU, SECONDS)):
        resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    print(json.dumps(build(json.loads(sys.stdin.read()))))


def build(pattern: str) -> dict[str, Any]:
    """Returns the fields of an automaton, only the number of `states` if there are too many, or
    the `problem` of an invalid expression."""
    from outlines_core import Index, Vocabulary  # pyright: ignore[reportMissingImports]

    vocabulary = Vocabulary(_NO_BYTE, {bytes([byte]): [byte] for byte in range(256)})
    try:
        # The empty alternative matches first, so this only checks the pattern's syntax. Unlike in
        # `_WRAPPED`, `a)|(b` is an error here, and so is an anchor at the beginning.
        Index(f"|{pattern}", vocabulary)
    except ValueError as error:
        return {"problem": str(error).partition("\n")[0]}
    try:
        index = Index(_WRAPPED.format(pattern), vocabulary)
    except ValueError:
        return {"problem": "it has a comment, or a part that cannot match"}
    rows, final = index.get_transitions(), index.get_final_states()
    start = rows.pop(index.get_initial_state())[_BEGIN]
    if len(rows) > MAX_STATES:
        return {"states": len(rows)}
    number = {name: i for i, name in enumerate(rows)}
    accepts = []
    for name in rows:
        after = name
        for byte in _END.encode():
            after = rows.get(after, {}).get(byte)
        accepts += [number[name]] if after in final else []
    edges = [
        (number[state], byte, number[after])
        for state, row in rows.items()
        for byte, after in row.items()
        if byte != _NO_BYTE and after in number
    ]
    return {"states": len(number), "start": number[start], "accepts": accepts, "edges": edges}


if __name__ == "__main__":
    _serve()
