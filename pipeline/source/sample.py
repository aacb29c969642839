"""Takes a sample of an input, the first rows of some of its files, and finds how many rows the input has: by counting
if it is small, and else by the sizes of all files. It also makes a remark about a large file that only one core can
read.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import accumulate
from statistics import fmean

import pyarrow as pa

from ..errors import SourceError, UsageError
from ..processes.threads import available_cores
from .formats.record_format import RecordFormat
from .formats.records import read_records
from .inputs import Given, RowsInMemory, refuse_unfit
from .open.decompress import beginning
from .open.opening import open_at, open_location
from .plan.examine import Examined, examine
from .plan.files import Files
from .plan.plan import Plan, Range, RangeEnd, plan_files
from .read.read import read_range
from .rows.chunk import Chunk, Selection, concat, empty_chunk, first_chunks
from .rows.compression import HEAD_BYTES, UTF8, Transcoded, compression_of
from .rows.format import InputFile
from .rows.label_columns import label_lists
from .rows.labels import first_class_number, has_numbers

_PLACES = 8
"""How many files, or places of a table, at even distances, a sample comes from."""

_COUNTED_BYTES = 64 << 20
"""The largest size of an input, in stored bytes, at which all of it is read to count its rows. Those of a larger input
are estimated.
"""

_LABEL_ROWS = 16_384
"""How many rows are examined to find out whether a label column numbers the classes."""

_MEASURED_BYTES = 1 << 20
"""How many bytes at the beginning of a file show how many rows a byte has, and how long reading takes."""

_CHUNK_ROWS = 16_384
_LARGE_BYTES = 1 << 30


@dataclass
class Sample:
    """Some rows of an input, and what is known about all of its rows.

    Attributes
    ----------
    selection : Selection
        The columns that the job uses, resolved.
    chunk : Chunk
        The rows.
    rows : int or None
        The number of rows of the whole input; None if it cannot be estimated.
    counted : bool
        Whether `rows` is exact.
    reading_seconds : float
        How long this machine takes to read the files that are read front to back, each by one core.
    problems, notes : list of str
        The problems of whole files, and what else may be wrong with them.

    """

    selection: Selection
    chunk: Chunk
    rows: int | None
    counted: bool = True
    reading_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def sample_input(given: Given, selection: Selection, rows: int, limit: int | None) -> Sample:
    """Take a sample of about `rows` rows of an input. limit: if given, only the first `limit` rows count.

    Raises UsageError for a column that does not exist, an option that does not fit, or an input that can be read only
    once. Raises SourceError if no file can be read.
    """
    refuse_unfit(given, selection)
    if isinstance(given, RowsInMemory):
        return _of_table(given, selection, rows, limit)
    if not isinstance(given, Files):
        raise UsageError("a dry run takes files or a table in memory: other sources would have to be read for it")
    plan = plan_files(given.found, selection, _CHUNK_ROWS, limit)
    sample = _FilesSample(plan, [message for _, message in given.problems])
    sample.draw(rows, limit)
    problems, notes = sample.problems, [*sample.notes]
    if plan.first is None and problems:
        raise SourceError(problems[0])
    chunk = sample.chunk
    if sum(file.stored for file in plan.files) <= _COUNTED_BYTES:
        count = sample.read(plan.files, limit, is_drawn=False)
        return Sample(plan.selection, chunk, count, problems=problems, notes=notes)
    total, seconds = _estimated(plan)
    total = total if total is None or limit is None else min(total, limit)
    return Sample(plan.selection, chunk, total, total is not None and total == limit, seconds, problems, notes)


class _FilesSample:
    """The first rows of some files of a plan.

    Attributes
    ----------
    files : list of InputFile
        The files from which the sample is taken.
    problems : list of str
        The problems that were known before, followed by the problems of the sample.
    notes : dict of str to None
        What else may be wrong with the files, in order.

    """

    def __init__(self, plan: Plan, problems: list[str]) -> None:
        self.files = [plan.files[at] for at in _even(len(plan.files))]
        self.problems, self.notes = problems, dict[str, None]()
        self._plan, self._chunks = plan, list[Chunk]()

    @property
    def chunk(self) -> Chunk:
        """The rows that were drawn."""
        return concat(self._chunks) if self._chunks else empty_chunk(self._plan.selection)

    def draw(self, rows: int, limit: int | None) -> None:
        """Draw about `rows` rows. limit: if given, only the first `limit` rows of the plan count."""
        left = rows if limit is None else min(rows, limit)
        groups = [(file,) for file in self.files] if limit is None else [self._plan.files]
        for number, files in enumerate(groups):
            left -= self.read(files, max(1, left // (len(groups) - number)), is_drawn=True)

    def read(self, files: Sequence[InputFile], limit: int | None, is_drawn: bool) -> int:
        """Count the first rows of files. With `is_drawn`, the rows are parsed and become part of the sample."""
        count = 0
        part = Range(0, tuple(files), self._plan.first, limit)
        for item in read_range(part, self._plan.selection, _CHUNK_ROWS, lambda _: not is_drawn):
            if isinstance(item, RangeEnd):
                self.problems.extend(message for _, message in item.problems if message not in self.problems)
                self.notes.update((f"{path}: {note}", None) for path, note in item.notes)
                count = sum(rows or 0 for _, rows in item.files)
            elif isinstance(item, Chunk):
                self._chunks.append(item)
        return count


def class_numbers_from(
    given: Given, selection: Selection, column: str, several: bool = False, separator: str | None = None
) -> int | None:
    """Return the number of the first class if a label column numbers the classes, or None if its labels are names.

    A sample of the rows shows which is the case. Input that can be read only once is not sampled: its labels are names,
    unless the user says otherwise.

    Parameters
    ----------
    given : Files, RowsInMemory, DaskFrame or Stdin
        The input.
    selection : Selection
        What is read from it, before its columns are resolved, with the classes and the user's rules.
    column : str
        The label column.
    several : bool
        Whether a row may have several labels.
    separator : str, optional
        See `label_lists`.

    Raises
    ------
    UsageError
        If the column holds numbers that may count the classes from 0 or from 1.

    """
    if selection.rules.numbers_from is not None or has_numbers(selection.classes):
        return selection.rules.numbers_from
    labels_alone = replace(
        selection, kept_columns=(column,), labels=(column,), truth=None, keep_all=False, reads=1, preparations=()
    )
    rows = _some_rows(given, labels_alone)
    if rows is None:
        return None
    if several:
        labels = label_lists(rows, column, separator).flatten()
    else:
        labels = rows.column(column).combine_chunks()
        if not pa.types.is_string(labels.type):
            return None
    return first_class_number(labels.drop_null().unique().to_pylist(), selection.classes, column)


def with_class_numbers(given: Given, selection: Selection) -> Selection:
    """Return the selection, with the number of the first class if its truth column numbers the classes.

    Raises UsageError as `class_numbers_from` does.
    """
    if selection.truth is None:
        return selection
    first = class_numbers_from(given, selection, selection.truth)
    return replace(selection, rules=replace(selection.rules, numbers_from=first))


def _some_rows(given: Given, selection: Selection) -> pa.Table | None:
    """Return rows from several places of an input, or None if it can be read only once, or not at all."""
    try:
        if isinstance(given, RowsInMemory) and given.held.rows is not None:
            return _of_table(given, selection, _LABEL_ROWS, None).chunk.rows
        if isinstance(given, Files):
            sample = _FilesSample(plan_files(given.found, selection, _CHUNK_ROWS), [])
            sample.draw(_LABEL_ROWS, None)
            return sample.chunk.rows
    except (SourceError, UsageError):  # the job reports this when it reads all rows
        return None
    return None


def _of_table(given: RowsInMemory, selection: Selection, rows: int, limit: int | None) -> Sample:
    """Take a sample of about `rows` rows of a table, from places at even distances. See `sample_input`."""
    table, size = given.held, max(1, rows // _PLACES)
    if table.rows is None:
        raise UsageError(f"a dry run would use up the {table.kind}, which can be read only once: give files or a table")
    selection, count = table.resolve(selection), min(limit or table.rows, table.rows)
    places = _even(-(-count // size))
    chunks = first_chunks(table.chunks(selection, size), count)
    some = [chunk for number, chunk in enumerate(chunks) if number in places]
    return Sample(selection, concat(some) if some else empty_chunk(selection), count)


def _even(count: int) -> list[int]:
    """Return some of the numbers below `count`, at even distances."""
    places = min(_PLACES, count)
    return [place * count // places for place in range(places)]


def _estimated(plan: Plan) -> tuple[int | None, float]:
    """Estimate how many rows all files have, and how many seconds reading takes.

    For each kind of file, which is a format with a compression, some files are examined. Their rows per byte are those
    of all files of the kind. Kinds may differ by a factor of ten, so each is estimated by itself.
    """
    kinds: dict[tuple[str, str | None], list[InputFile]] = defaultdict(list)
    for file in plan.files:
        kinds[file.format.name, file.compression].append(file)
    rows, reading, longest = 0.0, 0.0, 0.0
    unknown = known = 0
    for files in kinds.values():
        total = sum(file.stored for file in files)
        some = _by_bytes(files)
        found = [(file.stored, density) for file in some if (density := _density_of(file, plan)) is not None]
        if not found:  # none can be read, or all are empty; the sample has reported those of its own files
            unknown += total
            continue
        known += total
        # If all files of the kind were examined, each counts by its bytes. Otherwise `_by_bytes` chose them by their
        # bytes, with a large file several times, so each choice counts once.
        weights = [stored if len(some) == len(files) else 1 for stored, _ in found]
        rows += total * fmean((rows_per_byte for _, (rows_per_byte, _) in found), weights)
        if files[0].front_to_back:
            seconds_per_byte = fmean((seconds for _, (_, seconds) in found), weights)
            reading += total * seconds_per_byte
            longest = max(longest, seconds_per_byte * max(file.stored for file in files))
    if not known:
        return None, 0.0
    return round(rows * (known + unknown) / known), max(reading / available_cores(), longest)


def _by_bytes(files: Sequence[InputFile]) -> list[InputFile]:
    """Return up to `_PLACES` files: those that contain places at even distances in the bytes of all files. A large file
    may be among them several times.
    """
    if len(files) <= _PLACES:
        return [*files]
    ends = [*accumulate(file.stored for file in files)]
    places = ((2 * place + 1) * ends[-1] // (2 * _PLACES) for place in range(_PLACES))
    return [files[bisect_right(ends, place)] for place in places]


def _density_of(file: InputFile, plan: Plan) -> tuple[float, float] | None:
    """Return the rows and the seconds of reading per stored byte of a file, or None if it is empty or
    cannot be read.
    """
    if not file.stored:
        return None
    try:
        count, size, seconds = _density(examine(file, plan.selection, plan.first))
    except (SourceError, UsageError, OSError):
        return None
    return count / size, seconds / size


def _density(examined: Examined) -> tuple[int, int, float]:
    """Return how many rows the beginning of a file has, its stored bytes, and the seconds in which one core reads it.

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
            text = stream.read(_MEASURED_BYTES)
        stored = min(file.stored, round(len(text) * file.member.size / max(file.member.length, 1)))
    else:
        with open_location(file.location, file.ranges, endpoint=file.endpoint, stop=_MEASURED_BYTES) as raw:
            head = raw.read(_MEASURED_BYTES)
        text, stored = beginning(head, compression_of(head[:HEAD_BYTES], file.compression))[0], len(head)
        if file.format.encoding != UTF8:
            # A byte stands for at most one character, and a character takes at most four bytes in UTF-8.
            text = Transcoded(BytesIO(text), file.format.encoding).read(4 * len(text))
    records = read_records(BytesIO(text[start:]), file.format.split, start, limits=file.format.limits)
    rows = sum(map(len, records)) - (stored < file.stored)  # the last row is cut off there
    return max(rows, 1), max(stored, 1), time.perf_counter() - began


def slow_to_read(files: Sequence[InputFile]) -> str | None:
    """Return a remark about the largest compressed file of 1 GiB or more, which one core reads, or None if there is no
    such file.
    """
    large = [file for file in files if file.compression and file.stored >= _LARGE_BYTES]
    if not large:
        return None
    largest = max(large, key=lambda file: file.stored)
    others = f" (the largest of {len(large):,} compressed files of 1 GiB and more)" if len(large) > 1 else ""
    return f"{largest.path}: {largest.compression}, read by one core; several smaller files are read by all{others}"
