"""The task of a range: it is read front to back, and labelled and committed chunk by chunk meanwhile.

A task reads in its own thread, up to where the process has room for chunks; other threads classify and write them. So
the engine computes while this and other tasks read, and chunks need no scheduling.

Of a file that is read in parts, a part has row numbers once all parts before it have been read. So a task reports to
the client how many rows it has read, and the client says to the workers where the next part begins. Until then chunks
are classified and wait to be written.
"""

from __future__ import annotations

import pickle
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from distributed import Worker, get_worker, secede
from distributed.core import Status

from ..errors import SourceError
from ..labelling.engines import ENGINES
from ..measures.examples import Shown
from ..output.commit import commit_end, committed_entry
from ..output.record import Entry
from ..source.chunk import Chunk
from ..source.plan.plan import Range, RangeEnd
from ..source.read.read import Skipped
from ..source.read.readers import bytes_of
from ..telemetry.remarks import REMARKS
from ..telemetry.spans import Span, span, take
from .tasks import Computed, Done, Job, Noted, Work, infer, output_of, refuse_bad_rows, write
from .watchdog import Key, run_of
from .worker import STATE

TOPIC = "broadsheet-chunks"
"""Dask's topic of what tasks report before their end: of each the key of its task, and a `Noted` or `Computed`; or a
`RangeEnd` where a part of a file has been read to its end: with that, the next part has row numbers.
"""

_ENDING = (Status.closing, Status.closed, Status.failed)

_RUNNING = ("executing", "long-running")
"""The states of a task that somebody waits for; the second once it has left its thread."""

_KEPT_WHOLE = 64
"""The number of chunks whose spans a task returns: the last ones that it committed. It has reported those of earlier
chunks to the client (`Noted`) before it ends.
"""

_PACKED_TOGETHER = 64
"""Chunks that are compressed at a time: their entries are much alike."""

_NOTED_SECONDS = 1e-3
"""A wait for room that is shorter has no span."""

_SECONDS_BETWEEN_LOOKS = 0.5
_LOOKS_BETWEEN_REPORTS = 10


@dataclass(frozen=True)
class ChunksDone:
    """What a task has done.

    Attributes
    ----------
    packed : tuple of bytes or Done
        The chunks in input order, those too that were committed before. Of those with an output folder, some at a time
        are pickled and compressed: as objects, the millions of a long job would take thirty times the memory.
    shown : Shown
        Rows of all of them that a report shows.
    end : RangeEnd or None
        Of a range that was read to its end.
    whole : bool
        Whether that is all; the job may have been stopped.

    """

    packed: tuple[bytes | Done, ...]
    shown: Shown
    end: RangeEnd | None = None
    whole: bool = True

    @property
    def chunks(self) -> Iterator[Done]:
        for some in self.packed:
            yield from [some] if isinstance(some, Done) else pickle.loads(zlib.decompress(some))


def label_range(part: Range, content: Chunk | None, alone: bool, job: Job) -> ChunksDone:
    """Read a range, label each chunk, and commit the end.

    Parameters
    ----------
    part : Range
        The range.
    content : Chunk or None
        Its rows, where they were in memory.
    alone : bool
        Begin no chunk before the last one is committed.
    job : Job
        The job.

    Raises
    ------
    SourceError, UsageError, BroadsheetError
        As `infer` and `write` do; what was committed by then stays. A file that cannot be read is a problem
        of the range's end; it raises only if the job is strict or the file is read in parts.

    """
    read_again = 0
    with _Chunks(job, part, alone) as chunks:
        if content is not None:
            chunks.take(0)
            chunks.begin(content, [])
        end = None if content is not None else _read(chunks, job)
        while end is not None and end.begin is not None and not chunks.place(end):
            if chunks.part is part:  # its start is not known, and nobody waits for it any longer
                end = None
            else:
                part, read_again = chunks.part, read_again + part.bytes
                end = _read(chunks, job)
    if end is not None:
        end = replace(end, read_again=read_again, remarks=tuple(REMARKS))
        _close(end, job)
    return ChunksDone(*chunks.done, end, end is not None or content is not None)


def _read(chunks: _Chunks, job: Job) -> RangeEnd | None:
    """Read a range, and begin to label each chunk; its end, or None where it is not read to that."""
    spans = chunks.spans
    given = (chunks.part, job.selection, job.chunk_rows, chunks.is_committed, spans, chunks.take, chunks.is_on_gpu)
    with closing(STATE.read_range(*given)) as reading:
        while chunks.may_read:
            with span("read", spans, "read", number=chunks.begun):
                item = next(reading, None)
            if item is None or isinstance(item, RangeEnd):
                return item
            chunks.begin(item, spans)
    return None


