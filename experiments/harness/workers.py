"""Workers: processes that decode the batches of one run into one folder, each with its own rank.

They exchange no messages. Every worker must reach the folder; locks in it keep two processes from
using the same rank, and a single run from writing while workers do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from llada_jax.config import require
from llada_jax.evaluation.evaluate import Trial
from llada_jax.evaluation.generations import GenerationStore, Worker
from llada_jax.io.locked import locked

_FOLDERS = ("hydra.run.dir=", "hydra.sweep.dir=")


def fill_stores(worker: Worker, stores: Sequence[tuple[Trial, GenerationStore]]) -> None:
    """Decodes a worker's share of the batches of each store, and prints the number of items. Raises
    ValueError if another worker began a store with other settings."""
    shared = [(trial, store.shared(trial.batch_size)) for trial, store in stores]
    items = batches = 0
    for trial, store in shared:
        items += trial.fill(store, worker.after(batches))
        batches += -(-trial.items.count // trial.batch_size)
    print(worker_summary(worker, items, "items"))


def worker_summary(worker: Worker, count: int, what: str) -> str:
    """Returns the sentence that a worker prints when it has finished."""
    return (
        f"worker {worker.rank} of {worker.count} decoded {count} {what}; the same command without "
        "worker.rank and worker.count grades the answers of all workers"
    )


@contextmanager
def lock_run_folder(folder: Path, worker: Worker, overrides: Sequence[str]) -> Iterator[None]:
    """Locks the folder of a run, exclusively or together with workers of other ranks. Raises
    ValueError if another process holds the folder or the rank, and if workers were started without
    a common folder in Hydra's `overrides`."""
    if worker.is_alone:
        with locked(folder):
            for lock_file in folder.glob(".worker-*"):  # of workers that were killed
                lock_file.unlink()
            yield
        return
    require(
        any(override.startswith(_FOLDERS) for override in overrides),
        f"worker.count is {worker.count} without a folder that its workers share; allowed: "
        "hydra.run.dir=<folder>, or hydra.sweep.dir=<folder> of a sweep",
    )
    with locked(folder, shared=True), locked(folder, folder / f".worker-{worker.rank}"):
        yield
