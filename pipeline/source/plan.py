"""From inputs to units of work: which bytes or rows of which files make each chunk.

Uncompressed CSV, JSONL and text are read once, quickly, to find where records begin, so that a chunk can be read from
its middle and rows have numbers. A compressed file has one reader; a small one is counted first like the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from pipeline.errors import SourceError, UsageError
from pipeline.source import csv, jsonl, onehot, parquet, text
from pipeline.source.chunk import Selection
from pipeline.source.files import InputFile, describe, expand, open_at
from pipeline.source.records import BLOCK_BYTES, BOM, Splitter, read_records, split_lines

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


class _Shape(NamedTuple):
    """names: of a file's columns; None for a one-hot file. types: Arrow types by name. start: first byte of data."""

    names: tuple[str, ...] | None
    types: dict[str, pa.DataType]
    start: int


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
    first: tuple[str, _Shape] | None = None
    for number, file in enumerate(files):
        path = file.path
        if not file.size:
            problems.append((path, f"{path}: the file is empty"))
            continue
        try:
            shape = _shape_of(file, selection)
            if first is None:
                selection = _resolve(path, shape, selection)
                first = (path, shape)
            elif message := _difference(path, shape, first, selection):
                problems.append((path, message))
            file = replace(file, columns=shape.names or ())
            files[number] = file
            fragments = list(_fragments(file, shape, chunk_rows, symbols, length, selection, problems))
        except SourceError as error:
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


def _shape_of(file: InputFile, selection: Selection) -> _Shape:
    if file.format == "onehot":
        return _Shape(None, {}, 0)
    if file.format == "parquet":
        try:
            with open_at(file) as stream:
                schema, _ = parquet.metadata(stream)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{file.path}: not a readable Parquet file ({error})") from error
        return _Shape(tuple(schema.names), {f.name: _plain(f.type) for f in schema}, 0)
    block, final = _first_block(file)
    start = len(BOM) if block.startswith(BOM) else 0
    block = block[start:]
    if file.format == "text":
        return _Shape(text.COLUMNS, {}, start)
    split = jsonl.split_objects if file.format == "jsonl" else csv.Dialect(file.delimiter, None)
    found = split(block, final)
    if not len(found.starts):
        if final:
            raise SourceError(f"{file.path}: the file holds no record")
        raise SourceError(f"{file.path}: its first record is longer than {BLOCK_BYTES >> 20} MiB")
    record = block[found.starts[0] : found.ends[0]]
    if file.format == "jsonl":
        return _Shape(jsonl.keys_of(record), {}, start)
    try:
        names = csv.fields_of(record, file.delimiter)
    except SourceError as error:
        raise SourceError(f"{file.path}: {error}") from error
    if selection.header is None:
        behind = int(found.starts[1]) if len(found.starts) > 1 else found.consumed
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise SourceError(f"{file.path}: two columns are called {twice!r}; name them with --columns")
        return _Shape(tuple(names), {}, start + behind)
    if len(names) != len(selection.header):
        raise SourceError(
            f"{file.path}: its first record has {len(names)} fields, --columns names {len(selection.header)}"
        )
    return _Shape(selection.header, {}, start)


def _first_block(file: InputFile) -> tuple[bytes, bool]:
    """The file's first bytes, and whether they are all of it. Of a damaged compressed file what can be had of them."""
    block = b""
    with open_at(file) as stream:
        try:
            while len(block) < BLOCK_BYTES:
                more = stream.read(BLOCK_BYTES - len(block))
                if not more:
                    return block, True
                block += more
        except SourceError:
            if not block:
                raise
    return block, False


def _plain(kind: pa.DataType) -> pa.DataType:
    """Strings of every layout count as one type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    textual = (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )
    return pa.string() if textual else kind


def _resolve(path: str, shape: _Shape, selection: Selection) -> Selection:
    """The selection for a job whose first file is this one. Raises UsageError."""
    if shape.names is None:
        if selection.ids or selection.truth or selection.text:
            raise UsageError(f"{path}: a one-hot file has no columns to name")
        return selection
    if not selection.text:
        selection = replace(selection, text=("text",))
    for name in selection.columns:
        if name not in shape.names:
            have = ", ".join(shape.names) or "none"
            asked = "--text-column names another" if selection.text == ("text",) else "it was asked for"
            raise UsageError(f"{path}: no column {name!r} ({asked}); it has: {have}")
    for name in selection.text:
        kind = shape.types.get(name, pa.string())
        if kind != pa.string():
            raise UsageError(f"{path}: the text column {name!r} holds {kind}, not strings")
    types = tuple(shape.types.get(name, pa.string()) for name in selection.ids)
    return replace(selection, id_types=types)


def _difference(path: str, shape: _Shape, first: tuple[str, _Shape], selection: Selection) -> str | None:
    """A message where the file's columns are not the first file's. Raises SourceError where it cannot be read so."""
    other, expected = first
    if (shape.names is None) != (expected.names is None):
        raise SourceError(f"{path}: not of the same kind as {other}; classify it in a job of its own")
    if shape.names is None or shape == expected._replace(start=shape.start):
        return None
    missing = [name for name in selection.columns if name not in shape.names]
    if missing and not path.endswith((".jsonl", ".ndjson")):
        have = ", ".join(shape.names) or "none"
        raise SourceError(f"{path}: no column {missing[0]!r} as in {other}; it has: {have}. It was not read")
    wanted = dict(zip(selection.ids, selection.id_types, strict=True))
    for name in selection.columns:
        kind = shape.types.get(name, pa.string())
        if kind != wanted.get(name, kind if name == selection.truth else pa.string()):
            raise SourceError(f"{path}: column {name!r} holds {kind}, unlike {other}. It was not read")
    return f"{path}: its columns differ from those of {other}; it was read by the columns that this job names"


def _fragments(
    file: InputFile,
    shape: _Shape,
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
