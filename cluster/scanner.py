"""The workers of a cluster as scanners of large files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from distributed import Client
from distributed import Future as Task
from distributed.scheduler import NoWorkerError

from pipeline.errors import BroadsheetError
from pipeline.graph import NO_SCHEDULER, NO_WORKERS
from pipeline.source.scan import Scanner, threads_scanner

_LEAST_WORKERS = 3
"""Python's lock bounds a process: 4 threads of a worker look through 0.7 GB of CSV a second, 16 here through 2."""

_MOST_THREADS = 64
"""Of workers, at once: what comes back from more would wait for the client."""

_SEGMENT_BYTES = 32 << 20
"""A task for each. The smaller, the more of them; the larger, the more is held that comes before its turn."""

_BEFORE_CHUNKS = 30


@contextmanager
def workers_scanner(client: Client) -> Iterator[Scanner | None]:
    """One on the threads of the cluster's workers, which must see the files; None where threads here are faster.

    What it cannot do raises BroadsheetError: the scheduler is lost, or all workers are.
    """
    threads = client.nthreads()
    if len(threads) < _LEAST_WORKERS:
        yield None
        return
    workers = _Workers(client)
    try:
        with threads_scanner() as here:
            yield Scanner(workers, min(sum(threads.values()), _MOST_THREADS), _SEGMENT_BYTES, here)
    finally:
        workers.shutdown()


class _Workers(Executor):
    """Dask's own executor leaves a future without an answer where the scheduler dies, or all workers do."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._scheduler = client.scheduler.address
        self._running: set[Task] = set()  # touched by the client's loop only
        self._ended = False

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Raises BroadsheetError once it is shut down, or the scheduler is lost."""
        self._check()
        task = self._client.submit(function, *arguments, pure=False, priority=_BEFORE_CHUNKS, **options)
        future: Future[Any] = Future()
        self._client.loop.add_callback(self._fetch, task, future)
        return future

    async def _fetch(self, task: Task, future: Future[Any]) -> None:
        self._running.add(task)
        try:
            self._check()
            future.set_result(await self._client.gather(task, asynchronous=True))
        except BaseException as error:  # whatever it is: without an answer the plan would wait for ever
            try:
                self._check()
            except BroadsheetError as ended:
                future.set_exception(ended)
            else:
                lost = isinstance(error, NoWorkerError)
                future.set_exception(BroadsheetError(NO_WORKERS) if lost else error)
        finally:
            self._running.discard(task)

    def _check(self) -> None:
        if self._ended:
            raise BroadsheetError("planning has been stopped")
        if self._client.status != "running":
            raise BroadsheetError(NO_SCHEDULER.format(self._scheduler))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What is under way is given up: after a plan nothing is, and whoever was interrupted does not wait."""
        self._ended = True
        self._client.loop.add_callback(self._cancel)

    async def _cancel(self) -> None:
        if self._running and self._client.status == "running":
            await self._client.cancel(list(self._running), asynchronous=True)
