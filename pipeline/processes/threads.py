"""The cores that this process may use, and thread pools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

WORKERS_PER_HOST = "broadsheet.workers-per-host"
"""Of Dask's configuration, in the workers of a cluster that is started here: how many share the cores. (Such a worker
has more threads than its share, so that it reads and writes beside.)
"""


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_of_cores(processes: int) -> int:
    """Cores for each of several equal processes on this host, of which this is one. Some may be pinned to a part of
    the cores already: then the process that started this one has them all.
    """
    cores = available_cores()
    every = cores
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):
            every = max(cores, len(os.sched_getaffinity(os.getppid())))
    return max(1, min(cores, every // processes))


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of `count` threads. Left by an error (or Ctrl-C), it does not wait for queued or running calls."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
