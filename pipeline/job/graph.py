"""The Dask graph, kept a window ahead of the workers.

A range is one task: it reads, classifies and commits chunk after chunk, and reports each to the client. Tasks are
unrestricted, so the scheduler queues them, and each goes to a worker that has a thread for it.
"""

from __future__ import annotations

import itertools
import pickle
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from distributed import CancelledError, Client, Future, KilledWorker, LocalCluster
from distributed.comm.core import CommClosedError
from distributed.scheduler import NoValidWorkerError, NoWorkerError

from ...cluster.settings import NO_SCHEDULER, NO_WORKERS
from ...cluster.workers import scheduler_answers
from ..errors import BroadsheetError, SourceError
from ..measures.examples import Shown
from ..report.timeline import Source
from ..source.inputs import Unread
from ..source.plan.plan import Range, RangeEnd, Start, part_name
from ..source.read.readers import ReaderLost
from ..source.rows.chunk import Chunk
from . import tasks
from .range_tasks import TOPIC, RangeResult, begin_no_more, count_rows, label_range
from .starts import Starts
from .tasks import CommitReport, Event, Job, RowsComputed, SetAside, Stopped
from .watchdog import Watchdog, run_of, task_key
from .worker import forget_starts, set_starts

_SUSPECT_LOSSES = 2
"""So many workers may be lost with a chunk that runs with others, before it has to run alone."""

_MOST_CANCELLED = 3
_SECONDS_BETWEEN_COUNTS, _SECONDS_BETWEEN_LOOKS = 1.0, 0.1
_SUBMIT_SECONDS = 0.05
"""After so long the chunks that are planned, or read here, are submitted, and results are looked at."""

_LEAST_WINDOW = 16
_LOADED_PER_WORKER = 8  # ranges whose rows are with the client: an engine computes one at a time
_LOST_FIRST = 5
_CLOCK_SECONDS = 60.0
"""By so much the clock must be set back, and so long must nothing progress, for a job to end for that."""


def classify_chunks(
    client: Client, sources: Iterable[Source], job: Job, watchdog: Watchdog, stop: Callable[[], bool]
) -> Iterator[Event | None]:
    """Run every range, and yield each chunk as it is done, in any order; None after a moment in which none was.

    A range that cannot be read, or that kills its workers even when it runs alone, is set aside: its chunks that are
    not committed, and those of the ranges after it in its file, whose rows have no numbers without it. Any other error,
    and with `job.strict` the first bad row, stops the job and is raised; committed chunks are kept.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    sources : iterable of Range or Unread
        The ranges, which are drawn as others finish.
    job : Job
        What is to be done with each.
    watchdog : Watchdog
        Receives progress and losses.
    stop : callable
        Called while ranges are in flight; once it returns True, these begin no further chunk.

    """
    run = _Run(client, job, watchdog, stop)
    try:
        yield from _run_together(run, iter(sources), job.strict)
        yield from _run_alone(run)
    finally:
        run.cancel()


def _run_together(run: _Run, waiting: Iterator[Source], strict: bool) -> Iterator[Event | None]:
    """Run all ranges, except those that are to run alone."""
    more = True
    while True:
        if more and run.has_room:
            with run.watchdog.during("the client is reading its next chunk"):
                sources, more = _next_of(waiting, run.room)
            run.submit([source for source in sources if isinstance(source, Range)])
            for source in sources:
                if isinstance(source, Unread):
                    if strict:
                        raise SourceError(source.reason)
                    yield SetAside(source.name, source.reason, ())
        if not run.live:
            if more:
                continue  # the client could read none of these
            return
        ended = run.next_event(wait=not (more and run.has_room))
        if not isinstance(ended, _Ended):
            yield ended
        else:
            if more:
                run.release_spent()
            if not isinstance(ended.result, KilledWorker | ReaderLost):
                yield from _events(ended.result)
            elif ended.losses < _SUSPECT_LOSSES:
                # Perhaps not the cause: a worker that dies takes its other tasks with it.
                run.submit([ended.source], ended.losses)
            else:
                run.suspect(ended.source)


