"""From listed files to the ranges of a job.

A range is the unit in which input is handed out, and in which its rows are accounted for: consecutive small files, a
file, or a part of one. Files are cut into ranges by the listing alone, before any is opened. The chunks of a range are
numbered as it is read.

The first readable file is opened, for the columns of all, and a few more where columns are copied, for their types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from ...errors import SourceError, UsageError
from ...processes.threads import threads
from ..chunk import Selection
from ..compression import UTF8
from ..format import Format, InputFile, Schema, Seek
from ..open.opening import changed_files
from .examine import examine, kept_types, resolve
from .search import Problem

_LEAST_BYTES = 64 << 10
_BYTES_A_ROW = 128
"""A row takes about so much, compressed: files which together hold about a chunk share a range."""

_MOST_FILES = 512
"""A small file takes a core a fifth of a millisecond or more, and a request of a store a tenth of a second, of which
some are made side by side: so the first chunk of a range is ready within seconds.
"""

_LEAST_RANGES = 64
"""So many there are at least of files that are small enough, 64 KiB in each: work for the readers of several GPUs."""

_PARTS, _MOST_CHUNKS = 64, 8
"""Large files are cut so that the whole input has so many parts, of up to so many times the bytes of a chunk."""

UnreadFile = tuple[str, int | None]
"""A file or folder of which nothing is read, and its rows where they are known."""


class Start(NamedTuple):
    """Where the first record of a range is.

    Attributes
    ----------
    row : int
        The number of the record in its file.
    byte : int
        Where it begins in the file.

    """

    row: int
    byte: int


@dataclass(frozen=True)
class Range:
    """What one task reads from front to back, as it was listed: no file of it has been opened.

    Attributes
    ----------
    number : int
        Its place among the ranges of the job.
    files : tuple of InputFile
        Files that are read one after the other; none for rows in memory.
    first : (str, Schema) or None
        Path and columns of the job's first readable file, with which those of the others are compared; None where
        there is none.
    rows : int or None
        A limit, after which no file is opened.
    part, parts : int
        Of one file that is cut into `parts` parts of the same size, the number of this one.
    start : Start or None
        Where the first record of the part is, where that is known already.
    chunk : int
        The number of its first chunk.
    content : Any
        Rows in memory: a `Chunk`, or a Dask Delayed of one.

    """

    number: int
    files: tuple[InputFile, ...] = ()
    first: tuple[str, Schema] | None = None
    rows: int | None = None
    part: int = 0
    parts: int = 1
    start: Start | None = None
    chunk: int = 0
    content: Any = None

    @property
    def name(self) -> str:
        return range_name(self.number) if self.content is None else part_name(self.number, self.chunk)

    @property
    def bytes(self) -> int:
        """Of its files as they are stored."""
        begin, stop = self.bounds
        return sum(file.stored for file in self.files) if self.parts == 1 else stop - begin

    @property
    def bounds(self) -> tuple[int, int]:
        """The bytes of its file in which its records begin."""
        size = self.files[0].stored if self.files else 0
        return size * self.part // self.parts, size * (self.part + 1) // self.parts

    @property
    def is_numbered(self) -> bool:
        """Whether its rows have numbers without those of the range before it."""
        return self.parts == 1 or any(file.format.seeks is Seek.ROWS for file in self.files)

    @property
    def is_last(self) -> bool:
        """Whether no other range follows in its file."""
        return self.part + 1 == self.parts


@dataclass(frozen=True)
class RangeEnd:
    """The end of a range.

    Attributes
    ----------
    number : int
        Of the range.
    files : tuple of (str, int or None)
        Each file with the rows that were read of it; None where others count them.
    chunks : int
        How many it has, numbered from 0.
    problems : tuple of (str, str)
        Of files that were not wholly readable or differ from the first.
    unread : tuple of (str, int or None)
        Those of them of which nothing was read.
    begin, after : int or None
        Of a part of a file of records: where its first record begins, as it was read, and where the record after its
        last one begins; None where the rows of a range have numbers without those of the range before.
    read_again : int
        Bytes that were read twice, since it was not begun where its first record is.
    notes : tuple of (str, str)
        What may be amiss with files, and is no problem: a message without the name of the file.
    read_by : mapping of str to int
        Where a GPU has read records: how many, by the keys of `telemetry.read_by`.
    remarks : tuple of str
        Of the process that has labelled it: as of `telemetry.remarks`.

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
    return f"group-{number:06d}"


def range_bytes(chunk_rows: int) -> int:
    """Stored bytes of the files in a range, unless it is one file."""
    return max(_LEAST_BYTES, chunk_rows * _BYTES_A_ROW)


def files_in_ranges(files: Sequence[InputFile], chunk_rows: int) -> list[int]:
    """How many of the files are in each range before large ones are cut, in order."""
    share = sum(file.stored for file in files) // _LEAST_RANGES
    most = min(range_bytes(chunk_rows), max(_LEAST_BYTES, share))
    sizes: list[int] = []
    count = held = 0
    for file in files:
        stored = file.stored
        if count and (held + stored > most or count == _MOST_FILES):
            sizes.append(count)
            count = held = 0
        count, held = count + 1, held + stored
    return [*sizes, count] if count else sizes


