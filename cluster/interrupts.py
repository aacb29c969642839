"""Ctrl-C and SIGTERM, postponed where they would leave a cluster half started, which cannot be closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def postponed() -> Iterator[None]:
    """Postpone interrupts to the end of the block. A cluster that is started in it never sees Ctrl-C, which a terminal
    sends to all processes of a job: the one that the user sees ends the others.
    """
    here = threading.current_thread() is threading.main_thread()  # no other gets signals
    caught: list[int] = []
    resource_tracker.ensure_running()  # else it would be started later, in a thread in which it unblocks SIGINT
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # new threads and processes inherit it
    handler = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number)) if here else None
    try:
        yield
    finally:
        if here:
            signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if caught:
            signal.raise_signal(signal.SIGTERM)
