"""A sample of an input, the first rows of some of its files; and how many rows the whole has: counted where that is
little, else by the sizes of all files. And a remark about a large file that only one core can read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO

from ..errors import SourceError, UsageError
from ..processes.threads import available_cores
from .chunk import Chunk, Selection, concat, empty_chunk, first_chunks
from .compression import HEAD_BYTES, UTF8, Transcoded, compression_of
from .format import InputFile
from .formats.record_format import RecordFormat
from .formats.records import read_records
from .inputs import Given, RowsInMemory, refuse_unfit
from .open.decompress import beginning
from .open.opening import open_at, open_location
from .plan.examine import Examined, examine
from .plan.files import Files
from .plan.plan import Plan, Range, RangeEnd, plan_files
from .read.read import read_range

_PLACES = 8
"""A sample is taken from so many files, or places of a table, at even distances."""

_COUNTED_BYTES = 64 << 20
"""So much is read to count rows. Of more input, rows are estimated."""

_HEAD_BYTES = 1 << 20
_CHUNK_ROWS = 16_384
_LARGE_BYTES = 1 << 30


@dataclass
class Sample:
    """Some rows of an input, and what is known of all of them.

    Attributes
    ----------
    selection : Selection
        With its columns resolved.
    chunk : Chunk
        The rows.
    rows : int or None
        Of the whole input; None where they cannot be estimated.
    counted : bool
        Whether `rows` is exact.
    reading_seconds : float
        What this machine takes to read the files that are read front to back, each by one core.
    problems, notes : list of str
        Of whole files, and what may be amiss with them.

    """

    selection: Selection
    chunk: Chunk
    rows: int | None
    counted: bool = True
    reading_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def sample_input(given: Given, selection: Selection, rows: int, limit: int | None) -> Sample:
    """About `rows` rows of an input. limit: only its first rows count.

    Raises UsageError for a column that does not exist, an option that does not fit, and an input that can be read only
    once; SourceError where no file can be read.
    """
    refuse_unfit(given, selection)
    if isinstance(given, RowsInMemory):
        return _of_table(given, selection, rows, limit)
    if not isinstance(given, Files):
        raise UsageError("a dry run takes files or a table in memory: other sources would have to be read for it")
    plan = plan_files(given.found, selection, _CHUNK_ROWS, limit)
    some = [plan.files[at] for at in _even(len(plan.files))]
    problems = [message for _, message in given.problems]
    chunks: list[Chunk] = []
    notes: dict[str, None] = {}

    def read(files: Sequence[InputFile], most: int | None, is_sample: bool) -> int:
        """Count the first rows of files; those of a sample are parsed, and kept."""
        count = 0
        part = Range(0, tuple(files), plan.first, most)
        for item in read_range(part, plan.selection, _CHUNK_ROWS, lambda _: not is_sample):
            if isinstance(item, RangeEnd):
                problems.extend(message for _, message in item.problems if message not in problems)
                notes.update((f"{path}: {note}", None) for path, note in item.notes)
                count = sum(rows or 0 for _, rows in item.files)
            elif isinstance(item, Chunk):
                chunks.append(item)
        return count

    left = rows if limit is None else min(rows, limit)
    groups = [(file,) for file in some] if limit is None else [plan.files]
    for number, files in enumerate(groups):
        left -= read(files, max(1, left // (len(groups) - number)), True)
    if plan.first is None and problems:
        raise SourceError(problems[0])
    chunk = concat(chunks) if chunks else empty_chunk(plan.selection)
    if sum(file.stored for file in plan.files) <= _COUNTED_BYTES:
        return Sample(plan.selection, chunk, read(plan.files, limit, False), problems=problems, notes=[*notes])
    total, seconds = _estimated(plan, some)
    total = total if total is None or limit is None else min(total, limit)
    return Sample(plan.selection, chunk, total, total is not None and total == limit, seconds, problems, [*notes])


def _of_table(given: RowsInMemory, selection: Selection, rows: int, limit: int | None) -> Sample:
    table, size = given.held, max(1, rows // _PLACES)
    if table.rows is None:
        raise UsageError(f"a dry run would use up the {table.kind}, which can be read only once: give files or a table")
    selection, count = table.resolve(selection), min(limit or table.rows, table.rows)
    places = _even(-(-count // size))
    chunks = first_chunks(table.chunks(selection, size), count)
    some = [chunk for number, chunk in enumerate(chunks) if number in places]
    return Sample(selection, concat(some) if some else empty_chunk(selection), count)


def _even(count: int) -> list[int]:
    """Some of the numbers below `count`, at even distances."""
    places = min(_PLACES, count)
    return [place * count // places for place in range(places)]


def _estimated(plan: Plan, some: Sequence[InputFile]) -> tuple[int | None, float]:
    """How many rows all files have, by how many there are for each byte of some; and the seconds that reading takes."""
    rows = stored = 0
    in_order: list[float] = []
    for file in some:
        try:
            count, size, seconds = _density(examine(file, plan.selection, plan.first))
        except (SourceError, UsageError, OSError):  # it is among the problems of the sample
            continue
        rows += round(count * file.stored / size)
        stored += file.stored
        in_order += [seconds * file.stored / size] if file.front_to_back else []
    if not stored:
        return None, 0.0
    share = sum(file.stored for file in plan.files) / stored
    return round(rows * share), max(share * sum(in_order) / available_cores(), max(in_order, default=0.0))


def _density(examined: Examined) -> tuple[int, int, float]:
    """How many rows a file or the beginning of it has, its stored bytes, and the seconds in which one core reads it.

    Raises SourceError for a file that would have to be read to its end for that.
    """
    file, start = examined.file, examined.schema.start
    if not isinstance(file.format, RecordFormat):
        if (known := file.format.rows_of(file)) is None:
            raise SourceError(f"{file.path}: its rows are not known")
        return known, file.stored, 0.0
    began = time.perf_counter()
    if file.member is not None:
        with open_at(file, peek=True) as stream:
            text = stream.read(_HEAD_BYTES)
        stored = min(file.stored, round(len(text) * file.member.size / max(file.member.length, 1)))
    else:
        with open_location(file.location, file.ranges, endpoint=file.endpoint, stop=_HEAD_BYTES) as raw:
            head = raw.read(_HEAD_BYTES)
        text, stored = beginning(head, compression_of(head[:HEAD_BYTES], file.compression))[0], len(head)
        if file.format.encoding != UTF8:
            text = Transcoded(BytesIO(text), file.format.encoding).read(4 * len(text))  # a character takes four bytes
    records = read_records(BytesIO(text[start:]), file.format.split, start, limits=file.format.limits)
    rows = sum(map(len, records)) - (stored < file.stored)  # the last one is cut off there
    return max(rows, 1), max(stored, 1), time.perf_counter() - began


def slow_to_read(files: Sequence[InputFile]) -> str | None:
    """A remark about the largest compressed file of 1 GiB or more, which one core reads; None where there is none."""
    large = [file for file in files if file.compression and file.stored >= _LARGE_BYTES]
    if not large:
        return None
    largest = max(large, key=lambda file: file.stored)
    others = f" (the largest of {len(large):,} compressed files of 1 GiB and more)" if len(large) > 1 else ""
    return f"{largest.path}: {largest.compression}, read by one core; several smaller files are read by all{others}"
