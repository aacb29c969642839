"""How far a job is: in rows where all are known, else in bytes of its files as they are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..source.plan.group import GroupEnd


class Reach:
    """How far a job is, with the chunks that tasks have committed and not returned yet.

    How many rows a group has is known when it has been read to its end, or when the ends of all its chunks are found.
    Until then it counts with the bytes that have been read of it, where its reader tells them; else its rows count for
    as many bytes as those of the groups of which it is known.

    rows, chunks: done; rows_before: of them by earlier runs. rows_known: of the whole job, 0 where not known.
    of_groups: the bytes of each group of files, by number; none for rows in memory.
    """

    def __init__(self, rows_known: int = 0, of_groups: Mapping[int, int] | None = None) -> None:
        self.rows = self.rows_before = self.chunks = 0
        self._rows_known = rows_known
        self._bytes = dict(of_groups or {})
        self.bytes_known = sum(self._bytes.values())
        self._noted: dict[str, int] = {}
        self._rows: Counter[int] = Counter()
        self._ends: dict[int, int] = {}
        self._open_rows = self._ended_rows = self._ended_bytes = 0
        self._stored: dict[int, int] = {}
        self._done_bytes = 0.0

    def note(self, chunk: str, rows: int, stored: int = 0) -> None:
        """Count a chunk that is committed, and that its task will return later. stored: as of `GroupChunk`."""
        if chunk not in self._noted:
            self._count(chunk, rows)
            self._noted[chunk] = rows
        group = _group_of(chunk)
        if stored and group not in self._ends:
            self._stored[group] = max(stored, self._stored.get(group, 0))

    def add(self, chunk: str, rows: int) -> None:
        """Count a chunk that is committed, unless it was noted before."""
        if self._noted.pop(chunk, None) is None:
            self._count(chunk, rows)

    def begin(self) -> None:
        """What is done by now was done by earlier runs."""
        self.rows_before = self.rows

    def _count(self, chunk: str, rows: int) -> None:
        self.rows += rows
        self.chunks += 1
        group = _group_of(chunk)
        self._rows[group] += rows
        if group in self._ends:
            self._done_bytes += self._share(group, rows)
        else:
            self._open_rows += rows

    def close(self, end: GroupEnd) -> None:
        """Note how many rows a group has."""
        if end.number in self._ends:
            return
        self._ends[end.number] = rows = sum(count or 0 for _, count in end.files)
        self._ended_rows += rows
        self._ended_bytes += self._bytes.get(end.number, 0)
        self._stored.pop(end.number, None)
        counted = self._rows[end.number]
        self._open_rows -= counted
        self._done_bytes += self._share(end.number, counted)

    def _share(self, group: int, rows: int) -> float:
        """The bytes of some rows of a group that has ended."""
        held = self._bytes.get(group, 0)
        return held * rows / self._ends[group] if self._ends[group] else held

    @property
    def rows_known(self) -> int:
        """Rows of the whole job, 0 where not known."""
        return self._rows_known or (self._ended_rows if self._bytes and len(self._ends) == len(self._bytes) else 0)

    @property
    def bytes(self) -> int:
        """Done, as far as can be told."""
        each = self._ended_bytes / self._ended_rows if self._ended_rows else 0.0
        rows = self._open_rows - sum(self._rows[group] for group in self._stored)
        return min(round(self._done_bytes + sum(self._stored.values()) + each * rows), self.bytes_known)

    @property
    def share(self) -> float:
        """Of the job that is done, from 0 to 1; 0 where that cannot be told."""
        if self.rows_known:
            return self.rows / self.rows_known
        return self.bytes / self.bytes_known if self.bytes_known else 0.0

    def seconds_left(self, seconds: float) -> float | None:
        """At the pace of this run, which has taken `seconds`; None where that cannot be told."""
        run = self.rows - self.rows_before
        return seconds * (1 / self.share - 1) * self.rows / run if self.share and run else None


def _group_of(chunk: str) -> int:
    return int(chunk.split("-")[1])
