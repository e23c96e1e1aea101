"""Loaders with known defects, for testing the fuzzer: prints its finding in each, then runs the
fuzzer with the given arguments."""

import ctypes
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from tests.fuzz import __main__ as fuzzer
from tests.fuzz import judge
from tests.fuzz.damage import Damage, damage_bytes


class Planted:
    """Text in a file, with a defective reader."""

    def __init__(self, read: Callable[[Path], Any], **states: bool) -> None:
        self._read, self._states = read, states

    def build(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "text").write_text("valid")

    def damage(self, rng: Random, folder: Path) -> Damage:
        label = damage_bytes(rng, folder / "text")
        if (folder / "text").read_bytes() == b"valid":  # a byte was replaced with the same byte
            (folder / "text").write_bytes(b"other")
        return Damage(label, **self._states)

    def load(self, folder: Path) -> Any:
        text = (folder / "text").read_bytes()
        return text if text == b"valid" else self._read(folder)


def _sleep(folder: Path) -> None:
    while True:
        pass


def _refuse(folder: Path) -> None:
    raise ValueError("the text is another one")


KINDS = {
    "clear error": Planted(_refuse),
    "equal result": Planted(lambda folder: b"valid"),
    "other result": Planted(lambda folder: b"other"),
    "as stated": Planted(lambda folder: b"other", states_other=True),
    "flipped weights": Planted(lambda folder: b"other", raw_weights=True),
    "unclear error": Planted(lambda folder: {}["missing"]),
    "crash": Planted(lambda folder: ctypes.string_at(0)),
    "hang": Planted(_sleep),
    "outside touched": Planted(lambda folder: (folder / "../../outside/x").write_text("x")),
    "code run": Planted(lambda folder: pickle.loads(b"cos\ngetcwd\n(tR.")),
}
"""Defects by the outcome that the fuzzer must report."""


def found() -> list[fuzzer.Case]:
    """Runs two cases of each defect."""
    shares = {name: (kind, 2) for name, kind in KINDS.items()}
    with mock.patch.dict(fuzzer.KINDS, shares), mock.patch.object(judge, "CPU_SECONDS", 0.2):
        return fuzzer.fuzz(200, 0, KINDS)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for case in found():
        print(case.kind, "->", case.outcome, flush=True)
    fuzzer.main()
