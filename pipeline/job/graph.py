"""The Dask graph of a job. The client keeps a window of tasks submitted ahead of the workers.

Each range is one task, which reads, labels and commits chunk after chunk and reports each to the client. Tasks are not
bound to workers: the scheduler queues them, and gives each to a worker that has a free thread.
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
from ..source.inputs import UnreadableRows
from ..source.plan.plan import Range, RangeEnd, Start, part_name
from ..source.read.readers import ReaderLost
from ..source.rows.chunk import Chunk
from . import tasks
from .range_tasks import TOPIC, RangeResult, begin_no_more, count_rows, label_range
from .starts import ClientStarts
from .tasks import CommitReport, Event, Job, RowsComputed, SetAside, Stopped
from .watchdog import Watchdog, run_of, task_key
from .worker import forget_starts, set_starts

_SUSPECT_LOSSES = 2
"""The number of workers that may be lost while they run a range beside others. Then the range runs alone."""

_MOST_CANCELLED = 3
_SECONDS_BETWEEN_COUNTS, _SECONDS_BETWEEN_LOOKS = 1.0, 0.1
_SUBMIT_SECONDS = 0.05
"""Seconds for which the client collects ranges before it submits them and looks at results."""

_LEAST_WINDOW = 16
_LOADED_PER_WORKER = 8  # ranges whose rows are with the client: an engine computes one at a time
_LOST_FIRST = 5
"""The Dask priority of ranges that were lost with a worker. Other ranges have 0, and run later."""

_CLOCK_SECONDS = 60.0
"""A job ends if the clock was set back by more than this many seconds, and nothing has progressed for the same time."""


def classify_chunks(
    client: Client, sources: Iterable[Source], job: Job, watchdog: Watchdog, stop: Callable[[], bool]
) -> Iterator[Event | None]:
    """Run every range, and yield each chunk as it is committed, in any order. Yield None after a moment without one.

    A range that cannot be read, or that kills its workers even when it runs alone, is set aside. That concerns its
    chunks that are not committed, and those of later ranges of the same file, whose rows have no numbers without it.
    Any other error, and with `job.strict` the first bad row, stops the job and is raised; committed chunks stay.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    sources : iterable of Range or UnreadableRows
        The ranges. The next ones are drawn as others finish.
    job : Job
        The job, which says what to do with each range.
    watchdog : Watchdog
        Receives progress and losses.
    stop : callable
        Called while ranges are in flight. Once it returns True, they start no further chunk.

    """
    run = _Run(client, job, watchdog, stop)
    try:
        yield from _run_together(run, iter(sources), job.strict)
        yield from _run_alone(run)
    finally:
        run.cancel()


def _run_together(run: _Run, waiting: Iterator[Source], strict: bool) -> Iterator[Event | None]:
    """Run all ranges, except those that have to run alone."""
    more = True
    while True:
        if more and run.has_room:
            with run.watchdog.during("the client is reading its next chunk"):
                sources, more = _next_of(waiting, run.room)
            run.submit([source for source in sources if isinstance(source, Range)])
            for source in sources:
                if isinstance(source, UnreadableRows):
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
                # It may not be the cause: a worker that dies takes its other tasks with it.
                run.submit([ended.source], ended.losses)
            else:
                run.suspect(ended.source)


def _next_of(waiting: Iterator[Source], limit: int) -> tuple[list[Source], bool]:
    """Return the next ranges, at most `limit` and as many as come within a moment, and whether there are more."""
    sources: list[Source] = []
    began = time.monotonic()
    while len(sources) < limit and time.monotonic() - began < _SUBMIT_SECONDS:
        source = next(waiting, None)
        if source is None:
            return sources, False
        sources.append(source)
    return sources, True


def _events(result: RangeResult | SetAside) -> Iterator[Event]:
    if isinstance(result, SetAside):
        yield result
        return
    for number, chunk in enumerate(result.chunks):
        yield replace(chunk, shown=Shown() if number else result.shown)
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
    """Run the suspected ranges one at a time, and set aside those that kill their worker again."""
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
    """A range that was submitted and has not ended.

    Attributes
    ----------
    source : Range
        The range.
    task : Future
        The task of the range.
    content : Future or None
        The rows of the range if they were in memory, else None.
    losses : int
        The number of workers that were lost while they ran it.
    cancelled : int
        How often it was cancelled because a worker that held its rows was lost.
    is_count : bool
        Whether the task only counts the rows.

    """

    source: Range
    task: Future
    content: Future | None
    losses: int
    cancelled: int
    is_count: bool


_Heard = RangeResult | CommitReport | RowsComputed | RangeEnd | BaseException | None
"""What the client hears of a task: reports while it runs, and in the end its result or its error."""


@dataclass(frozen=True)
class _Ended:
    """How a range ended.

    Attributes
    ----------
    source : Range
        The range.
    result : RangeResult, SetAside, KilledWorker or ReaderLost
        The result of its task, or why there is none.
    losses : int
        The number of workers or reader processes that were lost with it since it last committed a chunk.

    """

    source: Range
    result: RangeResult | SetAside | KilledWorker | ReaderLost
    losses: int


class _Run:
    """The ranges in flight, and what is known about where ranges begin."""

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
        self._starts = ClientStarts()
        self._began = time.time() - time.monotonic()

    @property
    def has_room(self) -> bool:
        """Whether it is time to submit more: half of the window is free."""
        return len(self.live) <= self._window // 2

    @property
    def room(self) -> int:
        """The most ranges to submit now."""
        self._check_scheduler()
        return self._window - len(self.live)

    @property
    def _window(self) -> int:
        """The number of ranges to have in flight.

        Files need as many as keep all threads of the workers reading. Rows from memory need as many as keep all engines
        computing, since the client and the workers hold them in memory. Workers come and go, so they are counted again
        from time to time; they are not counted before the first chunks are submitted, which are all that a small job
        has.
        """
        if self.live and time.monotonic() - self._asked > _SECONDS_BETWEEN_COUNTS:
            threads = self._client.nthreads()
            self._workers, self._threads, self._asked = len(threads), sum(threads.values()), time.monotonic()
        # All ranges of a job come from files, or all from memory, so the first one tells which.
        loaded = any(flight.content for flight in itertools.islice(self.live.values(), 1))
        return max(_LOADED_PER_WORKER * self._workers if loaded else 4 * self._threads, _LEAST_WINDOW)

    def submit(self, sources: list[Range], losses: int = 0, cancelled: int = 0, alone: bool = False) -> None:
        """Submit ranges. Those that were lost with a worker go first, so that the cause is found soon.

        Parameters
        ----------
        sources : list of Range
            The ranges.
        losses : int
            The number of workers that were lost while they ran them.
        cancelled : int
            How often they were cancelled.
        alone : bool
            Whether nothing else runs. The range then starts a chunk only after the one before it is committed.

        """
        if not sources:
            return
        if any(source.files for source in sources):
            self._listen()
        sources = [self._starts.with_start(source) for source in sources]
        contents = self._contents(sources)
        plain = [replace(source, content=None) if contents[i] else source for i, source in enumerate(sources)]
        tasks = self._map("label", label_range, sources, plain, contents, [alone] * len(sources), losses=losses)
        for source, task, content in zip(sources, tasks, contents, strict=True):
            self._add(_Flight(source, task, content, losses, cancelled, False))

    def suspect(self, source: Range) -> None:
        """Put a range aside to run alone at the end. Count its rows now, since later ranges wait for their numbers."""
        self.suspects.append(source)
        if self._starts.is_awaited(source):
            self._count_rows(source)

    def _count_rows(self, source: Range) -> None:
        (task,) = self._map("count", count_rows, [source], [self._starts.with_start(source)], losses=1)
        self._add(_Flight(source, task, None, 0, 0, True))

    def _contents(self, sources: Sequence[Range]) -> list[Future | None]:
        """Return the rows of ranges in memory, which the client sends to the workers, or which they compute."""
        held = [source.content for source in sources if isinstance(source.content, Chunk)]
        delayed = [source.content for source in sources if not isinstance(source.content, Chunk | None)]
        sent = iter(self._scatter(held) if held else ())
        computed = iter(self._client.compute(delayed) if delayed else ())
        return [
            None if source.content is None else next(sent if isinstance(source.content, Chunk) else computed)
            for source in sources
        ]

    def _listen(self) -> None:
        """Subscribe to what tasks report before they end."""
        if not self._subscribed:
            self._client.subscribe_topic(TOPIC, self._hear)
            self._subscribed = True

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        """Note a report of a task. The event loop of the client calls this."""
        key = tuple(event[1]["task"])
        if run_of(key) == self._name:
            self.watchdog.progress()
            self._heard.put((key, pickle.loads(event[1]["noted"])))

    def _scatter(self, held: list[Chunk]) -> list[Future]:
        # The client reaches workers of this machine directly, without the scheduler in between.
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
        """Fetch the result of a range when it is ready. Dask fetches results that are ready together in one request."""
        try:
            self._heard.put((task.key, await self._client.gather(task, asynchronous=True)))
        except BaseException as error:  # without a result, the job would wait for ever
            self._heard.put((task.key, error))

    def _say(self, starts: dict[int, Start | str]) -> None:
        """Send the starts of ranges to all workers, without waiting for them."""
        if starts:
            self._client.loop.add_callback(self._send, starts)

    async def _send(self, starts: dict[int, Start | str]) -> None:
        with suppress(OSError):  # the scheduler has just gone; the job itself reports that
            await self._client.run(set_starts, self._name, starts, on_error="ignore")

    def next_event(self, wait: bool) -> _Ended | CommitReport | RowsComputed | None:
        """Return the next result or report of a task. If there is none, return None, with `wait` after a moment.

        Raises the error that stops the job.
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
                        self._count_rows(suspect)  # from its true start
                continue
            self._check_scheduler()
            ended = self._ended(key, result)
            if ended is not None:
                return ended

    def _ended(self, key: Any, result: RangeResult | BaseException | None) -> _Ended | None:
        """Return how a range ended; None if it runs again, or was only counted. Raises the error that stops the job."""
        flight = self.live.pop(key)
        self._spent.append(flight)
        source = flight.source
        progressed = key in self._progressed
        self._progressed.discard(key)
        # A task that only counts rows has reported the count already.
        if flight.is_count:
            if isinstance(result, BaseException):
                self._say(self._starts.fail(source, f"its rows could not be counted: {result}"))
            return None
        # The worker or the reader died: the caller decides whether the range runs again.
        if isinstance(result, KilledWorker):
            self.watchdog.worker_lost()
            return _Ended(source, result, 1 if progressed else flight.losses + result.allowed_failures + 1)
        if isinstance(result, ReaderLost):
            self.watchdog.warn(f"{result.message}; it is read again, unless this has happened several times")
            return _Ended(source, result, 1 if progressed else flight.losses + 1)
        if isinstance(result, RangeResult):
            self.watchdog.progress()
            return _Ended(source, result, flight.losses)
        # Dask has lost the connection, or the rows of the range with a worker.
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
        """Once the job is stopped, tell the tasks, which would otherwise go on to the end of their ranges."""
        if self._subscribed and not self._stopping and self._stop():
            self._stopping = True
            self._client.run(begin_no_more, self._name, on_error="ignore")

    def _check_scheduler(self) -> None:
        """Raise BroadsheetError if the scheduler is lost, or if Dask may wait for the clock.

        A request would wait half a minute for a scheduler that is lost. Dask sends its batches of messages at times of
        day, so after the clock was set back it may send none.
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
        """Cancel the ranges in flight. Running tasks finish the chunks that they have started, without the client."""
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
        """Release the results of tasks that have ended; those of the last window of a job all at once, at its end.

        Dask's client sends one message every 10 ms, so releasing them one by one would delay the tasks of the next job.
        Results that are released on the event loop of the client go into one message.
        """
        spent, self._spent = self._spent, []
        self._client.loop.add_callback(spent.clear)
