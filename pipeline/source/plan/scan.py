"""Scanning a large file for the beginnings of its records, on several threads or on the workers of a cluster.

The first record of a segment is guessed. The guess is used only if the scan of the segment before ends there, so the
result is the same as that of one thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from threading import BoundedSemaphore
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import BroadsheetError, SourceError, cause, printable
from ...processes.threads import available_cores, threads
from ..formats.base import Fragment, InputFile
from ..formats.records import Records, Splitter, read_records
from ..open.opening import open_at

_log = logging.getLogger(__name__)

SEGMENT_BYTES = 16 << 20
MOST_THREADS = 16
"""More threads than this wait for each other at the GIL: on 64 cores 4, 8, 12, 16, 32 and 64 threads scanned a CSV at
960, 1,550, 1,890, 2,080, 1,020 and 890 MB/s.
"""

_BLOCK_BYTES = 2 << 20
"""Read at once, so that it stays in a core's cache: one scans 3.6 GB/s of long JSON lines, in blocks of 8 MiB 1.0."""

_GUESSES, _CONVINCING = 64, 50  # places tried; records after one that must have no problem

_NONE, _MOST_SIZE = np.empty(0, np.uint32), 2**32 - 1


class _Segment(NamedTuple):
    """The records of a segment. begin: of the first, -1 where no guess was made. after: of the first after the segment.

    offsets, sizes: uint32 [n], of its records; offsets from `begin`, sizes saturated at 4 GiB - 1, far above what a
    chunk holds. Compact, since it may be sent over a network.
    """

    begin: int
    after: int
    offsets: NDArray[np.uint32] = _NONE
    sizes: NDArray[np.uint32] = _NONE

    def records(self) -> Records:
        nothing = np.broadcast_to(np.int64(0), len(self.sizes))
        offsets = np.add(self.begin, self.offsets, dtype=np.int64)
        return Records(b"", nothing, self.sizes.astype(np.int64), offsets, {})


class Scanner:
    """Scans any number of files on `pool`, which runs `width` segments at once: threads, or workers that see the files.

    segment: its size in bytes. small: a scanner for files of up to one segment. Results are held ahead of their use for
    two segments for each of `width`, and one for each file.
    """

    def __init__(self, pool: Executor, width: int, segment: int, small: Scanner | None = None) -> None:
        self._pool = pool
        self._segment = segment
        self._small = small
        self._ahead = BoundedSemaphore(2 * width)

    def scan(self, file: InputFile, start: int, split: Splitter, guess: Splitter | None = None) -> Iterator[Records]:
        """The records of an uncompressed file from byte `start`, in order: their positions, but not their data or
        problems. guess: finds the problems by which a wrong guess is known, where `split` does not find them all.
        Raises SourceError where the file cannot be read, BroadsheetError where the pool is lost.
        """
        guess = guess or split
        if self._small and file.stored <= self._segment:
            yield from self._small.scan(file, start, split, guess)
            return
        stops = deque([*range(start + self._segment, file.stored, self._segment), file.stored])
        running: deque[tuple[int, Future[_Segment]]] = deque()  # each but the first holds a permit
        nominal = at = start
        warned = False
        try:
            while stops or running:
                while stops and (not running or self._ahead.acquire(blocking=False)):
                    scan = _scan_from if nominal == start else partial(_scan_about, guess=guess)
                    running.append((stops[0], self._pool.submit(scan, file, split, nominal, stops[0])))
                    nominal = stops.popleft()
                stop, future = running.popleft()
                if running:
                    self._ahead.release()
                segment = None
                try:
                    segment = future.result()
                except SourceError:
                    pass  # a worker may not see the file; a problem of the file itself is found again here
                except BroadsheetError:
                    raise
                except Exception as error:  # it kills its workers, or they run another version
                    if not warned:
                        _log.warning("workers cannot scan %s, so it is done here: %r", printable(file.path), error)
                    warned = True
                if segment is None or segment.begin != at:
                    segment = _scan_from(file, split, at, stop)
                if len(segment.offsets):
                    yield segment.records()
                at = segment.after
        finally:
            for _ in range(len(running) - 1):
                self._ahead.release()


@contextmanager
def threads_scanner(segment: int = SEGMENT_BYTES) -> Iterator[Scanner]:
    """A scanner on threads of this process. segment: in bytes."""
    count = min(available_cores(), MOST_THREADS)
    with threads(count) as pool:
        yield Scanner(pool, count, segment)


def no_scan(*_: object) -> Iterator[Records]:
    """For who plans files of which none is scanned."""
    raise NotImplementedError("there is no file to scan")


def fragment_about(first: Fragment, split: Splitter, at: int, size: int) -> Fragment | None:
    """The records that begin in `size` bytes from about byte `at` of a file, as a fragment whose rows have no numbers
    in the file. None where none begins there. first: a fragment at the beginning of the file. Raises SourceError.
    """
    file = first.file
    stop = min(at + size, file.stored)
    found = (
        _scan_about(file, split, at, stop, split) if at > first.start else _scan_from(file, split, first.start, stop)
    )
    if not len(found.offsets):
        return None
    return Fragment(file, found.begin, found.after, 0, len(found.offsets))


def _scan_from(file: InputFile, split: Splitter, begin: int, stop: int) -> _Segment:
    """The records that begin in [begin, stop), where one begins at `begin`. Raises SourceError."""
    try:
        return _read_from(file, split, begin, stop)
    except OSError as error:
        raise SourceError(f"{file.path}: {cause(error)}") from error


def _read_from(file: InputFile, split: Splitter, begin: int, stop: int) -> _Segment:
    offsets, sizes = [_NONE], [_NONE]
    after = file.stored
    limits = file.format.limits
    limits = replace(limits, block_bytes=min(limits.block_bytes, _BLOCK_BYTES))
    with open_at(file, begin) as stream:
        for records in read_records(stream, split, begin, file.stored - begin, limits):
            inside = int(records.offsets.searchsorted(stop))
            offsets.append((records.offsets[:inside] - begin).astype(np.uint32))
            sizes.append(np.minimum(records.ends - records.starts, _MOST_SIZE)[:inside].astype(np.uint32))
            if inside < len(records):
                after = int(records.offsets[inside])
                break
        else:
            if stream.tell() < file.stored:
                raise SourceError(f"{file.path}: it is shorter than {file.stored:,} bytes now: it has changed")
    return _Segment(begin, after, np.concatenate(offsets), np.concatenate(sizes))


def _scan_about(file: InputFile, split: Splitter, nominal: int, stop: int, guess: Splitter) -> _Segment:
    """The same from a guess of the first record that begins at `nominal` or after it."""
    with open_at(file, nominal - 1) as stream:
        block = stream.read(file.format.limits.guess_bytes)
    for before in islice(file.format.boundary.finditer(block), _GUESSES):
        found = guess(block[before.end() :], False)
        if len(found.starts) and all(i >= _CONVINCING for i in found.problems):
            begin = nominal - 1 + before.end() + int(found.starts[0])
            return _scan_from(file, split, begin, stop) if begin < stop else _Segment(begin, begin)
    return _Segment(-1, -1)