def _next_of(waiting: Iterator[Source], most: int) -> tuple[list[Source], bool]:
    """The next ranges, up to `most` and as many as there are in a moment; and whether there are more."""
    sources: list[Source] = []
    began = time.monotonic()
    while len(sources) < most and time.monotonic() - began < _SUBMIT_SECONDS:
        source = next(waiting, None)
        if source is None:
            return sources, False
        sources.append(source)
    return sources, True


def _events(result: RangeResult | SetAside) -> Iterator[Event]:
    if isinstance(result, SetAside):
        yield result
        return
    for number, done in enumerate(result.chunks):
        yield replace(done, shown=Shown() if number else result.shown)
    if result.end is not None:
        yield result.end
    elif not result.is_whole:
        yield Stopped()


def _set_aside(source: Range, reason: str) -> SetAside:
    if isinstance(source.content, Chunk):
        return SetAside(source.name, reason, source.content.sources)
    number = source.number if source.files else None
    return SetAside(part_name(source.number, source.chunk), reason, (), number)


def _run_alone(run: _Run) -> Iterator[Event | None]:
    """Run the suspects one at a time; set aside those that kill their worker again."""
    for source in sorted(run.suspects, key=lambda suspect: suspect.number):
        run.release_spent()  # Dask would repeat those whose result was on a worker that is lost
        run.submit([source], alone=True)
        while not isinstance(ended := run.next_event(wait=True), _Ended):
            yield ended
        if isinstance(ended.result, KilledWorker):
            yield _set_aside(source, "it kills every worker that takes it")
        elif isinstance(ended.result, ReaderLost):
            yield _set_aside(source, f"{ended.result.message}, and so did those that tried it before")
        else:
            yield from _events(ended.result)


@dataclass(frozen=True)
class _Flight:
    """A range in flight.

    Attributes
    ----------
    source : Range
        The range.
    task : Future
        Its task.
    content : Future or None
        Of rows in memory.
    losses : int
        Workers that were lost with it.
    cancelled : int
        How often it was cancelled, by the loss of its rows.
    is_count : bool
        Whether its rows are only counted.

    """

    source: Range
    task: Future
    content: Future | None
    losses: int
    cancelled: int
    is_count: bool


_Heard = RangeResult | CommitReport | RowsComputed | RangeEnd | BaseException | None
"""What comes of a task: a report of it while it runs, and in the end its result or its error."""


@dataclass(frozen=True)
class _Ended:
    """What became of a range.

    Attributes
    ----------
    source : Range
        The range.
    result : RangeResult, SetAside, KilledWorker or ReaderLost
        What it returned, or why it did not.
    losses : int
        Workers, or reader processes, lost with it since it last committed a chunk.

    """

    source: Range
    result: RangeResult | SetAside | KilledWorker | ReaderLost
    losses: int


