"""The spans of a job on one clock: what breakdown, export and page are made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.source.inputs import Loaded, Source
from pipeline.trace import Clock, Place, Span, brought_home, span

Intervals = NDArray[np.float64]
"""[n, 2]: begin and end, ascending and apart."""


@dataclass
class Timeline:
    """began, ended: of the job, in epoch seconds of the scheduler's clock, as is every span. clock: the client's.

    places: by `where`, the workers that finished a chunk. rows: by chunk, the rows it read.
    """

    began: float = 0.0
    clock: Clock = field(default_factory=Clock)
    ended: float = 0.0
    spans: list[Span] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def add(self, chunk: str, rows: int, spans: Iterable[Span], place: Place) -> None:
        """Take in a committed chunk's spans, recorded by the clock of `place`."""
        self.places[place.where] = place
        self.rows[chunk] = rows
        self.spans += brought_home(spans, place.clock.offset, chunk)

    def watch(self, sources: Iterable[Source]) -> Iterator[Source]:
        """`sources`, the time that reading each takes this process noted: rows of a compressed stream."""
        iterator = iter(sources)
        while True:
            spans: list[Span] = []
            with span("read", spans, "read"):
                source = next(iterator, None)
            if source is None:
                return
            if isinstance(source, Loaded):
                self.spans += brought_home(spans, self.clock.offset, source.name)
            yield source

    def moment(self, place: Place, name: str) -> float:
        """One of a place's own moments, on the scheduler's clock."""
        return float(getattr(place, name)) + place.clock.offset

    def to_table(self) -> pa.Table:
        """The spans as a table, a column a field; names are dictionary-encoded."""
        columns: dict[str, Any] = {}
        for column in fields(Span):
            values = pa.array([getattr(s, column.name) for s in self.spans])
            columns[column.name] = values if column.name in ("start", "seconds") else values.dictionary_encode()
        return pa.table(columns)

    def places_to_json(self) -> list[dict[str, Any]]:
        """The workers, with the offset that was added to their clocks and the error it may have, in seconds."""
        return [
            {
                "where": p.where,
                "device": p.device,
                "clock_offset": p.clock.offset,
                "clock_error": p.clock.error,
            }
            for p in sorted(self.places.values(), key=place_order)
        ]


def place_order(place: Place) -> tuple[str, str, int]:
    """Hosts by name, devices in order, then processes."""
    return place.host, place.device, int(place.where.rpartition(":")[2])


def union(spans: Iterable[Span]) -> Intervals:
    """The times at which at least one of the spans was under way."""
    pairs = np.array(sorted((s.start, s.end) for s in spans), np.float64).reshape(-1, 2)
    if not len(pairs):
        return pairs
    ends = np.maximum.accumulate(pairs[:, 1])
    first = np.concatenate([[True], pairs[1:, 0] > ends[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([pairs[first, 0], ends[last]], axis=1)


def overlap(intervals: Intervals, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of `intervals` between each two consecutive edges."""
    if not len(intervals):
        return np.zeros(len(edges) - 1)
    lengths = np.concatenate([[0.0], np.cumsum(intervals[:, 1] - intervals[:, 0])])
    which = np.searchsorted(intervals[:, 0], edges, "right")
    inside = np.where(which > 0, np.minimum(edges, intervals[which - 1, 1]) - intervals[which - 1, 0], 0.0)
    covered = lengths[np.maximum(which - 1, 0)] + inside
    return np.diff(covered)
