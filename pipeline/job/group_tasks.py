"""The tasks of a group of files, and of a run of row groups: read front to back, and labelled chunk by chunk meanwhile.

A task reads in its own thread, up to where the process has room for chunks; other threads classify and write them. So
the engine computes while this and other tasks read, and a file whose chunks nobody shares needs no scheduling.
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

from distributed import Worker, get_worker, secede
from distributed.core import Status

from ..errors import SourceError
from ..labelling.engines import ENGINES
from ..measures.accuracy import Example
from ..output.commit import commit_end, committed_entry
from ..output.record import Entry
from ..source.plan.plan import Group, GroupChunk, GroupEnd, RowGroups
from ..source.read.readers import bytes_of
from ..telemetry.spans import Span, span
from .tasks import Done, Job, Noted, Work, infer, number_of, output_of, refuse_bad_rows, write
from .watchdog import Key, run_of
from .worker import STATE

TOPIC = "broadsheet-chunks"
"""Dask's topic of the chunks that tasks have committed before their end: of each the key of its task, and a `Noted`."""

_ENDING = (Status.closing, Status.closed, Status.failed)

_KEPT_WHOLE = 64
"""Of the chunks that a task has committed, the last so many are returned with their spans: of earlier ones, the client
has heard (`Noted`) before the task ends.
"""

_PACKED_TOGETHER = 64
"""Chunks that are compressed at a time: their entries are much alike."""


@dataclass(frozen=True)
class ChunksDone:
    """What a task has done. packed: the chunks in input order, those too that it found committed, some at a time
    pickled and compressed: as objects, the millions of a long job would take thirty times the memory. examples: of all
    of them. end: of a group that was read to its end. whole: whether that is all; the job may have been stopped.
    """

    packed: tuple[bytes, ...]
    examples: list[Example]
    end: GroupEnd | None = None
    whole: bool = True

    @property
    def chunks(self) -> Iterator[Done]:
        for some in self.packed:
            yield from pickle.loads(zlib.decompress(some))


def label_group(group: Group, alone: bool, job: Job) -> ChunksDone:
    """Read a group's files one after the other, label each chunk, and commit the group's end.

    alone: begin no chunk before the last one is committed. Raises as `read`, `infer` and `write` do; what was committed
    by then stays. Not for a file that cannot be read, which is a problem of the group's end, unless the job is strict.
    """
    end = None
    with _Chunks(job, alone) as chunks:
        spans: list[Span] = []
        given = (group, job.selection, job.chunk_rows, chunks.is_committed, spans, chunks.take)
        with closing(STATE.read_group(*given)) as reading:
            while end is None and chunks.may_read:
                with span("read", spans, "read", number=chunks.begun):
                    found = next(reading, None)
                if found is None:
                    break
                if isinstance(found, GroupEnd):
                    end = found
                else:
                    chunks.begin(found, spans)
    if end is not None:
        _close(end, job)
    return ChunksDone(*chunks.done, end, end is not None)


def label_run(run: RowGroups, alone: bool, job: Job) -> ChunksDone:
    """Decode a run of row groups once, and label each chunk. Raises as `label_group` does, and SourceError for a file
    that cannot be read.
    """
    with _Chunks(job, alone) as chunks:
        spans: list[Span] = []
        with closing(STATE.read_run(run, job.selection, chunks.is_committed, spans, chunks.take)) as reading:
            while chunks.begun < len(run.units) and chunks.may_read:
                number = number_of(run.units[chunks.begun].name)
                with span("read", spans, "read", number=number):
                    found = next(reading, None)
                if found is None:
                    break
                unit, chunk = found
                chunks.begin(GroupChunk(unit.name, unit.sources, chunk), spans)
    return ChunksDone(*chunks.done, whole=chunks.begun == len(run.units))


def begin_no_more(run: str) -> None:
    """From now on the tasks of a run of the graph begin no chunk on this worker."""
    STATE.stopped.add(run)


def _close(end: GroupEnd, job: Job) -> None:
    """Commit a group's end. With `job.strict`, raises SourceError for a file that was not wholly readable."""
    if job.strict and end.problems:
        raise SourceError(f"{end.problems[0][1]} (--strict stops here)")
    store = output_of(job)
    if store is not None:
        commit_end(store, end, job.fingerprint)


