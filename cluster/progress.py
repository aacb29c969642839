"""A job's progress on the Dask dashboard: its client tells the scheduler, whose page "Broadsheet" shows it."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any

from distributed import Client, Scheduler

from pipeline.report.job import JobReport, Progress

PAGE = "/broadsheet"
TOPIC = "broadsheet"
_SECONDS_BETWEEN = 0.5


class DashboardProgress(Progress):
    """Passes everything on to another `Progress`, and tells the scheduler at most twice a second.

    chunks: of the whole job; 0: not known. report: the job's, with what was done before counted already.
    """

    def __init__(self, other: Progress, client: Client, report: JobReport, chunks: int) -> None:
        self._other = other
        self._client = client
        self._report = report
        self._chunks = chunks
        self._rows = 0
        self._told = 0.0

    def start(self, rows: int, dashboard: str) -> None:
        self._rows = rows
        if self._client.run_on_scheduler(_publish, self._snapshot()):
            dashboard = dashboard.removesuffix("/status") + PAGE
        self._other.start(rows, dashboard)

    def advance(self, report: JobReport) -> None:
        if time.monotonic() - self._told > _SECONDS_BETWEEN:
            self._tell()
        self._other.advance(report)

    def stop(self) -> None:
        self._tell(ended=True)
        self._other.stop()

    def _tell(self, ended: bool = False) -> None:
        self._told = time.monotonic()
        if self._client.status == "running":
            with suppress(OSError):  # the scheduler has just gone; the job itself says so
                self._client.set_metadata([TOPIC], self._snapshot(ended))

    def _snapshot(self, ended: bool = False) -> dict[str, Any]:
        report = self._report
        names = ("model", "backend", "output", "rows_this_run", "rows_quarantined", "chunks")
        return {name: getattr(report, name) for name in names} | {
            "rows": report.rows_read,
            "rows_known": self._rows,
            "chunks_known": self._chunks,
            "ended": ended,
            "updated": time.time(),
        }


def _publish(snapshot: dict[str, Any], dask_scheduler: Scheduler) -> bool:
    """Begin a job on the scheduler; return whether that has the page."""
    dask_scheduler.task_metadata[TOPIC] = snapshot
    return "cluster.dashboard" in sys.modules
