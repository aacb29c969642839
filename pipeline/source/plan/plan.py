"""From listed files to the groups of a job: the first readable file is opened, for the columns of all, and a few more
where columns are copied, for their types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from ...errors import SourceError, UsageError
from ...processes.threads import threads
from ..chunk import Selection
from ..find.search import Problem
from ..formats.base import Format, Fragment, InputFile, Schema, Seek
from ..open.encoding import UTF8
from .examine import Examined, examine
from .group import Group, Unread, group_bytes, group_sizes
from .schema import kept_types, resolve

_WHOLE_FILES = 32
"""So many files of one size for each worker are handed out whole: about two for each reader of a GPU's worker."""

_FILES_WITH_TYPES = 16
"""So many files, at even distances, are opened side by side to find types that hold all values of a kept column."""


@dataclass(frozen=True)
class Unit:
    """A chunk that is read by itself: its fragments in input order, and the name of its part."""

    name: str
    fragments: tuple[Fragment, ...]

    @property
    def rows(self) -> int:
        return sum(fragment.rows for fragment in self.fragments)

    @property
    def sources(self) -> tuple[tuple[str, int, int], ...]:
        """(file, first row, rows) of each fragment."""
        return tuple((f.file.path, f.first_row, f.rows) for f in self.fragments)


@dataclass(frozen=True)
class Run:
    """Chunks of one row group, which is decoded once; or one chunk of several small row groups."""

    units: tuple[Unit, ...]

    @property
    def name(self) -> str:
        return self.units[0].name

    @property
    def rows(self) -> int:
        return sum(unit.rows for unit in self.units)

    @property
    def sources(self) -> tuple[tuple[str, int, int], ...]:
        return tuple(source for unit in self.units for source in unit.sources)


@dataclass(frozen=True)
class Plan:
    """A job over files. files: as they were listed. sizes: how many of them are in each group. selection: with its text
    columns, kept columns and their types resolved. first: the first readable file, by which they are, and its columns;
    None where none can be read. limit: of rows. problems: of what could not be listed. unread: the same, without the
    messages. first_group: the number of the first group; those before it are of the job that this one adds to.
    """

    files: tuple[InputFile, ...]
    sizes: tuple[int, ...]
    selection: Selection
    chunk_rows: int
    first: tuple[str, Schema] | None
    limit: int | None = None
    problems: tuple[Problem, ...] = ()
    unread: tuple[Unread, ...] = ()
    first_group: int = 0

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        found, at = [], 0
        for number, count in enumerate(self.sizes, self.first_group):
            found.append(Group(number, self.files[at : at + count], self.first, self.limit))
            at += count
        return tuple(found)

    @property
    def bytes(self) -> int:
        """Of all files as they are stored."""
        return sum(file.stored for file in self.files)


def plan_files(
    found: Sequence[InputFile], selection: Selection, chunk_rows: int, limit: int | None = None, first: int = 0
) -> Plan:
    """Plan a job over files. `selection.text` may be empty: then the column is called "text".

    limit: only so many rows, which make one group. first: from which file on the first readable one is looked for.
    Raises UsageError for columns that it lacks.
    """
    files = bound(found, selection)
    sizes = group_sizes(files, chunk_rows) if limit is None else [len(files)]
    like = None
    for number, file in enumerate(files[first:], first):
        try:
            opened, selection = examine_first(file, selection)
        except SourceError:  # it is told by who reads the group that it is in
            continue
        like = (file.path, opened.schema)
        selection = _with_types(opened.schema, files[:number] + files[number + 1 :], selection)
        break
    return Plan(tuple(files), tuple(sizes or [0]), selection, chunk_rows, like, limit)


def examine_first(file: InputFile, selection: Selection) -> tuple[Examined, Selection]:
    """Open the first file of an input, and resolve the selection by it. Raises SourceError where it cannot be read,
    UsageError for columns that it lacks.
    """
    found = examine(file, selection, None)
    selection = resolve(found.file, found.schema, selection)
    return found, replace(selection, kept_types=kept_types([found.schema], selection.kept))


def _with_types(first: Schema, others: Sequence[InputFile], selection: Selection) -> Selection:
    """The selection with types of its kept columns that hold those of the first file, and of some others."""
    if not selection.kept or not others:
        return selection
    count = min(len(others), _FILES_WITH_TYPES)
    some = [others[i * (len(others) - 1) // max(count - 1, 1)] for i in range(count)]
    with threads(count) as pool:
        schemas = [first, *filter(None, pool.map(partial(_schema, selection=selection), some))]
    return replace(selection, kept_types=kept_types(schemas, selection.kept))


def _schema(file: InputFile, selection: Selection) -> Schema | None:
    """None where the file cannot be read: who reads its group says that."""
    try:
        return examine(file, selection, None).schema
    except (SourceError, UsageError):
        return None


def is_split(group: Group, chunk_rows: int) -> bool:
    """Whether a group is one large file which can be read from the middle, so that many workers read it at once."""
    if len(group.files) != 1 or group.rows is not None:
        return False
    (file,) = group.files
    return file.stored > group_bytes(chunk_rows) and file.can_be_split


def to_split(groups: Sequence[Group], chunk_rows: int, workers: Callable[[], int]) -> set[int]:
    """The numbers of the groups whose file many workers are to read at once. workers: how many there are.

    A file of records is scanned for that, which takes as long as reading it: so not where there are so many others that
    all readers have work without. Its chunks are the same either way.
    """
    large = [group for group in groups if is_split(group, chunk_rows)]
    most = sum(group.bytes for group in groups) // _WHOLE_FILES
    if any(_is_scanned(group) and group.bytes <= most for group in large):
        most //= max(workers(), 1)
    return {group.number for group in large if not _is_scanned(group) or group.bytes > most}


def _is_scanned(group: Group) -> bool:
    return group.files[0].format.seeks is Seek.RECORDS


def bound(found: Sequence[InputFile], selection: Selection) -> list[InputFile]:
    """The files, each with the encoding and delimiter that the user gave, where its format has some."""
    encoding, delimiter = selection.encoding, selection.delimiter
    of_options: dict[int, Format] = {}
    files = []
    for file in found:
        if (key := id(file.format)) not in of_options:  # one object for all files of a format, as they were found
            of_options[key] = file.format.for_options(encoding, delimiter)
        same = of_options[key] == file.format
        files.append(file if same else replace(file, format=of_options[key]))
    return files


def refuse_useless(found: Sequence[InputFile], selection: Selection) -> None:
    """Raise UsageError for an encoding or a delimiter that none of the files can have."""
    if selection.encoding == UTF8 and not selection.delimiter:
        return
    files = bound(found, selection)
    if files and selection.encoding != UTF8 and all(file.format.encoding == UTF8 for file in files):
        raise UsageError(f"{files[0].path}: only CSV, TSV, JSONL and text files take --encoding, and there is none")
    if files and selection.delimiter and not any(file.format.takes_header for file in files):
        raise UsageError(f"{files[0].path}: --delimiter is for CSV and TSV files, and there is none")
