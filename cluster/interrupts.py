"""Postpones Ctrl-C and SIGTERM while they would leave a cluster half started, which cannot be closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

from distributed.gc import disable_gc_diagnosis

from ..pipeline.processes.child import safe_path


@contextmanager
def postponed() -> Iterator[None]:
    """Postpone interrupts to the end of the block.

    A cluster that is started in the block never receives Ctrl-C, which a terminal sends to all processes of a job. This
    process ends the others.
    """
    here = threading.current_thread() is threading.main_thread()  # only the main thread receives signals
    caught: list[int] = []
    with safe_path():
        resource_tracker.ensure_running()  # otherwise it starts later, in a thread, and unblocks SIGINT there
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


def heard_in_collections() -> None:
    """Let Ctrl-C take effect while Python collects garbage, in a process that runs a scheduler or a worker.

    Python raises KeyboardInterrupt in the next function that runs. That may be a callback of the garbage collector,
    with which Dask logs how long a collection takes, and Python ignores the errors of such a callback.
    """
    disable_gc_diagnosis(force=True)
