"""Collects the spans of a job on one clock, for the breakdown, the page and a trace file.

ui.perfetto.dev and chrome://tracing open the trace. It is in the "Trace Event Format": complete events (`ph` X) with
microseconds, in which a process is a worker and its device, and a thread is a lane.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..source.inputs import UnreadableRows
from ..source.plan.plan import Range
from ..source.rows.chunk import Chunk
from ..storage.disk import write_file
from ..telemetry.spans import LANES, Clock, Place, Span, brought_home, span

Source = Range | UnreadableRows
"""The source of one chunk or several."""
Intervals = NDArray[np.float64]
"""The begin and the end of each interval, [n, 2], ascending and disjoint."""


class Spans:
    """Spans stored in columns, 24 bytes each, since a long job has millions. Shared values are stored once."""

    def __init__(self) -> None:
        self._start, self._seconds = array("d"), array("d")
        self._what, self._chunk = array("I"), array("I")
        self._whats: dict[tuple[str, str, str, str], int] = {}
        self._chunks: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._start)

    def __iter__(self) -> Iterator[Span]:
        whats, chunks = list(self._whats), list(self._chunks)
        for start, seconds, what, chunk in zip(self._start, self._seconds, self._what, self._chunk, strict=True):
            name, where, lane, device = whats[what]
            yield Span(name, start, seconds, where, lane, device, chunks[chunk])

    def extend(self, spans: Iterable[Span]) -> None:
        for s in spans:
            self._start.append(s.start)
            self._seconds.append(s.seconds)
            self._what.append(self._whats.setdefault((s.name, s.where, s.lane, s.device), len(self._whats)))
            self._chunk.append(self._chunks.setdefault(s.chunk, len(self._chunks)))

    def to_table(self) -> pa.Table:
        """Return a table with a row for each span and a column for each field of `Span`.

        Strings are dictionary-encoded.
        """
        columns = {"start": pa.array(self._start, pa.float64()), "seconds": pa.array(self._seconds, pa.float64())}
        for number, name in enumerate(("name", "where", "lane", "device")):
            values = pa.array([what[number] for what in self._whats], pa.string())
            columns[name] = values.take(pa.array(self._what, pa.uint32())).dictionary_encode()
        chunks = pa.array(list(self._chunks), pa.string())
        columns["chunk"] = pa.DictionaryArray.from_arrays(pa.array(self._chunk, pa.int32()), chunks)
        return pa.table(columns).select([one.name for one in fields(Span)])


@dataclass
class Timeline:
    """The spans of a job. Times are in seconds since the epoch, by the scheduler's clock.

    Attributes
    ----------
    began, ended : float
        The times at which the job began and ended.
    clock : Clock
        The clock of the client.
    spans : Spans
        The spans.
    places : dict of str to Place
        The workers that finished a chunk, by `where`.
    rows : dict of str to int
        The number of rows that each chunk read, by the chunk's name.

    """

    began: float = 0.0
    clock: Clock = field(default_factory=Clock)
    ended: float = 0.0
    spans: Spans = field(default_factory=Spans)
    places: dict[str, Place] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def add(self, chunk: str, rows: int, spans: Iterable[Span], place: Place) -> None:
        """Add the spans of a committed chunk, recorded by the clock of `place`, unless the chunk was added before."""
        if chunk in self.rows:
            return
        self.places[place.where] = place
        self.rows[chunk] = rows
        self.spans.extend(brought_home(spans, place.clock.offset, chunk))

    def watch(self, sources: Iterable[Source]) -> Iterator[Source]:
        """Yield `sources`, and record the time that this process spends reading each, such as a compressed stream."""
        iterator = iter(sources)
        while True:
            spans: list[Span] = []
            with span("read", spans, "read"):
                source = next(iterator, None)
            if source is None:
                return
            if isinstance(source, Range) and isinstance(source.content, Chunk):
                self.spans.extend(brought_home(spans, self.clock.offset, source.name))
            yield source

    def moment(self, place: Place, name: str) -> float:
        """Return one of the moments of a place, on the scheduler's clock. name: the attribute of `Place`."""
        return float(getattr(place, name)) + place.clock.offset

    def places_to_json(self) -> list[dict[str, Any]]:
        """Return the workers as JSON values, each with the offset of its clock and the offset's error, in seconds."""
        return [
            {"where": p.where, "device": p.device, "clock_offset": p.clock.offset, "clock_error": p.clock.error}
            for p in sorted(self.places.values(), key=place_order)
        ]


