"""Dask's settings, the same for every cluster that is started here: on this machine, under nsys, or in Slurm jobs."""

from __future__ import annotations

import logging
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Client
from distributed.utils import get_mp_context, silence_logging_cmgr

from ..pipeline.errors import BroadsheetError
from ..pipeline.processes.child import FORKS, OF_WORKERS, hidden
from .private import HAS_BOKEH, LINK, TOKEN, new_token

_ENVIRON = "distributed.nanny.pre-spawn-environ."
_NO_WORKERS_TIMEOUT = "distributed.scheduler.no-workers-timeout"

_METHOD = "distributed.worker.multiprocessing-method"

_STAYS = "What is committed stays"
_CONTINUE = f"{_STAYS}: start it again, then continue with --resume"
NO_SCHEDULER = f"the connection to the scheduler {{}} is lost. {_CONTINUE}"
LOST_WORKER = f"a worker was lost while the job waited for its answer ({{}}). {_STAYS}: continue with --resume"
NO_WORKERS = f"the cluster has lost all its workers and no other has joined. {_CONTINUE}"

_TOKEN = new_token()
"""The token of all schedulers of this process, whose clients make the link from the settings of the process."""

SETTINGS: Mapping[str, Any] = {
    "distributed.scheduler.work-stealing": False,  # a range stays with the worker to which the scheduler has given it
    "distributed.scheduler.worker-saturation": 1.1,
    # When a node loses power or its network, its ranges wait this long before other workers run them again. A healthy
    # worker sends a heartbeat every few seconds, and neither a slow file system nor the GIL delays one by two minutes.
    # (Dask's default is five.)
    "distributed.scheduler.worker-ttl": "120s",
    # A range that is lost with its worker comes back to the job, which submits it again. After a second loss, the range
    # runs alone.
    "distributed.scheduler.allowed-failures": 0,
    # A worker on this machine is replaced even if it is killed again and again, or starts slowly. (Dask gives it up if
    # it is not there 15 s after it was lost, even if it has been lost again since.)
    "distributed.deploy.lost-worker-timeout": "1 day",
    # A job that has no workers for this long ends with a message: at its start, while engines are loaded, and later.
    _NO_WORKERS_TIMEOUT: "60s",
    "distributed.worker.memory.target": False,  # chunks in flight are few and bounded, so do not spill them
    "distributed.worker.memory.spill": False,
    # The profiler would walk the stacks of all threads in the worker's event loop 100 times a second, and hold the GIL.
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.pause": 0.85,
    "distributed.worker.memory.terminate": 0.95,
    **{f"{_ENVIRON}{name}": value for name, value in OF_WORKERS.items()},
    "distributed.admin.log-format": "%(asctime)s %(name)s: %(message)s",
    "distributed.worker.http.routes": [],  # a worker's HTTP server has no login, and nobody uses it
}
"""Settings by their names in Dask's configuration; those in `pre-spawn-environ` are workers' variables."""

DASHBOARD_ADDRESS = "127.0.0.1:0"
"""The dashboard's address: loopback only, at any free port."""

_OUR_LINK = "http://127.0.0.1:{port}/status"  # the place where it listens, or where a tunnel to it ends

THREADS_PER_WORKER = 16
"""The number of tasks that a worker runs at a time: it reads this many ranges side by side. On a GPU's worker, a
process reads each range. Parsing, classifying and writing have threads of their own.
"""

WORKERS_ON_A_GPU = 2
"""The largest number of workers that share a GPU. Python runs one thread of a process at a time, so with a fast model
two workers label more than one. A third worker would find little left to do.
"""

NO_DASHBOARD = ("--no-dashboard", "--dashboard-address", DASHBOARD_ADDRESS)  # the HTTP server starts in any case
WORKER_OPTIONS = ("--nthreads", str(THREADS_PER_WORKER), "--death-timeout", "120", *NO_DASHBOARD)
"""The options of `dask worker` and `dask cuda worker`, which wait two minutes for a scheduler that starts with them."""


def settings() -> dict[str, Any]:
    """Return `SETTINGS` with the user's own values, from `dask.config.set`, a `DASK_` variable or a YAML file."""
    defaults, theirs = dask.config.merge(*dask.config.defaults), dask.config.collect()
    chosen = {}
    for key, ours in SETTINGS.items():
        now, default = dask.config.get(key, None), dask.config.get(key, None, config=defaults)
        chosen[key] = dask.config.get(key, ours, config=theirs) if now == default else now
    return chosen


