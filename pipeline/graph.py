"""The Dask graph, kept a window ahead of the workers.

A group of files, or a run of row groups, is one task: it reads, classifies and commits chunk after chunk, and the
client hears of each. Any other chunk is read -> infer -> write: reads are unrestricted, so the scheduler queues them
and memory is bounded by the chunks in flight; infer and write follow the chunk to the worker that read it. Infer runs
on the worker's `gpu` executor, which has a thread (on a GPU a second one, for the next chunk to begin), so that reading
chunk i + 1, computing chunk i and writing chunk i - 1 overlap. A chunk whose text is with the client is one task.
"""

from __future__ import annotations

import itertools
import pickle
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import dask
from distributed import CancelledError, Client, Future, KilledWorker, LocalCluster
from distributed.comm.core import CommClosedError
from distributed.scheduler import NoValidWorkerError, NoWorkerError

from ..cluster.settings import GPU_EXECUTOR, NO_SCHEDULER, NO_WORKERS
from .errors import BroadsheetError, SourceError
from .job import tasks
from .job.group_tasks import TOPIC, ChunksDone, begin_no_more, label_group, label_run
from .job.tasks import Done, Event, Job, Noted, SetAside, Stopped
from .job.watchdog import RunAlone, Watchdog, run_of, task_key
from .source.inputs import Loaded, Partition, Source, UnreadChunk
from .source.plan.plan import Group, RowGroups, Unit, part_name
from .source.read.readers import ReaderLost

_SUSPECT_LOSSES = 2
"""So many workers may be lost with a chunk that runs with others, before it has to run alone."""

_MOST_CANCELLED = 3
_SECONDS_BETWEEN_COUNTS, _SECONDS_BETWEEN_LOOKS = 1.0, 0.1
_SUBMIT_SECONDS = 0.05
"""After so long the chunks that are planned, or read here, are submitted, and results are looked at."""

_LEAST_WINDOW = 16
_LOADED_PER_WORKER = 8  # chunks whose text is with the client: an engine computes one at a time
_WRITE_FIRST, _INFER_FIRST, _LOST_FIRST = 20, 10, 5


def classify_chunks(
    client: Client, sources: Iterable[Source], job: Job, watchdog: Watchdog, stop: Callable[[], bool]
) -> Iterator[Event]:
    """Run every chunk, and yield each as it is done, in any order. `sources` is consumed as chunks finish.

    A chunk whose input cannot be read, or that kills its workers even when it runs alone, is set aside; of a group or a
    run, all chunks that are not committed. Any other error, and with `job.strict` the first bad row, stops the job and
    is raised; committed chunks are kept. stop: asked while groups and runs are in flight; once it is true, these begin
    no further chunk.
    """
    run = _Run(client, job, watchdog, stop)
    alone = RunAlone()
    try:
        yield from _run_together(run, iter(sources), alone, job.strict)
        yield from _run_alone(run, alone)
    finally:
        run.cancel()


def _run_together(run: _Run, waiting: Iterator[Source], alone: RunAlone, strict: bool) -> Iterator[Event]:
    """Run all sources, except those that are to run alone."""
    more = True
    while True:
        if more and run.has_room:
            with run.watchdog.during("the client is reading its next chunk"):
                sources, more = _next_of(waiting, run.room)
            run.submit(sources)
            yield from _unread(sources, strict)
        if not run.live:
            if more:
                continue  # the client could read none of these chunks
            return
        ended = run.next_event(wait=not (more and run.has_room))
        if isinstance(ended, Noted):
            yield ended
        elif ended is not None:
            if more:
                run.release_spent()
            if not isinstance(ended.result, KilledWorker | ReaderLost):
                yield from _events(ended.result)
            elif ended.losses < _SUSPECT_LOSSES:
                # Perhaps not the cause: a worker that dies takes its other tasks with it.
                run.submit([ended.source], ended.losses)
            else:
                alone.sources.append(ended.source)


def _next_of(waiting: Iterator[Source], most: int) -> tuple[list[Source], bool]:
    """The next sources, up to `most` and as many as there are in a moment; and whether there are more."""
    found: list[Source] = []
    began = time.monotonic()
    while len(found) < most and time.monotonic() - began < _SUBMIT_SECONDS:
        source = next(waiting, None)
        if source is None:
            return found, False
        found.append(source)
    return found, True


def _events(result: Done | ChunksDone | list[SetAside]) -> Iterator[Event]:
    if isinstance(result, Done):
        yield result
    elif isinstance(result, ChunksDone):
        for number, done in enumerate(result.chunks):
            yield replace(done, examples=[] if number else result.examples)
        if result.end is not None:
            yield result.end
        elif not result.whole:
            yield Stopped()
    else:
        yield from result


