"""Reads input in this process the way a job's workers do."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import fspath
from pathlib import Path

import numpy as np

from broadsheet.pipeline.source.formats.jsonl import Jsonl
from broadsheet.pipeline.source.formats.records import Records, read_records
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.source.plan.plan import Plan, Range, RangeEnd, Start, plan_files
from broadsheet.pipeline.source.read.read import Skipped, read_range
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection, numbered
from broadsheet.pipeline.source.rows.format import InputFile
from broadsheet.pipeline.source.rows.limits import LIMITS, Limits


@dataclass
class Read:
    """The chunks and messages read from files. messages: those about whole files."""

    plan: Plan
    names: list[str] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    ends: list[RangeEnd] = field(default_factory=list)
    read_again: int = 0

    @property
    def messages(self) -> list[str]:
        """Return each message once, because every part of a file repeats the file's messages."""
        return list(dict.fromkeys(message for end in self.ends for _, message in end.problems))

    @property
    def texts(self) -> list[bytes]:
        return [text for chunk in self.chunks for text in chunk.text.to_pylist()]

    def note(self, item: Chunk | Skipped | RangeEnd) -> None:
        if isinstance(item, RangeEnd):
            self.ends.append(item)
        else:
            assert isinstance(item, Chunk)
            assert sum(source.rows for source in item.sources) == item.rows_read
            self.names.append(item.name)
            self.chunks.append(item)


def found(paths: Iterable[str | Path], limits: Limits = LIMITS) -> list[InputFile]:
    """Return the input files that these paths name."""
    files = find_files([fspath(path) for path in paths], 70, 1014).found
    return files if limits is LIMITS else [replace(f, format=replace(f.format, limits=limits)) for f in files]


def read_files(files: Sequence[InputFile], selection: Selection, chunk_rows: int, limit: int | None = None) -> Read:
    """Read each range of the files from front to back."""
    plan = plan_files(files, selection, chunk_rows, limit, cut=False)
    result = Read(plan)
    for range_ in plan.ranges:
        for item in read_range(range_, plan.selection, chunk_rows, lambda _: False):
            result.note(item)
    return result


def read_split(files: Sequence[InputFile], selection: Selection, chunk_rows: int, segment: int = 1 << 20) -> Read:
    """Read each file in parts of about `segment` bytes.

    As in a job, a part is read from a guessed start, and read again if the part before it ends elsewhere.
    """
    plan = plan_files(files, selection, chunk_rows)
    result = Read(plan)
    number = 0
    for file in plan.files:
        parts = max(1, -(-file.stored // segment)) if file.can_be_cut else 1
        start = Start(0, 0)
        for part_number in range(parts):
            one = Range(number, (file,), plan.first, None, part_number, parts)
            *chunks, end = read_range(one, plan.selection, chunk_rows, lambda _: False)
            assert isinstance(end, RangeEnd)
            if part_number and end.begin not in (None, start.byte):
                result.read_again += 1
                *chunks, end = read_range(replace(one, start=start), plan.selection, chunk_rows, lambda _: False)
                assert isinstance(end, RangeEnd)
                assert end.begin == start.byte
            elif part_number and end.begin is not None:
                chunks = [numbered(chunk, start.row) for chunk in chunks if isinstance(chunk, Chunk)]
            for item in (*chunks, end):
                result.note(item)
            if end.after is not None:
                start = Start(start.row + (end.files[0][1] or 0), end.after)
            number += 1
    return result


def block_of(lines: list[bytes]) -> Records:
    (block,) = read_records(io.BytesIO(b"\n".join([*lines, b""])), Jsonl().split, 0)
    return block


def same(one: Chunk, other: Chunk) -> bool:
    counts = np.array_equal(one.n_chars, other.n_chars) if one.n_chars is not None else other.n_chars is None
    return (
        one.text.equals(other.text)
        and one.rows.equals(other.rows)
        and one.quarantine.equals(other.quarantine)
        and counts
    )
