"""Makes the dashboard of a scheduler in this process when it is first opened.

Bokeh takes a third of a second to import, and the dashboards of most jobs are never opened.

Dask documents no interface for this, so all code that depends on it is in this file and in `cluster/guard.py`.
"""

from __future__ import annotations

from functools import partial

from distributed import Scheduler

from .private import HAS_BOKEH

WITHOUT_DASHBOARD = {"dashboard": False}
"""The option with which such a scheduler starts. Its HTTP server, and so its link, still exist."""


def add_when_opened(scheduler: Scheduler) -> None:
    """Add Dask's dashboard, with our page, before the first admitted request is answered, if Bokeh is installed."""
    if HAS_BOKEH:
        scheduler.http_application.when_opened = partial(_add, scheduler)


def _add(scheduler: Scheduler) -> None:
    from distributed.dashboard.scheduler import connect

    from . import dashboard  # noqa: F401  # the import adds our page

    connect(scheduler.http_application, scheduler.http_server, scheduler)
