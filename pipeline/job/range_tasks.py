"""The task of a range: it reads the range front to back, and labels and commits its chunks meanwhile.

A task reads in its own thread, as far as the process has room for chunks. Other threads label and write them. So the
engine computes while this task and others read, and Dask does not schedule single chunks.

If a file is read in parts, the rows of a part have numbers only when all parts before it have been read. Each task
reports to the client how many rows it has read, and the client tells the workers where the next part begins. Until
then, the chunks of that part are labelled and wait to be written.
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
from ..source.plan.plan import Range, RangeEnd
from ..source.read.read import Skipped
from ..source.read.readers import bytes_of
from ..source.rows.chunk import Chunk
from ..telemetry.remarks import REMARKS
from ..telemetry.spans import Span, drain, span
from .tasks import (
    CommitReport,
    CommittedChunk,
    Job,
    LabelledChunk,
    RowsComputed,
    infer,
    output_of,
    refuse_bad_rows,
    write,
)
from .watchdog import Key, run_of
from .worker import STATE

TOPIC = "broadsheet-chunks"
"""The topic of Dask under which tasks report before they end. A message has the key of the task, and a `CommitReport`,
a `RowsComputed`, or a `RangeEnd` once a part of a file has been read to its end, which gives the next part row numbers.
"""

_ENDING = (Status.closing, Status.closed, Status.failed)

_RUNNING = ("executing", "long-running")
"""The states of a task whose result somebody waits for. A task that has seceded from its thread is long-running."""

_LAST_WITH_SPANS = 64
"""How many chunks have their spans in the result of a task: the last ones that it committed. It has sent the spans of
earlier chunks to the client, in a `CommitReport`, long before.
"""

_PACKED_AT_ONCE = 64
"""Chunks that are compressed at once: their entries are much alike."""

_NOTED_SECONDS = 1e-3
"""A shorter wait for room gets no span."""

_SECONDS_BETWEEN_LOOKS = 0.5
_LOOKS_BETWEEN_REPORTS = 10


@dataclass(frozen=True)
class RangeResult:
    """The result of a task.

    Attributes
    ----------
    packed : tuple of bytes or CommittedChunk
        The chunks in input order, including those that an earlier run committed. If the job has an output folder,
        several chunks at once are pickled and compressed: as objects, the millions of a long job would take thirty
        times the memory.
    shown : Shown
        The rows of these chunks that a report shows.
    end : RangeEnd or None
        The end of the range, if the task read up to it.
    is_whole : bool
        Whether these are all chunks of the range. They are not if the job was stopped.

    """

    packed: tuple[bytes | CommittedChunk, ...]
    shown: Shown
    end: RangeEnd | None = None
    is_whole: bool = True

    @property
    def chunks(self) -> Iterator[CommittedChunk]:
        """The chunks, unpacked one pack at a time."""
        for some in self.packed:
            yield from [some] if isinstance(some, CommittedChunk) else pickle.loads(zlib.decompress(some))


def label_range(range_: Range, content: Chunk | None, alone: bool, job: Job) -> RangeResult:
    """Read a range, label and commit each chunk, and commit the end of the range.

    Parameters
    ----------
    range_ : Range
        The range.
    content : Chunk or None
        The rows of the range if they were in memory, else None.
    alone : bool
        Whether to start a chunk only after the one before it is committed.
    job : Job
        The job.

    Raises
    ------
    SourceError, UsageError, BroadsheetError
        See `infer` and `write`. Chunks that are committed by then stay. A file that cannot be read is noted as a
        problem in the end of the range; it raises only if the job is strict or the file is read in parts.

    """
    read_again = 0
    with _ChunkPipeline(job, range_, alone) as chunks:
        # Read the rows, or take those that came with the task.
        if content is not None:
            chunks.reserve(0)
            chunks.start(content, [])
        end = None if content is not None else _read(chunks, job)
        # If the guess where the part begins was wrong, read it again from its start.
        while end is not None and end.begin is not None and not chunks.place(end):
            if chunks.range is range_:  # the client did not say where it begins: the job was stopped
                end = None
            else:
                range_, read_again = chunks.range, read_again + range_.bytes
                end = _read(chunks, job)
    if end is not None:
        end = replace(end, read_again=read_again, remarks=tuple(REMARKS))
        _close(end, job)
    packed, shown = chunks.results()
    return RangeResult(packed, shown, end, end is not None or content is not None)


def _read(chunks: _ChunkPipeline, job: Job) -> RangeEnd | None:
    """Read a range and start to label each chunk. Return the end of the range, or None if reading stopped before it."""
    spans = chunks.spans
    given = (
        chunks.range,
        job.selection,
        job.chunk_rows,
        chunks.is_committed,
        spans,
        chunks.reserve,
        chunks.may_stay_on_gpu,
    )
    with closing(STATE.read_range(*given)) as reading:
        while chunks.may_read:
            with span("read", spans, "read", number=chunks.started):
                item = next(reading, None)
            if item is None or isinstance(item, RangeEnd):
                return item
            chunks.start(item, spans)
    return None


def count_rows(range_: Range, job: Job) -> None:
    """Count the rows of a part of a file without labelling them, and report the count. Raises SourceError."""
    worker = get_worker()
    _report(worker, worker.get_current_task(), STATE.count_range(range_, job.selection))


def begin_no_more(run: str) -> None:
    """From now on, the tasks of this run of the graph start no further chunk on this worker."""
    STATE.stopped.add(run)


def _report(worker: Worker, key: Key, what: CommitReport | RowsComputed | RangeEnd) -> None:
    worker.log_event(TOPIC, {"task": list(key), "noted": pickle.dumps(what)})


def _close(end: RangeEnd, job: Job) -> None:
    """Commit the end of a range. With `job.strict`, raises SourceError if a file was not readable to its end."""
    if job.strict and end.problems:
        raise SourceError(f"{end.problems[0][1]} (--strict stops here)")
    store = output_of(job)
    if store is not None:
        commit_end(store, end, job.fingerprint)


class _ChunkPipeline(AbstractContextManager["_ChunkPipeline"]):
    """The chunks of one task, from reading to commit.

    A chunk goes through these steps::

        reserve -> (read) -> start -> label -> write -> results
                                        |        ^
                                        +-place--+

    1. `reserve` waits for room in the process before the task reads a chunk.
    2. `start` gives the chunk to a thread, which labels it.
    3. The same thread writes and commits it. If the rows have no numbers yet, the labelled chunk waits until `place`
       knows where the part begins.
    4. `results` returns the committed chunks in the order of the input.

    At the end of the ``with`` block, every chunk that was started is committed. If one could not be, its error is
    raised.
    """

    def __init__(self, job: Job, range_: Range, alone: bool) -> None:
        self.range = range_
        self._job = job
        self._alone = alone
        self._worker: Worker = get_worker()
        self._key: Key = self._worker.get_current_task()
        self._committed: dict[str, Entry] = {}
        self._packed: list[bytes | CommittedChunk] = []
        # A chunk moves from `_unplaced` (if the start of its part is not known yet) to `_in_order` while it is written,
        # then to `_unpacked`, and together with others to `_packed`.
        self._unpacked: list[CommittedChunk] = []
        self._in_order: deque[CommittedChunk | Future[CommittedChunk]] = deque()
        self._unplaced: list[CommittedChunk | Future[LabelledChunk]] = []
        self.started = 0
        self.spans: list[Span] = []  # of reading, until a chunk starts that gets them
        self._shown = Shown()
        self._failed = self._has_seceded = False
        self._reserved: int | None = None  # bytes, for a chunk that is not read yet
        self._engines = ExitStack()
        self.may_stay_on_gpu = False  # whether texts may stay on the GPU that parsed them

    def __enter__(self) -> _ChunkPipeline:
        held = self._engines.enter_context(ENGINES.use(self._job.engines))  # so that no chunk loads them again
        has_windows = any(scoring.windows is not None for scoring in self._job.columns.scoring)
        is_read_on_gpu = all(engine.reads_gpu_texts for engine, _ in held)
        self.may_stay_on_gpu = is_read_on_gpu and not has_windows and self._job.out is not None
        return self

    def results(self) -> tuple[tuple[bytes | CommittedChunk, ...], Shown]:
        """Return every chunk, packed, and the rows that a report shows.

        Waits until the last chunk is committed. Raises the error of a chunk that could not be.
        """
        while self._in_order:
            self._finish_first(with_spans=True)
        self._pack()
        return tuple(self._packed), self._shown

    def _finish_first(self, with_spans: bool) -> None:
        """Move the earliest chunk from `_in_order` to those that are packed, once it is committed."""
        first = self._in_order.popleft()
        finished = first if isinstance(first, CommittedChunk) else first.result()
        self._shown = self._shown.and_(finished.shown)
        finished = replace(finished, spans=finished.spans if with_spans else [], shown=Shown())
        if finished.rows is not None:
            self._packed.append(finished)
            return
        self._unpacked.append(finished)
        if len(self._unpacked) == _PACKED_AT_ONCE:
            self._pack()

    def _pack(self) -> None:
        if self._unpacked:
            self._packed.append(zlib.compress(pickle.dumps(self._unpacked)))
        self._unpacked = []

    def is_committed(self, name: str) -> bool:
        """Whether an earlier run, or a worker that was lost, has committed the chunk: it is then skipped."""
        store = output_of(self._job)
        entry = None if store is None else committed_entry(store, name, self._job.fingerprint, self._job.names)
        if entry is not None:
            self._committed[name] = entry
        return entry is not None

    def reserve(self, count: int) -> bool:
        """Wait for room for one more chunk of at most `count` bytes. Return False if the task is to stop reading."""
        if self._reserved is None:
            waited: list[Span] = []
            with span("room", waited, "read"):
                STATE.room.reserve(count)
            self.spans += [one for one in waited if one.seconds > _NOTED_SECONDS]
            self._reserved = count
        return self.may_read

    @property
    def may_read(self) -> bool:
        """Whether to read on: no chunk has failed, the job is not stopped, and somebody waits for the result."""
        return not self._failed and run_of(self._key) not in STATE.stopped and self._is_wanted

    @property
    def _is_wanted(self) -> bool:
        """Whether the task was not cancelled and its worker runs on. Dask does not end a cancelled task's thread."""
        task = self._worker.state.tasks.get(self._key)
        return task is not None and task.state in _RUNNING and self._worker.status not in _ENDING

    @property
    def _is_unplaced(self) -> bool:
        """Whether the rows have no numbers yet because the start of the part is a guess."""
        return self.range.part_number > 0 and self.range.start is None and not self.range.is_numbered

    def start(self, chunk: Chunk | Skipped, spans: list[Span]) -> None:
        """Start to label a chunk that was read. The spans of its reading move from `spans` to the chunk."""
        read_spans = drain(spans)  # threads that parse ahead go on appending to it
        self.started += 1
        if isinstance(chunk, Skipped):
            before = CommittedChunk(chunk.name, self._committed.pop(chunk.name), [], None, Shown())
            if self._is_unplaced:
                self._unplaced.append(before)
            else:
                self._append(before)
            return
        if not self._is_unplaced:
            refuse_bad_rows(chunk, self._job)
        # The chunk gets the room that was reserved for it, and gives back what it does not need.
        room, self._reserved = self._reserved or 0, None
        needed = min(bytes_of(chunk), room)
        STATE.room.give_back(room - needed)
        # A thread labels it, and writes it if its rows have numbers.
        if self._is_unplaced:
            lenient = replace(self._job, strict=False)  # with a wrong guess, these are no real rows
            self._unplaced.append(STATE.threads.submit(self._infer, chunk, read_spans, needed, lenient))
            return
        future = STATE.threads.submit(self._label, chunk, read_spans, needed)
        self._append(future)
        if self._alone:
            wait([future])

    def place(self, end: RangeEnd) -> bool:
        """Report what was read of a part of a file, and write its chunks once their rows have numbers.

        If the start of the part was a guess, this waits until the client says where the part begins. Returns False if
        the guess was wrong; `range` then has the true start, and has to be read again. Raises SourceError if a part
        before this one cannot be read, so that its rows have no numbers.
        """
        _report(self._worker, self._key, end)
        if not self._is_unplaced:
            return True
        # Wait for the start, while another task of this worker reads.
        self._secede()
        self._release_reserved()
        start, looks = None, 0
        while start is None and self.may_read:
            start, looks = STATE.starts.get(run_of(self._key), self.range.number, _SECONDS_BETWEEN_LOOKS), looks + 1
            if looks % _LOOKS_BETWEEN_REPORTS == 0:  # this worker may have joined after the client said so
                _report(self._worker, self._key, end)
        # Drop the chunks if they begin elsewhere, else number their rows and write them.
        unplaced, self._unplaced = self._unplaced, []
        if isinstance(start, str):
            raise SourceError(start)
        if start is None or start.byte != end.begin:
            wait([work for work in unplaced if isinstance(work, Future)])
            self.started = 0
            self.range = self.range if start is None else replace(self.range, start=start)
            return False
        for chunk in unplaced:
            if isinstance(chunk, CommittedChunk):
                self._append(chunk)
            else:
                self._append(self._placed(chunk.result().numbered(start.row)))
        return True

    def _placed(self, labelled: LabelledChunk) -> Future[CommittedChunk]:
        refuse_bad_rows(labelled.chunk, self._job)
        return STATE.threads.submit(self._write, labelled)

    def _append(self, chunk: CommittedChunk | Future[CommittedChunk]) -> None:
        self._in_order.append(chunk)
        while len(self._in_order) > _LAST_WITH_SPANS and _is_committed(self._in_order[0]):
            self._finish_first(with_spans=False)

    def _label(self, chunk: Chunk, spans: list[Span], reserved: int) -> CommittedChunk:
        try:
            return self._write(infer(chunk, spans, self._job, self._tell))
        except BaseException:
            self._failed = True
            raise
        finally:
            STATE.room.release(reserved)

    def _infer(self, chunk: Chunk, spans: list[Span], reserved: int, job: Job) -> LabelledChunk:
        """Label a chunk that waits to be written. It holds no room meanwhile: the parts before it need that room."""
        try:
            return infer(chunk, spans, job, self._tell)
        finally:
            STATE.room.release(reserved)

    def _tell(self, computed: RowsComputed) -> None:
        """Report how far a chunk is."""
        _report(self._worker, self._key, computed)

    def _write(self, labelled: LabelledChunk) -> CommittedChunk:
        committed = write(labelled, self._job)
        if committed.place is not None and self.range.files:  # rows in memory are reported at the end
            rows, stored = committed.entry.rows_read, labelled.chunk.stored
            report = CommitReport(committed.name, rows, stored, committed.spans, committed.place)
            _report(self._worker, self._key, report)
        return committed

    def _release_reserved(self) -> None:
        if self._reserved is not None:
            STATE.room.release(self._reserved)
        self._reserved = None

    def _secede(self) -> None:
        """Let another task of this worker read meanwhile.

        A worker that closes holds Dask's lock of threads while it waits for this thread, which would wait for the lock.
        So nothing is done then.
        """
        if not self._has_seceded and self._worker.status not in _ENDING:
            secede()
        self._has_seceded = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._release_reserved()
        started: list[CommittedChunk | Future[Any]] = [*self._in_order, *self._unplaced]
        left = [future for future in started if isinstance(future, Future) and not future.done()]
        if left:
            self._secede()
            wait(left)
        self._engines.close()
        if error is None:
            for future in self._in_order:
                if isinstance(future, Future):
                    future.result()


def _is_committed(chunk: CommittedChunk | Future[CommittedChunk]) -> bool:
    return isinstance(chunk, CommittedChunk) or (chunk.done() and chunk.exception() is None)
