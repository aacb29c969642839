"""Groups of files: the unit in which input is handed out, and in which its rows are accounted for.

Files are put into groups by the listing alone, before any is opened: consecutive files which together take few bytes
share a group, and any larger file is one of its own. The chunks of a group are numbered as it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..chunk import Chunk
from ..find.search import Problem
from ..formats.base import InputFile, Schema

_LEAST_BYTES = 64 << 10
_BYTES_A_ROW = 128
"""A row takes about so much, compressed: files which together hold about a chunk share a group."""

_MOST_FILES = 512
"""A small file takes a core a fifth of a millisecond or more, and a request of a store a tenth of a second, of which
some are made side by side: so the first chunk of a group is ready within seconds.
"""

_LEAST_GROUPS = 64
"""So many there are at least of files that are small enough, 64 KiB in each: work for the readers of several GPUs."""

Unread = tuple[str, int | None]
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
    unread: tuple[Unread, ...] = ()


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
