"""What a worker tells the scheduler with each heartbeat: the rows it has classified, and what it was at since."""

from __future__ import annotations

import time
from typing import Any

from distributed import Worker

from pipeline.telemetry.activity import activities, rows_classified

METRIC = "broadsheet"

_DELAY_SECONDS = 0.5
"""A GPU's batch tells what it did once it is done."""

_told = time.time() - _DELAY_SECONDS


async def worker_metrics(worker: Worker) -> dict[str, Any]:
    """rows: classified so far. since, until: seconds since the epoch. seconds: by activity, between the two."""
    global _told
    since, _told = _told, time.time() - _DELAY_SECONDS
    return {"rows": rows_classified(), "since": since, "until": _told, "seconds": activities(since, _told)}
