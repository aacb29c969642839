"""One large file as chunks that many workers read at once: found by a scan of it, or by its footer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...errors import InputChanged, SourceError, UsageError
from ..chunk import Selection
from ..formats.base import Fragment, InputFile, Scan, Seek
from .examine import examine_like
from .group import Group, GroupEnd, part_name
from .plan import Run, Unit


def split(group: Group, selection: Selection, chunk_rows: int, scan: Scan) -> Iterator[Unit | Run | Group | GroupEnd]:
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
                yield Run(tuple(units))
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
