"""Dask's settings, the same for every cluster that is started here: on this machine, under nsys, in Slurm jobs."""

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

GPU_EXECUTOR = "gpu"
"""The executor of a worker on which its engines compute."""

_STAYS = "What is committed stays"
_CONTINUE = f"{_STAYS}: start it again, then continue with --resume"
NO_SCHEDULER = f"the connection to the scheduler {{}} is lost. {_CONTINUE}"
LOST_WORKER = f"a worker was lost while the job waited for its answer ({{}}). {_STAYS}: continue with --resume"
NO_WORKERS = f"the cluster has lost all its workers and no other has joined. {_CONTINUE}"

_TOKEN = new_token()
"""The same token for all schedulers of this process: their clients make the link from the settings of the process."""

SETTINGS: Mapping[str, Any] = {
    "distributed.scheduler.work-stealing": False,  # a chunk stays on the worker that read it
    "distributed.scheduler.worker-saturation": 1.1,
    # When a node loses power or its network, its chunks wait this long before other workers redo them. A healthy worker
    # sends a heartbeat every few seconds, and neither a slow file system nor the GIL delays one by two minutes. (Dask's
    # default is five.)
    "distributed.scheduler.worker-ttl": "120s",
    # A chunk lost with its worker comes back to the job, which tries it again, and alone if that loses a worker too.
    "distributed.scheduler.allowed-failures": 0,
    # A worker on this machine that is killed again and again, or starts slowly, is still replaced. (Dask gives it up if
    # it is not there 15 s after it was lost, even where it has been lost again since.)
    "distributed.deploy.lost-worker-timeout": "1 day",
    _NO_WORKERS_TIMEOUT: "60s",  # after that, a job without workers ends with a message
    "distributed.worker.memory.target": False,  # chunks in flight are few and bounded: never spill one
    "distributed.worker.memory.spill": False,
    # A hundred times a second it would walk the stacks of all threads in the worker's event loop, holding the GIL.
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.pause": 0.85,
    "distributed.worker.memory.terminate": 0.95,
    **{f"{_ENVIRON}{name}": value for name, value in OF_WORKERS.items()},
    "distributed.admin.log-format": "%(asctime)s %(name)s: %(message)s",
    "distributed.worker.http.routes": [],  # a worker's HTTP server has no login, and nobody reads it
}
"""Settings by their names in Dask's configuration; those in `pre-spawn-environ` are workers' variables."""

DASHBOARD_ADDRESS = "127.0.0.1:0"
"""The dashboard's address: loopback only, at any free port."""

_OUR_LINK = "http://127.0.0.1:{port}/status"  # where it listens, or where a tunnel to it ends

THREADS_PER_WORKER = 16
"""Tasks of a worker at a time: so many groups of files are read side by side, on a GPU's worker each by a process of
its own. Parsing, classifying and writing have threads of their own.
"""

WORKERS_ON_A_GPU = 2
"""Workers that share a GPU at most. Python runs one thread of a process at a time, so two label more than one where the
model is fast; a third one would find little left to do.
"""

NO_DASHBOARD = ("--no-dashboard", "--dashboard-address", DASHBOARD_ADDRESS)  # their HTTP server starts even so
WORKER_OPTIONS = ("--nthreads", str(THREADS_PER_WORKER), "--death-timeout", "120", *NO_DASHBOARD)
"""Options of `dask worker` and `dask cuda worker`, which wait two minutes for a scheduler that starts with them."""


def settings() -> dict[str, Any]:
    """`SETTINGS`, except where the user has set a value: by `dask.config.set`, a `DASK_` variable or a YAML file."""
    defaults, theirs = dask.config.merge(*dask.config.defaults), dask.config.collect()
    chosen = {}
    for key, ours in SETTINGS.items():
        now, default = dask.config.get(key, None), dask.config.get(key, None, config=defaults)
        chosen[key] = dask.config.get(key, ours, config=theirs) if now == default else now
    return chosen


