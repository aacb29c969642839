"""The state of a worker process between tasks, apart from its engines: how it reads and commits, and its limits."""

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
from ..source.plan.plan import Range, RangeEnd, Start
from ..source.read.read import Skipped, count_range, read_range
from ..source.read.readers import MOST_OF_ONE, Readers, Room
from ..source.rows.chunk import Chunk, Selection
from ..telemetry.spans import Span

if TYPE_CHECKING:
    from ..ingest.blocks import OpenBlocks
    from ..ingest.page_lock import PageLocks
    from ..source.read.ring_messages import PlaceTexts

_MOST_AT_ONCE = 16
"""The most chunks that a process labels or writes at once."""

_WAITING = 8
"""The most chunks that wait for the engine, beside those that are being read."""

SMALL_BYTES = 1 << 20
"""A worker itself reads a range of at most this number of stored bytes, because a reader process takes half a second to
start.
"""

Reading = Generator[Chunk | Skipped | RangeEnd, None, None]


class WorkerStarts:
    """The starts of ranges of files that the client has sent, by run of the graph and number of the range."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Start | str] = {}
        self._changed = threading.Condition()

    def set(self, run: str, starts: Mapping[int, Start | str]) -> None:
        """Note the starts of some ranges, or for a range without a start the reason."""
        with self._changed:
            self._known |= {(run, number): start for number, start in starts.items()}
            self._changed.notify_all()

    def get(self, run: str, number: int, seconds: float = 0.0) -> Start | str | None:
        """Return the start of a range, or None if it is still unknown after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: (run, number) in self._known, seconds)
            return self._known.get((run, number))

    def forget(self, run: str) -> None:
        """Forget the starts of a run that has ended."""
        with self._changed:
            self._known = {key: start for key, start in self._known.items() if key[0] != run}


class WorkerState:
    """The state of one process. Several workers may run in it.

    Attributes
    ----------
    read_range, commit : callable
        The functions that tasks call to read a range and to commit a chunk.
    readers : Readers or None
        The reader processes; None if this process reads.
    small_bytes : int
        This process itself reads a range of at most this number of stored bytes, even if there are reader processes.
    room : Room
        The room for chunks that are read and not labelled yet.
    threads : ThreadPoolExecutor
        The threads that label and write chunks.
    starts : WorkerStarts
        The starts of ranges of files.
    stopped : set of str
        The runs of the graph that start no further chunk here.

    """

    def __init__(self) -> None:
        self.read_range = self._read_range
        self.commit = commit_chunk
        self.readers: Readers | None = None
        self.small_bytes = SMALL_BYTES
        self.room = Room()
        self.threads = ThreadPoolExecutor(_MOST_AT_ONCE, "broadsheet-label")
        self.starts = WorkerStarts()
        self.stopped: set[str] = set()
        self._locking = threading.Lock()
        self._page_locks: PageLocks | None = None

    def read_in_processes(self, count: int, at_once: int) -> None:
        """Read in `count` processes until the last engine is withdrawn. at_once: see `Readers`."""
        if self.readers is None:
            self.readers = Readers(count, at_once)
            ENGINES.when_empty = self._end_readers

    def count_range(self, range_: Range, selection: Selection) -> RangeEnd:
        """Count the records of a range."""
        return self.readers.count_range(range_, selection) if self.readers else count_range(range_, selection)

    def _blocks_on_gpu(self, readers: Readers) -> OpenBlocks:
        """Return the function that finds, on the GPU, the records of blocks that the readers fill."""
        from ..ingest.record_blocks import RecordBlocks  # it needs CuPy

        return partial(RecordBlocks, self._locks(readers).lock)

    def _texts_on_gpu(self, readers: Readers) -> PlaceTexts:
        """Return the function that places the texts that the readers have read on the GPU."""
        from ..ingest.arriving import place_on_gpu  # it needs CuPy

        return partial(place_on_gpu, self._locks(readers).lock_for_pieces)

    def _locks(self, readers: Readers) -> PageLocks:
        """Return the page locks of the readers' slots, and make room for more chunks: their texts are on the GPU."""
        from ..ingest.page_lock import PageLocks  # it needs CuPy

        self.room.grow((readers.count + _WAITING) * MOST_OF_ONE)
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
        range_: Range,
        selection: Selection,
        chunk_rows: int,
        skip: Callable[[str], bool],
        spans: list[Span],
        reserve: Callable[[int], bool],
        may_stay_on_gpu: bool = False,
    ) -> Reading:
        """Read a range in a reader process; in this process if there are none, or if the range is small.

        Parameters
        ----------
        range_, selection, chunk_rows, skip, spans, reserve
            See `Readers.read_range`.
        may_stay_on_gpu : bool
            Whether the texts may stay on a GPU.

        """
        if self.readers and not 0 < range_.bytes <= self.small_bytes:  # 0 if the size is unknown
            if may_stay_on_gpu and ingest.can_gpu_read(range_, selection):
                open_blocks = self._blocks_on_gpu(self.readers)
                items = ingest.read_range(self.readers, open_blocks, range_, selection, chunk_rows, skip, spans)
                return _as_room_allows(items, reserve)
            place_texts = self._texts_on_gpu(self.readers) if may_stay_on_gpu else None
            return self.readers.read_range(range_, selection, chunk_rows, skip, spans, reserve, place_texts)
        return _as_room_allows(read_range(range_, selection, chunk_rows, skip, spans), reserve)


def _as_room_allows(items: Reading, reserve: Callable[[int], bool]) -> Reading:
    """Read one item at a time, after `reserve` has reserved room for it; stop if `reserve` returns False.

    The size of a chunk is known only when it is read. So room for the largest chunk, `MOST_OF_ONE`, is reserved before,
    and the task gives back what the chunk does not need.
    """
    with closing(items):
        while reserve(MOST_OF_ONE):
            if (item := next(items, None)) is None:
                return
            yield item


STATE = WorkerState()
"""The state of this process."""


def read_in_processes(count: int, at_once: int) -> None:
    """Have the workers of this process read in `count` processes. at_once: see `Readers`."""
    STATE.read_in_processes(count, at_once)


def set_starts(run: str, starts: Mapping[int, Start | str]) -> None:
    """Note on this worker where the ranges of a run begin."""
    STATE.starts.set(run, starts)


def forget_starts(run: str) -> None:
    """Forget on this worker where the ranges of a run begin."""
    STATE.starts.forget(run)
