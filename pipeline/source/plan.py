"""From inputs to units of work: which bytes or rows of which files make each chunk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pipeline.errors import SourceError, UsageError
from pipeline.source.chunk import Selection
from pipeline.source.encoding import UTF8
from pipeline.source.first_rows import first_of_file, scan_first
from pipeline.source.formats.base import FilePlan, Fragment, InputFile, Schema, Stream
from pipeline.source.scan import Scanner, threads_scanner
from pipeline.source.schema import difference, kept_types, refuse_twice, resolve
from pipeline.source.search import Problem
from pipeline.threads import threads


@dataclass(frozen=True)
class Unit:
    """The unit of work, commit and resume: the fragments of a chunk in input order, and the name of its part."""

    name: str
    fragments: tuple[Fragment, ...]

    @property
    def rows(self) -> int:
        return sum(fragment.rows for fragment in self.fragments)

    @property
    def sources(self) -> tuple[tuple[str, int, int], ...]:
        """(file, first row, rows) of each fragment."""
        return tuple((f.file.path, f.first_row, f.rows) for f in self.fragments)


Unread = tuple[str, int | None]
"""A file or folder of which nothing is read, and its rows where they are known."""


@dataclass(frozen=True)
class Plan:
    """The chunks of a job over files. columns: names of each file's columns, empty where it has none or could not be
    read. selection: with its text columns, kept columns and their types resolved. unread: path of each file of which
    nothing is read, with its rows where they are known; its problem says why.
    """

    files: tuple[InputFile, ...]
    columns: tuple[tuple[str, ...], ...]
    units: tuple[Unit | Stream, ...]
    problems: tuple[Problem, ...]
    selection: Selection
    chunk_rows: int
    unread: tuple[Unread, ...] = ()

    @property
    def rows_known(self) -> int:
        return sum(unit.rows or 0 for unit in self.units)

    @property
    def is_counted(self) -> bool:
        """Whether the rows of every unit are known."""
        return all(unit.rows is not None for unit in self.units)


def part_name(file: int, part: int) -> str:
    return f"part-{file:06d}-{part:07d}"


def plan_files(
    found: Sequence[InputFile],
    selection: Selection,
    chunk_rows: int,
    scanner: Scanner | None = None,
    limit: int | None = None,
) -> Plan:
    """Plan a job over files. `selection.text` may be empty: then the column is called "text".

    scanner: scans large files, in place of threads here. limit: only so many rows; files after them are not opened.
    Raises UsageError for columns that the first file lacks.
    """
    found = bound(found, selection)
    planned: list[_Planned] = []
    first: tuple[str, Schema] | None = None
    rest = iter(found)
    with nullcontext(scanner) if scanner else threads_scanner() as scans, threads(scans.files_at_once) as pool:
        plan = partial(_plan_file, chunk_rows=chunk_rows, scanner=scans)
        for file in rest:  # all others must have the columns of the first readable file
            planned.append(plan(file, selection, None, limit))
            if planned[-1].schema is not None:
                first, selection = (file.path, planned[-1].schema), planned[-1].selection
                break
        if limit is None:
            planned += pool.map(lambda file: plan(file, selection, first, None), rest)
        for file in rest:  # with a limit: one after another
            left = (limit or 0) - sum(one.plan.rows_known for one in planned)
            planned.append(plan(file, selection, first, left) if left > 0 else _Planned(file, selection, FilePlan()))
    read = [one.schema for one in planned if one.schema and (one.plan.fragments or one.plan.streamed)]
    selection = replace(selection, kept_types=kept_types(read, selection.kept))
    packing = _Packing(chunk_rows)
    for number, one in enumerate(planned):
        if one.schema is not None and one.plan.streamed:
            packing.stream(Stream(number, one.file, one.schema.start, one.plan.rows))
        for part, fragment in enumerate(one.plan.fragments):
            packing.add(part_name(number, part), fragment)
    packing.close()
    units = packing.units
    if not any(isinstance(unit, Stream) or unit.rows for unit in units):
        units = [Unit(part_name(0, 0), ())]
    problems = tuple((one.file.path, message) for one in planned for message in one.plan.problems)
    columns = tuple((one.schema and one.schema.names) or () for one in planned)
    unread = tuple(
        (one.file.path, _rows_of(one.file))
        for one in planned
        if one.plan.problems and not (one.plan.fragments or one.plan.streamed)
    )
    return Plan(tuple(one.file for one in planned), columns, tuple(units), problems, selection, chunk_rows, unread)


def bound(found: Sequence[InputFile], selection: Selection) -> list[InputFile]:
    """The files, each with the encoding and delimiter that the user gave, where its format has some."""
    encoding, delimiter = selection.encoding, selection.delimiter
    return [replace(file, format=file.format.for_options(encoding, delimiter)) for file in found]


def refuse_useless(found: Sequence[InputFile], selection: Selection) -> None:
    """Raise UsageError for an encoding or a delimiter that none of the files can have."""
    files = bound(found, selection)
    if files and selection.encoding != UTF8 and all(file.format.encoding == UTF8 for file in files):
        raise UsageError(f"{files[0].path}: only CSV, TSV, JSONL and text files take --encoding, and there is none")
    if files and selection.delimiter and not any(file.format.takes_header for file in files):
        raise UsageError(f"{files[0].path}: --delimiter is for CSV and TSV files, and there is none")


def _rows_of(file: InputFile) -> int | None:
    try:
        return file.format.rows_of(file) if file.size else 0
    except SourceError:
        return None


class _Planned(NamedTuple):
    """A planned file. selection: resolved for it. schema: None where it cannot be read or differs from the first's."""

    file: InputFile
    selection: Selection
    plan: FilePlan
    schema: Schema | None = None


