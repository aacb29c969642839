"""A run, or several, on the workers of a Dask cluster: each worker starts a process for its part.

A sweep is several runs over a grid of settings and seeds: one at a time on each worker.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from itertools import product
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from distributed import Client, get_worker
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from ..errors import BroadsheetError, UsageError, counted
from ..processes.threads import share_of_cores
from .job import Examples, Outcome, TrainingJob
from .objective import OneLabel
from .processes import Lost, Part, Process, outcome
from .progress import Cost, Note, Tell, TrainingStopped

_JOINING_SECONDS = 60

_RUNNING: dict[tuple[str, int], Process] = {}
"""On a worker: the process of each part that it runs, by the topic of the run and the rank of the part."""


def run_on(
    client: Client, job: TrainingJob, examples: Examples, count: int | None, tell: Tell, stop: Callable[[], bool]
) -> Outcome:
    """Run a job on `count` workers of a cluster, by default all. Raises as `job.run` does, and Lost."""
    addresses = workers_of(client, count or 1)[:count]
    meeting = ""
    if len(addresses) > 1:
        host = _host(addresses[0])
        port = client.submit(_free_port, workers=addresses[:1], pure=False).result()
        meeting = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
    with telling(client) as (topic, told):
        there = client.scatter(examples, workers=addresses, broadcast=True, hash=False)
        seats = seats_of(addresses)
        answers = [
            start(client, seat, there, Part(job, rank, len(seats), meeting), topic) for rank, seat in enumerate(seats)
        ]
        try:
            ask_to_stop = partial(client.run, end_parts, topic, at_once=False, on_error="ignore")
            return outcome(answers, told, tell, stop, ask_to_stop, job)
        finally:
            client.run(end_parts, topic, on_error="ignore")


@dataclass(frozen=True)
class Seat:
    """A worker. number: of its GPU, unless it has a selection of its own. neighbours: workers on its host."""

    address: str
    number: int
    neighbours: int


@dataclass(frozen=True)
class PartAnswer:
    """What comes of a part."""

    address: str
    future: Any

    def done(self) -> bool:
        """Whether it has ended, somehow."""
        return bool(self.future.done())

    def result(self) -> Outcome | None:
        """What it has found. Raises what it raised, or Lost where its worker was."""
        try:
            found: Outcome | None = self.future.result()
        except (KilledWorker, FutureCancelledError) as error:
            raise Lost(f"the worker {self.address} was lost") from error
        return found


def workers_of(client: Client, least: int = 1) -> list[str]:
    """The addresses of all workers, in a fixed order. Raises UsageError where fewer than `least` join in a minute."""
    with suppress(TimeoutError):
        client.wait_for_workers(least, timeout=_JOINING_SECONDS)
    found = sorted(client.scheduler_info(n_workers=-1)["workers"])
    if len(found) < least:
        raise UsageError(f"{least} GPUs are wanted, and the cluster has {len(found)} workers, each of which uses one")
    return found


def seats_of(addresses: list[str]) -> list[Seat]:
    """The workers at these addresses."""
    hosts = Counter(map(_host, addresses))
    before: Counter[str] = Counter()
    seats = []
    for address in addresses:
        host = _host(address)
        seats.append(Seat(address, before[host], hosts[host]))
        before[host] += 1
    return seats


@contextmanager
def telling(client: Client) -> Iterator[tuple[str, SimpleQueue[Any]]]:
    """A topic, and what the parts that have it tell."""
    topic, told = f"broadsheet-training-{uuid4().hex}", SimpleQueue[Any]()
    client.subscribe_topic(topic, lambda event: told.put(pickle.loads(event[1])))
    try:
        yield topic, told
    finally:
        client.unsubscribe_topic(topic)


def start(client: Client, seat: Seat, examples: Any, part: Part, topic: str) -> PartAnswer:
    """Start a part on a worker. examples: a future of them."""
    future = client.submit(
        _run_part, examples, part, seat.number, seat.neighbours, topic,
        workers=[seat.address], allow_other_workers=False, pure=False, retries=0,
    )  # fmt: skip
    return PartAnswer(seat.address, future)


def _run_part(examples: Examples, part: Part, number: int, neighbours: int, topic: str) -> Outcome | None:
    """The task of a worker."""
    worker, loopback = get_worker(), _is_loopback(part.meeting)
    own = replace(part, number=number, here=False, threads=share_of_cores(neighbours))
    process = _RUNNING[topic, part.rank] = Process(own, examples, loopback)
    try:
        return process.follow(lambda what: worker.log_event(topic, pickle.dumps(what)))
    finally:
        del _RUNNING[topic, part.rank]
        process.end()


def end_parts(topic: str, at_once: bool = True) -> None:
    """On a worker: end its parts of a run, whatever they do; or have them stop between two steps."""
    for (of, _), process in list(_RUNNING.items()):
        if of == topic:
            (process.kill if at_once else process.stop)()


def _host(address: str) -> str:
    return urlsplit(address).hostname or "127.0.0.1"


def _is_loopback(meeting: str) -> bool:
    host = urlsplit(meeting).hostname
    try:
        return host is None or ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        port: int = found.getsockname()[1]
        return port


_ALIASES = {"rate": "learning_rate"}
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Trial:
    """A run of a sweep. settings: what it differs in, by name. accuracy: on the held-out rows. error: why it failed,
    with nan for loss and accuracy.
    """

    settings: dict[str, str]
    loss: float
    accuracy: float
    seconds: float
    error: str = ""


def jobs_of(job: TrainingJob, sweep: Sequence[str]) -> list[tuple[dict[str, str], TrainingJob]]:
    """A job for each point of a grid, with its settings. sweep: of `NAME=VALUE,VALUE`, of the recipe or `seed`.

    Raises UsageError for a name that there is not, or a value that is none.
    """
    axes: dict[str, list[str]] = {}
    for axis in sweep:
        name, equals, values = axis.partition("=")
        if not equals or not values:
            raise UsageError(f"{axis!r} is no axis of a sweep: write NAME=VALUE,VALUE, such as rate=0.001,0.0003")
        axes[_ALIASES.get(name, name)] = values.split(",")
    found = []
    for point in product(*axes.values()):
        settings = dict(zip(axes, point, strict=True))
        recipe = job.recipe.with_settings([f"{name}={value}" for name, value in settings.items() if name != "seed"])
        seed = settings.get("seed", str(job.seed))
        if not seed.isdecimal():
            raise UsageError(f"seed is {seed!r}, it must be a number from 0")
        objective = job.objective
        if isinstance(objective, OneLabel):
            objective = replace(objective, label_smoothing=recipe.label_smoothing)
        varied = replace(job, recipe=recipe, objective=objective, seed=int(seed), checkpoint=None, resume=False)
        found.append((settings, varied))
    return found


def run_sweep(
    client: Client,
    jobs: list[tuple[dict[str, str], TrainingJob]],
    examples: Examples,
    tell: Tell,
    stop: Callable[[], bool],
) -> tuple[list[Trial], TrainingJob, Outcome]:
    """Run each job on a worker of its own, and `tell` of each that ends; the best by held-out rows is kept.

    A run that is lost with its worker is tried on another. Raises UsageError without held-out rows, BroadsheetError
    where no run succeeds or no worker is left, and Stopped.
    """
    if not len(examples.held):
        raise UsageError("a sweep compares runs by held-out rows: hold some out")
    addresses = workers_of(client)
    tell(Note(f"{counted(len(jobs), 'run')} on {counted(len(addresses), 'worker')}"))
    trials: dict[int, Trial] = {}
    best: tuple[float, float, TrainingJob, Outcome] | None = None
    with telling(client) as (topic, told):
        there = client.scatter(examples, workers=addresses, broadcast=True, hash=False)
        free, waiting = deque(seats_of(addresses)), deque(range(len(jobs)))
        running: dict[PartAnswer, tuple[int, Seat, float]] = {}
        cost_told = False
        try:
            while len(trials) < len(jobs):
                while free and waiting:
                    seat, number = free.popleft(), waiting.popleft()
                    answer = start(client, seat, there, Part(jobs[number][1], rank=0), topic)
                    running[answer] = number, seat, time.monotonic()
                if not running:
                    raise BroadsheetError("all workers of the sweep are lost")
                time.sleep(_POLL_SECONDS)
                if stop():
                    raise TrainingStopped
                while not told.empty():
                    what = told.get()
                    if isinstance(what, Cost) and not cost_told:
                        cost_told = True
                        tell(what)
                for answer in [answer for answer in running if answer.done()]:
                    number, seat, began = running.pop(answer)
                    settings, job = jobs[number]
                    seconds = time.monotonic() - began
                    try:
                        outcome = answer.result()
                    except Lost:
                        waiting.append(number)
                        continue
                    except UsageError:
                        raise
                    except BroadsheetError as error:
                        trials[number] = Trial(settings, float("nan"), float("nan"), seconds, error.message)
                    else:
                        assert outcome is not None
                        last = outcome.history[-1]
                        trials[number] = Trial(settings, last.loss, last.accuracy, seconds)
                        if best is None or (last.accuracy, -last.loss) > best[:2]:
                            best = last.accuracy, -last.loss, job, outcome
                    free.append(seat)
                    tell(Note(f"{len(trials)} of {len(jobs)}: {told_of(trials[number])}"))
        finally:
            client.run(end_parts, topic, on_error="ignore")
    if best is None:
        raise BroadsheetError(f"every run of the sweep failed: {trials[0].error}")
    return [trials[number] for number in range(len(jobs))], best[2], best[3]


def told_of(trial: Trial) -> str:
    """A line."""
    settings = ", ".join(f"{name} {value}" for name, value in trial.settings.items())
    result = trial.error or f"held out {trial.accuracy:.2%}, loss {trial.loss:.4f}"
    return f"{settings}: {result}, {trial.seconds:.0f} s"
