"""Tries a tokenizer's regular expressions in a child process with limits.

The tokenizers library matches by backtracking (Oniguruma), so a short pattern can take hours on a
short text. Oniguruma gives up after 10 million steps at one place, but a text has many places. So
this file is also a program: it builds a tokenizer with the patterns, encodes texts of repeated
characters and words, on which patterns that backtrack do so, and is ended by the system if that
takes too long. Patterns that are slow on a rarer text pass.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

_CPU_SECONDS = 1.0  # usual patterns take a few hundredths of it
_MEMORY_BYTES = 1 << 30
_LENGTH, _MAX_REPEATED = 2000, 64
_USUAL = "aA0 \n.é中"


def probe_patterns(sections: Mapping[str, Any], patterns: Sequence[str]) -> None:
    """Raises ValueError if a tokenizer with these sections, which contain the patterns, cannot be
    built, or takes more than a second of CPU time or 1 GiB for texts of repeated characters."""
    spelled = " ".join(patterns)
    repeated = dict.fromkeys((*_USUAL, *re.findall(r"\w+", spelled), *spelled))
    repeated = list(repeated)[:_MAX_REPEATED]
    # All of them follow, so that what a pattern needs after the repeated one is there.
    texts = [(each * _LENGTH)[:_LENGTH] + "".join(repeated) for each in repeated]
    # -P: without this folder on the path, where modules have names of the standard library.
    done = subprocess.run(
        [sys.executable, "-P", __file__],
        input=json.dumps([sections, texts]),
        capture_output=True,
        text=True,
    )
    if done.returncode or done.stdout:
        limits = f"no end within {_CPU_SECONDS:g} CPU-seconds and {_MEMORY_BYTES >> 20} MiB"
        raise ValueError(
            f"the tokenizer's patterns {list(patterns)!r:.400} failed on repeated characters: "
            f"{json.loads(done.stdout)[:200] if done.stdout else limits}"
        )


def _main() -> None:
    import resource

    sections, texts = json.load(sys.stdin)
    model = {"type": "WordLevel", "vocab": {"unknown": 0}, "unk_token": "unknown"}
    try:
        from tokenizers import Tokenizer

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        with suppress(ValueError):  # macOS has no such limit
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, most))
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)  # not caught: it ends the process
        tokenizer = Tokenizer.from_str(json.dumps({**sections, "model": model}))
        for text in texts:
            tokenizer.encode(text, add_special_tokens=False)
            if tokenizer.decoder is not None:
                tokenizer.decoder.decode([text])
    except BaseException as error:  # a panic of Rust code is no Exception
        print(json.dumps(str(error)))


if __name__ == "__main__":
    _main()