def worker_preloads() -> list[str]:
    """The modules or files that Dask's workers are set to run as they start. Dask also takes one name by itself."""
    preloads = dask.config.get("distributed.worker.preload")
    return [preloads] if isinstance(preloads, str) else list(preloads)


def dashboard_settings(token: str) -> dict[str, str]:
    """The settings of a scheduler whose dashboard opens only by a link with this token: the token, and the link."""
    link, default = dask.config.get(LINK), dask.config.get(LINK, config=dask.config.merge(*dask.config.defaults))
    page = _OUR_LINK if link == default else link
    if f"/{token}/" not in page:
        page = f"{page.removesuffix('/status')}/{token}/status"
    return {TOKEN: token, LINK: page if HAS_BOKEH else ""}


def environment(more: Mapping[str, Any] | None = None) -> dict[str, str]:
    """`settings()`, and `more` settings, as environment variables, for processes that Dask does not pass them to.

    As with Dask's nannies, this process's own variables win over those in `pre-spawn-environ`.
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
    """Settings as the environment variables in which Dask finds them."""
    return {f"DASK_{key.replace('.', '__').replace('-', '_').upper()}": str(v) for key, v in settings.items()}


def export(more: Mapping[str, Any] | None = None) -> list[str]:
    """`environment(more)` as lines of shell."""
    return [f"export {name}={shlex.quote(value)}" for name, value in environment(more).items()]


class Shared:
    """Changes to this process that several jobs may need at once: the last to need them undoes them all.

    (`dask.config.set` restores the values from before it. Of two jobs that overlap, the one that began later would
    restore, and so leave behind, what the other has set.)
    """

    def __init__(self) -> None:
        self._lock, self._users, self._stack = threading.Lock(), 0, ExitStack()

    @contextmanager
    def during(self, *changes: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
        """Make changes, each a function that returns the context to enter, while the block runs."""
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
    """Change Dask's settings in this process; see Shared."""
    return _CONFIGURATION.during(lambda: dask.config.set(changed))


def configured() -> AbstractContextManager[None]:
    """Apply the settings for a scheduler that starts in this process, with a dashboard that only its link opens."""
    from . import guard  # noqa: F401  # which must be done before the scheduler starts

    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")  # before UCX is loaded here
    return with_settings(settings() | dashboard_settings(_TOKEN))


@contextmanager
def forked() -> Iterator[None]:
    """In the block, let Dask's workers be forks of the process of `FORKS`, where that has the environment in which they
    are to begin, and the user has not chosen how they start.
    """
    wanted = {name: os.environ.get(name, str(value)) for name, value in dask.config.get(_ENVIRON[:-1]).items()}
    if wanted != FORKS.variables or dask.config.get(_METHOD) != "spawn":
        yield
        return
    with with_settings({_METHOD: "forkserver"}):
        with hidden("pandas"):  # Dask imports, once, all that it can use
            get_mp_context()
        yield


def default_scheduler() -> AbstractContextManager[None]:
    """Let Dask compute on the cluster of a client that opens in this block: of two, the last leaves nothing set."""
    return with_settings({"scheduler": "dask.distributed"})


def silenced() -> AbstractContextManager[None]:
    """Silence Dask's log of a cluster of this process: a job itself reports what its user should know."""
    return _LOGS.during(*(partial(silence_logging_cmgr, logging.CRITICAL, name) for name in ("distributed", "bokeh")))


def await_workers(client: Client, count: int, otherwise: str) -> None:
    """Wait for so many workers. Raises BroadsheetError with the message `otherwise` where they do not come in time."""
    try:
        client.wait_for_workers(count, timeout=no_workers_seconds())
    except TimeoutError as error:
        raise BroadsheetError(otherwise) from error


def no_workers_seconds() -> float:
    """The time after which a job without workers ends; a minute where the user has set "never" (null)."""
    return float(parse_timedelta(settings()[_NO_WORKERS_TIMEOUT] or SETTINGS[_NO_WORKERS_TIMEOUT]))
