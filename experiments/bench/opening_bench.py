"""What opening an exported folder takes: at first, when its files were touched, and again."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.harness.own_process import in_own_process
from experiments.harness.random_weights import RandomWeights
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_of
from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.opened import Exported
from llada_jax.backend.exported.writer import write_export
from llada_jax.config import ExportConfig, ModelConfig

_SETTINGS = ExportConfig(quant="int8", rows=(32,), caches=(256,))


def time_opening(shape: ModelConfig, scratch: Path, repeats: int) -> Iterator[ResultRow]:
    """Yields seconds of opening an int8 export with random weights, each time in a new process with
    an empty memory of hashes at first. The folder lies in `scratch`, and is removed."""
    scratch.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=scratch) as name:
        folder = Path(name) / "exported"
        weights = RandomWeights(shape, _SETTINGS.quant)
        written = write_export(folder, Export(shape, weights, _SETTINGS, "random", verify=False))
        gigabytes = sum(file.bytes for file in written.files) / 1e9
        yield ResultRow("start/opening/files", gigabytes, "GB")
        environment = {"XDG_CACHE_HOME": f"{name}/cache"}
        first = in_own_process(_seconds, folder, environment=environment)
        yield ResultRow("start/opening/first", first, "s, weights packed for this CPU")
        for file in folder.iterdir():
            file.touch()
        hashed, *again = (
            in_own_process(_seconds, folder, environment=environment) for _ in range(repeats + 1)
        )
    yield ResultRow("start/opening/hashed", hashed, "s")
    yield ResultRow("start/opening/again", min(again), "s", n=len(again))
    yield ResultRow("start/opening/again vs hashed", hashed / min(again), "x faster")


def _seconds(folder: Path) -> float:
    _, seconds = best_of(lambda: Exported(folder))
    return seconds
