"""What Dask is configured with on every cluster of ours: on this machine, under nsys, in Slurm jobs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dask
from dask.utils import parse_timedelta

_ENVIRON = "distributed.nanny.pre-spawn-environ."
_NO_WORKERS_TIMEOUT = "distributed.scheduler.no-workers-timeout"

SETTINGS: Mapping[str, Any] = {
    "distributed.scheduler.work-stealing": False,  # a chunk stays where it was read
    "distributed.scheduler.worker-saturation": 1.1,
    # A worker that is lost without closing its connections holds its chunks for so long. Workers send heartbeats every
    # second or so, and neither a slow file system nor the GIL keeps one from it for two minutes (Dask's own: five).
    "distributed.scheduler.worker-ttl": "120s",
    _NO_WORKERS_TIMEOUT: "60s",  # then a job without workers ends with a message
    "distributed.worker.memory.target": False,  # chunks in flight are few and bounded: never spill one
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": 0.85,
    "distributed.worker.memory.terminate": 0.95,
    # glibc and mimalloc (Arrow's) keep a chunk's buffers for the next one, which would otherwise pay for new pages in
    # page faults; a single arena makes them those of the next thread too.
    f"{_ENVIRON}MALLOC_TRIM_THRESHOLD_": 1 << 30,
    f"{_ENVIRON}MALLOC_MMAP_THRESHOLD_": 32 << 20,  # the most that glibc takes
    f"{_ENVIRON}MALLOC_ARENA_MAX": 1,
    f"{_ENVIRON}MIMALLOC_PURGE_DELAY": 10_000,
    f"{_ENVIRON}UCX_WARN_UNUSED_ENV_VARS": "n",
    "distributed.admin.log-format": "%(asctime)s %(name)s: %(message)s",
    "distributed.dashboard.link": "http://127.0.0.1:{port}/status",  # where it listens, or a tunnel to it ends
}
"""Ours, by the names of Dask's configuration; `pre-spawn-environ` holds a worker's environment variables."""

DASHBOARD_ADDRESS = "127.0.0.1:0"
"""A dashboard has no login, so it listens on loopback only."""

THREADS_PER_WORKER = 4
"""Reading, writing and their waits; computing has an executor of its own."""

NO_DASHBOARD = ("--no-dashboard", "--dashboard-address", DASHBOARD_ADDRESS)  # workers serve /health even so
WORKER_OPTIONS = ("--nthreads", str(THREADS_PER_WORKER), "--death-timeout", "120", *NO_DASHBOARD)
"""Of the commands `dask worker` and `dask cuda worker`. They wait two minutes for a scheduler that starts with them."""


def settings() -> dict[str, Any]:
    """`SETTINGS`, but for what the user has set: by `dask.config.set`, in a `DASK_` variable or a file of Dask's."""
    defaults, theirs = dask.config.merge(*dask.config.defaults), dask.config.collect()
    found = {}
    for key, ours in SETTINGS.items():
        now = dask.config.get(key, None)
        changed = now != dask.config.get(key, None, config=defaults)
        found[key] = now if changed else dask.config.get(key, ours, config=theirs)
    return found


def environment(more: Mapping[str, Any] | None = None) -> dict[str, str]:
    """`settings()`, and `more` of the kind, as environment variables: for processes that do not get them from Dask.

    A variable of `pre-spawn-environ` that this process has already stays as it is, as with Dask's nannies.
    """
    found = {}
    for key, value in {**settings(), **(more or {})}.items():
        name = key.removeprefix(_ENVIRON)
        if name != key:
            found[name] = os.environ.get(name, str(value))
        else:
            found["DASK_" + key.replace(".", "__").replace("-", "_").upper()] = str(value)
    return found


def exports(more: Mapping[str, Any] | None = None) -> list[str]:
    """`environment(more)` as lines of shell."""
    return [f"export {name}={shlex.quote(value)}" for name, value in environment(more).items()]


@contextmanager
def configured() -> Iterator[None]:
    """Our settings and our page of the dashboard, for a scheduler that starts in this process."""
    import cluster.dashboard  # noqa: F401  # its page must be known before the scheduler starts

    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")  # before UCX is loaded here
    with dask.config.set(settings()):
        yield


def no_workers_seconds() -> float:
    """How long a job may be without a worker before it ends; ours where the user's setting is "never" (null)."""
    return float(parse_timedelta(settings()[_NO_WORKERS_TIMEOUT] or SETTINGS[_NO_WORKERS_TIMEOUT]))
