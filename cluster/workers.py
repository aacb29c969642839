"""Calls all workers of a cluster, any of which may be lost at any moment.

If a worker is lost during such a call, Dask raises the same kind of error, an OSError, as for a lost scheduler. These
functions tell the two apart, and continue without the worker.
"""

from __future__ import annotations

import time

from distributed import Client, Scheduler, WorkerPlugin

from ..pipeline.errors import BroadsheetError
from .settings import no_workers_seconds

_ANSWER_SECONDS = 10.0
"""A scheduler that does not answer within this time counts as lost."""

_PAUSE_SECONDS = 0.2


def scheduler_answers(client: Client) -> bool:
    """Return whether the scheduler of a client still answers. If it does, an OSError came from a worker."""
    if client.status != "running":
        return False
    try:
        client.run_on_scheduler(_answer, callback_timeout=_ANSWER_SECONDS)
    except (OSError, TimeoutError):
        return False
    return True


def _answer() -> None:
    """Do nothing. This runs on the scheduler."""


def register(client: Client, plugin: WorkerPlugin) -> None:
    """Register a plugin on all workers, also on those that join later.

    The scheduler notes the plugin for workers that join, and sends it to the present ones. If one of these is lost
    meanwhile, the plugin is sent again, since it is unknown whether the others received it.

    Raises
    ------
    OSError
        If the scheduler is lost.
    BroadsheetError
        If workers are lost each time, for `distributed.scheduler.no-workers-timeout`.

    """
    deadline = time.monotonic() + no_workers_seconds()
    while True:
        try:
            client.register_plugin(plugin)
            return
        except OSError as error:
            if not scheduler_answers(client):
                raise
            if time.monotonic() > deadline:
                raise BroadsheetError(
                    f"workers were lost again and again while the job was prepared ({error}): their logs say why"
                ) from error
        time.sleep(_PAUSE_SECONDS)


def memory_limits(dask_scheduler: Scheduler) -> list[int]:
    """Return the memory limit in bytes of each worker that has one. This runs on the scheduler."""
    return [worker.memory_limit for worker in dask_scheduler.workers.values() if worker.memory_limit]