def parts_of(files: Sequence[InputFile], sizes: Sequence[int], chunk_rows: int) -> list[int]:
    """Into how many parts each range of `files_in_ranges` is cut: more than one where it is one large file that can be
    read from the middle.
    """
    least = range_bytes(chunk_rows)
    most = max(least, min(_MOST_CHUNKS * least, sum(file.stored for file in files) // _PARTS))
    parts, at = [], 0
    for count in sizes:
        file = files[at]
        is_cut = count == 1 and file.stored > least and file.can_be_cut
        parts.append(-(-file.stored // most) if is_cut else 1)
        at += count
    return parts


_MOST_REFUSED = 16
"""So many files without a column that the job needs are opened before it is refused."""

_FILES_WITH_TYPES = 16
"""So many files, at even distances, are opened side by side to find types that hold all values of a kept column."""


@dataclass(frozen=True)
class Plan:
    """A job over files.

    Attributes
    ----------
    files : tuple of InputFile
        As they were listed.
    sizes : tuple of int
        How many of them are in each range, before large ones are cut.
    parts : tuple of int
        Into how many parts each of these is cut.
    selection : Selection
        With its text columns, kept columns and their types resolved.
    chunk_rows : int
        Rows in a chunk at most.
    first : (str, Schema) or None
        The first readable file, by which the selection was resolved, and its columns; None where none can be read.
    limit : int or None
        Rows at most.
    problems : tuple of (str, str)
        Of what could not be listed.
    unread : tuple of (str, int or None)
        The same, without the messages.
    left_out : tuple of (str, str)
        What was skipped, since it is no input, each with the reason.
    first_range : int
        The number of the first range; those before it are of the job that this one adds to.
    whole : tuple of InputFile
        All files of which these are a share.

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
            for part in range(parts):
                number = self.first_range + len(ranges)
                ranges.append(Range(number, files, self.first, self.limit, part, parts))
            at += count
        return tuple(ranges)

    @property
    def bytes(self) -> int:
        """Of all files as they are stored."""
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
        The columns that the job uses. `selection.text` may be empty: then the column is called "text".
    chunk_rows : int
        Rows in a chunk at most.
    limit : int, optional
        Only so many rows, which make one range.
    first : int
        From which file on the first readable one is looked for.
    whole : sequence of InputFile
        All files of which these are a share, so that every share has the same columns.
    cut : bool
        Whether large files are read in parts.

    Raises
    ------
    UsageError
        For columns that the first files lack.

    """
    files = bound(listed, selection)
    sizes = files_in_ranges(files, chunk_rows) if limit is None else [len(files)]
    parts = parts_of(files, sizes, chunk_rows) if limit is None and cut else [1] * len(sizes)
    like, every = None, bound(whole, selection) or files
    refused: list[UsageError] = []
    for number, file in enumerate(every[first:], first):
        try:
            opened = examine(file, selection, None)
            resolved = resolve(opened.file, opened.schema, selection)
            selection = replace(resolved, kept_types=kept_types([opened.schema], resolved))
        except SourceError:  # whoever reads the range that it is in reports it
            continue
        except UsageError as error:  # it is for another use, if another file is as the user says
            refused.append(error)
            if len(refused) == _MOST_REFUSED:
                break
            continue
        like = (file.path, opened.schema)
        selection = _with_types(opened.schema, every[:number] + every[number + 1 :], selection)
        break
    if like is None and refused:
        raise refused[0]
    cuts = tuple(sizes or [0]), tuple(parts or [1])
    return Plan(tuple(files), *cuts, selection, chunk_rows, like, limit, whole=tuple(whole))


def _with_types(first: Schema, others: Sequence[InputFile], selection: Selection) -> Selection:
    """The selection with types of its kept columns that hold those of the first file, and of some others."""
    if not selection.kept or not others:
        return selection
    count = min(len(others), _FILES_WITH_TYPES)
    some = [others[i * (len(others) - 1) // max(count - 1, 1)] for i in range(count)]
    with threads(count) as pool:
        schemas = [first, *filter(None, pool.map(partial(_schema, selection=selection), some))]
    return replace(selection, kept_types=kept_types(schemas, selection))


def _schema(file: InputFile, selection: Selection) -> Schema | None:
    """None where the file cannot be read: whoever reads its range reports that."""
    try:
        return examine(file, selection, None).schema
    except (SourceError, UsageError):
        return None


def bound(listed: Sequence[InputFile], selection: Selection) -> list[InputFile]:
    """The files, each with the encoding and dialect that the user gave, where its format has some."""
    of_options: dict[int, Format] = {}
    files = []
    for file in listed:
        if (key := id(file.format)) not in of_options:  # one object for all files of a format, as they were listed
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
    """The rows of a file that is not read, where its own metadata give them."""
    if file.size == 0:
        return 0
    try:
        return file.format.rows_of(file)
    except SourceError:
        return None


def changed_chunks(plan: Plan) -> list[tuple[str, str]]:
    """The chunks of files that have changed, committed or not, each with the reason; those of a range as one name."""
    changed = changed_files(plan.files)
    return [
        (f"part-{part.number:06d}-*", file.path + changed[file.location])
        for part in plan.ranges
        for file in part.files
        if file.location in changed
    ]
