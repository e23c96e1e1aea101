"""Workers of a run: processes that fill one folder together, each under a rank of its own. They
send no messages: the folder, which all of them reach, is all that they share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from llada_jax.config import require
from llada_jax.evaluation.evaluate import Trial
from llada_jax.evaluation.generations import GenerationStore, Worker
from llada_jax.io.locked import locked

_FOLDERS = ("hydra.run.dir=", "hydra.sweep.dir=")


def filled(worker: Worker, stores: Sequence[tuple[Trial, GenerationStore]]) -> None:
    """Decodes a worker's batches of each store, and says how many items were left to it. Raises
    ValueError where another worker began a store with other settings."""
    shared = [(trial, store.shared(trial.batch_size)) for trial, store in stores]
    items = batches = 0
    for trial, store in shared:
        items += trial.fill(store, worker.after(batches))
        batches += -(-trial.items.count // trial.batch_size)
    print(told(worker, items, "items"))


def told(worker: Worker, count: int, what: str) -> str:
    """Returns what a worker says at its end."""
    return (
        f"worker {worker.rank} of {worker.count} decoded {count} {what}; the same command without "
        "worker.rank and worker.count judges what all of them decoded"
    )


@contextmanager
def writing(folder: Path, worker: Worker, overrides: Sequence[str]) -> Iterator[None]:
    """Holds the folder of a run: alone, or beside the workers of other ranks. Raises ValueError
    that names who holds the folder or the rank, and where Hydra's `overrides` name no folder for
    workers."""
    if worker.is_alone:
        with locked(folder):
            for left in folder.glob(".worker-*"):  # by workers that were killed
                left.unlink()
            yield
        return
    require(
        any(each.startswith(_FOLDERS) for each in overrides),
        f"worker.count is {worker.count} without a folder that its workers share; allowed: "
        "hydra.run.dir=<folder>, or hydra.sweep.dir=<folder> of a sweep",
    )
    with locked(folder, shared=True), locked(folder, folder / f".worker-{worker.rank}"):
        yield
