"""How many cores there are to use, and threads on them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def thread_a_core(most: int | None = None) -> Iterator[ThreadPoolExecutor]:
    """A thread for each core, up to `most`. Left by an error (Ctrl-C is one), it does not wait for what is queued or
    under way.
    """
    pool = ThreadPoolExecutor(min(available_cores(), most or available_cores()))
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
