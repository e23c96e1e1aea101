"""Weights are packed in the test's own process: starting another one takes two seconds each time.
`tests/backend/litert/test_first_opening.py` tests the separate process."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from llada_jax.backend.exported import opened
from llada_jax.backend.litert import first_opening


def pack_here(packed: Mapping[Path, Path]) -> None:
    for path, target in packed.items():
        first_opening._pack(path, target)


@pytest.fixture(scope="module", autouse=True)
def packing() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "pack_in_child", pack_here)
        yield
