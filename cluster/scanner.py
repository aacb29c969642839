"""The workers of a cluster as scanners of large files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client

from pipeline.source.scan import Scanner

_LEAST_WORKERS = 3
"""Python's lock bounds a process: 4 threads of a worker look through 0.8 GB of CSV a second, 16 here through 2 GB."""

_SEGMENT_BYTES = 64 << 20
"""A task for each: with 16 MB four workers of four threads are a quarter slower, and 16 of them a third."""


@contextmanager
def workers_scanner(client: Client) -> Iterator[Scanner | None]:
    """One on all threads of the cluster's workers, which must see the files; None where threads here are faster."""
    threads = client.nthreads()
    if len(threads) < _LEAST_WORKERS:
        yield None
        return
    pool = client.get_executor(pure=False)
    try:
        yield Scanner(pool, sum(threads.values()), _SEGMENT_BYTES)
    finally:
        if client.status == "running":
            pool.shutdown(wait=False)