def count_rows(part: Range, job: Job) -> None:
    """Report how many rows a part of a file has that is not labelled yet. Raises SourceError."""
    worker = get_worker()
    _report(worker, worker.get_current_task(), STATE.count_range(part, job.selection))


def begin_no_more(run: str) -> None:
    """From now on the tasks of a run of the graph begin no chunk on this worker."""
    STATE.stopped.add(run)


def _report(worker: Worker, key: Key, what: Noted | Computed | RangeEnd) -> None:
    worker.log_event(TOPIC, {"task": list(key), "noted": pickle.dumps(what)})


def _close(end: RangeEnd, job: Job) -> None:
    """Commit a range's end. With `job.strict`, raises SourceError for a file that was not wholly readable."""
    if job.strict and end.problems:
        raise SourceError(f"{end.problems[0][1]} (--strict stops here)")
    store = output_of(job)
    if store is not None:
        commit_end(store, end, job.fingerprint)


class _Chunks(AbstractContextManager["_Chunks"]):
    """The chunks of one task, from reading to commit. At the end of the block all that have begun are committed; if one
    could not be, its error is raised.
    """

    def __init__(self, job: Job, part: Range, alone: bool) -> None:
        self.part = part
        self._job = job
        self._alone = alone
        self._worker: Worker = get_worker()
        self._key: Key = self._worker.get_current_task()
        self._committed: dict[str, Entry] = {}
        self._packed: list[bytes | Done] = []
        self._ended: list[Done] = []  # the chunks after those, to be packed together
        self._whole: deque[Done | Future[Done]] = deque()  # the chunks after those
        self._unplaced: list[Done | Future[Work]] = []  # the chunks of a part whose start is not known
        self.begun = 0
        self.spans: list[Span] = []  # of reading what has not begun
        self._shown = Shown()
        self._failed = self._has_seceded = False
        self._room: int | None = None  # that was taken for a chunk that has yet to come
        self._engines = ExitStack()
        self.is_on_gpu = False  # whether texts may stay on the GPU that finds them

    def __enter__(self) -> _Chunks:
        held = self._engines.enter_context(ENGINES.use(self._job.engines))  # not to be loaded again for each chunk
        has_windows = any(scoring.windows is not None for scoring in self._job.columns.scoring)
        is_read_on_gpu = all(engine.reads_gpu_texts for engine, _ in held)
        self.is_on_gpu = is_read_on_gpu and not has_windows and self._job.out is not None
        return self

    @property
    def done(self) -> tuple[tuple[bytes | Done, ...], Shown]:
        """Every chunk, packed, and the rows that a report shows. Waits for the last of them, and raises its error."""
        while self._whole:
            self._end(with_spans=True)
        self._pack()
        return tuple(self._packed), self._shown

    def _end(self, with_spans: bool) -> None:
        """Take the earliest chunk that is whole."""
        first = self._whole.popleft()
        done = first if isinstance(first, Done) else first.result()
        self._shown = self._shown.and_(done.shown)
        done = replace(done, spans=done.spans if with_spans else [], shown=Shown())
        if done.rows is not None:
            self._packed.append(done)
            return
        self._ended.append(done)
        if len(self._ended) == _PACKED_TOGETHER:
            self._pack()

    def _pack(self) -> None:
        if self._ended:
            self._packed.append(zlib.compress(pickle.dumps(self._ended)))
        self._ended = []

    def is_committed(self, name: str) -> bool:
        """Whether a chunk is to be skipped: committed by an earlier run, or by a worker that was lost in the middle."""
        store = output_of(self._job)
        entry = None if store is None else committed_entry(store, name, self._job.fingerprint, self._job.names)
        if entry is not None:
            self._committed[name] = entry
        return entry is not None

    def take(self, count: int) -> bool:
        """Wait for room for one more chunk, of so many bytes at most; False where no more is to be read."""
        if self._room is None:
            waited: list[Span] = []
            with span("room", waited, "read"):
                STATE.room.take(count)
            self.spans += [one for one in waited if one.seconds > _NOTED_SECONDS]
            self._room = count
        return self.may_read

    @property
    def may_read(self) -> bool:
        """Whether to read on: no chunk has failed, the job is not stopped, and its result is wanted."""
        return not self._failed and run_of(self._key) not in STATE.stopped and self._is_wanted

    @property
    def _is_wanted(self) -> bool:
        """Whether the task has not been cancelled, and its worker goes on. Dask ends no thread that runs a task."""
        task = self._worker.state.tasks.get(self._key)
        return task is not None and task.state in _RUNNING and self._worker.status not in _ENDING

    @property
    def _is_unplaced(self) -> bool:
        """Whether the rows have no numbers yet, and where they begin is a guess."""
        return self.part.part > 0 and self.part.start is None and not self.part.is_numbered

    def begin(self, chunk: Chunk | Skipped, spans: list[Span]) -> None:
        """Begin to label a chunk that was read; its spans are taken from `spans`."""
        own = take(spans)  # threads that parse ahead go on adding to it
        self.begun += 1
        if isinstance(chunk, Skipped):
            done = Done(chunk.name, self._committed.pop(chunk.name), [], None, Shown())
            self._unplaced.append(done) if self._is_unplaced else self._append(done)
            return
        if not self._is_unplaced:
            refuse_bad_rows(chunk, self._job)
        room, self._room = self._room or 0, None  # it is the chunk's now, and what that does not take is given back
        taken = min(bytes_of(chunk), room)
        STATE.room.shrink(room - taken)
        if self._is_unplaced:
            lenient = replace(self._job, strict=False)  # until it is known that these are rows
            self._unplaced.append(STATE.threads.submit(self._infer, chunk, own, taken, lenient))
            return
        future = STATE.threads.submit(self._label, chunk, own, taken)
        self._append(future)
        if self._alone:
            wait([future])

    def place(self, end: RangeEnd) -> bool:
        """Report what was read of a part of a file. Where its start was a guess, wait until the client says where it
        begins, and write its chunks if that is where they begin; else `part` is then the one to be read.

        Raises SourceError where there are no row numbers, since a part before it cannot be read.
        """
        _report(self._worker, self._key, end)
        if not self._is_unplaced:
            return True
        self._secede()
        self._leave_room()
        start, looks = None, 0
        while start is None and self.may_read:
            start, looks = STATE.starts.get(run_of(self._key), self.part.number, _SECONDS_BETWEEN_LOOKS), looks + 1
            if looks % _LOOKS_BETWEEN_REPORTS == 0:  # this worker may have joined after it was said
                _report(self._worker, self._key, end)
        unplaced, self._unplaced = self._unplaced, []
        if isinstance(start, str):
            raise SourceError(start)
        if start is None or start.byte != end.begin:
            wait([work for work in unplaced if isinstance(work, Future)])
            self.begun = 0
            self.part = self.part if start is None else replace(self.part, start=start)
            return False
        for work in unplaced:
            placed = work if isinstance(work, Done) else self._placed(work.result().numbered(start.row))
            self._append(placed)
        return True

    def _placed(self, work: Work) -> Future[Done]:
        refuse_bad_rows(work.chunk, self._job)
        return STATE.threads.submit(self._write, work)

    def _append(self, chunk: Done | Future[Done]) -> None:
        self._whole.append(chunk)
        while len(self._whole) > _KEPT_WHOLE and _is_committed(self._whole[0]):
            self._end(with_spans=False)

    def _label(self, chunk: Chunk, spans: list[Span], taken: int) -> Done:
        try:
            return self._write(infer(chunk, spans, self._job, self._tell))
        except BaseException:
            self._failed = True
            raise
        finally:
            STATE.room.leave(taken)

    def _infer(self, chunk: Chunk, spans: list[Span], taken: int, job: Job) -> Work:
        """What waits to be written takes no room, or the parts before it might find none."""
        try:
            return infer(chunk, spans, job, self._tell)
        finally:
            STATE.room.leave(taken)

    def _tell(self, computed: Computed) -> None:
        """Report how far a chunk is."""
        _report(self._worker, self._key, computed)

    def _write(self, work: Work) -> Done:
        done = write(work, self._job)
        if done.place is not None and self.part.files:  # rows in memory are reported at the end
            noted = Noted(done.name, done.entry.rows_read, work.chunk.stored, done.spans, done.place)
            _report(self._worker, self._key, noted)
        return done

    def _leave_room(self) -> None:
        if self._room is not None:
            STATE.room.leave(self._room)
        self._room = None

    def _secede(self) -> None:
        """Have another task of the worker read meanwhile, unless the worker closes: it then holds Dask's lock of
        threads while it waits for this one, which would wait for the lock.
        """
        if not self._has_seceded and self._worker.status not in _ENDING:
            secede()
        self._has_seceded = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave_room()
        begun: list[Done | Future[Any]] = [*self._whole, *self._unplaced]
        left = [future for future in begun if isinstance(future, Future) and not future.done()]
        if left:
            self._secede()
            wait(left)
        self._engines.close()
        if error is None:
            for future in self._whole:
                if isinstance(future, Future):
                    future.result()


def _is_committed(chunk: Done | Future[Done]) -> bool:
    return isinstance(chunk, Done) or (chunk.done() and chunk.exception() is None)
