"""Reading input as the workers of a job do, in this process."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import fspath
from pathlib import Path

import numpy as np

from broadsheet.pipeline.source.chunk import Chunk, Selection
from broadsheet.pipeline.source.find.files import find_files
from broadsheet.pipeline.source.formats.base import InputFile
from broadsheet.pipeline.source.formats.jsonl import Jsonl
from broadsheet.pipeline.source.formats.records import Records, read_records
from broadsheet.pipeline.source.limits import LIMITS, Limits
from broadsheet.pipeline.source.plan.plan import Group, GroupChunk, GroupEnd, Plan, RowGroups, Unit, plan_files, split
from broadsheet.pipeline.source.plan.scan import SEGMENT_BYTES, Scanner, threads_scanner
from broadsheet.pipeline.source.read.read import read_group, read_run, read_unit


@dataclass
class Read:
    """What was read of files. messages: about whole files."""

    plan: Plan
    names: list[str] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    ends: list[GroupEnd] = field(default_factory=list)

    @property
    def messages(self) -> list[str]:
        return [message for end in self.ends for _, message in end.problems]

    @property
    def texts(self) -> list[bytes]:
        return [text for chunk in self.chunks for text in chunk.text.to_pylist()]

    def note(self, found: GroupChunk | GroupEnd) -> None:
        if isinstance(found, GroupEnd):
            self.ends.append(found)
        else:
            assert found.chunk is not None
            assert sum(rows for *_, rows in found.sources) == found.chunk.rows_read
            self.add(found.name, found.chunk)

    def add(self, name: str, chunk: Chunk | None) -> None:
        assert chunk is not None
        self.names.append(name)
        self.chunks.append(chunk)


def found(paths: Iterable[str | Path], limits: Limits = LIMITS) -> list[InputFile]:
    """The files that these name."""
    files = find_files([fspath(path) for path in paths], 70, 1014).found
    return files if limits is LIMITS else [replace(f, format=replace(f.format, limits=limits)) for f in files]


def read_files(files: Sequence[InputFile], selection: Selection, chunk_rows: int, limit: int | None = None) -> Read:
    """Each group of the files, front to back."""
    plan = plan_files(files, selection, chunk_rows, limit)
    result = Read(plan)
    for group in plan.groups:
        for each in read_group(group, plan.selection, chunk_rows, lambda _: False):
            result.note(each)
    return result


def units_of(plan: Plan, scanner: Scanner) -> tuple[list[Unit | RowGroups], list[GroupEnd]]:
    """The chunks of files as if each were large, and what is amiss with them."""
    units: list[Unit | RowGroups] = []
    ends: list[GroupEnd] = []
    for number, file in enumerate(plan.files):
        for each in split(Group(number, (file,), plan.first), plan.selection, plan.chunk_rows, scanner.scan):
            assert not isinstance(each, Group)
            (ends if isinstance(each, GroupEnd) else units).append(each)  # type: ignore[arg-type]
    return units, ends


def read_split(files: Sequence[InputFile], selection: Selection, chunk_rows: int, segment: int = SEGMENT_BYTES) -> Read:
    """The files chunk by chunk, as if each were large."""
    result = Read(plan_files(files, selection, chunk_rows))
    selection = result.plan.selection
    with threads_scanner(segment) as scanner:
        units, result.ends = units_of(result.plan, scanner)
    for each in units:
        if isinstance(each, Unit):
            result.add(each.name, read_unit(each, selection))
        else:
            for unit, chunk in read_run(each, selection, lambda _: False):
                result.add(unit.name, chunk)
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
