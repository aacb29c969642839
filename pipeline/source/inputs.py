"""What a job is given, whatever its kind: its identity, its columns, and its chunks in input order."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from dask.base import is_dask_collection

from pipeline.errors import UsageError
from pipeline.source.chunk import Chunk, Selection
from pipeline.source.files import Problem, find_files
from pipeline.source.formats.base import InputFile, Seek, Stream
from pipeline.source.plan import Plan, Unit, part_name, plan_files
from pipeline.source.scan import Scanner
from pipeline.source.tables import MEMORY, Tables, as_tables, dask_selection, digest_of, resolve, table_chunks


class Paths(tuple[str, ...]):
    """Several paths, folders, globs or fsspec URLs: a plain list of strings would be articles."""


@dataclass(frozen=True)
class Loaded:
    """A chunk whose text is with the client. name: of its part. sources: (file, first row, rows) of its pieces."""

    name: str
    sources: tuple[tuple[str, int, int], ...]
    chunk: Chunk


@dataclass(frozen=True)
class Partition:
    """A partition of a Dask DataFrame. frame: its delayed pandas DataFrame."""

    name: str
    number: int
    frame: Any


Source = Unit | Loaded | Partition


class JobInput(Protocol):
    """selection: with its text columns and id types resolved. rows, chunk_count: 0 where not known. problems: of
    whole files. plan: of files, to go on with; None for what is in memory.
    """

    selection: Selection
    rows: int
    chunk_count: int
    problems: tuple[Problem, ...]

    @property
    def plan(self) -> Plan | None: ...

    def chunks(self, done: Container[str]) -> Iterator[Source]:
        """Every chunk but those whose part is named in `done`."""
        ...


Identity = list[dict[str, Any]]
"""What a fingerprint says of the input."""


@dataclass(frozen=True)
class Files:
    """Files as they were found, before they are planned."""

    found: tuple[InputFile, ...]
    problems: tuple[Problem, ...]

    @property
    def identity(self) -> Identity:
        return [{"path": f.path, "size": f.size, "modified": f.modified, "digest": f.digest} for f in self.found]

    @property
    def bytes_to_scan(self) -> int:
        """Of files that are scanned for where their records begin."""
        return sum(f.size for f in self.found if not f.compression and f.format.seeks is Seek.RECORDS)


@dataclass(frozen=True)
class Rows:
    """Rows in the client's memory."""

    tables: Tables
    identity: Identity


@dataclass(frozen=True)
class Frame:
    """A Dask DataFrame."""

    frame: Any
    identity: Identity


def identify(source: Any, symbols: int, length: int, *, whole_hash: bool, by_content: bool) -> Files | Rows | Frame:
    """What a job is given, before it is planned. Raises UsageError for no input at all.

    symbols, length: of the model, for files that are encoded already. whole_hash: hash all of a file, not its edges.
    by_content: hash rows in memory, which have nothing else to be known by. A string is a path, and so is each of
    `Paths` or of a list of `pathlib.Path`; a list of strings is articles.
    """
    paths = _paths(source)
    if paths is not None:
        found, problems = find_files(paths, symbols, length, whole_hash)
        return Files(tuple(found), tuple(problems))
    if _is_frame(source):
        return Frame(source, [{"path": MEMORY, "digest": source._name}])
    tables = as_tables(source)
    return Rows(tables, [{"path": MEMORY, "digest": digest_of(tables) if by_content else ""}])


def _paths(source: Any) -> list[str] | None:
    if isinstance(source, Paths):
        return list(source)
    if isinstance(source, str | os.PathLike):
        return [os.fspath(source)]
    if isinstance(source, list | tuple) and source and all(isinstance(s, Path) for s in source):
        return [os.fspath(s) for s in source]
    return None


def _is_frame(source: Any) -> bool:
    if not is_dask_collection(source):
        return False
    from dask.dataframe import DataFrame  # takes a second to import, which only who has one spends

    return isinstance(source, DataFrame)


def open_input(
    given: Files | Rows | Frame,
    selection: Selection,
    chunk_rows: int,
    saved: Plan | None = None,
    scanner: Scanner | None = None,
) -> JobInput:
    """Plan the chunks of what `identify` gave, or take the plan of its files that was saved before. scanner: scans
    large files, in place of threads here.

    Raises UsageError where a column that is asked for is not there.
    """
    if isinstance(given, Files):
        if saved is not None:
            return FileInput(saved)
        plan = plan_files(given.found, selection, chunk_rows, scanner)
        return FileInput(replace(plan, problems=given.problems + plan.problems))
    if selection.answers:
        raise UsageError("an answer file goes with a one-hot file only")
    if isinstance(given, Frame):
        return DaskInput(given.frame, dask_selection(given.frame, selection))
    return MemoryInput(given.tables, resolve(given.tables.schema, selection), chunk_rows)


def _loaded(chunks: Iterable[Chunk], file: int, path: str, done: Container[str]) -> Iterator[Loaded]:
    row = 0
    for number, chunk in enumerate(chunks):
        name = part_name(file, number)
        if name not in done:
            yield Loaded(name, ((path, row, chunk.rows_read),), chunk)
        row += chunk.rows_read


class FileInput:
    """Files: units that workers read themselves, and compressed streams that the client reads."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.selection = plan.selection
        streams = any(isinstance(unit, Stream) for unit in plan.units)
        self.rows = 0 if streams else plan.rows_known
        self.chunk_count = 0 if streams else len(plan.units)
        self.problems = plan.problems

    def chunks(self, done: Container[str]) -> Iterator[Source]:
        for unit in self.plan.units:
            if isinstance(unit, Stream):
                chunks = unit.file.format.stream(unit, self.selection, self.plan.chunk_rows)
                yield from _loaded(chunks, unit.number, unit.file.path, done)
            elif unit.name not in done:
                yield unit


class MemoryInput:
    """Rows in the client's memory."""

    problems: tuple[Problem, ...] = ()
    plan = None
    chunk_count = 0

    def __init__(self, tables: Tables, selection: Selection, chunk_rows: int) -> None:
        self._tables = tables
        self._chunk_rows = chunk_rows
        self.selection = selection
        self.rows = tables.rows

    def chunks(self, done: Container[str]) -> Iterator[Source]:
        return _loaded(table_chunks(self._tables, self.selection, self._chunk_rows), 0, MEMORY, done)


class DaskInput:
    """A Dask DataFrame: a chunk a partition, wherever that is computed."""

    problems: tuple[Problem, ...] = ()
    plan = None
    rows = 0

    def __init__(self, frame: Any, selection: Selection) -> None:
        self._frame = frame
        self.selection = selection
        self.chunk_count = frame.npartitions

    def chunks(self, done: Container[str]) -> Iterator[Source]:
        for number, frame in enumerate(self._frame[list(self.selection.columns)].to_delayed()):
            name = part_name(0, number)
            if name not in done:
                yield Partition(name, number, frame)
