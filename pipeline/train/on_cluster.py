"""A run, or several, on the workers of a Dask cluster: each worker starts a process for its part."""

from __future__ import annotations

import pickle
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from distributed import Client, get_worker
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from ..errors import UsageError
from ..processes.threads import share_of_cores
from .job import Examples, Job, Outcome
from .processes import Lost, Part, Process, outcome
from .progress import Tell

_JOINING_SECONDS = 60

_RUNNING: dict[tuple[str, int], Process] = {}
"""On a worker: the process of each part that it runs, by the topic of the run and the rank of the part."""


def run_on(
    client: Client, job: Job, examples: Examples, count: int | None, tell: Tell, stop: Callable[[], bool]
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
            return outcome(answers, told, tell, stop, lambda: client.run(stop_parts, topic, on_error="ignore"), job)
        finally:
            client.run(end_parts, topic, on_error="ignore")


@dataclass(frozen=True)
class Seat:
    """A worker. number: of its GPU, unless it has a selection of its own. neighbours: workers on its host."""

    address: str
    number: int
    neighbours: int


@dataclass(frozen=True)
class Answer:
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


def start(client: Client, seat: Seat, examples: Any, part: Part, topic: str) -> Answer:
    """Start a part on a worker. examples: a future of them."""
    future = client.submit(
        _run_part, examples, part, seat.number, seat.neighbours, topic,
        workers=[seat.address], allow_other_workers=False, pure=False, retries=0,
    )  # fmt: skip
    return Answer(seat.address, future)


def _run_part(examples: Examples, part: Part, number: int, neighbours: int, topic: str) -> Outcome | None:
    """The task of a worker."""
    worker, loopback = get_worker(), _is_loopback(part.meeting)
    own = Part(part.job, part.rank, part.size, part.meeting, number, here=False, threads=share_of_cores(neighbours))
    process = _RUNNING[topic, part.rank] = Process(own, examples, loopback)
    try:
        return process.follow(lambda what: worker.log_event(topic, pickle.dumps(what)))
    finally:
        del _RUNNING[topic, part.rank]
        process.end()


def stop_parts(topic: str) -> None:
    """On a worker: tell its parts of a run to stop between two steps."""
    for (of, _), process in list(_RUNNING.items()):
        if of == topic:
            process.stop()


def end_parts(topic: str) -> None:
    """On a worker: end its parts of a run, whatever they do."""
    for (of, _), process in list(_RUNNING.items()):
        if of == topic:
            process.kill()


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
