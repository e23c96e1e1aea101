"""Which batches a worker decodes, of those that fill one store together."""

from dataclasses import dataclass

from llada_jax.config import require, require_counts


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One of `count` processes, each of which takes every `count`-th batch from its `rank` on.

    Raises ValueError for a rank outside of the count.
    """

    rank: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        require_counts(self, "count")
        require(
            0 <= self.rank < self.count,
            f"worker.rank is {self.rank} of worker.count={self.count}; allowed: 0 to "
            f"{self.count - 1}",
        )

    @property
    def is_alone(self) -> bool:
        """Tells whether there are no others, so that it may judge what it decoded."""
        return self.count == 1

    def takes(self, batch: int) -> bool:
        """Tells whether a batch is its own, by its place."""
        return batch % self.count == self.rank

    def after(self, batches: int) -> "Worker":
        """Returns the worker as it takes the batches that follow on so many others, so that the
        first batch of each store is not always that of the first rank."""
        return Worker(rank=(self.rank - batches) % self.count, count=self.count)


ALONE = Worker()
