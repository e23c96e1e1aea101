"""Tests a tokenizer's regular expressions in a child process with limits.

The tokenizers library matches by backtracking (Oniguruma), so a short pattern can take hours on a
short text: Oniguruma stops after 10 million steps at one position, but a text has many positions.
This file is also a program. It builds a tokenizer with the patterns and encodes texts of repeated
characters and words, the usual trigger of backtracking; the operating system kills it if that takes
too long. A pattern that is slow only on rarer texts is not detected.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

_CPU_SECONDS = 1.0  # usual patterns take a few hundredths of a second
_MEMORY_BYTES = 1 << 30
_LENGTH, _MAX_REPEATED = 2000, 64
_USUAL = "aA0 \n.é中"


def probe_patterns(sections: Mapping[str, Any], patterns: Sequence[str]) -> None:
    """Raises ValueError if a tokenizer with these sections cannot be built, or needs more than a
    second of CPU time or 1 GiB of memory for texts of repeated characters.

    Args:
      sections: Sections of a `tokenizer.json`, without its model.
      patterns: The regular expressions in the sections, whose characters are repeated.
    """
    all_patterns = " ".join(patterns)
    repeated = dict.fromkeys((*_USUAL, *re.findall(r"\w+", all_patterns), *all_patterns))
    repeated = list(repeated)[:_MAX_REPEATED]
    # All characters follow, because a pattern may need another one after the repetition.
    texts = [(part * _LENGTH)[:_LENGTH] + "".join(repeated) for part in repeated]
    # -P: keep this folder off the path, because some of its modules shadow the standard library.
    process = subprocess.run(
        [sys.executable, "-P", __file__],
        input=json.dumps([sections, texts]),
        capture_output=True,
        text=True,
    )
    if process.returncode or process.stdout:
        limits = f"no end within {_CPU_SECONDS:g} CPU-seconds and {_MEMORY_BYTES >> 20} MiB"
        raise ValueError(
            f"the tokenizer's patterns {list(patterns)!r:.400} failed on repeated characters: "
            f"{json.loads(process.stdout)[:200] if process.stdout else limits}"
        )


def _main() -> None:
    """Encodes the texts, in the child; prints the error if one is raised."""
    import resource

    sections, texts = json.load(sys.stdin)
    model = {"type": "WordLevel", "vocab": {"unknown": 0}, "unk_token": "unknown"}
    try:
        from tokenizers import Tokenizer

        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        with suppress(ValueError):  # macOS has no such limit
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard_limit))
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)  # the signal kills the process
        tokenizer = Tokenizer.from_str(json.dumps({**sections, "model": model}))
        for text in texts:
            tokenizer.encode(text, add_special_tokens=False)
            if tokenizer.decoder is not None:
                tokenizer.decoder.decode([text])
    except BaseException as error:  # a panic of Rust code is not an Exception
        print(json.dumps(str(error)))


if __name__ == "__main__":
    _main()
