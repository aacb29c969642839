"""The figures that a worker's heartbeats carry to the scheduler: classified rows, and seconds by activity.

Also hides the errors of the last heartbeats of a worker that closes.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from distributed import Worker, WorkerPlugin

from ..pipeline.telemetry.activity import ACTIVITY, COUNTS

METRIC = "broadsheet"
"""The key of a worker's figures in its Dask metrics."""

TOPIC = "broadsheet"
"""The key under which the scheduler keeps the figures of the last job, which the job's client sends."""

PAGE = "/broadsheet"
"""The page of the dashboard that shows the figures of workers and of the job."""

_DELAY_SECONDS = 0.5
"""The figures lag by this many seconds, because the activities of a GPU are known only when its batch is finished."""

_until = time.time() - _DELAY_SECONDS


async def worker_metrics(worker: Worker) -> dict[str, Any]:
    """Return the figures of a worker.

    `rows` is the number of rows classified so far. `seconds` are the seconds by activity between `since` and `until`,
    two times in seconds since the epoch. `counts` and `busy` are the counts, and the seconds by activity, since the
    process started.
    """
    global _until
    since, _until = _until, time.time() - _DELAY_SECONDS
    seconds = ACTIVITY.seconds(since, _until)
    COUNTS.spend(seconds)
    about = {"rows": ACTIVITY.rows, "since": since, "until": _until, "seconds": seconds}
    return {**about, "counts": COUNTS.counts, "busy": COUNTS.seconds}


class QuietEnd(WorkerPlugin):
    """Hides the traceback that Dask logs when it repeats a heartbeat after the worker has closed its connections."""

    name = "broadsheet-quiet-end"

    def setup(self, worker: Worker) -> None:
        logging.getLogger("tornado.application").addFilter(_is_not_of_closed_pool)  # a logger holds each filter once


def _is_not_of_closed_pool(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, RuntimeError) and str(error) == "ConnectionPool is closed")
