"""A worker in this process that is kept from one job to the next, with the engine that the last job loaded."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from distributed import Client
from distributed.core import Status

from ..pipeline.errors import UsageError
from .local import worker_here
from .settings import configured


class Kept:
    """At most one cluster of one worker, for one job at a time.

    The cluster is closed after a job that ended with an error or Ctrl-C, because its chunks may still be computing.
    Between jobs, Dask's settings are those of the user, and the user's other Dask work does not run on the cluster.
    """

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._stays_open = True
        self._stack = ExitStack()
        self._client: Client | None = None
        self._used = self._forked = False

    @contextmanager
    def connect(self) -> Iterator[Client]:
        """Yield the client of the kept cluster, which is started if there is none.

        If the job of another thread has it, start a cluster for this job.
        Raises UsageError in a process that was forked after a first job.
        """
        # Refuse a forked process, and start another cluster if this one is in use.
        if self._forked:
            raise UsageError(
                "this process was forked from one that has run a job, whose threads Dask would wait for here: start "
                "processes by 'spawn' or 'forkserver' (multiprocessing.set_start_method), or use broadsheet.load()"
            )
        if not self._busy.acquire(blocking=False):
            with configured(), worker_here(set_as_default=False) as client:
                yield client
            return
        # Start the cluster if there is none that works, and close it after an error.
        try:
            self._stays_open = self._used = True
            if not self._works():
                self._end()
            with configured():
                if self._client is None:
                    self._client = self._stack.enter_context(worker_here(set_as_default=False))
                yield self._client
        except BaseException:
            self._stays_open = False
            raise
        finally:
            try:
                if not self._stays_open:
                    self._end()
            finally:
                self._busy.release()

    def close(self) -> None:
        """Close the cluster: at once, or at the end of the job that uses it."""
        self._stays_open = False
        if self._busy.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._busy.release()

    def _works(self) -> bool:
        """Return whether the cluster can take a job.

        After a pause of minutes, its scheduler may have given the worker up.
        """
        client = self._client
        return client is not None and client.status == "running" and len(client.cluster.scheduler.workers) == 1

    def _end(self) -> None:
        stack, self._stack = self._stack, ExitStack()
        self._client = None
        stack.close()

    def leave_to_parent(self) -> None:
        """Forget the cluster in a forked process, without closing it or waiting for its threads, which are gone."""
        self._forked = self._used
        if self._client is not None:
            _of_parents.append((self._stack, self._client))
            self._client.status = "closed"
            self._client.cluster.status = Status.closed
        self._busy, self._stack = threading.Lock(), ExitStack()
        self._client = None


KEPT = Kept()
"""The kept cluster of this process."""

_of_parents: list[object] = []
"""Holds references, so that the finalizers of the parent's objects do not run in this process."""


def _close_at_exit() -> None:
    with suppress(RuntimeError):  # Python 3.12.0 and 3.12.1 start no thread at exit, but asyncio needs one to end
        KEPT.close()


atexit.register(_close_at_exit)  # registered after Dask's functions, so it runs before them
os.register_at_fork(after_in_child=KEPT.leave_to_parent)
