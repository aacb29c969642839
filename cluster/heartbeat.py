"""The figures that a worker's heartbeats carry to the scheduler: rows classified, and seconds by activity."""

from __future__ import annotations

import time
from typing import Any

from distributed import Worker

from pipeline.telemetry.activity import ACTIVITY

METRIC = "broadsheet"

_DELAY_SECONDS = 0.5
"""Seconds by which the figures lag: the activities of a GPU are known only once its batch is done."""

_until = time.time() - _DELAY_SECONDS


async def worker_metrics(worker: Worker) -> dict[str, Any]:
    """rows: classified so far. since, until: seconds since the epoch. seconds: by activity, between the two."""
    global _until
    since, _until = _until, time.time() - _DELAY_SECONDS
    return {"rows": ACTIVITY.rows, "since": since, "until": _until, "seconds": ACTIVITY.seconds(since, _until)}