class _Chunks(AbstractContextManager["_Chunks"]):
    """The chunks of one task, from reading to commit. At the end of the block all that have begun are committed; if one
    could not be, its error is raised.
    """

    def __init__(self, job: Job, alone: bool) -> None:
        self._job = job
        self._alone = alone
        self._worker: Worker = get_worker()
        self._key: Key = self._worker.get_current_task()
        self._committed: dict[str, Entry] = {}
        self._packed: list[bytes] = []
        self._ended: list[Done] = []  # the chunks after those, to be packed together
        self._whole: deque[Done | Future[Done]] = deque()  # the chunks after those
        self._begun = 0
        self._examples: list[Example] = []
        self._failed = False
        self._room: int | None = None  # that was taken for a chunk that has yet to come
        self._engines = ExitStack()

    def __enter__(self) -> _Chunks:
        self._engines.enter_context(ENGINES.use(self._job.engines))  # not to be loaded again for each chunk
        return self

    @property
    def begun(self) -> int:
        """How many chunks were read: in a group, the number of the next one."""
        return self._begun

    @property
    def done(self) -> tuple[tuple[bytes, ...], list[Example]]:
        """Every chunk, packed, and the examples of all. Waits for the last of them, and raises its error."""
        while self._whole:
            self._end(with_spans=True)
        self._pack()
        return tuple(self._packed), self._examples

    def _end(self, with_spans: bool) -> None:
        """Take the earliest chunk that is whole."""
        first = self._whole.popleft()
        done = first if isinstance(first, Done) else first.result()
        self._examples = sorted([*self._examples, *done.examples])[: self._job.examples]
        self._ended.append(replace(done, spans=done.spans if with_spans else [], examples=[]))
        if len(self._ended) == _PACKED_TOGETHER or done.table is not None:  # which is as large as many entries
            self._pack()

    def _pack(self) -> None:
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
            STATE.room.take(count)
            self._room = count
        return self.may_read

    @property
    def may_read(self) -> bool:
        """Not where a chunk has failed, the job is stopped, or nobody wants the result any longer."""
        return not self._failed and run_of(self._key) not in STATE.stopped and self._is_wanted

    @property
    def _is_wanted(self) -> bool:
        """Whether the task has not been cancelled, and its worker goes on. Dask ends no thread that runs a task."""
        task = self._worker.state.tasks.get(self._key)
        return task is not None and task.state == "executing" and self._worker.status not in _ENDING

    def begin(self, found: GroupChunk, spans: list[Span]) -> None:
        """Begin to label a chunk that was read; its spans are taken from `spans`."""
        own = spans[:]
        del spans[: len(own)]  # threads that parse ahead go on adding to it
        if found.chunk is None:
            self._append(Done(found.name, self._committed.pop(found.name), [], None, []))
            return
        refuse_bad_rows(found.chunk, self._job)
        room, self._room = self._room or 0, None  # it is the chunk's now, and what that does not take is given back
        taken = min(bytes_of(found.chunk), room)
        STATE.room.shrink(room - taken)
        work = Work(found.name, found.sources, found.chunk, spans=own)
        future = STATE.threads.submit(self._label, work, taken, found.stored)
        self._append(future)
        if self._alone:
            wait([future])

    def _append(self, chunk: Done | Future[Done]) -> None:
        self._whole.append(chunk)
        self._begun += 1
        while len(self._whole) > _KEPT_WHOLE and _is_committed(self._whole[0]):
            self._end(with_spans=False)

    def _label(self, work: Work, taken: int, stored: int) -> Done:
        try:
            done = write(infer(work, self._job), self._job)
        except BaseException:
            self._failed = True
            raise
        finally:
            STATE.room.leave(taken)
        if done.place is not None:
            noted = Noted(done.name, done.entry.rows_read, stored, done.spans, done.place)
            self._worker.log_event(TOPIC, {"task": list(self._key), "noted": pickle.dumps(noted)})
        return done

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._room is not None:
            STATE.room.leave(self._room)
        left = [future for future in self._whole if isinstance(future, Future) and not future.done()]
        if left:
            secede()  # another task of the worker reads meanwhile
            wait(left)
        self._engines.close()
        if error is None:
            for future in self._whole:
                if isinstance(future, Future):
                    future.result()


def _is_committed(chunk: Done | Future[Done]) -> bool:
    return isinstance(chunk, Done) or (chunk.done() and chunk.exception() is None)