def _unread(sources: list[Source], strict: bool) -> Iterator[SetAside]:
    for source in sources:
        if isinstance(source, UnreadChunk):
            if strict:
                raise SourceError(source.reason)
            yield from _set_aside(source, source.reason)


def _set_aside(source: Source, reason: str) -> list[SetAside]:
    if isinstance(source, Group):
        return [SetAside(part_name(source.number, 0), reason, (), source.number)]
    units = source.units if isinstance(source, RowGroups) else [source]
    return [SetAside(unit.name, reason, unit.sources) for unit in units]


def _run_alone(run: _Run, alone: RunAlone) -> Iterator[Event]:
    """Run these one at a time; set aside those that kill their worker again, and what cannot be told from them."""
    for source in alone.sources:
        cause = alone.cause(source)
        if cause is not None:
            yield from _set_aside(source, f"not tried: {cause}")
            continue
        run.release_spent()  # Dask would repeat those whose result was on a worker that is lost
        run.submit([source], alone=True)
        ended = None
        while not isinstance(ended, _Ended):
            ended = run.next_event(wait=True)
            if isinstance(ended, Noted):
                yield ended
        alone.ran_alone(source, isinstance(ended.result, KilledWorker))
        if isinstance(ended.result, KilledWorker):
            yield from _set_aside(source, "it kills every worker that takes it")
        elif isinstance(ended.result, ReaderLost):
            yield from _set_aside(source, f"{ended.result.message}, and so did those that tried it before")
        else:
            yield from _events(ended.result)


@dataclass(frozen=True)
class _Flight:
    """A chunk, a group or a run in flight. last: the future of its last task; results of earlier tasks stay on the
    worker. text: of a chunk whose text is with the client. losses: workers that were lost with it. cancelled: by the
    loss of its text.
    """

    source: Source
    last: Future
    text: Future | None
    losses: int
    cancelled: int


@dataclass(frozen=True)
class _Ended:
    """What became of a source. losses: workers, or reader processes, lost with it since it last committed a chunk."""

    source: Source
    result: Done | ChunksDone | list[SetAside] | KilledWorker | ReaderLost
    losses: int


