"""From listed files to the groups of a job, and from a large file to its chunks.

A group is the unit in which input is handed out, and in which its rows are accounted for. Files are put into groups by
the listing alone, before any is opened: consecutive files which together take few bytes share a group, and any larger
file is one of its own. The chunks of a group are numbered as it is read.

The first readable file is opened, for the columns of all, and a few more where columns are copied, for their types. One
large file is cut into chunks that many workers read at once: found by a scan of it, or by its footer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from ...errors import InputChanged, SourceError, UsageError
from ...processes.threads import threads
from ..chunk import Chunk, Selection
from ..find.search import Problem
from ..formats.base import Format, Fragment, InputFile, Scan, Schema, Seek
from ..open.compression import UTF8
from ..open.opening import changed_files
from .examine import Examined, examine, examine_like, kept_types, resolve

_LEAST_BYTES = 64 << 10
_BYTES_A_ROW = 128
"""A row takes about so much, compressed: files which together hold about a chunk share a group."""

_MOST_FILES = 512
"""A small file takes a core a fifth of a millisecond or more, and a request of a store a tenth of a second, of which
some are made side by side: so the first chunk of a group is ready within seconds.
"""

_LEAST_GROUPS = 64
"""So many there are at least of files that are small enough, 64 KiB in each: work for the readers of several GPUs."""

UnreadFile = tuple[str, int | None]
"""A file or folder of which nothing is read, and its rows where they are known."""


@dataclass(frozen=True)
class Group:
    """Files that one worker reads one after the other, as they were listed: none has been opened.

    number: its place in the list of groups. first: path and columns of the job's first readable file, with which theirs
    are compared; None where there is none. rows: a limit, after which no file is opened.
    """

    number: int
    files: tuple[InputFile, ...]
    first: tuple[str, Schema] | None
    rows: int | None = None

    @property
    def name(self) -> str:
        return group_name(self.number)

    @property
    def sources(self) -> tuple[tuple[str, int, int], ...]:
        """None yet: how many rows each file has is known once it is read."""
        return ()

    @property
    def bytes(self) -> int:
        """Of its files as they are stored."""
        return sum(file.stored for file in self.files)


@dataclass(frozen=True)
class GroupChunk:
    """A chunk of a group. sources: (file, first row, rows) of each piece. chunk: None where it was to be skipped.
    stored: bytes of the group, as they are stored, that had been read by then; 0 where not known.
    """

    name: str
    sources: tuple[tuple[str, int, int], ...]
    chunk: Chunk | None
    stored: int = 0


@dataclass(frozen=True)
class GroupEnd:
    """The end of a group. files: each with the rows that were read of it; None where others count them. chunks: it has,
    numbered from 0. problems: of files that were not wholly readable or differ from the first. unread: those of them of
    which nothing was read.
    """

    number: int
    files: tuple[tuple[str, int | None], ...]
    chunks: int
    problems: tuple[Problem, ...] = ()
    unread: tuple[UnreadFile, ...] = ()


def part_name(group: int, chunk: int) -> str:
    return f"part-{group:06d}-{chunk:07d}"


def group_name(number: int) -> str:
    return f"group-{number:06d}"


def group_bytes(chunk_rows: int) -> int:
    """Stored bytes of the files in a group, unless it is one file."""
    return max(_LEAST_BYTES, chunk_rows * _BYTES_A_ROW)


def group_sizes(files: Sequence[InputFile], chunk_rows: int) -> list[int]:
    """How many of the files are in each group, in order."""
    share = sum(file.stored for file in files) // _LEAST_GROUPS
    most = min(group_bytes(chunk_rows), max(_LEAST_BYTES, share))
    sizes: list[int] = []
    count = held = 0
    for file in files:
        stored = file.stored
        if count and (held + stored > most or count == _MOST_FILES):
            sizes.append(count)
            count = held = 0
        count, held = count + 1, held + stored
    return [*sizes, count] if count else sizes


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
class RowGroups:
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
    messages. first_group: the number of the first group; those before it are of the job that this one adds to. whole:
    all files of which these are a share.
    """

    files: tuple[InputFile, ...]
    sizes: tuple[int, ...]
    selection: Selection
    chunk_rows: int
    first: tuple[str, Schema] | None
    limit: int | None = None
    problems: tuple[Problem, ...] = ()
    unread: tuple[UnreadFile, ...] = ()
    first_group: int = 0
    whole: tuple[InputFile, ...] = ()

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
    found: Sequence[InputFile],
    selection: Selection,
    chunk_rows: int,
    limit: int | None = None,
    first: int = 0,
    whole: Sequence[InputFile] = (),
) -> Plan:
    """Plan a job over files. `selection.text` may be empty: then the column is called "text".

    limit: only so many rows, which make one group. first: from which file on the first readable one is looked for.
    whole: all files of which these are a share, so that every share has the same columns. Raises UsageError for columns
    that the first lacks.
    """
    files = bound(found, selection)
    sizes = group_sizes(files, chunk_rows) if limit is None else [len(files)]
    like, every = None, bound(whole, selection) or files
    for number, file in enumerate(every[first:], first):
        try:
            opened, selection = examine_first(file, selection)
        except SourceError:  # it is told by who reads the group that it is in
            continue
        like = (file.path, opened.schema)
        selection = _with_types(opened.schema, every[:number] + every[number + 1 :], selection)
        break
    return Plan(tuple(files), tuple(sizes or [0]), selection, chunk_rows, like, limit, whole=tuple(whole))


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


