"""A run in several processes, on this machine or on a cluster (`on_cluster.py`). Each has a GPU, or some of the cores.

Each process computes its share of every batch. If one process is lost, the run ends all others. You can then resume it
from its checkpoint.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from ..errors import BroadsheetError, UsageError
from ..processes.child import Child
from ..processes.messages import Closed, packed, receive, send, unpacked
from ..processes.threads import share_of_cores
from .job import Examples, Outcome, TrainingJob
from .progress import Epoch, Tell, Told, TrainingStopped

_OTHERS_SECONDS = 2.0  # after a process fails, the others have this time to report their errors
_PATIENCE = {"OMP_WAIT_POLICY": "PASSIVE"}  # waiting threads do not take cores from other processes
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Part:
    """The part of a job that one process does.

    Attributes
    ----------
    job : TrainingJob
        The job.
    rank, size : int
        The number of the process among those of the job, and how many there are.
    meeting : str
        The URL by which the processes find each other.
    number : int
        The number of the process's GPU.
    here : bool
        Whether `number` counts the GPUs that this process sees. If not, a worker may have selected GPUs already.
    threads : int
        The number of threads that compute on the CPU.

    """

    job: TrainingJob
    rank: int = 0
    size: int = 1
    meeting: str = ""
    number: int = 0
    here: bool = True
    threads: int = 1


class Lost(BroadsheetError):
    """A process of a run has ended in the middle of it."""


class Process:
    """A process for one part of a run.

    It sends its reports, and at its end an outcome (None from all but the first process), or the error that ended it.

    Parameters
    ----------
    part : Part
        The part.
    examples : Examples
        The articles and their targets.
    loopback : bool
        Whether all processes of the run are on this machine.

    """

    def __init__(self, part: Part, examples: Examples, loopback: bool) -> None:
        self._part, self._examples = part, examples
        defaults = {**_PATIENCE, **(_LOOPBACK if loopback else {})}
        self._child = Child("broadsheet.pipeline.train.process", defaults=defaults)

    def follow(self, tell: Tell) -> Outcome | None:
        """Wait until the process ends, and pass on its reports.

        Raises TrainingStopped if the process was stopped, Lost if it was lost, or the error that it raised.
        """
        try:
            send(self._child.connection, packed((self._part, self._examples)))
            while isinstance(message := unpacked(receive(self._child.connection)), Told):
                tell(message)
        except Closed:
            raise Lost(f"process {self._part.rank + 1} of {self._part.size} {self._child.how_it_ended()}") from None
        if isinstance(message, BaseException):
            raise message
        of_part: Outcome | None = message
        return of_part

    def stop(self) -> None:
        """Ask the process to stop between two steps."""
        with suppress(Closed):
            send(self._child.connection, packed(None))

    def kill(self) -> None:
        """Kill the process at once; `follow` then raises Lost."""
        self._child.kill()

    def end(self) -> None:
        """End the process, if it has not ended, and release it."""
        self._child.end()


def run_here(job: TrainingJob, examples: Examples, count: int, tell: Tell, stop: Callable[[], bool]) -> Outcome:
    """Run a job in several processes on this machine. Raises the errors of `loop.run`, and Lost.

    Parameters
    ----------
    job : TrainingJob
        The settings of the run.
    examples : Examples
        The articles and their targets.
    count : int
        The number of processes. Each has its own GPU, unless they compute on the CPU.
    tell : callable
        Called with the progress of the run.
    stop : callable
        Returns whether the run is to stop.

    """
    # Check that there are enough GPUs. The import is here, because a cluster's workers use this module without PyTorch.
    import torch

    if job.device != "cpu" and torch.cuda.device_count() < count:
        raise UsageError(
            f"{count} GPUs are wanted, and PyTorch finds {torch.cuda.device_count()} here (with --device cpu, {count} "
            "processes share its cores)"
        )
    # Start the processes, and follow each in a thread. End all of them, however the run ends.
    reports: SimpleQueue[Told] = SimpleQueue()
    threads = share_of_cores(count)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(count) as pool:
        meeting = f"file://{folder}/meeting"
        processes: list[Process] = []
        try:
            for rank in range(count):
                part = Part(job, rank, count, meeting, rank, threads=threads)
                processes.append(Process(part, examples, loopback=True))
            futures = [pool.submit(process.follow, reports.put) for process in processes]

            def ask_to_stop() -> None:
                for process in processes:
                    process.stop()

            return outcome(futures, reports, tell, stop, ask_to_stop, job)
        finally:
            for process in processes:
                process.end()


class Future(Protocol):
    """The future of a part, of concurrent.futures or of Dask."""

    def done(self) -> bool: ...

    def result(self) -> Outcome | None: ...


def outcome(
    futures: Sequence[Future],
    reports: SimpleQueue[Any],
    tell: Tell,
    stop: Callable[[], bool],
    ask_to_stop: Callable[[], object],
    job: TrainingJob,
) -> Outcome:
    """Wait for the parts of a run, and pass on their reports. Raises the error that ended the run.

    Parameters
    ----------
    futures : sequence of Future
        The future of each part. The first is that of the first process.
    reports : queue
        The reports of the parts.
    tell : callable
        Called with each report.
    stop : callable
        Returns whether the run is to stop.
    ask_to_stop : callable
        Asks all parts to stop.
    job : TrainingJob
        The settings of the run.

    """
    is_stopping, last = False, 0

    def pass_on() -> None:
        nonlocal last
        with suppress(Empty):
            while True:
                what = reports.get(timeout=0.1)
                last = what.number if isinstance(what, Epoch) else last
                tell(what)

    # Pass on reports until all parts have finished. If a part fails, give the others some time to report errors too.
    while not all(future.done() for future in futures):
        pass_on()
        if stop() and not is_stopping:
            is_stopping = True
            ask_to_stop()
        if any(future.done() and error_of(future) for future in futures):
            waited = time.monotonic() + _OTHERS_SECONDS
            while time.monotonic() < waited and not all(future.done() for future in futures):
                time.sleep(0.05)
            break
    pass_on()
    # Raise the error that caused the others. For a lost process, say how far the run came and how to go on.
    errors = [error for future in futures if future.done() and (error := error_of(future))]
    if errors:
        cause = min(errors, key=_importance)
        if isinstance(cause, Lost):
            where = f"the run has ended after epoch {last} of {job.recipe.epochs}"
            raise Lost(f"{cause.message}; {where}{_remedy(job.checkpoint)}")
        raise cause
    # Return the first process's outcome, after its last report, which may still be on its way.
    of_first = futures[0].result()
    assert of_first is not None
    waited = time.monotonic() + _OTHERS_SECONDS
    while last < len(of_first.history) and time.monotonic() < waited:
        pass_on()
    return of_first


def error_of(future: Future) -> BaseException | None:
    """Return the error that a finished future has raised, or None."""
    try:
        future.result()
    except BaseException as error:
        return error
    return None


def _importance(error: BaseException) -> int:
    """Return the rank of an error: the lowest is the cause, and others may only follow from it.

    If a process is lost, for example, the others fail because they miss it.
    """
    kinds = (UsageError, Lost, BroadsheetError, TrainingStopped)
    return next((i for i, kind in enumerate(kinds) if isinstance(error, kind)), len(kinds))


def _remedy(checkpoint: Path | None) -> str:
    if checkpoint is None or not checkpoint.exists():
        return ", and had not written a checkpoint yet"
    return f": go on from {checkpoint} with --resume, also with another number of GPUs"
