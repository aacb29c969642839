"""Where the records of a large file begin, found by several threads at once.

Where a segment's first record begins is guessed. The guess counts if the scan of the segment before ends there, so what
is found is what one thread would find.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from itertools import islice

from pipeline.source.files import InputFile, open_at
from pipeline.source.records import Records, Splitter, read_records

SEGMENT_BYTES = 64 << 20
_LOOK_BYTES = 1 << 20
_GUESSES, _CONVINCING = 64, 50  # line ends tried; records behind one of them that must be without a problem
_AHEAD = 32
"""Segments whose records are held, at most: some megabytes each."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


def scan(file: InputFile, start: int, split: Splitter, pool: Executor) -> Iterator[Records]:
    """The records of an uncompressed file from byte `start`, in order, without their data."""
    stops = iter([*range(start + SEGMENT_BYTES, file.size, SEGMENT_BYTES), file.size])
    running = deque([(stop, pool.submit(_records, file, split, start, stop)) for stop in islice(stops, 1)])
    at = start
    while running:
        for stop in islice(stops, _AHEAD - len(running)):
            nominal = running[-1][0]
            running.append((stop, pool.submit(_guessed, file, split, nominal, stop)))
        stop, segment = running.popleft()
        begin, records, behind = segment.result()
        if begin != at:
            _, records, behind = _records(file, split, at, stop)
        yield from records
        at = behind


def _records(file: InputFile, split: Splitter, begin: int, stop: int) -> tuple[int, list[Records], int]:
    """`begin`; the records that begin from there, where one does, to `stop`; and where the next one begins."""
    found: list[Records] = []
    with open_at(file, begin) as stream:
        for records in read_records(stream, split, begin, file.size - begin):
            inside = int(records.offsets.searchsorted(stop))
            found.append(replace(records.slice(0, inside), data=b""))
            if inside < len(records):
                return begin, found, int(records.offsets[inside])
    return begin, found, file.size


def _guessed(file: InputFile, split: Splitter, nominal: int, stop: int) -> tuple[int, list[Records], int]:
    """The same from the first record that seems to begin at `nominal` or behind it; begin is -1 where none does."""
    with open_at(file, nominal - 1) as stream:
        block = stream.read(_LOOK_BYTES)
    for line_end in islice(_LINE_END.finditer(block), _GUESSES):
        found = split(block[line_end.end() :], False)
        if len(found.starts) and all(i >= _CONVINCING for i in found.problems):
            begin = nominal - 1 + line_end.end() + int(found.starts[0])
            return _records(file, split, begin, stop) if begin < stop else (begin, [], begin)
    return -1, [], -1