def _plan_file(
    file: InputFile,
    selection: Selection,
    first: tuple[str, Schema] | None,
    limit: int | None,
    chunk_rows: int,
    scanner: Scanner,
) -> _Planned:
    """Plan a file; a pure function, since files are planned in parallel.

    first: path and schema of the job's first file; None for that file itself, for which UsageError is raised where it
    does not fit the options. limit: of its rows.
    """
    path = file.path
    if not file.size:
        return _Planned(file, selection, FilePlan(problems=[f"{path}: the file is empty"]))
    schema = None
    problems: list[str] = []
    try:
        found = file.format.schema(file, selection)
        refuse_twice(path, found)
        if first is None:
            selection = resolve(file, found, selection)
        elif message := difference(file, found, first, selection):
            problems.append(message)
        schema = found
        file = replace(file, format=file.format.for_columns(schema.names or ()))
        scan = scanner.scan if limit is None else scan_first(scanner.scan, limit)
        plan = file.format.plan(file, schema, selection, chunk_rows, scan)
        if limit is not None:
            plan = first_of_file(plan, Stream(0, file, schema.start), limit, selection, chunk_rows)
    except (SourceError, UsageError) as error:
        if isinstance(error, UsageError) and first is None:
            raise
        plan = FilePlan(problems=[error.message])
    return _Planned(file, selection, replace(plan, problems=[*problems, *plan.problems]), schema)


class _Packing:
    """Packs fragments into units: a fragment is added to the open unit if it fits."""

    def __init__(self, chunk_rows: int) -> None:
        self.units: list[Unit | Stream] = []
        self._chunk_rows = chunk_rows
        self._open: list[Fragment] = []
        self._name = ""
        self._rows = self._bytes = 0

    def add(self, name: str, fragment: Fragment) -> None:
        """Add a fragment. name: of the unit, if this fragment begins one."""
        size, room = fragment.size, fragment.file.format.limits.chunk_bytes
        if self._rows + fragment.rows > self._chunk_rows or self._bytes + size > room:
            self.close()
        if not self._open:
            self._name = name
        self._open.append(fragment)
        self._rows, self._bytes = self._rows + fragment.rows, self._bytes + size

    def stream(self, stream: Stream) -> None:
        self.close()
        self.units.append(stream)

    def close(self) -> None:
        if self._open:
            self.units.append(Unit(self._name, tuple(self._open)))
        self._open, self._rows, self._bytes = [], 0, 0
