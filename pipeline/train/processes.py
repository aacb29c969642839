"""A run in several processes, a GPU (or some cores) each: of this machine, or of a cluster (`on_cluster.py`).

Each computes its share of every batch. If one of them is lost, the run has ended: the others are ended too, and the
checkpoint is where it goes on.
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

_OTHERS_SECONDS = 2.0  # in which the others of a run may say why they fail too
_PATIENCE = {"OMP_WAIT_POLICY": "PASSIVE"}  # its threads do not take cores from other processes while they wait
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Part:
    """What a process of a job does.

    Attributes
    ----------
    job : TrainingJob
        The job.
    rank, size : int
        Its number among the processes of the job, and how many there are.
    meeting : str
        A URL where they find each other.
    number : int
        Of its GPU.
    here : bool
        Whether `number` counts the GPUs that this process sees, or a worker may have made a selection already.
    threads : int
        For what it computes on a CPU.

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
    """A process for one part. It sends what it has to tell; then its outcome, of the first process only, or the error
    that ended it. loopback: whether all of the run are on this machine.
    """

    def __init__(self, part: Part, examples: Examples, loopback: bool) -> None:
        self._part, self._examples = part, examples
        defaults = {**_PATIENCE, **(_LOOPBACK if loopback else {})}
        self._child = Child("broadsheet.pipeline.train.process", defaults=defaults)

    def follow(self, tell: Tell) -> Outcome | None:
        """Let it run to its end. Raises TrainingStopped where it was stopped, Lost, or what it raised."""
        try:
            send(self._child.connection, packed((self._part, self._examples)))
            while isinstance(message := unpacked(receive(self._child.connection)), Told):
                tell(message)
        except Closed:
            raise Lost(f"process {self._part.rank + 1} of {self._part.size} {self._child.how_it_ended()}") from None
        if isinstance(message, BaseException):
            raise message
        left: Outcome | None = message
        return left

    def stop(self) -> None:
        """Ask it to stop between two steps."""
        with suppress(Closed):
            send(self._child.connection, packed(None))

    def kill(self) -> None:
        """End it, whatever it does; `follow` then raises Lost."""
        self._child.kill()

    def end(self) -> None:
        """End it, if it has not ended, and forget it."""
        self._child.end()


def run_here(job: TrainingJob, examples: Examples, count: int, tell: Tell, stop: Callable[[], bool]) -> Outcome:
    """Run a job in several processes on this machine. Raises as `loop.run` does, and Lost.

    Parameters
    ----------
    job : TrainingJob
        How the run goes.
    examples : Examples
        The articles and their targets.
    count : int
        How many processes, each on a GPU of its own unless they compute on the CPU.
    tell : callable
        Called with the progress of the run.
    stop : callable
        Returns whether the run is to stop.

    """
    import torch  # not on a cluster's workers, whose processes import it

    if job.device != "cpu" and torch.cuda.device_count() < count:
        raise UsageError(
            f"{count} GPUs are wanted, and PyTorch finds {torch.cuda.device_count()} here (with --device cpu, so many "
            "processes use its cores)"
        )
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
    """The future of a part: concurrent.futures' or Dask's."""

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
    """Wait for the parts of a run, and pass on what they report. Raises what ended it.

    Parameters
    ----------
    futures : sequence of Future
        Of each part, the first process's first.
    reports : queue
        What the parts report.
    tell : callable
        Called with each report.
    stop : callable
        Returns whether the run is to stop.
    ask_to_stop : callable
        Asks all parts to stop.
    job : TrainingJob
        How the run goes.

    """
    asked, last = False, 0

    def pass_on() -> None:
        nonlocal last
        with suppress(Empty):
            while True:
                what = reports.get(timeout=0.1)
                last = what.number if isinstance(what, Epoch) else last
                tell(what)

    while not all(future.done() for future in futures):
        pass_on()
        if stop() and not asked:
            asked = True
            ask_to_stop()
        if any(future.done() and error_of(future) for future in futures):
            waited = time.monotonic() + _OTHERS_SECONDS
            while time.monotonic() < waited and not all(future.done() for future in futures):
                time.sleep(0.05)
            break
    pass_on()
    errors = [error for future in futures if future.done() and (error := error_of(future))]
    if errors:
        cause = min(errors, key=_importance)
        if isinstance(cause, Lost):
            where = f"the run has ended after epoch {last} of {job.recipe.epochs}"
            raise Lost(f"{cause.message}; {where}{_remedy(job.checkpoint)}")
        raise cause
    of_first = futures[0].result()
    assert of_first is not None
    waited = time.monotonic() + _OTHERS_SECONDS
    while last < len(of_first.history) and time.monotonic() < waited:  # the last report may still be on its way
        pass_on()
    return of_first


def error_of(future: Future) -> BaseException | None:
    """What a finished future has raised, or None."""
    try:
        future.result()
    except BaseException as error:
        return error
    return None


def _importance(error: BaseException) -> int:
    """Which of the errors is not due to another: when a process is lost, the others complain of that."""
    kinds = (UsageError, Lost, BroadsheetError, TrainingStopped)
    return next((i for i, kind in enumerate(kinds) if isinstance(error, kind)), len(kinds))


def _remedy(checkpoint: Path | None) -> str:
    if checkpoint is None or not checkpoint.exists():
        return ", and had not written a checkpoint yet"
    return f": go on from {checkpoint} with --resume, also with another number of GPUs"