class _Run:
    """What is in flight, and what is known of where ranges begin."""

    def __init__(self, client: Client, job: Job, watchdog: Watchdog, stop: Callable[[], bool]) -> None:
        self.live: dict[Any, _Flight] = {}
        self.watchdog = watchdog
        self.suspects: list[Range] = []
        self._stop = stop
        self._stopping = self._subscribed = False
        self._progressed: set[Any] = set()
        self._spent: list[_Flight] = []
        self._client = client
        self._scheduler = client.scheduler.address
        self._job = job
        self._name = uuid.uuid4().hex[:8]
        self._count = itertools.count()
        self._heard: SimpleQueue[tuple[Any, _Heard]] = SimpleQueue()
        self._workers, self._threads, self._asked = 0, 0, float("-inf")
        self._starts = Starts()
        self._began = time.time() - time.monotonic()

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

        They are not counted before the first chunks are submitted: a small job has no others.
        """
        if self.live and time.monotonic() - self._asked > _SECONDS_BETWEEN_COUNTS:
            threads = self._client.nthreads()
            self._workers, self._threads, self._asked = len(threads), sum(threads.values()), time.monotonic()
        loaded = any(flight.content for flight in itertools.islice(self.live.values(), 1))
        return max(_LOADED_PER_WORKER * self._workers if loaded else 4 * self._threads, _LEAST_WINDOW)

    def submit(self, sources: list[Range], losses: int = 0, cancelled: int = 0, alone: bool = False) -> None:
        """Submit ranges. Those that were lost with a worker go first, so that the cause is soon found.

        alone: nothing else runs, and the range is to begin no chunk before its last one is committed.
        """
        if not sources:
            return
        if any(source.files for source in sources):
            self._listen()
        sources = [self._starts.begun(source) for source in sources]
        contents = self._contents(sources)
        plain = [replace(source, content=None) if contents[i] else source for i, source in enumerate(sources)]
        tasks = self._map("label", label_range, sources, plain, contents, [alone] * len(sources), losses=losses)
        for source, task, content in zip(sources, tasks, contents, strict=True):
            self._add(_Flight(source, task, content, losses, cancelled, False))

    def suspect(self, source: Range) -> None:
        """Have a range run alone, at the end; its rows are counted now, since others wait for their numbers."""
        self.suspects.append(source)
        if self._starts.is_awaited(source):
            self._count_rows(source)

    def _count_rows(self, source: Range) -> None:
        (task,) = self._map("count", count_rows, [source], [self._starts.begun(source)], losses=1)
        self._add(_Flight(source, task, None, 0, 0, True))

    def _contents(self, sources: Sequence[Range]) -> list[Future | None]:
        """The rows of ranges in memory: sent to workers by the client, or computed there."""
        held = [source.content for source in sources if isinstance(source.content, Chunk)]
        delayed = [source.content for source in sources if not isinstance(source.content, Chunk | None)]
        sent = iter(self._scatter(held) if held else ())
        computed = iter(self._client.compute(delayed) if delayed else ())
        return [
            None if source.content is None else next(sent if isinstance(source.content, Chunk) else computed)
            for source in sources
        ]

    def _listen(self) -> None:
        """Hear what tasks report before their end."""
        if not self._subscribed:
            self._client.subscribe_topic(TOPIC, self._hear)
            self._subscribed = True

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        """Called in the client's event loop."""
        key = tuple(event[1]["task"])
        if run_of(key) == self._name:
            self.watchdog.progress()
            self._heard.put((key, pickle.loads(event[1]["noted"])))

    def _scatter(self, held: list[Chunk]) -> list[Future]:
        # Workers of this machine are in reach: what they are sent need not go through the scheduler.
        direct = isinstance(self._client.cluster, LocalCluster)
        try:
            chunks: list[Future] = self._client.scatter(held, hash=False, direct=direct)
        except TimeoutError as error:
            raise BroadsheetError(NO_WORKERS) from error
        return chunks

    def _map(
        self, step: str, function: Any, sources: Sequence[Range], *columns: Iterable[Any], losses: int
    ) -> list[Future]:
        keys = [task_key(step, self._name, source.name, next(self._count)) for source in sources]
        urgency = _LOST_FIRST if losses else 0
        jobs = [self._job] * len(sources)
        futures: list[Future] = self._client.map(
            partial(tasks.reported, function), *columns, jobs, key=keys, priority=urgency, pure=False
        )
        return futures

    def _add(self, flight: _Flight) -> None:
        self.live[flight.task.key] = flight
        self._client.loop.add_callback(self._fetch, flight.task)

    async def _fetch(self, task: Future) -> None:
        """Fetch a range's result as soon as it is done; Dask fetches those that are done together in one request."""
        try:
            self._heard.put((task.key, await self._client.gather(task, asynchronous=True)))
        except BaseException as error:  # any error of a task: without a result the job would wait for ever
            self._heard.put((task.key, error))

    def _say(self, starts: dict[int, Start | str]) -> None:
        """Say to all workers where ranges begin. It is not waited for."""
        if starts:
            self._client.loop.add_callback(self._send, starts)

    async def _send(self, starts: dict[int, Start | str]) -> None:
        with suppress(OSError):  # the scheduler has just gone; the job itself reports that
            await self._client.run(set_starts, self._name, starts, on_error="ignore")

    def next_event(self, wait: bool) -> _Ended | CommitReport | RowsComputed | None:
        """The next result or report of a task; None where there is none, after a moment's wait if `wait`. Raises what
        stops the job.
        """
        while True:
            self._check_stop()
            try:
                key, result = self._heard.get(wait, _SECONDS_BETWEEN_LOOKS)
            except Empty:
                self._check_scheduler()
                return None
            if isinstance(result, RowsComputed):
                return result
            if isinstance(result, CommitReport):
                self._progressed.add(key)
                return result
            if isinstance(result, RangeEnd):
                known = self._starts.read(result)
                self._say(known)
                for suspect in self.suspects:
                    if suspect.number in known and self._starts.is_misread(suspect):
                        self._count_rows(suspect)  # from where it begins
                continue
            self._check_scheduler()
            ended = self._ended(key, result)
            if ended is not None:
                return ended

    def _ended(self, key: Any, result: RangeResult | BaseException | None) -> _Ended | None:
        """What became of a range; None where it runs again, or was counted. Raises what stops the job."""
        flight = self.live.pop(key)
        self._spent.append(flight)
        source = flight.source
        progressed = key in self._progressed
        self._progressed.discard(key)
        if flight.is_count:
            if isinstance(result, BaseException):
                self._say(self._starts.fail(source, f"its rows could not be counted: {result}"))
            return None
        if isinstance(result, KilledWorker):
            self.watchdog.worker_lost()
            return _Ended(source, result, 1 if progressed else flight.losses + result.allowed_failures + 1)
        if isinstance(result, ReaderLost):
            self.watchdog.warn(f"{result.message}; it is read again, unless this has happened several times")
            return _Ended(source, result, 1 if progressed else flight.losses + 1)
        if isinstance(result, RangeResult):
            self.watchdog.progress()
            return _Ended(source, result, flight.losses)
        if isinstance(result, CommClosedError) and not scheduler_answers(self._client):
            raise BroadsheetError(NO_SCHEDULER.format(self._scheduler)) from result
        if isinstance(result, CancelledError | CommClosedError):
            if flight.cancelled == _MOST_CANCELLED:
                raise BroadsheetError(f"{source.name}: cancelled by the scheduler ({result}); continue with --resume")
            self.submit([source], flight.losses, flight.cancelled + 1)  # its rows were on a worker that was lost
            return None
        if isinstance(result, NoWorkerError | NoValidWorkerError):
            raise BroadsheetError(f"{NO_WORKERS} (waited {result.timeout:.0f} s)")
        if isinstance(result, SourceError) and not self._job.strict:
            self._say(self._starts.fail(source, result.message))
            return _Ended(source, _set_aside(source, result.message), flight.losses)
        raise result if result is not None else TypeError("a task returned nothing")

    def _check_stop(self) -> None:
        """Once the job is stopped, say so to the tasks, which would go on to the end of their ranges."""
        if self._subscribed and not self._stopping and self._stop():
            self._stopping = True
            self._client.run(begin_no_more, self._name, on_error="ignore")

    def _check_scheduler(self) -> None:
        """Fail at once where the scheduler is lost: a request would wait half a minute for it. Fail where Dask may wait
        for the clock: its batches of messages are sent at times of day.
        """
        if self._client.status != "running":
            raise BroadsheetError(NO_SCHEDULER.format(self._scheduler))
        set_back = self._began - (time.time() - time.monotonic())
        if set_back > _CLOCK_SECONDS and (idle := self.watchdog.idle) > _CLOCK_SECONDS:
            raise BroadsheetError(
                f"the clock was set back by {set_back:,.0f} s, and nothing has progressed for {idle:.0f} s: Dask may "
                "wait until it is as late again. What is committed stays: continue with --resume"
            )

    def cancel(self) -> None:
        """Cancel what is in flight. A task that has begun runs to the end of its chunks that have, which is not waited
        for.
        """
        if self._client.status == "running":
            if self.live:
                self._client.cancel([flight.task for flight in self.live.values()])
            if self._subscribed:
                self._client.unsubscribe_topic(TOPIC)
            if self._starts.is_used:
                self._client.run(forget_starts, self._name, on_error="ignore")
        self.live.clear()
        self.release_spent()

    def release_spent(self) -> None:
        """Release the chunks that are done; those of a job's last window all at once, at its end.

        Dask's client sends one message every 10 ms, so releasing them one by one would delay the tasks of the next job.
        Released on the client's event loop, they go into one message.
        """
        spent, self._spent = self._spent, []
        self._client.loop.add_callback(spent.clear)
