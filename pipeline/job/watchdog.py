"""Warns the user of lost workers, of stopped processes, and of what a job waits for when nothing progresses.

The keys of tasks are here too: a key holds the step and the range of a task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import psutil
from distributed import Client, Scheduler
from distributed import scheduler as dask_module

from ..errors import first_of

_EVENTS = "all"
"""The topic under which Dask keeps the events of all workers."""

_QUIET_SECONDS = 1.0
"""A job that is shorter and loses no worker does not ask the scheduler for events: a message takes up to 10 ms."""

_ANSWER_SECONDS = 10.0
"""The number of seconds without an answer after which the scheduler counts as stuck."""

_SILENT_SECONDS = 10.0
"""The number of seconds without a heartbeat after which the watchdog warns of a worker. Workers send a heartbeat every
half second to five seconds.
"""

_LOOK_SECONDS = 4.0
"""The number of seconds without progress after which the watchdog looks for the cause, and the time between looks."""

_HELPERS = {name: f"multiprocessing's {name.replace('_', ' ')}" for name in ("resource_tracker", "forkserver")}
"""Processes that Python starts beside the workers."""

Key = tuple[str, str, int]
"""The key of a task: step and run, range or chunk, and a number that no other task of the run has."""


@dataclass(frozen=True)
class InFlight:
    """What the scheduler knows about the tasks of jobs.

    Attributes
    ----------
    workers : int
        The number of workers.
    running : list of tuple
        The seconds, step, chunk and worker of each running task, the longest first.
    waiting : int
        The number of tasks that no worker has started yet.
    silent : list of tuple
        Each silent worker, with the seconds since its last heartbeat.

    """

    workers: int
    running: list[tuple[float, str, str, str]]
    waiting: int
    silent: list[tuple[str, float]]


class Watchdog:
    """Warns the user while a job runs, from a thread of its own.

    It warns of lost workers within some seconds. While nothing progresses, it warns of stopped or silent processes
    within some ten seconds, and of a stall after `patience` seconds, twice that, four times that, and so on.

    It never ends a job, because a slow chunk is no error. It has its own thread because the thread of the job may be
    the one that does not return. It uses the monotonic clock.

    Parameters
    ----------
    client : distributed.Client
        The client of the job.
    what : str
        What is missing while nothing progresses, for example "no chunk has finished".
    warn : callable
        Called with each message, from the thread of the watchdog.
    patience : float
        Seconds without progress after which it warns of a stall.

    """

    def __init__(self, client: Client, what: str, warn: Callable[[str], None], patience: float) -> None:
        self._client = client
        self._what = what
        self.warn = warn
        self._patience = self._next = patience
        self._began = self._last = time.monotonic()
        self._doing: tuple[str, float] | None = None
        self._woken: SimpleQueue[bool] = SimpleQueue()  # True to look at once, False to end
        self._looked: float | None = None  # when losses were looked up last, by the scheduler's clock
        self._thread = threading.Thread(target=self._watch, name="broadsheet-watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._looked is not None and self._client.status == "running":
            # Look once in a job, after its chunks: the watchdog of the loading of the model notes no progress.
            stopped = _stopped() if self._last > self._began else []
            for process, message, is_helper in stopped:
                self.warn(f"{message}; whoever reads what this command says waits for that process, too")
                if is_helper:  # once it runs again, it ends by itself
                    with suppress(psutil.Error):
                        process.resume()
        self._woken.put(False)
        self._thread.join(timeout=1.0)  # it may be waiting for a scheduler that does not answer

    @property
    def idle(self) -> float:
        """The seconds since something finished."""
        return time.monotonic() - self._last

    def progress(self) -> None:
        """Note that something has finished."""
        self._last = time.monotonic()

    def worker_lost(self) -> None:
        """Note that a worker was lost: the watchdog finds out which, also in a short job."""
        self._woken.put(True)

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """Note what this process does in the block, for example "the client is reading its next chunk"."""
        self._doing = doing, time.monotonic()
        try:
            yield
        finally:
            self._doing = None

    def _tell_losses(self) -> None:
        """Warn of the workers that were lost since the last look, or since the watchdog started.

        This asks the scheduler. A client that is subscribed to all events would lose its connection whenever somebody
        replicates data: Dask then sends it an event that cannot be sent (findings/dask_replicate_event.sh).
        """
        seconds = time.monotonic() - self._began
        with suppress(OSError, RuntimeError, TimeoutError):  # no answer: `_watch` reports the stall
            found = self._client.run_on_scheduler(_losses, self._looked, seconds, callback_timeout=_ANSWER_SECONDS)
            self._looked, lost = found
            for message in lost:
                self.warn(_loss(message["worker"], message["processing-tasks"]))

    def _watch(self) -> None:
        with suppress(Empty):
            if not self._woken.get(timeout=_QUIET_SECONDS):
                return
        named: set[object] = set()
        while True:
            self._tell_losses()
            idle = self.idle
            self._next = self._patience if idle < self._patience else self._next
            if idle >= self._next:
                self._next = 2 * idle
                stopped = (message for _, message, _ in _stopped())
                self.warn(f"{self._what} for {idle:.0f} s: {'; '.join([self._reason(), *stopped])}")
            elif idle >= _LOOK_SECONDS:
                self._name(named)
            with suppress(Empty):
                if not self._woken.get(timeout=min(max(self._next - idle, 0), _LOOK_SECONDS)):
                    return

    def _name(self, named: set[object]) -> None:
        """Warn of what holds the job up, once for each process and worker. named: those that have had a warning."""
        for process, message, _ in _stopped():
            if process not in named:
                named.add(process)
                self.warn(message)
        with suppress(OSError, RuntimeError, TimeoutError):  # no answer: `_watch` reports the stall
            for worker, seconds in self._client.run_on_scheduler(_in_flight, callback_timeout=_ANSWER_SECONDS).silent:
                if worker not in named:
                    named.add(worker)
                    self.warn(f"{_silence(worker, seconds)}; once it is given up, other workers do its chunks")

    def _reason(self) -> str:
        if self._doing is not None:
            doing, since = self._doing
            return f"{doing} for {time.monotonic() - since:.0f} s"
        try:
            in_flight = self._client.run_on_scheduler(_in_flight, callback_timeout=_ANSWER_SECONDS)
        except TimeoutError:
            return f"the scheduler {self._client.scheduler.address} does not answer"
        except (OSError, RuntimeError) as error:
            return f"the scheduler cannot be reached ({error})"
        return "; ".join(_reasons(in_flight))


def _is_a_loss(message: Any) -> bool:
    return isinstance(message, dict) and message.get("action") == "remove-worker" and not message["expected"]


def _losses(after: float | None, seconds: float, dask_scheduler: Scheduler) -> tuple[float, list[dict[str, Any]]]:
    """Return the time of the scheduler, and the losses since `after`, by default of the last `seconds`. Runs there."""
    now = dask_module.time()
    since = now - seconds if after is None else after
    events = dask_scheduler.get_events(_EVENTS)
    return now, [message for moment, message in events if since < moment <= now and _is_a_loss(message)]


def _loss(worker: str, keys: Iterable[Any]) -> str:
    chunks = sorted({named[1] for key in keys if (named := step_and_chunk(key))})
    if not chunks:
        return f"worker {worker} was lost; it had nothing to do"
    return (
        f"worker {worker} was lost (killed, out of memory, or silent for too long) while it had {first_of(chunks)}; "
        "these run again, unless they have killed others"
    )


def _reasons(state: InFlight) -> Iterator[str]:
    if not state.workers:
        yield "there are no workers"
    running = [f"{chunk} is in {step} on worker {worker} for {s:.0f} s" for s, step, chunk, worker in state.running]
    if running:
        yield first_of(running)
    elif state.workers and state.waiting:
        yield f"{state.waiting} tasks wait for a worker to begin them"
    elif state.workers:
        yield "the scheduler has no task of this job left to run"
    if state.silent:
        yield first_of([_silence(*silent) for silent in state.silent])


def _silence(worker: str, seconds: float) -> str:
    return f"worker {worker} has sent no heartbeat for {seconds:.0f} s"


def _stopped() -> list[tuple[psutil.Process, str, bool]]:
    """Return the stopped processes of this job on this machine, each with a message and whether it is a helper of
    Python.
    """
    processes = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() == psutil.STATUS_STOPPED:
                command = " ".join(process.cmdline())
                helper = next((_HELPERS[name] for name in _HELPERS if name in command), None)
                what = f"process {process.pid} ({helper or process.name()}) is stopped"
                processes.append((process, f"{what}: kill -CONT {process.pid} lets it go on", helper is not None))
    return processes


def _in_flight(dask_scheduler: Scheduler) -> InFlight:
    """Return what the scheduler knows about the tasks of jobs. Runs on the scheduler."""
    now = dask_module.time()  # the clock by which it notes heartbeats
    running, silent = [], []
    waiting = [*dask_scheduler.queued, *dask_scheduler.unrunnable]
    for worker in dask_scheduler.workers.values():
        since = now - worker.last_seen
        if since > _SILENT_SECONDS:
            silent.append((worker.address, since))
        waiting += [task for task in worker.processing if task not in worker.executing]
        for task, seconds in worker.executing.items():
            named = step_and_chunk(task.key)
            if named and task in worker.processing:
                running.append((seconds + since, *named, worker.address))
    count = sum(step_and_chunk(task.key) is not None for task in waiting)
    silent.sort(key=lambda item: item[1], reverse=True)
    return InFlight(len(dask_scheduler.workers), sorted(running, reverse=True), count, silent)


def task_key(step: str, run: str, chunk: str, number: int) -> Key:
    """Return the key of a task. run: eight hexadecimal digits, which Dask leaves out when it groups tasks by name."""
    return f"{step}-{run}", chunk, number


def step_and_chunk(key: Any) -> tuple[str, str] | None:
    """Return the step and the chunk of a task; None if the task is of no job."""
    if isinstance(key, tuple) and len(key) == 3 and isinstance(key[0], str):
        return key[0].rpartition("-")[0], str(key[1])
    return None


def run_of(key: Key) -> str:
    """Return the run of the graph to which a task belongs."""
    return key[0].rpartition("-")[2]
