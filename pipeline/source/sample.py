"""A sample of an input, and how many rows the whole has: counted where that is cheap, else estimated."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from pipeline.errors import SourceError, UsageError
from pipeline.source.chunk import Chunk, Selection, concat
from pipeline.source.files import Files
from pipeline.source.first_rows import first_chunks
from pipeline.source.formats.base import Fragment, InputFile, Seek, Stream
from pipeline.source.formats.record_format import RecordFormat
from pipeline.source.inputs import Given, Rows
from pipeline.source.opening import open_location
from pipeline.source.plan import Unit, plan_files
from pipeline.source.records import read_records
from pipeline.source.scan import fragment_about
from pipeline.source.tables import MEMORY, resolve, table_chunk

PLACES = 20
"""Where a sample is taken, at even distances."""

_COUNTED_BYTES = 64 << 20
"""So much is scanned to count rows. Of more input, rows are estimated."""

_WINDOW_BYTES = 256 << 10
_FRONT_BYTES = 1 << 20
_CHUNK_ROWS = 1024


@dataclass
class Sample:
    """Some rows of an input, and what is known of all of them.

    selection: with its columns resolved. chunks: the rows of each place. rows: of the whole input; None where that
    cannot be estimated. counted: whether `rows` is exact. in_order: files that only one core can read, front to back.
    in_order_seconds: it takes for that. problems: of whole files.
    """

    selection: Selection
    chunks: list[Chunk] = field(default_factory=list)
    rows: int | None = 0
    counted: bool = True
    in_order: list[str] = field(default_factory=list)
    in_order_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def sample_input(given: Given, selection: Selection, rows: int, limit: int | None) -> Sample:
    """About `rows` rows of an input. limit: only its first rows count.

    Raises UsageError for a column that does not exist, and for an input that can be read only once; SourceError where
    no file can be read.
    """
    if isinstance(given, Rows):
        return _of_tables(given, selection, rows, limit)
    if not isinstance(given, Files):
        raise UsageError("a dry run takes files or a table in memory: other sources would have to be read for it")
    sample = Sample(selection, problems=[message for _, message in given.problems])
    by_rows = [file for file in given.found if file.format.seeks is Seek.ROWS]
    others = [file for file in given.found if file.format.seeks is not Seek.ROWS]
    if limit is not None or sum(file.size for file in others) <= _COUNTED_BYTES:
        by_rows, others = list(given.found), []
    if by_rows:
        others += _count(sample, by_rows, rows if not others else rows // 2, limit)
    if others:
        _estimate(sample, others, rows // 2 if sample.chunks else rows)
    if not sample.selection.text and not sample.chunks and sample.problems:
        raise SourceError(sample.problems[0])
    return sample


def _of_tables(given: Rows, selection: Selection, rows: int, limit: int | None) -> Sample:
    selection, tables = resolve(given.tables.schema, selection), given.tables
    count = min(limit or tables.rows, tables.rows)
    names, each = list(selection.columns), max(1, rows // PLACES)
    if isinstance(tables.source, pa.Table):
        table, begins = tables.source.select(names), _even(count, each)
        pieces = [(at, table.slice(at, min(each, after - at))) for at, after in pairwise([*begins, count])]
    else:
        pieces = [(0, tables.source.head(min(rows, count), columns=names))]
    return Sample(selection, [table_chunk(table, MEMORY, at, selection) for at, table in pieces], count)


def _even(count: int, each: int) -> list[int]:
    """Where runs of `each` of `count` rows begin at even distances, without a row twice."""
    runs = min(PLACES, -(-count // each))
    return [i * count // runs for i in range(runs)]


def _count(sample: Sample, files: Sequence[InputFile], rows: int, limit: int | None) -> list[InputFile]:
    """Count the rows of files and take a sample of them; return those whose rows cannot be counted."""
    plan = plan_files(files, sample.selection, _CHUNK_ROWS, limit=limit)
    sample.selection = plan.selection
    sample.problems += [message for _, message in plan.problems]
    sample.rows = plan.rows_known
    fragments = [fragment for unit in plan.units if isinstance(unit, Unit) for fragment in unit.fragments]
    chosen = [fragments[i] for i in _even(len(fragments), 1)]
    for number, fragment in enumerate(chosen):
        left = rows - sum(chunk.rows_read for chunk in sample.chunks)
        sample.chunks += _read(fragment, max(1, left // (len(chosen) - number)), plan.selection)
    return [unit.file for unit in plan.units if isinstance(unit, Stream) and unit.rows is None]


def _read(fragment: Fragment, rows: int, selection: Selection) -> Iterator[Chunk]:
    """The first rows of a fragment."""
    form = fragment.file.format
    if rows < fragment.rows and not fragment.file.compression:
        fragment = form.shorten(fragment, rows)
    return first_chunks(form.read(fragment, selection), rows)


class _Window(NamedTuple):
    """Part of a file. chunk: its first rows. rows, bytes: of all of it. seconds: reading it took."""

    chunk: Chunk
    rows: int
    bytes: int
    seconds: float


def _estimate(sample: Sample, files: Sequence[InputFile], rows: int) -> None:
    """Take a sample at even distances in the bytes of the files, and estimate how many rows they have by its density:
    apart for files that can be read from any record, and for compressed ones.
    """
    sample.counted = False
    each = max(1, rows // PLACES)
    sample.problems += [f"{file.path}: the file is empty" for file in files if not file.size]
    windows: dict[str | None, list[_Window]] = defaultdict(list)
    for file, at in _places(files):
        plan = plan_files([file], sample.selection, each, limit=each)  # which opens it, and reads little
        sample.problems += [message for _, message in plan.problems if message not in sample.problems]
        unit = plan.units[0]
        if isinstance(unit, Unit) and not unit.fragments:
            continue
        sample.selection = plan.selection
        bound = plan.files[0]
        try:
            if file.compression or isinstance(unit, Stream):
                window = _front(bound, unit, each, plan.selection)
            else:
                window = _middle(unit.fragments[0], at, each, plan.selection)
        except SourceError as error:
            sample.problems.append(str(error))
            continue
        if window is not None:
            windows[file.compression].append(window)
            sample.chunks.append(window.chunk)
    for file in files:
        here = windows[file.compression]
        total = sum(window.bytes for window in here)
        if not total and file.size:
            sample.rows = None
        elif sample.rows is not None and total:
            share = file.size / total
            sample.rows += round(share * sum(window.rows for window in here))
            if file.compression:
                sample.in_order.append(file.path)
                sample.in_order_seconds += share * sum(window.seconds for window in here)


def _places(files: Sequence[InputFile]) -> Iterator[tuple[InputFile, int]]:
    """Files, each with a byte of it, at even distances in the bytes of all. A compressed file occurs once."""
    total, end, files = sum(file.size for file in files), 0, deque(files)
    for i in range(PLACES):
        at = (2 * i + 1) * total // (2 * PLACES)
        while at >= end:
            file = files.popleft()
            end += file.size
            seen = False
        if not (seen and file.compression):
            yield file, at - (end - file.size)
        seen = True


def _middle(first: Fragment, at: int, each: int, selection: Selection) -> _Window | None:
    """About byte `at` of a file that can be read from any record. first: its first rows."""
    form = first.file.format
    found = fragment_about(first, form.split, at, _WINDOW_BYTES) if isinstance(form, RecordFormat) else None
    if found is None:
        return None
    (chunk,) = _read(found, each, selection)
    return _Window(chunk, found.rows, found.size, 0.0)


def _front(file: InputFile, unit: Unit | Stream, each: int, selection: Selection) -> _Window | None:
    """The beginning of a compressed file."""
    if not (isinstance(file.format, RecordFormat) and file.compression):
        return None
    began = time.perf_counter()
    with open_location(file.location) as raw:
        head = raw.read(_FRONT_BYTES)
    start = unit.start if isinstance(unit, Stream) else unit.fragments[0].start
    data = BytesIO(_decompressed(head, file.compression)[start:])
    blocks = read_records(data, file.format.split, start, limits=file.format.limits)
    found = list(blocks)
    if len(head) < file.size and found:
        found[-1] = found[-1].slice(0, len(found[-1]) - 1)  # it is cut off there
    if not any(map(len, found)):
        return None
    chunk = concat([file.format.parse(records, file.path, 0, selection) for records in found])
    seconds = time.perf_counter() - began
    (few,) = first_chunks([chunk], each)
    return _Window(few, chunk.rows_read, len(head), seconds)


def _decompressed(head: bytes, compression: str) -> bytes:
    """What the first bytes of a compressed file hold."""
    found = b""
    with pa.CompressedInputStream(pa.BufferReader(head), compression) as stream:
        try:
            while block := stream.read(1 << 16):
                found += block
        except (OSError, pa.ArrowException):  # the file goes on
            pass
    return found
