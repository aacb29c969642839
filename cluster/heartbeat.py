"""The figures that a worker's heartbeats carry to the scheduler: rows classified, and seconds by activity; and the last
heartbeat, of a worker that closes.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from distributed import Worker, WorkerPlugin

from ..pipeline.telemetry.activity import ACTIVITY, COUNTS

METRIC = "broadsheet"
"""Under which the figures of a worker are found."""

TOPIC = "broadsheet"
"""Under which the scheduler keeps those of the last job, which its client sends."""

PAGE = "/broadsheet"
"""Of the dashboard, which shows both."""

_DELAY_SECONDS = 0.5
"""Seconds by which the figures lag: the activities of a GPU are known only once its batch is done."""

_until = time.time() - _DELAY_SECONDS


async def worker_metrics(worker: Worker) -> dict[str, Any]:
    """rows: classified so far. since, until: seconds since the epoch. seconds: by activity, between the two. counts,
    busy: what was done since the process started, and the seconds by activity.
    """
    global _until
    since, _until = _until, time.time() - _DELAY_SECONDS
    seconds = ACTIVITY.seconds(since, _until)
    COUNTS.spend(seconds)
    about = {"rows": ACTIVITY.rows, "since": since, "until": _until, "seconds": seconds}
    return {**about, "counts": COUNTS.counts, "busy": COUNTS.seconds}


class QuietEnd(WorkerPlugin):
    """A heartbeat without an answer is repeated, perhaps once its worker has closed: Dask would log, with a traceback,
    that there is no connection left to send it by.
    """

    name = "broadsheet-quiet-end"

    def setup(self, worker: Worker) -> None:
        logging.getLogger("tornado.application").addFilter(_is_no_last_one)  # once, however often it is called


def _is_no_last_one(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, RuntimeError) and str(error) == "ConnectionPool is closed")
