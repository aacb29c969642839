"""The progress of a job on the Dask dashboard, whose page "Broadsheet" shows what the client sends the scheduler."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client, Scheduler
from msgspec import UNSET

from ...cluster.heartbeat import PAGE, TOPIC
from ..errors import printable
from ..labelling.counts import THRESHOLDS, rows_above
from ..report.job import JobReport, Progress
from ..report.pace import Pace
from ..report.tally import Tally

_SECONDS_BETWEEN = 0.5
_MOST_LABELS = 20

_has_page: WeakKeyDictionary[Client, bool] = WeakKeyDictionary()
"""Whether a client's scheduler has the page: requested once."""


class DashboardProgress(Progress):
    """Passes everything on to another `Progress`, and sends it to the scheduler at most twice a second.

    It waits for the scheduler only with the last message, which says that the job is over.

    Parameters
    ----------
    other : Progress
        Shows the progress to the user.
    client : distributed.Client
        The client of the job.
    report : JobReport
        The report of the job, in which chunks of earlier runs are counted already.

    """

    def __init__(self, other: Progress, client: Client, report: JobReport) -> None:
        self._other = other
        self.patience = other.patience
        self._client = client
        self._report = report
        self._sent_at = 0.0
        self._pace = Pace(report.run.reach)
        self._turn = asyncio.Lock()

    def phase(self, what: str) -> None:
        self._other.phase(what)

    def start(self, rows: int, dashboard: str) -> None:
        self._tell()
        if self._client not in _has_page:
            _has_page[self._client] = self._client.run_on_scheduler(_knows_page)
        if _has_page[self._client]:
            dashboard = dashboard.removesuffix("/status") + PAGE
        self._other.start(rows, dashboard)

    def advance(self, report: JobReport) -> None:
        self._tell_again()
        self._other.advance(report)

    def wait(self, report: JobReport) -> None:
        self._tell_again()
        self._other.wait(report)

    def warn(self, message: str) -> None:
        self._other.warn(message)

    def stop(self) -> None:
        if self._client.status == "running":
            # Wait for it: the client may close next, and the page would show the job as running for ever.
            self._client.sync(self._send, self._snapshot(ended=True))
        self._other.stop()

    def _tell_again(self) -> None:
        if time.monotonic() - self._sent_at > _SECONDS_BETWEEN:
            self._tell()

    def _tell(self) -> None:
        self._sent_at = time.monotonic()
        self._client.loop.add_callback(self._send, self._snapshot())

    async def _send(self, snapshot: dict[str, Any]) -> None:
        async with self._turn:  # one message at a time, since the last one stays on the page
            if self._client.status == "running":
                with suppress(OSError):  # the scheduler has just gone; the job itself reports that
                    await self._client.set_metadata([TOPIC], snapshot)

    def _snapshot(self, ended: bool = False) -> dict[str, Any]:
        job, tally, run = self._report.job, self._report.tally, self._report.run
        reach = run.reach
        return {
            "model": printable(job.model),
            "backend": job.backend,
            "output": job.output and printable(job.output),  # not every path is UTF-8, and messages of Dask are
            "rows": reach.computed,
            "rows_known": reach.rows_known,
            "share": reach.share,
            "seconds_left": self._pace.seconds_left,
            "rows_quarantined": tally.rows_quarantined,
            "chunks": reach.chunks,
            "thresholds": THRESHOLDS,
            "kept": _kept(tally),
            "ended": ended,
            "updated": time.time(),
        }


def _kept(tally: Tally) -> list[tuple[str, int, list[int]]]:
    """Return the most frequent labels so far: name, number of rows, and how many of these reach each threshold."""
    scores = () if tally.scores is UNSET else tally.scores.items()
    labels = [(printable(label), sum(bins), rows_above(bins)) for label, bins in scores]
    return sorted(labels, key=lambda label: -label[1])[:_MOST_LABELS]


def _knows_page(dask_scheduler: Scheduler) -> bool:
    """Whether the scheduler has the page, or will have it once somebody opens the dashboard."""
    will_have = getattr(dask_scheduler.http_application, "when_opened", None) is not None
    return will_have or "broadsheet.cluster.dashboard" in sys.modules
