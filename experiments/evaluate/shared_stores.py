"""What a worker does of a run: it fills stores, which others fill as well."""

from collections.abc import Sequence

from experiments.harness.workers import told
from llada_jax.evaluation.generations import GenerationStore
from llada_jax.evaluation.harness import Trial
from llada_jax.evaluation.worker import Worker


def filled(worker: Worker, stores: Sequence[tuple[Trial, GenerationStore]]) -> None:
    """Decodes a worker's batches of each store, and says how many items were left to it.

    Raises ValueError where another worker began a store with other settings.
    """
    shared = [(trial, store.shared(trial.batch_size)) for trial, store in stores]
    items = batches = 0
    for trial, store in shared:
        items += trial.fill(store, worker.after(batches))
        batches += -(-trial.items.count // trial.batch_size)
    print(told(worker, items, "items"))
