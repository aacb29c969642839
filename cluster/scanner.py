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

from ..pipeline.errors import BroadsheetError
from ..pipeline.source.plan.scan import Scanner, threads_scanner
from .settings import NO_SCHEDULER, NO_WORKERS

_LEAST_WORKERS = 3
"""The GIL limits a process: 4 threads of a worker scan 0.7 GB/s of CSV, 16 threads of the client 2 GB/s."""

_MOST_THREADS = 64
"""Threads of workers that scan at once: results of more would wait for the client."""

_SEGMENT_BYTES = 32 << 20
"""Bytes of a segment, which is one task. Smaller ones make more tasks; of larger ones more is held out of order."""

_BEFORE_CHUNKS = 30
_SECONDS_BETWEEN_LOOKS = 0.5


@contextmanager
def workers_scanner(
    client: Client, least: int = _LEAST_WORKERS, segment: int = _SEGMENT_BYTES
) -> Iterator[Scanner | None]:
    """A scanner on the threads of the cluster's workers, which must see the files. segment: in bytes.

    None where there are fewer workers than `least`, since threads of the client are then faster. The scanner raises
    BroadsheetError when the scheduler or all workers are lost.
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
    """An executor whose futures fail when the scheduler or all workers die; those of Dask's own would never end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._scheduler = client.scheduler.address
        self._ended = False

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Raises BroadsheetError, and so does the future, after a shutdown or where the cluster is lost."""
        self._check()
        task = self._client.submit(function, *arguments, pure=False, priority=_BEFORE_CHUNKS, **options)
        return asyncio.run_coroutine_threadsafe(self._fetch(task), self._client.loop.asyncio_loop)

    async def _fetch(self, task: Task) -> Any:
        """Wait for a task. One that is cancelled here is cancelled on the scheduler too: it has no other user."""
        result = asyncio.ensure_future(self._client.gather(task, asynchronous=True))
        try:
            while not (await asyncio.wait([result], timeout=_SECONDS_BETWEEN_LOOKS))[0]:
                self._check()  # where the connection breaks, Dask may never end a task
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
        """Cancel running tasks. After a complete plan there are none; after an interruption there is no wait."""
        self._ended = True
