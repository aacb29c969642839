"""From inputs to units of work: which bytes or rows of which files make each chunk.

Uncompressed CSV, JSONL and text are read once, by several threads or workers, to find where records begin, so that a
chunk can be read from its middle and rows have numbers. A compressed file has one reader; a small one is counted first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pipeline.errors import SourceError, UsageError
from pipeline.source.chunk import Selection
from pipeline.source.files import InputFile, describe, expand, open_at
from pipeline.source.formats import csv, jsonl, onehot, parquet
from pipeline.source.records import Records, Splitter, cut, read_records, split_lines
from pipeline.source.scan import Scanner, threads_scanner
from pipeline.source.schema import Shape, difference, resolve, shape_of
from pipeline.threads import available_cores, threads

CHUNK_BYTES = 64 << 20
"""A chunk is cut here too, so that long articles do not make it large."""

_COUNTED_COMPRESSED_BYTES = 8 << 20

Problem = tuple[str, str]
"""A path, and what is wrong with that file."""


@dataclass(frozen=True)
class Fragment:
    """Rows `first_row` to `first_row + rows` of a file: bytes start to stop (stop None: to the end), or for Parquet and
    one-hot files rows start to stop of row group `group` or of the file. regular: no record has a problem, as far as
    the scan for their beginnings can tell.
    """

    file: InputFile
    start: int
    stop: int | None
    first_row: int
    rows: int
    group: int = -1
    regular: bool = False


@dataclass(frozen=True)
class Unit:
    """The unit of work, of commit and of resume: a chunk's fragments in input order, and the name of its part."""

    name: str
    fragments: tuple[Fragment, ...]

    @property
    def rows(self) -> int:
        return sum(fragment.rows for fragment in self.fragments)


@dataclass(frozen=True)
class Stream:
    """A compressed file of unknown length, the job's file `number`, read front to back."""

    number: int
    file: InputFile
    start: int


@dataclass(frozen=True)
class Plan:
    """selection: with its text columns and id types resolved."""

    files: tuple[InputFile, ...]
    units: tuple[Unit | Stream, ...]
    problems: tuple[Problem, ...]
    selection: Selection
    chunk_rows: int

    @property
    def rows_known(self) -> int:
        return sum(unit.rows for unit in self.units if isinstance(unit, Unit))


def part_name(file: int, part: int) -> str:
    return f"part-{file:06d}-{part:07d}"


def find_files(inputs: Sequence[str], whole_hash: bool) -> tuple[list[InputFile], list[Problem]]:
    """The files that `inputs` name, and those among them that cannot be read. Raises UsageError as `expand` does."""

    def look(path: str) -> InputFile | Problem:
        try:
            return describe(path, whole_hash)
        except SourceError as error:
            return path, str(error)

    with threads(available_cores()) as pool:
        found = list(pool.map(look, expand(inputs)))
    return [f for f in found if isinstance(f, InputFile)], [p for p in found if not isinstance(p, InputFile)]


def plan_files(
    found: Sequence[InputFile],
    selection: Selection,
    chunk_rows: int,
    symbols: int,
    length: int,
    workers: Scanner | None = None,
) -> Plan:
    """Plan a job over files. `selection.text` may be empty: then the column is called "text".

    symbols, length: of the model, for one-hot input. workers: look through large files, in place of threads here.
    Raises UsageError for what the user must change: columns that the first file lacks.
    """
    looked: list[_Looked] = []
    first: tuple[str, Shape] | None = None
    rest = iter(found)
    with nullcontext(workers) if workers else threads_scanner() as scanner, threads(scanner.files_at_once) as files:
        look = partial(_look_at, chunk_rows=chunk_rows, symbols=symbols, length=length, scanner=scanner)
        for file in rest:  # what the first readable file has is asked of all others
            looked.append(look(file, selection, None))
            if looked[-1].shape is not None:
                first, selection = (file.path, looked[-1].shape), looked[-1].selection
                break
        looked += files.map(lambda file: look(file, selection, first), rest)
    packing = _Packing(chunk_rows)
    for number, one in enumerate(looked):
        fragments = one.fragments
        if one.shape is not None and fragments and fragments[0].rows < 0:
            packing.stream(Stream(number, one.file, one.shape.start))
        else:
            for part, fragment in enumerate(fragments):
                packing.add(part_name(number, part), fragment)
    packing.close()
    units = packing.units
    if not any(isinstance(unit, Stream) or unit.rows for unit in units):
        units = [Unit(part_name(0, 0), ())]
    problems = tuple(problem for one in looked for problem in one.problems)
    return Plan(tuple(one.file for one in looked), tuple(units), problems, selection, chunk_rows)


class _Looked(NamedTuple):
    """shape: None where the file could not be read. selection: resolved for it."""

    file: InputFile
    selection: Selection
    shape: Shape | None = None
    fragments: Sequence[Fragment] = ()
    problems: Sequence[Problem] = ()