class _Run:
    """What is in flight."""

    def __init__(self, client: Client, job: Job, watchdog: Watchdog, stop: Callable[[], bool]) -> None:
        self.live: dict[Any, _Flight] = {}
        self.watchdog = watchdog
        self._stop = stop
        self._stopping = self._subscribed = False
        self._progressed: set[Any] = set()
        self._spent: list[_Flight] = []
        self._client = client
        self._scheduler = client.scheduler.address
        self._job = job
        self._name = uuid.uuid4().hex[:8]
        self._count = itertools.count()
        self._heard: SimpleQueue[tuple[Any, Done | ChunksDone | Noted | BaseException]] = SimpleQueue()
        self._workers, self._threads, self._asked = 0, 0, float("-inf")

    @property
    def has_room(self) -> bool:
        """Whether it is time to submit more: half of the window is free."""
        return len(self.live) <= self._window // 2

    @property
    def room(self) -> int:
        """How many sources to submit, at most."""
        self._check_scheduler()
        return self._window - len(self.live)

    @property
    def _window(self) -> int:
        """How many sources to have in flight: as many as keep all threads reading, or all engines computing where text
        is drawn from the client, whose memory and the workers' hold it. Workers come and go, so they are counted again
        from time to time.

        Not before the first chunks are submitted: a small job has no others.
        """
        if self.live and time.monotonic() - self._asked > _SECONDS_BETWEEN_COUNTS:
            threads = self._client.nthreads()
            self._workers, self._threads, self._asked = len(threads), sum(threads.values()), time.monotonic()
        loaded = any(flight.text for flight in itertools.islice(self.live.values(), 1))
        return max(_LOADED_PER_WORKER * self._workers if loaded else 4 * self._threads, _LEAST_WINDOW)

    def submit(self, sources: list[Source], losses: int = 0, cancelled: int = 0, alone: bool = False) -> None:
        """Submit sources. Those that were lost with a worker go first, so that the cause is soon found.

        alone: nothing else runs, and a group or run is to begin no chunk before its last one is committed.
        """
        urgency = _LOST_FIRST if losses else 0
        units = [s for s in sources if isinstance(s, Unit)]
        groups = [s for s in sources if isinstance(s, Group)]
        runs = [s for s in sources if isinstance(s, RowGroups)]
        loaded = [s for s in sources if isinstance(s, Loaded)]
        partitions = [s for s in sources if isinstance(s, Partition)]
        if groups or runs:
            self._listen()
        if groups:
            last = self._map("label", label_group, groups, groups, [alone] * len(groups), priority=urgency)
            self._add(groups, last, losses, cancelled)
        if runs:
            last = self._map("label", label_run, runs, runs, [alone] * len(runs), priority=urgency)
            self._add(runs, last, losses, cancelled)
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

    def _listen(self) -> None:
        """Hear of the chunks that groups and runs commit before their end."""
        if not self._subscribed:
            self._client.subscribe_topic(TOPIC, self._hear)
            self._subscribed = True

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        """Called in the client's event loop."""
        key = tuple(event[1]["task"])
        if run_of(key) == self._name:
            self.watchdog.progress()
            self._heard.put((key, pickle.loads(event[1]["noted"])))

    def _scatter(self, loaded: list[Loaded]) -> list[Future]:
        # Workers of this machine are in reach: what they are sent need not go through the scheduler.
        direct = isinstance(self._client.cluster, LocalCluster)
        try:
            chunks: list[Future] = self._client.scatter(loaded, hash=False, direct=direct)
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
            self._heard.put((future.key, await self._client.gather(future, asynchronous=True)))
        except BaseException as error:  # any error of a task: without a result the job would wait for ever
            self._heard.put((future.key, error))

    def next_event(self, wait: bool) -> _Ended | Noted | None:
        """What is heard next; None where nothing has been, unless it is to be waited for. Raises what stops the job."""
        while True:
            self._check_stop()
            try:
                key, result = self._heard.get(wait, _SECONDS_BETWEEN_LOOKS)
            except Empty:
                self._check_scheduler()
                if wait:
                    continue
                return None
            if isinstance(result, Noted):
                self._progressed.add(key)
                return result
            self._check_scheduler()
            ended = self._ended(key, result)
            if ended is not None:
                return ended

    def _ended(self, key: Any, result: Done | ChunksDone | BaseException) -> _Ended | None:
        """What became of a source; None where it runs again. Raises what stops the job."""
        flight = self.live.pop(key)
        self._spent.append(flight)
        source = flight.source
        progressed = key in self._progressed
        self._progressed.discard(key)
        if isinstance(result, KilledWorker):
            self.watchdog.worker_lost()
            return _Ended(source, result, 1 if progressed else flight.losses + result.allowed_failures + 1)
        if isinstance(result, ReaderLost):
            self.watchdog.warn(f"{result.message}; it is read again, unless this has happened several times")
            return _Ended(source, result, 1 if progressed else flight.losses + 1)
        if not isinstance(result, BaseException):
            self.watchdog.progress()
            return _Ended(source, result, flight.losses)
        if isinstance(result, CancelledError):
            if flight.cancelled == _MOST_CANCELLED:
                raise BroadsheetError(f"{source.name}: cancelled by the scheduler ({result}); continue with --resume")
            self.submit([source], flight.losses, flight.cancelled + 1)  # its text was on a worker that was lost
            return None
        if isinstance(result, NoWorkerError | NoValidWorkerError):
            raise BroadsheetError(f"{NO_WORKERS} (waited {result.timeout:.0f} s)")
        if isinstance(result, CommClosedError):
            raise BroadsheetError(NO_SCHEDULER.format(self._scheduler)) from result
        if isinstance(result, SourceError) and not self._job.strict:
            return _Ended(source, _set_aside(source, result.message), flight.losses)
        raise result

    def _check_stop(self) -> None:
        """Once the job is stopped, tell the tasks of groups and runs, which would go on to the end of their files."""
        if self._subscribed and not self._stopping and self._stop():
            self._stopping = True
            self._client.run(begin_no_more, self._name, on_error="ignore")

    def _check_scheduler(self) -> None:
        """Fail at once where the scheduler is lost: a request would wait half a minute for it."""
        if self._client.status != "running":
            raise BroadsheetError(NO_SCHEDULER.format(self._scheduler))

    def cancel(self) -> None:
        """Cancel what is in flight. A task that has begun runs to its end, which is not waited for; one of a group or a
        run, to the end of the chunks that it has begun.
        """
        if self._client.status == "running":
            if self.live:
                self._client.cancel([flight.last for flight in self.live.values()])
            if self._subscribed:
                self._client.unsubscribe_topic(TOPIC)
        self.live.clear()
        self.release_spent()

    def release_spent(self) -> None:
        """Release the chunks that are done; those of a job's last window all at once, at its end.

        Dask's client sends one message every 10 ms, so releasing them one by one would delay the tasks of the next job.
        Released on the client's event loop, they go into one message.
        """
        spent, self._spent = self._spent, []
        self._client.loop.add_callback(spent.clear)
