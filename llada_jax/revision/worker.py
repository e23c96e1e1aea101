"""A worker: one thread that does a job while the main thread runs a forward."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self


class Worker:
    """Runs one job at a time, in a thread of its own, which a context manager ends.

    `collect` waits for the job, so that what a run gives never depends on how long a job takes.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="revision")
        self._job: Future[Any] | None = None

    def submit(self, job: Callable[[], Any]) -> None:
        """Starts a job; the one before must have been collected."""
        assert self._job is None, "the last job was not collected"
        self._job = self._executor.submit(job)

    def collect(self) -> Any:
        """Returns what the job returned. Raises what it raised, with the worker's own traceback."""
        assert self._job is not None, "no job was submitted"
        job, self._job = self._job, None
        return job.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
