"""Where the records of a large file begin, found by several threads at once.

Where a segment's first record begins is guessed. The guess counts if the scan of the segment before ends there, so what
is found is what one thread would find.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from threading import BoundedSemaphore
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.cores import available_cores
from pipeline.source.files import InputFile, open_at
from pipeline.source.records import Records, Splitter, read_records

SEGMENT_BYTES = 16 << 20
MOST_THREADS = 16
"""More of them wait for each other at Python's lock: on 64 cores 4, 8, 12, 16, 32 and 64 threads looked through a CSV
at 960, 1,550, 1,890, 2,080, 1,020 and 890 MB/s.
"""

_LOOK_BYTES = 1 << 20
_GUESSES, _CONVINCING = 64, 50  # line ends tried; records behind one of them that must be without a problem

_LINE_END = re.compile(rb"\r\n|\n|\r")


class _Block(NamedTuple):
    """offsets, sizes: int64 [n], of records in the file. bad: indices of those with a problem."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    bad: list[int]

    def records(self) -> Records:
        return Records(b"", np.zeros_like(self.sizes), self.sizes, self.offsets, dict.fromkeys(self.bad, ""))


class _Segment(NamedTuple):
    """begin: the first record's, -1 where no guess was made. behind: where the first record behind it begins."""

    begin: int
    blocks: list[_Block]
    behind: int


class Scanner:
    """Scans any number of files on the threads of `pool`, and holds a few segments' records ahead of their use:
    two a thread, and one a file.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._ahead = BoundedSemaphore(2 * min(available_cores(), MOST_THREADS))

    def scan(self, file: InputFile, start: int, split: Splitter) -> Iterator[Records]:
        """The records of an uncompressed file from byte `start`, in order: where they are, and which have a problem,
        without their data and what the problem is.
        """
        stops = deque([*range(start + SEGMENT_BYTES, file.size, SEGMENT_BYTES), file.size])
        running: deque[tuple[int, Future[_Segment]]] = deque()  # each but the first with a permit
        nominal = at = start
        try:
            while stops or running:
                while stops and (not running or self._ahead.acquire(blocking=False)):
                    look = _scan_from if nominal == start else _scan_about
                    running.append((stops[0], self._pool.submit(look, file, split, nominal, stops[0])))
                    nominal = stops.popleft()
                stop, future = running.popleft()
                if running:
                    self._ahead.release()
                segment = future.result()
                if segment.begin != at:
                    segment = _scan_from(file, split, at, stop)
                for block in segment.blocks:
                    yield block.records()
                at = segment.behind
        finally:
            for _ in range(len(running) - 1):
                self._ahead.release()


def _scan_from(file: InputFile, split: Splitter, begin: int, stop: int) -> _Segment:
    """The records that begin from `begin`, where one does, to `stop`."""
    blocks: list[_Block] = []
    with open_at(file, begin) as stream:
        for records in read_records(stream, split, begin, file.size - begin):
            inside = int(records.offsets.searchsorted(stop))
            sizes = (records.ends - records.starts)[:inside]
            blocks.append(_Block(records.offsets[:inside], sizes, [i for i in records.problems if i < inside]))
            if inside < len(records):
                return _Segment(begin, blocks, int(records.offsets[inside]))
    return _Segment(begin, blocks, file.size)


def _scan_about(file: InputFile, split: Splitter, nominal: int, stop: int) -> _Segment:
    """The same from the first record that seems to begin at `nominal` or behind it."""
    with open_at(file, nominal - 1) as stream:
        block = stream.read(_LOOK_BYTES)
    for line_end in islice(_LINE_END.finditer(block), _GUESSES):
        found = split(block[line_end.end() :], False)
        if len(found.starts) and all(i >= _CONVINCING for i in found.problems):
            begin = nominal - 1 + line_end.end() + int(found.starts[0])
            return _scan_from(file, split, begin, stop) if begin < stop else _Segment(begin, [], begin)
    return _Segment(-1, [], -1)