def place_order(place: Place) -> tuple[str, str, int]:
    """Return a key that sorts places by the name of the host, then by device, then by process."""
    return place.host, place.device, int(place.where.rpartition(":")[2])


def union(spans: Iterable[Span]) -> Intervals:
    """Return the intervals in which at least one of the spans was active."""
    pairs = np.array(sorted((s.start, s.end) for s in spans), np.float64).reshape(-1, 2)
    if not len(pairs):
        return pairs
    ends = np.maximum.accumulate(pairs[:, 1])
    first = np.concatenate([[True], pairs[1:, 0] > ends[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([pairs[first, 0], ends[last]], axis=1)


def overlap(intervals: Intervals, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the seconds of `intervals` between each two consecutive edges."""
    if not len(intervals):
        return np.zeros(len(edges) - 1)
    lengths = np.concatenate([[0.0], np.cumsum(intervals[:, 1] - intervals[:, 0])])
    which = np.searchsorted(intervals[:, 0], edges, "right")
    inside = np.where(which > 0, np.minimum(edges, intervals[which - 1, 1]) - intervals[which - 1, 0], 0.0)
    covered = lengths[np.maximum(which - 1, 0)] + inside
    return np.diff(covered)


def save_trace(timeline: Timeline, path: str | Path) -> None:
    """Write the trace file. Times count from the start of the job. Raises OutputError."""
    events = ",\n".join(json.dumps(event) for event in _events(timeline))
    write_file(path, f'{{"displayTimeUnit": "ms", "traceEvents": [\n{events}\n]}}\n'.encode())


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    places = sorted(timeline.places.values(), key=place_order)
    processes = {place.where: number for number, place in enumerate(places, 1)}
    names = {place.where: f"{place.host} {place.device} (pid {place.where.rpartition(':')[2]})" for place in places}
    named: set[tuple[int, int]] = set()
    for where in dict.fromkeys(one.where for one in timeline.spans):
        if where not in processes:
            processes[where] = len(processes) + 1
            names[where] = f"client {where}"
    for where, number in processes.items():
        yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": names[where]}}
        yield {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": {"sort_index": number}}
    rows = _LaneRows()
    for one in sorted(timeline.spans, key=lambda s: (s.start, -s.seconds)):
        about = {"pid": processes[one.where], "tid": _thread(one.lane, rows.row_of(one))}
        if (about["pid"], about["tid"]) not in named:
            named.add((about["pid"], about["tid"]))
            yield {"ph": "M", "name": "thread_name", **about, "args": {"name": one.lane}}
            yield {"ph": "M", "name": "thread_sort_index", **about, "args": {"sort_index": about["tid"]}}
        times = {"ts": round((one.start - timeline.began) * 1e6, 3), "dur": round(one.seconds * 1e6, 3)}
        yield {"ph": "X", "name": one.name, "cat": one.lane, **about, **times, "args": {"chunk": one.chunk}}


_SLACK = 50e-6  # start and duration of a span come from two clocks, so it may end a moment after its parent


class _LaneRows:
    """Gives spans the rows of their lanes, since viewers draw spans that overlap without nesting only in separate rows.

    Spans overlap because a worker reads and writes several chunks at once.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], list[list[Span]]] = {}

    def row_of(self, span: Span) -> int:
        """Return the number of the row in its lane that a span goes to, from 0."""
        rows = self._open.setdefault((span.where, span.lane), [])
        for number, stack in enumerate(rows):
            while stack and stack[-1].end <= span.start:
                stack.pop()
            if not stack or (span.end <= stack[-1].end + _SLACK and span.chunk == stack[-1].chunk):
                stack.append(span)
                return number
        rows.append([span])
        return len(rows) - 1


def _thread(lane: str, row: int) -> int:
    """Return a thread number that sorts the rows of a process by LANES, with the CPU's threads below "compute"."""
    if lane in LANES:
        return 1 + 10 * LANES.index(lane) + row
    return 1 + 10 * LANES.index("compute") + 1 + int(lane.rpartition(" ")[2])
