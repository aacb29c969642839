"""The Dask graph: read -> infer -> write for each chunk, kept a window ahead of the workers.

Reads are unrestricted, so the scheduler queues them and memory is bounded by the chunks in flight; infer and write
follow the chunk to the worker that read it. Infer runs on the worker's one-thread `gpu` executor, so that reading chunk
i + 1, computing chunk i and writing chunk i - 1 overlap. A chunk whose text is with the client is one task.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import dask
from distributed import CancelledError, Client, Future, KilledWorker, Worker
from distributed.comm.core import CommClosedError
from distributed.scheduler import NoValidWorkerError, NoWorkerError

from pipeline import tasks
from pipeline.errors import BroadsheetError, SourceError
from pipeline.source.inputs import Loaded, Partition, Source, Unread
from pipeline.source.plan import Unit
from pipeline.suspects import Suspects
from pipeline.task_keys import task_key
from pipeline.tasks import Done, Job, SetAside
from pipeline.watchdog import Watchdog

GPU_EXECUTOR = "gpu"
_SUSPECT_LOSSES = 2
"""So many workers may be lost with a chunk that runs with others, before it has to run alone."""

_MOST_CANCELLED = 3
_SECONDS_BETWEEN_COUNTS, _SECONDS_BETWEEN_LOOKS = 1.0, 0.1
_LEAST_WINDOW = 16
_WRITE_FIRST, _INFER_FIRST, _LOST_FIRST = 20, 10, 5

_CONTINUE = "What is committed stays: start it again, then continue with --resume"
NO_SCHEDULER = f"the connection to the scheduler {{}} is lost. {_CONTINUE}"
NO_WORKERS = f"the cluster has lost all its workers and no other has joined. {_CONTINUE}"


def classify_chunks(
    client: Client, sources: Iterable[Source], job: Job, watchdog: Watchdog
) -> Iterator[Done | SetAside]:
    """Run every chunk, and yield each as it is done, in any order. `sources` is consumed as chunks finish.

    A chunk whose input cannot be read, or that kills its workers even when it runs alone, is set aside. Any other
    error, and with `job.strict` the first bad row, stops the job and is raised; committed chunks are kept.
    """
    run = _Run(client, job, watchdog)
    waiting = iter(sources)
    try:
        while True:
            suspects = Suspects()
            yield from _run_together(run, waiting, suspects, job.strict)
            yield from _run_alone(run, suspects)
            if not suspects.held:
                break
            waiting = iter(suspects.held)
    finally:
        run.cancel()


def _run_together(run: _Run, waiting: Iterator[Source], suspects: Suspects, strict: bool) -> Iterator[Done | SetAside]:
    """Run all chunks, except those that become suspects, or are held because of one."""
    free = (source for source in waiting if not suspects.hold(source))
    more = True
    while True:
        if more and len(run.live) <= run.window // 2:
            room = run.window - len(run.live)
            with run.watchdog.during("the client is reading its next chunk"):
                chunks = list(itertools.islice(free, room))
            more = len(chunks) == room
            run.submit(chunks)
            yield from _unread(chunks, strict)
        if not run.live:
            if more:
                continue  # the client could read none of these chunks
            return
        source, result, losses = run.next_done()
        if more:
            run.release_spent()
        if not isinstance(result, KilledWorker):
            yield result
        elif losses < _SUSPECT_LOSSES and not suspects.include(source):
            run.submit([source], losses)  # perhaps not the cause: a worker that dies takes its other tasks with it
        else:
            suspects.add(source)
            suspects.held += run.withdraw(suspects.include)


def _unread(chunks: list[Source], strict: bool) -> Iterator[SetAside]:
    for chunk in chunks:
        if isinstance(chunk, Unread):
            if strict:
                raise SourceError(chunk.reason)
            yield SetAside(chunk.name, chunk.reason, chunk.sources)


def _run_alone(run: _Run, suspects: Suspects) -> Iterator[Done | SetAside]:
    """Run suspects one at a time, and set aside those that kill their worker again, and what cannot be told from them.

    Of the chunks held, those are left that can run with others.
    """
    if suspects.held:
        run.wait_for_idle_workers()
    for source in suspects.chunks:
        cause = suspects.cause(source)
        if cause is None:
            run.release_spent()  # Dask would repeat those whose result was on a worker that is lost
            run.submit([source])
            _, result, _ = run.next_done()
            killed = isinstance(result, KilledWorker)
            suspects.ran_alone(source, killed)
            why = "it kills every worker that takes it"
            yield SetAside(source.name, why, source.sources) if killed else result
        else:
            yield SetAside(source.name, f"not tried: {cause}", source.sources)
    held, suspects.held = suspects.held, []
    for source in held:
        cause = suspects.cause(source)
        if cause is None:
            suspects.held.append(source)
        else:
            yield SetAside(source.name, f"not tried: {cause}", source.sources)


@dataclass(frozen=True)
class _Flight:
    """A chunk in flight. last: the future of its last task; results of earlier tasks stay on the worker. text: of a
    chunk whose text is with the client. losses: workers that were lost with it. cancelled: by the loss of its text.
    """

    source: Source
    last: Future
    text: Future | None
    losses: int
    cancelled: int


class _Run:
    """The chunks in flight."""

    def __init__(self, client: Client, job: Job, watchdog: Watchdog) -> None:
        self.live: dict[Any, _Flight] = {}
        self.watchdog = watchdog
        self._spent: list[_Flight] = []
        self._client = client
        self._scheduler = client.scheduler.address
        self._job = job
        self._name = uuid.uuid4().hex[:8]
        self._count = itertools.count()
        self._ended: SimpleQueue[tuple[Any, Done | BaseException]] = SimpleQueue()
        self._window, self._asked = _LEAST_WINDOW, float("-inf")

    @property
    def window(self) -> int:
        """How many chunks to have in flight. Workers come and go, so they are counted again from time to time.

        Not before the first chunks are submitted: a small job has no others.
        """
        self._check_scheduler()
        if self.live and time.monotonic() - self._asked > _SECONDS_BETWEEN_COUNTS:
            threads = sum(self._client.nthreads().values())
            self._window, self._asked = max(4 * threads, _LEAST_WINDOW), time.monotonic()
        return self._window

    def submit(self, sources: list[Source], losses: int = 0, cancelled: int = 0) -> None:
        """Submit chunks. Those that were lost with a worker go first, so that the cause is soon found."""
        urgency = _LOST_FIRST if losses else 0
        units = [s for s in sources if isinstance(s, Unit)]
        loaded = [s for s in sources if isinstance(s, Loaded)]
        partitions = [s for s in sources if isinstance(s, Partition)]
        if units:
            reads = self._map("read", tasks.read, units, units, priority=urgency)
            self._add(units, self._infer_and_write(units, reads), losses, cancelled)
        if partitions:
            frames = self._client.compute([p.frame for p in partitions])
            numbers = [p.number for p in partitions]
            reads = self._map("read", tasks.read_partition, partitions, frames, numbers, priority=urgency)
            self._add(partitions, self._infer_and_write(partitions, reads), losses, cancelled)
        if loaded:
            texts = self._scatter(loaded)
            with dask.annotate(executor=GPU_EXECUTOR):
                last = self._map("infer-and-write", tasks.infer_and_write, loaded, texts, priority=urgency)
            self._add(loaded, last, losses, cancelled, texts)

    def _scatter(self, loaded: list[Loaded]) -> list[Future]:
        try:
            chunks: list[Future] = self._client.scatter(loaded, hash=False)
        except TimeoutError as error:
            raise BroadsheetError(NO_WORKERS) from error
        return chunks

    def _infer_and_write(self, sources: Sequence[Source], reads: list[Future]) -> list[Future]:
        with dask.annotate(executor=GPU_EXECUTOR):
            inferred = self._map("infer", tasks.infer, sources, reads, priority=_INFER_FIRST)
        return self._map("write", tasks.write, sources, inferred, priority=_WRITE_FIRST)

    def _map(
        self, step: str, function: Any, sources: Sequence[Source], *columns: Iterable[Any], priority: int
    ) -> list[Future]:
        keys = [task_key(step, self._name, source.name, next(self._count)) for source in sources]
        jobs = [self._job] * len(sources)
        futures: list[Future] = self._client.map(
            partial(tasks.reported, function), *columns, jobs, key=keys, priority=priority, pure=False
        )
        return futures

    def _add(
        self,
        sources: Iterable[Source],
        futures: list[Future],
        losses: int,
        cancelled: int,
        texts: Sequence[Future | None] = (),
    ) -> None:
        for source, future, text in zip(sources, futures, texts or [None] * len(futures), strict=True):
            self.live[future.key] = _Flight(source, future, text, losses, cancelled)
            self._client.loop.add_callback(self._fetch, future)

    async def _fetch(self, future: Future) -> None:
        """Fetch a chunk's result as soon as it is done; Dask fetches those that are done together in one request."""
        try:
            self._ended.put((future.key, await self._client.gather(future, asynchronous=True)))
        except BaseException as error:  # any error of a task: without a result the job would wait for ever
            self._ended.put((future.key, error))

    def next_done(self) -> tuple[Source, Done | SetAside | KilledWorker, int]:
        """The next chunk to end, and how many workers were lost with it. Raises what stops the job."""
        while True:
            key, result = self._ended.get()
            self._check_scheduler()
            flight = self.live.pop(key, None)
            if flight is None:  # it was withdrawn
                continue
            self._spent.append(flight)
            source = flight.source
            if isinstance(result, KilledWorker):
                return source, result, flight.losses + result.allowed_failures + 1
            if not isinstance(result, BaseException):
                self.watchdog.progress()
                return source, result, flight.losses
            if isinstance(result, CancelledError):
                if flight.cancelled == _MOST_CANCELLED:
                    raise BroadsheetError(
                        f"{source.name}: cancelled by the scheduler ({result}); continue with --resume"
                    )
                self.submit([source], flight.losses, flight.cancelled + 1)  # its text was on a worker that was lost
            elif isinstance(result, NoWorkerError | NoValidWorkerError):
                raise BroadsheetError(f"{NO_WORKERS} (waited {result.timeout:.0f} s)")
            elif isinstance(result, CommClosedError):
                raise BroadsheetError(NO_SCHEDULER.format(self._scheduler)) from result
            elif isinstance(result, SourceError) and not self._job.strict:
                return source, SetAside(source.name, str(result), source.sources), flight.losses
            else:
                raise result

    def withdraw(self, which: Callable[[Source], bool]) -> list[Source]:
        """Cancel chunks in flight, and return them. A task that has begun runs to its end, which is not waited for."""
        keys = [key for key, flight in self.live.items() if which(flight.source)]
        flights = [self.live.pop(key) for key in keys]
        if flights:
            self._client.cancel([flight.last for flight in flights])
        self._spent += flights
        return [flight.source for flight in flights]

    def wait_for_idle_workers(self) -> None:
        """Wait for the end of tasks that were withdrawn after they had begun."""
        while any(self._client.run(_active_tasks, on_error="ignore").values()):
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _check_scheduler(self) -> None:
        """Fail at once where the scheduler is lost: a request would wait half a minute for it."""
        if self._client.status != "running":
            raise BroadsheetError(NO_SCHEDULER.format(self._scheduler))

    def cancel(self) -> None:
        if self.live and self._client.status == "running":
            self._client.cancel([flight.last for flight in self.live.values()])
        self.live.clear()
        self.release_spent()

    def release_spent(self) -> None:
        """Release the chunks that are done; those of a job's last window all at once, at its end.

        Dask's client sends one message every 10 ms, so releasing them one by one would delay the tasks of the next job.
        Released on the client's event loop, they go into one message.
        """
        spent, self._spent = self._spent, []
        self._client.loop.add_callback(spent.clear)


def _active_tasks(dask_worker: Worker) -> int:
    return len(dask_worker.active_keys)
