"""The workers of a cluster as scanners of large files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from distributed import Client
from distributed import Future as Task
from distributed.scheduler import NoValidWorkerError, NoWorkerError

from pipeline.errors import BroadsheetError
from pipeline.graph import NO_SCHEDULER, NO_WORKERS
from pipeline.source.scan import Scanner, threads_scanner

_LEAST_WORKERS = 3
"""The GIL bounds a process: 4 threads of a worker scan 0.7 GB of CSV a second, 16 here 2."""

_MOST_THREADS = 64
"""Of workers, at once: what comes back from more would wait for the client."""

_SEGMENT_BYTES = 32 << 20
"""A task for each. The smaller, the more of them; the larger, the more is held that comes before its turn."""

_BEFORE_CHUNKS = 30
_SECONDS_BETWEEN_LOOKS = 0.5


@contextmanager
def workers_scanner(
    client: Client, least: int = _LEAST_WORKERS, segment: int = _SEGMENT_BYTES
) -> Iterator[Scanner | None]:
    """One on the threads of the cluster's workers, which must see the files; None where they are fewer than `least`,
    for then threads here are faster. segment: in bytes.

    What it cannot do raises BroadsheetError: the scheduler is lost, or all workers are.
    """
    threads = client.nthreads()
    if len(threads) < least:
        yield None
        return
    workers = _Workers(client)
    try:
        with threads_scanner() as here:
            yield Scanner(workers, min(sum(threads.values()), _MOST_THREADS), segment, here)
    finally:
        workers.shutdown()


class _Workers(Executor):
    """Dask's own executor leaves a future without an answer where the scheduler dies, or all workers do."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._scheduler = client.scheduler.address
        self._ended = False

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Raises BroadsheetError, and so does the future, where this is shut down or the cluster lost."""
        self._check()
        task = self._client.submit(function, *arguments, pure=False, priority=_BEFORE_CHUNKS, **options)
        return asyncio.run_coroutine_threadsafe(self._fetch(task), self._client.loop.asyncio_loop)

    async def _fetch(self, task: Task) -> Any:
        """A task that is given up here is given up by the scheduler too, for nobody else knows it."""
        result = asyncio.ensure_future(self._client.gather(task, asynchronous=True))
        try:
            while not (await asyncio.wait([result], timeout=_SECONDS_BETWEEN_LOOKS))[0]:
                self._check()  # where the connection breaks, Dask may leave a task without an answer
            return result.result()
        except (NoWorkerError, NoValidWorkerError) as error:
            raise BroadsheetError(NO_WORKERS) from error
        except Exception:
            self._check()
            raise
        finally:
            result.cancel()

    def _check(self) -> None:
        if self._ended:
            raise BroadsheetError("planning has been stopped")
        if self._client.status != "running":
            raise BroadsheetError(NO_SCHEDULER.format(self._scheduler))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What is under way is given up: after a plan nothing is, and whoever was interrupted does not wait."""
        self._ended = True
