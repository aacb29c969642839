"""The state of a worker process between tasks, apart from its engines: the functions by which it reads and commits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from ..ingest import reading as ingest
from ..labelling.engines import ENGINES
from ..output.commit import commit_chunk
from ..source.chunk import Chunk, Selection
from ..source.plan.plan import Range, RangeEnd, Start
from ..source.read.read import Skipped, count_range, read_range
from ..source.read.readers import MOST_OF_ONE, Readers, Room
from ..telemetry.spans import Span

if TYPE_CHECKING:
    from ..ingest.blocks import OpenBlocks
    from ..ingest.page_lock import PageLocks
    from ..source.read.ring_messages import PlaceTexts

_MOST_AT_ONCE = 16
"""Chunks that are scored, or written, at a time."""

_WAITING = 8
"""Chunks that wait for the engine, beside those that are being read, at most."""

SMALL_BYTES = 1 << 20
"""Stored bytes that a worker reads by itself: to start a process that reads takes half a second."""

Reading = Generator[Chunk | Skipped | RangeEnd, None, None]


class Starts:
    """Where ranges of files begin, as far as the client has said so: of each run of the graph by the range's number."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Start | str] = {}
        self._changed = threading.Condition()

    def set(self, run: str, starts: Mapping[int, Start | str]) -> None:
        """Note starts; in place of one, why there is none."""
        with self._changed:
            self._known |= {(run, number): start for number, start in starts.items()}
            self._changed.notify_all()

    def get(self, run: str, number: int, seconds: float = 0.0) -> Start | str | None:
        """The start of a range, for which this waits up to so many seconds; None where it is not known."""
        with self._changed:
            self._changed.wait_for(lambda: (run, number) in self._known, seconds)
            return self._known.get((run, number))

    def forget(self, run: str) -> None:
        """Forget those of a run, which has ended."""
        with self._changed:
            self._known = {key: start for key, start in self._known.items() if key[0] != run}


class WorkerState:
    """The state of one process, in which several workers may run.

    Attributes
    ----------
    read_range, commit : callable
        What the tasks call; assign another to replace one on a worker.
    readers : Readers or None
        The processes that read, where there are some; else this one does.
    small_bytes : int
        Stored bytes of a range that this process reads by itself even so, at most.
    room : Room
        For chunks that are read and not labelled yet.
    threads : ThreadPoolExecutor
        Those that score and write chunks.
    starts : Starts
        Where ranges of files begin.
    stopped : set of str
        The runs of the graph that begin no further chunk here.

    """

    def __init__(self) -> None:
        self.read_range = self._read_range
        self.commit = commit_chunk
        self.readers: Readers | None = None
        self.small_bytes = SMALL_BYTES
        self.room = Room()
        self.threads = ThreadPoolExecutor(_MOST_AT_ONCE, "broadsheet-label")
        self.starts = Starts()
        self.stopped: set[str] = set()
        self._locking = threading.Lock()
        self._page_locks: PageLocks | None = None

    def read_in_processes(self, count: int, at_once: int) -> None:
        """Read in so many processes until the last engine is withdrawn. at_once: as of `Readers`."""
        if self.readers is None:
            self.readers = Readers(count, at_once)
            ENGINES.when_empty = self._end_readers

    def count_range(self, part: Range, selection: Selection) -> RangeEnd:
        """Count the records of a range."""
        return self.readers.count_range(part, selection) if self.readers else count_range(part, selection)

    def _blocks_on_gpu(self, readers: Readers) -> OpenBlocks:
        """What finds the records of blocks that the readers fill."""
        from ..ingest.record_blocks import RecordBlocks  # it needs CuPy

        return partial(RecordBlocks, self._locks(readers).lock)

    def _texts_on_gpu(self, readers: Readers) -> PlaceTexts:
        """What places the texts that the readers have read."""
        from ..ingest.arriving import place_on_gpu  # it needs CuPy

        return partial(place_on_gpu, self._locks(readers).lock_for_pieces)

    def _locks(self, readers: Readers) -> PageLocks:
        from ..ingest.page_lock import PageLocks  # it needs CuPy

        self.room.grow((readers.count + _WAITING) * MOST_OF_ONE)  # it is the GPU's memory that texts take
        with self._locking:
            self._page_locks = self._page_locks or PageLocks(readers.ring)
            return self._page_locks

    def _end_readers(self) -> None:
        if self._page_locks is not None:
            from ..ingest.workspace import close_workspaces  # it needs CuPy

            self._page_locks.close()
            self._page_locks = None
            close_workspaces()
        if self.readers is not None:
            self.readers.close()
            self.readers = None

    def _read_range(
        self,
        part: Range,
        selection: Selection,
        chunk_rows: int,
        skip: Callable[[str], bool],
        spans: list[Span],
        take: Callable[[int], bool],
        is_on_gpu: bool = False,
    ) -> Reading:
        """Read a range in a reader process; in this one where there are none, or the range is small.

        Parameters
        ----------
        part, selection, chunk_rows, skip, spans, take
            As of `Readers.read_range`.
        is_on_gpu : bool
            Whether the texts may stay on a GPU.

        """
        if self.readers and not 0 < part.bytes <= self.small_bytes:  # 0 where that is not known
            if is_on_gpu and ingest.is_read_here(part, selection):
                open_blocks = self._blocks_on_gpu(self.readers)
                items = ingest.read_range(self.readers, open_blocks, part, selection, chunk_rows, skip, spans)
                return _as_room_allows(items, take)
            place_texts = self._texts_on_gpu(self.readers) if is_on_gpu else None
            return self.readers.read_range(part, selection, chunk_rows, skip, spans, take, place_texts)
        return _as_room_allows(read_range(part, selection, chunk_rows, skip, spans), take)


def _as_room_allows(items: Reading, take: Callable[[int], bool]) -> Reading:
    """Read one item at a time, and only after `take` has reserved room for it; stop where `take` returns False.

    A chunk's size is known once it is read. So room for the largest chunk, `MOST_OF_ONE`, is reserved before, and the
    task gives back what the chunk does not take.
    """
    with closing(items):
        while take(MOST_OF_ONE):
            if (item := next(items, None)) is None:
                return
            yield item


STATE = WorkerState()
"""The state of this process."""


def read_in_processes(count: int, at_once: int) -> None:
    """Have this process's workers read in so many processes. at_once: as of `Readers`."""
    STATE.read_in_processes(count, at_once)


def set_starts(run: str, starts: Mapping[int, Start | str]) -> None:
    """Note on this worker where ranges of a run begin."""
    STATE.starts.set(run, starts)


def forget_starts(run: str) -> None:
    """Forget on this worker where ranges of a run begin."""
    STATE.starts.forget(run)