def _look_at(
    file: InputFile,
    selection: Selection,
    first: tuple[str, Shape] | None,
    chunk_rows: int,
    symbols: int,
    length: int,
    scanner: Scanner,
) -> _Looked:
    """Where a file's chunks begin; a pure function, for files are looked at side by side.

    first: path and shape of the job's first file, None for that file itself. Raises UsageError where that one does not
    fit the job as asked for.
    """
    path = file.path
    if not file.size:
        return _Looked(file, selection, problems=[(path, f"{path}: the file is empty")])
    shape = None
    problems: list[Problem] = []
    try:
        shape = shape_of(file, selection)
        if first is None:
            selection = resolve(path, shape, selection)
        elif message := difference(path, shape, first, selection):
            problems.append((path, message))
        file = replace(file, columns=shape.names or ())
        fragments = list(_fragments(file, shape, chunk_rows, symbols, length, selection, problems, scanner))
    except (SourceError, UsageError) as error:
        if isinstance(error, UsageError) and first is None:
            raise
        return _Looked(file, selection, shape, problems=[*problems, (path, str(error))])
    return _Looked(file, selection, shape, fragments, problems)


class _Packing:
    """Units in the making: fragments join the open unit while they fit."""

    def __init__(self, chunk_rows: int) -> None:
        self.units: list[Unit | Stream] = []
        self._chunk_rows = chunk_rows
        self._open: list[Fragment] = []
        self._name = ""
        self._rows = self._bytes = 0

    def add(self, name: str, fragment: Fragment) -> None:
        """`name`: of the unit, if this fragment begins one."""
        size = 0 if fragment.group >= 0 else (fragment.stop or fragment.file.size) - fragment.start
        if self._rows + fragment.rows > self._chunk_rows or self._bytes + size > CHUNK_BYTES:
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


def splitter_of(file: InputFile) -> Splitter:
    """How the records of a CSV, TSV, JSONL or text file are told apart."""
    if file.format == "jsonl":
        return jsonl.split_objects
    return split_lines if file.format == "text" else csv.Dialect(file.delimiter, len(file.columns))


def _fragments(
    file: InputFile,
    shape: Shape,
    chunk_rows: int,
    symbols: int,
    length: int,
    selection: Selection,
    problems: list[Problem],
    scanner: Scanner,
) -> Iterator[Fragment]:
    """The file in pieces of up to `chunk_rows` rows; one of -1 rows where it must be streamed."""
    if file.format == "onehot":
        rows, left = onehot.rows_in(file.path, symbols, length)
        if left:
            problems.append((file.path, f"{file.path}: {left:,} bytes behind article {rows:,} are no whole article"))
        if selection.answers:
            onehot.answers_of(selection.answers, rows)
        most = max(1, min(chunk_rows, 8 * CHUNK_BYTES // (4 * symbols * length)))
        for at in range(0, rows, most):
            yield Fragment(file, at, min(at + most, rows), at, min(most, rows - at))
    elif file.format == "parquet":
        yield from _parquet_fragments(file, chunk_rows, selection)
    elif file.compression and file.size > _COUNTED_COMPRESSED_BYTES:
        yield Fragment(file, shape.start, None, 0, -1)
    else:
        pieces = list(_index(file, shape.start, chunk_rows, problems, scanner))
        if file.compression and len(pieces) > 1:
            yield Fragment(file, shape.start, None, 0, -1)
        else:
            yield from pieces


def _parquet_fragments(file: InputFile, chunk_rows: int, selection: Selection) -> Iterator[Fragment]:
    with open_at(file) as stream:
        _, footer = parquet.metadata(stream)
    row = 0
    for group in range(footer.num_row_groups):
        about = footer.row_group(group)
        columns = (about.column(i) for i in range(about.num_columns))
        size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema in selection.columns)
        most = max(1, min(chunk_rows, CHUNK_BYTES * about.num_rows // max(size, 1)))
        for at in range(0, about.num_rows, most):
            count = min(most, about.num_rows - at)
            yield Fragment(file, at, at + count, row + at, count, group)
        row += about.num_rows


def _index(
    file: InputFile, start: int, chunk_rows: int, problems: list[Problem], scanner: Scanner
) -> Iterator[Fragment]:
    """Cut a file of records at their beginnings."""
    whole = None if file.compression else file.size
    begin, first_row, row, regular = start, 0, 0, True
    try:
        for records, new in cut(_blocks(file, start, scanner), chunk_rows, CHUNK_BYTES):
            if new and row:
                stop = int(records.offsets[0])
                yield Fragment(file, begin, stop, first_row, row - first_row, regular=regular)
                begin, first_row, regular = stop, row, True
            row += len(records)
            regular &= not records.problems
    except SourceError as error:
        if not file.compression:
            raise
        if not row:  # else the rows before the damage are read, and it is told there
            problems.append((file.path, str(error)))
    if row > first_row:
        yield Fragment(file, begin, whole, first_row, row - first_row, regular=regular)


def _blocks(file: InputFile, start: int, scanner: Scanner) -> Iterator[Records]:
    if not file.compression:
        yield from scanner.scan(file, start, splitter_of(file))
        return
    with open_at(file, start) as stream:
        yield from read_records(stream, splitter_of(file), start)
