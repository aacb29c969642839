"""A sample of an input, and how many rows the whole has: counted where that is cheap, else estimated."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import NamedTuple

from pipeline.errors import SourceError, UsageError
from pipeline.source.chunk import Chunk, Selection, concat
from pipeline.source.compression import beginning
from pipeline.source.encoding import UTF8, Transcoded
from pipeline.source.files import Files
from pipeline.source.first_rows import first_chunks
from pipeline.source.formats.base import Fragment, InputFile, Seek, Stream
from pipeline.source.formats.record_format import RecordFormat
from pipeline.source.inputs import Given, Rows, refuse_unfit
from pipeline.source.opening import open_at, open_location
from pipeline.source.plan import Unit, bound, plan_files
from pipeline.source.records import read_records
from pipeline.source.scan import fragment_about

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

    Raises UsageError for a column that does not exist, an option that does not fit, and an input that can be read only
    once; SourceError where no file can be read.
    """
    refuse_unfit(given, selection)
    if isinstance(given, Rows):
        return _of_tables(given, selection, rows, limit)
    if not isinstance(given, Files):
        raise UsageError("a dry run takes files or a table in memory: other sources would have to be read for it")
    sample = Sample(selection, problems=[message for _, message in given.problems])
    found = bound(given.found, selection)
    by_rows = [file for file in found if file.format.seeks is Seek.ROWS]
    others = [file for file in found if file.format.seeks is not Seek.ROWS]
    if limit is not None or sum(file.stored for file in others) <= _COUNTED_BYTES:
        by_rows, others = list(found), []
    if by_rows:
        others += _count(sample, by_rows, rows if not others else rows // 2, limit)
    if others:
        _estimate(sample, others, rows // 2 if sample.chunks else rows)
    if not sample.selection.text and not sample.chunks and sample.problems:
        raise SourceError(sample.problems[0])
    return sample


def _of_tables(given: Rows, selection: Selection, rows: int, limit: int | None) -> Sample:
    held, each = given.held, max(1, rows // PLACES)
    if held.rows is None:
        raise UsageError(f"a dry run would use up the {held.kind}, which can be read only once: give files or a table")
    selection, count = held.resolve(selection), min(limit or held.rows, held.rows)
    chosen = {*_even(-(-count // each), 1)}
    chunks = first_chunks(held.chunks(selection, each), count)
    return Sample(selection, [chunk for number, chunk in enumerate(chunks) if number in chosen], count)


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
    chosen = sorted((fragments[i] for i in _even(len(fragments), 1)), key=lambda fragment: fragment.rows)
    for number, fragment in enumerate(chosen):
        left = rows - sum(chunk.rows_read for chunk in sample.chunks)
        sample.chunks += _read(fragment, max(1, left // (len(chosen) - number)), plan.selection)
    return [unit.file for unit in plan.units if isinstance(unit, Stream) and unit.rows is None]


def _read(fragment: Fragment, rows: int, selection: Selection) -> Iterator[Chunk]:
    """The first rows of a fragment."""
    form = fragment.file.format
    if rows < fragment.rows and not fragment.file.front_to_back:
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
    apart for files that can be read from any record, and for each kind of others.
    """
    sample.counted = False
    each = max(1, rows // PLACES)
    sample.problems += [f"{file.path}: the file is empty" for file in files if not file.size]
    windows: dict[tuple[object, ...], list[_Window]] = defaultdict(list)
    for file, at in _places(files):
        plan = plan_files([file], sample.selection, each, limit=each)  # which opens it, and reads little
        sample.problems += [message for _, message in plan.problems if message not in sample.problems]
        unit = plan.units[0]
        if isinstance(unit, Unit) and not unit.fragments:
            continue
        sample.selection = plan.selection
        try:
            if file.front_to_back or isinstance(unit, Stream):
                window = _front(plan.files[0], unit, each, plan.selection)
            else:
                window = _middle(unit.fragments[0], at, each, plan.selection)
        except SourceError as error:
            sample.problems.append(error.message)
            continue
        if window is not None:
            windows[_kind(file)].append(window)
            sample.chunks.append(window.chunk)
    for file in files:
        here = windows[_kind(file)]
        total = sum(window.bytes for window in here)
        if not total and file.stored:
            sample.rows = None
        elif sample.rows is not None and total:
            share = file.stored / total
            sample.rows += round(share * sum(window.rows for window in here))
            if file.front_to_back:
                sample.in_order.append(file.path)
                sample.in_order_seconds += share * sum(window.seconds for window in here)


def _places(files: Sequence[InputFile]) -> Iterator[tuple[InputFile, int]]:
    """Files, each with a byte of it, at even distances in all bytes. One that is read front to back occurs once."""
    total, end, files = sum(file.stored for file in files), 0, deque(files)
    for i in range(PLACES):
        at = (2 * i + 1) * total // (2 * PLACES)
        while at >= end:
            file = files.popleft()
            end += file.stored
            seen = False
        if not (seen and file.front_to_back):
            yield file, at - (end - file.stored)
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
    """The beginning of a file that is read front to back; None where it has no records."""
    if not isinstance(file.format, RecordFormat):
        return None
    began = time.perf_counter()
    text, stored = _beginning(file)
    start = unit.start if isinstance(unit, Stream) else unit.fragments[0].start
    found = list(read_records(BytesIO(text[start:]), file.format.split, start, limits=file.format.limits))
    if stored < file.stored and found:
        found[-1] = found[-1].slice(0, len(found[-1]) - 1)  # it is cut off there
    if not any(map(len, found)):
        return None
    chunk = concat([file.format.parse(records, file.path, 0, selection) for records in found])
    seconds = time.perf_counter() - began
    (few,) = first_chunks([chunk], each)
    return _Window(few, chunk.rows_read, stored, seconds)


def _kind(file: InputFile) -> tuple[object, ...]:
    """Files of one kind have about as many rows for each byte."""
    return file.compression, file.member is not None, file.format.encoding


def _beginning(file: InputFile) -> tuple[bytes, int]:
    """The first text of a file, as UTF-8, and how many of its stored bytes that takes, about."""
    if file.compression and file.member is None:
        with open_location(file.location, file.ranges, endpoint=file.endpoint) as raw:
            head = raw.read(_FRONT_BYTES)
        text = beginning(head)
        if file.format.encoding != UTF8:
            text = Transcoded(BytesIO(text), file.format.encoding).read(4 * len(text))  # a character takes four bytes
        return text, len(head)
    blocks, room = [], _FRONT_BYTES
    with open_at(file) as stream:
        while room > 0 and (block := stream.read(room)):
            blocks.append(block)
            room -= len(block)
    found = b"".join(blocks)
    if file.member is not None:
        share = file.member.size / max(file.member.length, 1)
        return found, min(file.stored, round(len(found) * share))
    if file.format.encoding != UTF8:
        return found, len(found.decode(UTF8, "replace").encode(file.format.encoding, "replace"))
    return found, len(found)
