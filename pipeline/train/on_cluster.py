"""A run on the workers of a Dask cluster: each worker starts a process for its part."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from distributed import Client, Future, get_worker
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from ..errors import UsageError
from ..processes.threads import share_of_cores
from .job import Examples, Outcome, TrainingJob
from .processes import Lost, Part, Process, outcome
from .progress import Tell

_JOINING_SECONDS = 60

_RUNNING: dict[tuple[str, int], Process] = {}
"""The process of each part that this worker runs, by the topic of the run and the rank of the part."""


def run_on(
    client: Client, job: TrainingJob, examples: Examples, count: int | None, tell: Tell, stop: Callable[[], bool]
) -> Outcome:
    """Run a job on workers of a cluster.

    Parameters
    ----------
    client : Client
        A client of the cluster.
    job, examples : TrainingJob, Examples
        The job and its examples, which are sent to the workers.
    count : int, optional
        The number of workers; by default all.
    tell : callable
        Called with the progress of the run.
    stop : callable
        Returns whether the run should stop between two steps.

    Raises
    ------
    BroadsheetError
        For the errors of `loop.run`, and Lost if a process or a worker is lost.

    """
    addresses = _workers_of(client, count or 1)[:count]
    hosts = [_host(address) for address in addresses]
    meeting = ""
    if len(addresses) > 1:
        port = client.submit(_free_port, workers=addresses[:1], pure=False).result()
        meeting = f"tcp://{f'[{hosts[0]}]' if ':' in hosts[0] else hosts[0]}:{port}"
    topic, reports = f"broadsheet-training-{uuid4().hex}", SimpleQueue[Any]()
    client.subscribe_topic(topic, lambda event: reports.put(pickle.loads(event[1])))
    there = client.scatter(examples, workers=addresses, broadcast=True, hash=False)
    answers = []
    try:
        for rank, (address, host) in enumerate(zip(addresses, hosts, strict=True)):
            part = Part(job, rank, len(addresses), meeting, number=hosts[:rank].count(host), here=False)
            future = client.submit(
                _run_part, there, part, hosts.count(host), topic,
                workers=[address], allow_other_workers=False, pure=False, retries=0,
            )  # fmt: skip
            answers.append(_PartAnswer(address, future))
        ask_to_stop = partial(client.run, _end_parts, topic, at_once=False, on_error="ignore")
        return outcome(answers, reports, tell, stop, ask_to_stop, job)
    finally:
        client.run(_end_parts, topic, on_error="ignore")
        client.unsubscribe_topic(topic)


@dataclass(frozen=True)
class _PartAnswer:
    """The result of a part, which runs on the worker at an address."""

    address: str
    future: Future

    def done(self) -> bool:
        """Return whether the part has ended, with or without an error."""
        return bool(self.future.done())

    def result(self) -> Outcome | None:
        """Return the result of the part. Raises the error of the part, or Lost if its worker was lost."""
        try:
            of_part: Outcome | None = self.future.result()
        except (KilledWorker, FutureCancelledError) as error:
            raise Lost(f"the worker {self.address} was lost") from error
        return of_part


def _workers_of(client: Client, least: int) -> list[str]:
    """Return the addresses of all workers, in a fixed order.

    Raises UsageError if fewer than `least` join in a minute.
    """
    with suppress(TimeoutError):
        client.wait_for_workers(least, timeout=_JOINING_SECONDS)
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    if len(addresses) < least:
        there = f"the cluster has {len(addresses)} workers, each of which uses one"
        raise UsageError(f"{least} GPUs are wanted, and {there}: start more workers, or ask for fewer GPUs")
    return addresses


def _run_part(examples: Examples, part: Part, neighbours: int, topic: str) -> Outcome | None:
    """Run a part as a worker's task. neighbours: the number of workers on its host."""
    worker, loopback = get_worker(), _is_loopback(part.meeting)
    local_part = replace(part, threads=share_of_cores(neighbours))
    process = _RUNNING[topic, part.rank] = Process(local_part, examples, loopback)
    try:
        return process.follow(lambda what: worker.log_event(topic, pickle.dumps(what)))
    finally:
        del _RUNNING[topic, part.rank]
        process.end()


def _end_parts(topic: str, at_once: bool = True) -> None:
    """End this worker's parts of a run at once, or ask them to stop between two steps."""
    for (of_run, _), process in list(_RUNNING.items()):
        if of_run == topic:
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
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
        return port
