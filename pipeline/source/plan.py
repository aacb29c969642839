"""From inputs to units of work: which bytes or rows of which files make each chunk.

Uncompressed CSV, JSONL and text are read once, quickly, to find where records begin, so that a chunk can be read from
its middle and rows have numbers. A compressed file has one reader; a small one is counted first like the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.errors import SourceError, UsageError
from pipeline.source import csv, jsonl, onehot, parquet
from pipeline.source.chunk import Selection
from pipeline.source.files import InputFile, describe, expand, open_at
from pipeline.source.records import Splitter, read_records, split_lines
from pipeline.source.shape import Shape, difference, resolve, shape_of

CHUNK_BYTES = 64 << 20
"""A chunk is cut here too, so that long articles do not make it large."""

_COUNTED_COMPRESSED_BYTES = 8 << 20

Problem = tuple[str, str]
"""A path, and what is wrong with that file."""


@dataclass(frozen=True)
class Fragment:
    """Rows `first_row` to `first_row + rows` of a file: bytes start to stop (stop None: to the end), or for Parquet and
    one-hot files rows start to stop of row group `group` or of the file.
    """

    file: InputFile
    start: int
    stop: int | None
    first_row: int
    rows: int
    group: int = -1


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
    """A compressed file of unknown length, read front to back; its chunks are named `name`-00000 and on."""

    name: str
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
    return f"part-{file:05d}-{part:05d}"


def find_files(inputs: Sequence[str], whole_hash: bool) -> tuple[list[InputFile], list[Problem]]:
    """The files that `inputs` name, and those among them that cannot be read. Raises UsageError as `expand` does."""
    files: list[InputFile] = []
    problems: list[Problem] = []
    for path in expand(inputs):
        try:
            files.append(describe(path, whole_hash))
        except SourceError as error:
            problems.append((path, str(error)))
    return files, problems


def plan_files(found: Sequence[InputFile], selection: Selection, chunk_rows: int, symbols: int, length: int) -> Plan:
    """Plan a job over files. `selection.text` may be empty: then the column is called "text".

    symbols, length: of the model, for one-hot input. Raises UsageError for what the user must change: columns that the
    first file lacks.
    """
    files = list(found)
    units: list[Unit | Stream] = []
    problems: list[Problem] = []
    first: tuple[str, Shape] | None = None
    for number, file in enumerate(files):
        path = file.path
        if not file.size:
            problems.append((path, f"{path}: the file is empty"))
            continue
        try:
            shape = shape_of(file, selection)
            if first is None:
                selection = resolve(path, shape, selection)
                first = (path, shape)
            elif message := difference(path, shape, first, selection):
                problems.append((path, message))
            file = replace(file, columns=shape.names or ())
            files[number] = file
            fragments = list(_fragments(file, shape, chunk_rows, symbols, length, selection, problems))
        except (SourceError, UsageError) as error:
            if isinstance(error, UsageError) and (first is None or first[0] == path):
                raise  # the job as asked for does not fit its first file
            problems.append((path, str(error)))
            continue
        if fragments and fragments[0].rows < 0:
            units.append(Stream(f"part-{number:05d}", file, shape.start))
        else:
            units += _pack(fragments, number, units, chunk_rows)
    if not any(isinstance(unit, Stream) or unit.rows for unit in units):
        units = [Unit(part_name(0, 0), ())]
    return Plan(tuple(files), tuple(units), tuple(problems), selection, chunk_rows)


def _pack(fragments: list[Fragment], number: int, before: list[Unit | Stream], chunk_rows: int) -> Iterator[Unit]:
    """Units of up to `chunk_rows` rows; the first joins what the previous file left room for."""
    open_unit: Unit | None = None
    if before and isinstance(last := before[-1], Unit):
        open_unit = last
        before.pop()
    for part, fragment in enumerate(fragments):
        joined = (*open_unit.fragments, fragment) if open_unit else (fragment,)
        if open_unit and _fits(joined, chunk_rows):
            open_unit = Unit(open_unit.name, joined)
            continue
        if open_unit:
            yield open_unit
        open_unit = Unit(part_name(number, part), (fragment,))
    if open_unit:
        yield open_unit


def _fits(fragments: Sequence[Fragment], chunk_rows: int) -> bool:
    size = sum((f.stop if f.stop is not None else f.file.size) - f.start for f in fragments if f.group < 0)
    return sum(f.rows for f in fragments) <= chunk_rows and size <= CHUNK_BYTES


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
        pieces = list(_index(file, shape.start, chunk_rows))
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


def _index(file: InputFile, start: int, chunk_rows: int) -> Iterator[Fragment]:
    """Cut a file of records at their beginnings, every `chunk_rows` records or CHUNK_BYTES."""
    whole = None if file.compression else file.size
    begin, first_row, row = start, 0, 0
    with open_at(file, start) as stream:
        try:
            for records in read_records(stream, splitter_of(file), start):
                at = 0
                ends = records.offsets + (records.ends - records.starts)
                while at < len(records):
                    room = chunk_rows - (row - first_row)
                    within = int(ends[at:].searchsorted(begin + CHUNK_BYTES, side="right"))
                    take = min(len(records) - at, room, max(within, 1 if row == first_row else 0))
                    at, row = at + take, row + take
                    if at < len(records):
                        stop = int(records.offsets[at])
                        yield Fragment(file, begin, stop, first_row, row - first_row)
                        begin, first_row = stop, row
        except SourceError:
            if not file.compression:
                raise  # a compressed file that is cut off says so again where its rows are read
    if row > first_row:
        yield Fragment(file, begin, whole, first_row, row - first_row)
