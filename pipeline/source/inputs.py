"""What a job is given, whatever its kind: its identity, its columns, and its chunks in input order."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipeline.errors import UsageError
from pipeline.source import read_stream
from pipeline.source.chunk import Chunk, Selection
from pipeline.source.files import InputFile
from pipeline.source.plan import Plan, Problem, Stream, Unit, find_files, part_name, plan_files
from pipeline.source.saved_plan import plan_from_json, plan_to_json
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
    whole files. saved: the plan as JSON, where there is one to go on with.
    """

    selection: Selection
    rows: int
    chunk_count: int
    problems: tuple[Problem, ...]

    @property
    def saved(self) -> dict[str, Any] | None: ...

    def chunks(self, done: Container[str]) -> Iterator[Source]:
        """Every chunk but those whose part is named in `done`."""
        ...


@dataclass(frozen=True)
class Files:
    """Files as they were found, before they are planned."""

    found: tuple[InputFile, ...]
    problems: tuple[Problem, ...]

    @property
    def bytes_to_scan(self) -> int:
        """Of files that are looked through to find where their records begin."""
        return sum(f.size for f in self.found if not f.compression and f.format not in ("parquet", "onehot"))


def identify(source: Any, whole_hash: bool, by_content: bool) -> tuple[Any, list[dict[str, Any]]]:
    """What `open_input` takes, and what a fingerprint says of the input. Raises UsageError for no input at all.

    whole_hash: hash all of a file, not its edges. by_content: hash rows in memory, which have nothing else to be known
    by. A string is a path, and so is each of `Paths` or of a list of `pathlib.Path`; a list of strings is articles.
    """
    paths = _paths(source)
    if paths is not None:
        found, problems = find_files(paths, whole_hash)
        identity = [{"path": f.path, "size": f.size, "modified": f.modified, "digest": f.digest} for f in found]
        return Files(tuple(found), tuple(problems)), identity
    if _is_dask(source):
        return source, [{"path": MEMORY, "digest": source._name}]
    tables = as_tables(source)
    return tables, [{"path": MEMORY, "digest": digest_of(tables) if by_content else ""}]


def _paths(source: Any) -> list[str] | None:
    if isinstance(source, Paths):
        return list(source)
    if isinstance(source, str | os.PathLike):
        return [os.fspath(source)]
    if isinstance(source, list | tuple) and source and all(isinstance(s, Path) for s in source):
        return [os.fspath(s) for s in source]
    return None


def _is_dask(source: Any) -> bool:
    return hasattr(source, "to_delayed") and hasattr(source, "_meta")


def open_input(
    source: Any,
    selection: Selection,
    chunk_rows: int,
    symbols: int,
    length: int,
    saved: dict[str, Any] | None = None,
    workers: Scanner | None = None,
) -> JobInput:
    """Plan the chunks of what `identify` gave, or take the plan saved before. symbols, length: of the model. workers:
    look through large files, in place of threads here.

    Raises UsageError where a column that is asked for is not there.
    """
    if isinstance(source, Files):
        if saved is not None:
            return FileInput(plan_from_json(saved, source.found))
        plan = plan_files(source.found, selection, chunk_rows, symbols, length, workers)
        return FileInput(plan, source.problems)
    if selection.answers:
        raise UsageError("an answer file goes with a one-hot file only")
    if _is_dask(source):
        return DaskInput(source, dask_selection(source, selection))
    return MemoryInput(source, resolve(source.schema, selection), chunk_rows)


class FileInput:
    """Files: units that workers read themselves, and compressed streams that the client reads."""

    def __init__(self, plan: Plan, problems: tuple[Problem, ...] = ()) -> None:
        self._plan = plan
        self.selection = plan.selection
        streams = any(isinstance(unit, Stream) for unit in plan.units)
        self.rows = 0 if streams else plan.rows_known
        self.chunk_count = 0 if streams else len(plan.units)
        self.problems = problems + plan.problems
        self.saved = {**plan_to_json(plan), "problems": [list(p) for p in self.problems]}

    def chunks(self, done: Container[str]) -> Iterator[Source]:
        for unit in self._plan.units:
            if isinstance(unit, Stream):
                yield from self._stream(unit, done)
            elif unit.name not in done:
                yield unit

    def _stream(self, stream: Stream, done: Container[str]) -> Iterator[Loaded]:
        row = 0
        for number, chunk in enumerate(read_stream(stream, self.selection, self._plan.chunk_rows)):
            name = part_name(stream.number, number)
            if name not in done:
                yield Loaded(name, ((stream.file.path, row, chunk.rows_read),), chunk)
            row += chunk.rows_read


class MemoryInput:
    """Rows in the client's memory."""

    problems: tuple[Problem, ...] = ()
    saved = None
    chunk_count = 0

    def __init__(self, tables: Tables, selection: Selection, chunk_rows: int) -> None:
        self._tables = tables
        self._chunk_rows = chunk_rows
        self.selection = selection
        self.rows = tables.rows

    def chunks(self, done: Container[str]) -> Iterator[Source]:
        row = 0
        for number, chunk in enumerate(table_chunks(self._tables, self.selection, self._chunk_rows)):
            name = part_name(0, number)
            if name not in done:
                yield Loaded(name, ((MEMORY, row, chunk.rows_read),), chunk)
            row += chunk.rows_read


class DaskInput:
    """A Dask DataFrame: a chunk a partition, wherever that is computed."""

    problems: tuple[Problem, ...] = ()
    saved = None
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