def split(
    group: Group, selection: Selection, chunk_rows: int, scan: Scan
) -> Iterator[Unit | RowGroups | Group | GroupEnd]:
    """The chunks of a group for which `is_split` holds, as they are found, and its end; or the group itself, if its
    file turns out to have one reader. Raises InputChanged.
    """
    (file,) = group.files
    rows = chunks = 0
    problems: list[str] = []
    try:
        found = examine_like(file, selection, group.first)
        problems += [found.remark] if found.remark else []
        if found.file.front_to_back:
            yield group
            return
        plan = found.file.format.plan(found.file, found.schema, selection, chunk_rows, scan)
        if plan.streamed:
            yield group
            return
        problems += plan.problems
        for fragments in _chunks(plan.fragments, file, chunk_rows):
            units = []
            for each in fragments:
                units.append(Unit(part_name(group.number, chunks), each))
                chunks, rows = chunks + 1, rows + units[-1].rows
            if file.format.seeks is Seek.ROWS:
                yield RowGroups(tuple(units))
            else:
                yield from units
    except InputChanged:
        raise
    except (SourceError, UsageError) as error:
        problems.append(error.message)
    if not group.number and not chunks:  # the output has a part, and so a schema, even if no row can be read
        yield Unit(part_name(0, 0), ())
        chunks = 1
    told = tuple((file.path, problem) for problem in problems)
    unread = ((file.path, rows_of(file)),) if problems and not rows else ()
    yield GroupEnd(group.number, ((file.path, rows),), chunks, told, unread)


def rows_of(file: InputFile) -> int | None:
    """The rows of a file that is not read, where its own metadata give them."""
    if file.size == 0:
        return 0
    try:
        return file.format.rows_of(file)
    except SourceError:
        return None


def _chunks(fragments: Iterable[Fragment], file: InputFile, chunk_rows: int) -> Iterator[list[tuple[Fragment, ...]]]:
    """The fragments of each chunk, in lists: the chunks of one row group; or one chunk of several row groups, where
    these are small.
    """
    most = file.format.limits.chunk_bytes
    split: list[Fragment] = []  # of one row group
    small: list[Fragment] = []

    def close() -> Iterator[list[tuple[Fragment, ...]]]:
        nonlocal split
        if len(split) == 1 and file.format.seeks is Seek.ROWS:
            if small and (
                sum(f.rows for f in small) + split[0].rows > chunk_rows or sum(f.size for f in (*small, *split)) > most
            ):
                yield [tuple(small)]
                small.clear()
            small.append(split[0])
        elif split:
            if small:
                yield [tuple(small)]
                small.clear()
            yield [(fragment,) for fragment in split]
        split = []

    for fragment in fragments:
        if split and not (fragment.group == split[-1].group >= 0):
            yield from close()
        split.append(fragment)
    yield from close()
    if small:
        yield [tuple(small)]


def changed_chunks(plan: Plan) -> list[tuple[str, str]]:
    """The chunks of files that have changed, committed or not, each with the reason; those of a group as one name."""
    found = changed_files(plan.files)
    if not found:
        return []
    return [
        (f"part-{group.number:06d}-*", file.path + found[file.location])
        for group in plan.groups
        for file in group.files
        if file.location in found
    ]
