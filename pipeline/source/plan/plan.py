"""Cuts listed files into the ranges of a job.

A range is what one task reads, and its rows are counted together: consecutive small files, one file, or a part of one
file. Files are cut into ranges by the listing alone, before any is opened. The chunks of a range are numbered as it is
read.

The first readable file is opened to find the columns. If columns are copied, a few more are opened to find their types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from ...errors import SourceError, UsageError
from ...processes.threads import threads
from ..open.opening import changed_files
from ..rows.chunk import Selection
from ..rows.compression import UTF8
from ..rows.format import Format, InputFile, Schema, Seek
from .examine import examine, kept_types, resolve
from .search import Problem

_LEAST_BYTES = 64 << 10
_BYTES_A_ROW = 128
"""A rough size of a compressed row. Files that together hold about one chunk share a range."""

_MOST_FILES = 512
"""The largest number of small files in a range. A small file takes a core 0.2 ms or more. A request to a store takes a
tenth of a second, but several are made in parallel. So the first chunk of a range is ready within seconds.
"""

_LEAST_RANGES = 64
"""The smallest number of ranges of small files, if each has 64 KiB: enough work for the readers of several GPUs."""

_PARTS, _MOST_CHUNKS = 64, 8
"""Large files are cut so that the whole input has about 64 parts, each of at most 8 times the bytes of a chunk."""

UnreadFile = tuple[str, int | None]
"""A file or folder that was not read at all, and the number of its rows if that is known."""


class Start(NamedTuple):
    """The place of the first record of a range in its file.

    Attributes
    ----------
    row : int
        The number of the record in its file.
    byte : int
        The byte of the file at which the record begins.

    """

    row: int
    byte: int


@dataclass(frozen=True)
class Range:
    """The files or rows that one task reads from front to back, as they were listed: none of the files has been opened.

    Attributes
    ----------
    number : int
        Its place among the ranges of the job.
    files : tuple of InputFile
        The files, which are read one after the other; empty for rows in memory.
    first : (str, Schema) or None
        The path and columns of the job's first readable file, with which the columns of the others are compared; None
        if no file is readable.
    rows : int or None
        The largest number of rows to read. No file is opened after that.
    part_number, parts : int
        If one file is cut into `parts` parts of the same size, the number of this one.
    start : Start or None
        Where the first record of the part is, if that is known already.
    chunk : int
        The number of its first chunk.
    content : Any
        Rows in memory: a `Chunk`, or a Dask Delayed of one.

    """

    number: int
    files: tuple[InputFile, ...] = ()
    first: tuple[str, Schema] | None = None
    rows: int | None = None
    part_number: int = 0
    parts: int = 1
    start: Start | None = None
    chunk: int = 0
    content: Any = None

    @property
    def name(self) -> str:
        return range_name(self.number) if self.content is None else part_name(self.number, self.chunk)

    @property
    def bytes(self) -> int:
        """The size of its files as they are stored."""
        begin, stop = self.bounds
        return sum(file.stored for file in self.files) if self.parts == 1 else stop - begin

    @property
    def bounds(self) -> tuple[int, int]:
        """The bytes of its file between which its records begin."""
        size = self.files[0].stored if self.files else 0
        return size * self.part_number // self.parts, size * (self.part_number + 1) // self.parts

    @property
    def is_numbered(self) -> bool:
        """Whether the row numbers are known without those of the range before it."""
        return self.parts == 1 or any(file.format.seeks is Seek.ROWS for file in self.files)

    @property
    def is_last(self) -> bool:
        """Whether no other range follows in its file."""
        return self.part_number + 1 == self.parts


@dataclass(frozen=True)
class RangeEnd:
    """The end of a range.

    Attributes
    ----------
    number : int
        The number of the range.
    files : tuple of (str, int or None)
        Each file with the number of rows that were read from it; None if the client counts them.
    chunks : int
        The number of chunks, which are numbered from 0.
    problems : tuple of (str, str)
        The files that could not be read to their end or that differ from the first, each with a message.
    unread : tuple of (str, int or None)
        The files that were not read at all.
    begin, after : int or None
        For a part of a file of records: the byte where its first record begins, as it was read, and the byte where the
        record after its last one begins. None if the row numbers of the range are known without the range before it.
    read_again : int
        The bytes that were read twice because reading did not start at the first record.
    notes : tuple of (str, str)
        Files in which something may be wrong, each with a message that does not name the file.
    read_by : mapping of str to int
        If a GPU has read records, their number by the keys of `telemetry.read_by`.
    remarks : tuple of str
        The remarks of the process that has labelled the range (see `telemetry.remarks`).

    """

    number: int
    files: tuple[tuple[str, int | None], ...]
    chunks: int
    problems: tuple[Problem, ...] = ()
    unread: tuple[UnreadFile, ...] = ()
    begin: int | None = None
    after: int | None = None
    read_again: int = 0
    notes: tuple[Problem, ...] = ()
    read_by: Mapping[str, int] = field(default_factory=dict, compare=False)
    remarks: tuple[str, ...] = ()


def part_name(number: int, chunk: int) -> str:
    return f"part-{number:06d}-{chunk:07d}"


def range_name(number: int) -> str:
    return f"group-{number:06d}"  # this prefix is in the names of files, so it stays "group"


def range_bytes(chunk_rows: int) -> int:
    """Return how many stored bytes the files of a range have, unless the range is one file."""
    return max(_LEAST_BYTES, chunk_rows * _BYTES_A_ROW)


def files_in_ranges(files: Sequence[InputFile], chunk_rows: int) -> list[int]:
    """Return how many consecutive files each range has, before large files are cut."""
    share = sum(file.stored for file in files) // _LEAST_RANGES
    max_bytes = min(range_bytes(chunk_rows), max(_LEAST_BYTES, share))
    sizes: list[int] = []
    count = held = 0
    for file in files:
        stored = file.stored
        if count and (held + stored > max_bytes or count == _MOST_FILES):
            sizes.append(count)
            count = held = 0
        count, held = count + 1, held + stored
    return [*sizes, count] if count else sizes


def parts_of(files: Sequence[InputFile], sizes: Sequence[int], chunk_rows: int) -> list[int]:
    """Return the number of parts into which each range of `files_in_ranges` is cut. It is more than 1 only for a range
    of one large file that can be read from the middle.
    """
    least = range_bytes(chunk_rows)
    part_bytes = max(least, min(_MOST_CHUNKS * least, sum(file.stored for file in files) // _PARTS))
    parts, at = [], 0
    for count in sizes:
        file = files[at]
        is_cut = count == 1 and file.stored > least and file.can_be_cut
        parts.append(-(-file.stored // part_bytes) if is_cut else 1)
        at += count
    return parts


_MOST_REFUSED = 16
"""How many files that lack a column are opened before the job is refused."""

_FILES_WITH_TYPES = 16
"""How many files, at even distances, are opened in parallel to find types that hold all values of a kept column."""


@dataclass(frozen=True)
class Plan:
    """The plan of a job over files.

    Attributes
    ----------
    files : tuple of InputFile
        The files, as they were listed.
    sizes : tuple of int
        The number of files in each range, before large files are cut.
    parts : tuple of int
        The number of parts into which each range is cut.
    selection : Selection
        The columns that the job uses, with the text columns, the kept columns and their types resolved.
    chunk_rows : int
        The largest number of rows in a chunk.
    first : (str, Schema) or None
        The path and columns of the first readable file, by which the selection was resolved; None if no file can be
        read.
    limit : int or None
        The largest number of rows to read.
    problems : tuple of (str, str)
        The files and folders that could not be listed, each with a message.
    unread : tuple of (str, int or None)
        The files and folders that could not be listed, without messages.
    left_out : tuple of (str, str)
        What was skipped because it is no input, each with the reason.
    first_range : int
        The number of the first range. Smaller numbers belong to the job to which this one adds.
    whole : tuple of InputFile
        If `files` is a share of the files, all of the files.

    """

    files: tuple[InputFile, ...]
    sizes: tuple[int, ...]
    parts: tuple[int, ...]
    selection: Selection
    chunk_rows: int
    first: tuple[str, Schema] | None
    limit: int | None = None
    problems: tuple[Problem, ...] = ()
    unread: tuple[UnreadFile, ...] = ()
    left_out: tuple[Problem, ...] = ()
    first_range: int = 0
    whole: tuple[InputFile, ...] = ()

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        ranges: list[Range] = []
        at = 0
        for count, parts in zip(self.sizes, self.parts, strict=True):
            files = self.files[at : at + count]
            for part_number in range(parts):
                number = self.first_range + len(ranges)
                ranges.append(Range(number, files, self.first, self.limit, part_number, parts))
            at += count
        return tuple(ranges)

    @property
    def bytes(self) -> int:
        """The size of all files as they are stored."""
        return sum(file.stored for file in self.files)


def plan_files(
    listed: Sequence[InputFile],
    selection: Selection,
    chunk_rows: int,
    limit: int | None = None,
    first: int = 0,
    whole: Sequence[InputFile] = (),
    cut: bool = True,
) -> Plan:
    """Plan a job over files.

    Parameters
    ----------
    listed : sequence of InputFile
        The files.
    selection : Selection
        The columns that the job uses. If `selection.text` is empty, the text column is called "text".
    chunk_rows : int
        The largest number of rows in a chunk.
    limit : int, optional
        The largest number of rows to read. With a limit, there is one range.
    first : int
        The number of the file at which the search for the first readable one begins.
    whole : sequence of InputFile
        If `listed` is a share of the files, all of the files. They give every share the same columns.
    cut : bool
        Whether large files are cut into parts.

    Raises
    ------
    UsageError
        If the first files lack a column.

    """
    # Divide the files into ranges, and large files into parts.
    files = bound(listed, selection)
    sizes = files_in_ranges(files, chunk_rows) if limit is None else [len(files)]
    parts = parts_of(files, sizes, chunk_rows) if limit is None and cut else [1] * len(sizes)
    # Resolve the columns by the first file that can be read and has them.
    like, every = None, bound(whole, selection) or files
    refused: list[UsageError] = []
    for number, file in enumerate(every[first:], first):
        try:
            opened = examine(file, selection, None)
            resolved = resolve(opened.file, opened.schema, selection)
            selection = replace(resolved, kept_types=kept_types([opened.schema], resolved))
        except SourceError:  # the task that reads the file's range reports the problem
            continue
        except UsageError as error:  # the file has another use, if a later file has the columns
            refused.append(error)
            if len(refused) == _MOST_REFUSED:
                break
            continue
        like = (file.path, opened.schema)
        selection = _with_types(opened.schema, every[:number] + every[number + 1 :], selection)
        break
    # Without such a file, report what the first of the files lacks.
    if like is None and refused:
        raise refused[0]
    # A job without files still has one range, which is empty, because the output needs a part (see `chunks_of`).
    cuts = tuple(sizes or [0]), tuple(parts or [1])
    return Plan(tuple(files), *cuts, selection, chunk_rows, like, limit, whole=tuple(whole))


def _with_types(first: Schema, others: Sequence[InputFile], selection: Selection) -> Selection:
    """Return the selection with types of its kept columns that hold the values of the first file and of some others."""
    if not selection.kept_columns or not others:
        return selection
    count = min(len(others), _FILES_WITH_TYPES)
    some = [others[i * (len(others) - 1) // max(count - 1, 1)] for i in range(count)]
    with threads(count) as pool:
        schemas = [first, *filter(None, pool.map(partial(_schema, selection=selection), some))]
    return replace(selection, kept_types=kept_types(schemas, selection))


def _schema(file: InputFile, selection: Selection) -> Schema | None:
    """Return the columns of a file, or None if it cannot be read: the task that reads its range reports the problem."""
    try:
        return examine(file, selection, None).schema
    except (SourceError, UsageError):
        return None


def bound(listed: Sequence[InputFile], selection: Selection) -> list[InputFile]:
    """Return the files, each with the encoding and dialect that the user gave, if its format can have them."""
    of_options: dict[int, Format] = {}
    files = []
    for file in listed:
        if (key := id(file.format)) not in of_options:  # one object for all files of a format, as when they were listed
            of_options[key] = file.format.for_options(selection)
        same = of_options[key] == file.format
        files.append(file if same else replace(file, format=of_options[key]))
    return files


def refuse_useless(listed: Sequence[InputFile], selection: Selection) -> None:
    """Raise UsageError for an encoding or a dialect that none of the files can have."""
    if selection.encoding == UTF8 and not selection.dialect:
        return
    files = bound(listed, selection)
    if files and selection.encoding != UTF8 and not any(file.format.takes_encoding for file in files):
        raise UsageError(f"{files[0].path}: only CSV, TSV, JSONL and text files take --encoding, and there is none")
    if files and selection.dialect and not any(file.format.takes_header for file in files):
        raise UsageError(f"{files[0].path}: --{selection.dialect[0]} is for CSV and TSV files, and there is none")


def rows_of(file: InputFile) -> int | None:
    """Return the number of rows of a file without reading them, if its metadata give it, or else None."""
    if file.size == 0:
        return 0
    try:
        return file.format.rows_of(file)
    except SourceError:
        return None


def changed_chunks(plan: Plan) -> list[tuple[str, str]]:
    """Return the chunks of files that have changed, committed or not, each with the reason. One name stands for all
    chunks of a range.
    """
    changed = changed_files(plan.files)
    return [
        (f"part-{range_.number:06d}-*", file.path + changed[file.location])
        for range_ in plan.ranges
        for file in range_.files
        if file.location in changed
    ]
