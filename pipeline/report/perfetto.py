"""A job's timeline as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

The format is the "Trace Event Format": complete events (`ph` X) with microseconds; a process is a worker and its
device, a thread is a lane. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..telemetry.spans import LANES, Span
from .timeline import Timeline, place_order


def save_trace(timeline: Timeline, path: str | Path) -> None:
    """Write the file. Times count from the start of the job. Raises OSError."""
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        file.write(",\n".join(json.dumps(event) for event in _events(timeline)))
        file.write("\n]}\n")


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    places = sorted(timeline.places.values(), key=place_order)
    processes = {place.where: number for number, place in enumerate(places, 1)}
    names = {place.where: f"{place.host} {place.device} (pid {place.where.rpartition(':')[2]})" for place in places}
    named: set[tuple[int, int]] = set()
    for where in dict.fromkeys(span.where for span in timeline.spans):
        if where not in processes:
            processes[where] = len(processes) + 1
            names[where] = f"client {where}"
    for where, number in processes.items():
        yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": names[where]}}
        yield {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": {"sort_index": number}}
    rows = _Rows()
    for span in sorted(timeline.spans, key=lambda s: (s.start, -s.seconds)):
        about = {"pid": processes[span.where], "tid": _thread(span.lane, rows.row_of(span))}
        if (about["pid"], about["tid"]) not in named:
            named.add((about["pid"], about["tid"]))
            yield {"ph": "M", "name": "thread_name", **about, "args": {"name": span.lane}}
            yield {"ph": "M", "name": "thread_sort_index", **about, "args": {"sort_index": about["tid"]}}
        yield {
            "ph": "X",
            "name": span.name,
            "cat": span.lane,
            **about,
            "ts": round((span.start - timeline.began) * 1e6, 3),
            "dur": round(span.seconds * 1e6, 3),
            "args": {"chunk": span.chunk},
        }


_SLACK = 50e-6  # start and duration of a span come from two clocks, so it may end a moment after its parent


class _Rows:
    """Which row of a lane a span goes to: viewers draw spans that overlap, without nesting, only in separate rows.

    Spans overlap since a worker reads and writes several chunks at once.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], list[list[Span]]] = {}

    def row_of(self, span: Span) -> int:
        """Its number in the lane, from 0."""
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
    """A thread number that puts the rows of a process in the order of LANES, the CPU's threads below "compute"."""
    if lane in LANES:
        return 1 + 10 * LANES.index(lane) + row
    return 1 + 10 * LANES.index("compute") + 1 + int(lane.rpartition(" ")[2])