def worker_preloads() -> list[str]:
    """Return the modules or files that Dask's workers run as they start. Dask also accepts a single name."""
    preloads = dask.config.get("distributed.worker.preload")
    return [preloads] if isinstance(preloads, str) else list(preloads)


def dashboard_settings(token: str) -> dict[str, str]:
    """Return the token and the link for a scheduler whose dashboard opens only by a link with this token."""
    link, default = dask.config.get(LINK), dask.config.get(LINK, config=dask.config.merge(*dask.config.defaults))
    page = _OUR_LINK if link == default else link
    if f"/{token}/" not in page:
        page = f"{page.removesuffix('/status')}/{token}/status"
    return {TOKEN: token, LINK: page if HAS_BOKEH else ""}


def environment(more: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return `settings()` and `more` settings as environment variables, for processes to which Dask does not pass them.

    As with Dask's nannies, this process's own variables take precedence over those in `pre-spawn-environ`.
    """
    result: dict[str, str] = {}
    for key, value in settings().items():
        variable = key.removeprefix(_ENVIRON)
        if variable == key:
            result |= variables({key: value})
        else:
            result[variable] = os.environ.get(variable, str(value))
    return result | variables(more or {})


def variables(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as the environment variables in which Dask finds them."""
    return {f"DASK_{key.replace('.', '__').replace('-', '_').upper()}": str(v) for key, v in settings.items()}


def export(more: Mapping[str, Any] | None = None) -> list[str]:
    """Return `environment(more)` as lines of shell."""
    return [f"export {name}={shlex.quote(value)}" for name, value in environment(more).items()]


class Shared:
    """Changes to this process that several jobs may need at once. The last job that needs them undoes them all.

    (`dask.config.set` restores the earlier values. If two jobs overlap, the one that began later would restore, and so
    leave behind, the values that the other has set.)
    """

    def __init__(self) -> None:
        self._lock, self._users, self._stack = threading.Lock(), 0, ExitStack()

    @contextmanager
    def during(self, *changes: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
        """Make changes while the block runs. Each change is a function that returns the context to enter."""
        with self._lock:
            self._users += 1
        try:
            with self._lock:
                for change in changes:
                    self._stack.enter_context(change())
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._stack.close()


_CONFIGURATION, _LOGS = Shared(), Shared()


def with_settings(changed: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Change Dask's settings in this process. See `Shared`."""
    return _CONFIGURATION.during(lambda: dask.config.set(changed))


def configured() -> AbstractContextManager[None]:
    """Apply the settings for a scheduler that starts in this process, with a dashboard that opens only by its link."""
    from . import guard  # noqa: F401  # it must be imported before the scheduler starts

    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")  # set it before UCX is loaded here
    return with_settings(settings() | dashboard_settings(_TOKEN))


@contextmanager
def forked() -> Iterator[None]:
    """In the block, let Dask's workers be forks of the process of `FORKS`.

    This applies if that process has the environment in which they are to start, and the user has not chosen a method.
    """
    wanted = {name: os.environ.get(name, str(value)) for name, value in dask.config.get(_ENVIRON[:-1]).items()}
    if wanted != FORKS.variables or dask.config.get(_METHOD) != "spawn":
        yield
        return
    with with_settings({_METHOD: "forkserver"}):
        # At its first call, this function imports every package that Dask can use. Workers need no pandas.
        with hidden("pandas"):
            get_mp_context()
        yield


def default_scheduler() -> AbstractContextManager[None]:
    """Let Dask compute on the cluster of a client that opens in this block. The last of several blocks resets this."""
    return with_settings({"scheduler": "dask.distributed"})


def silenced() -> AbstractContextManager[None]:
    """Silence Dask's log of a cluster in this process: the job reports what its user should know."""
    return _LOGS.during(*(partial(silence_logging_cmgr, logging.CRITICAL, name) for name in ("distributed", "bokeh")))


def await_workers(client: Client, count: int, otherwise: str) -> None:
    """Wait for a number of workers. Raises BroadsheetError with the message `otherwise` if they do not join in time."""
    try:
        client.wait_for_workers(count, timeout=no_workers_seconds())
    except TimeoutError as error:
        raise BroadsheetError(otherwise) from error


def no_workers_seconds() -> float:
    """Return the time after which a job without workers ends. If the user has set "never" (null), it is a minute."""
    return float(parse_timedelta(settings()[_NO_WORKERS_TIMEOUT] or SETTINGS[_NO_WORKERS_TIMEOUT]))
