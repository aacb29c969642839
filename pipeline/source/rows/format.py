"""The interface of all formats, and the small value classes that they take and return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, Self

import pyarrow as pa

from ...telemetry.spans import Span
from .chunk import Chunk, Selection
from .compression import UTF8
from .limits import LIMITS, Limits


@dataclass(frozen=True)
class Member:
    """A file within a zip archive.

    Attributes
    ----------
    name : str
        The path in the archive.
    offset : int
        The byte of the archive at which the member's header begins.
    method : int
        The number of the compression method.
    size, length : int
        The compressed and the decompressed size in bytes.
    checksum : int
        The CRC-32 of the content.
    problem : str
        Why the member cannot be read; empty if it can be read.

    """

    name: str
    offset: int
    method: int
    size: int
    length: int
    checksum: int
    problem: str = ""


@dataclass(frozen=True)
class InputFile:
    """One input file of a job.

    Attributes
    ----------
    path : str
        The name in the output and in messages; see `broadsheet.pipeline.storage.names`.
    format : Format
        The format, which reads the file.
    compression : str or None
        Arrow's name of the compression, e.g. "gzip".
    size : int or None
        The stored size in bytes; that of the archive, if the file is in one. None if the server does not report it.
    modified : str
        The modification time in ns, or the equivalent of a remote file system, such as an ETag.
    location : str
        The absolute path or URL, by which a process in any working directory can open the file; that of the archive, if
        the file is in one.
    member : Member or None
        The member of a zip archive that the file is.
    ranges : bool
        Whether the server sends the file from any byte on, rather than only from the first.
    digest : str
        The SHA-256 of the content, if the user asked for it; for a member of an archive, that of what the archive says
        about it.
    endpoint : str or None
        The URL of the server with the bucket, if it is not the provider's own or that of the environment.

    """

    path: str
    format: Format
    compression: str | None
    size: int | None
    modified: str
    location: str
    member: Member | None = None
    ranges: bool = True
    digest: str = ""
    endpoint: str | None = None

    @property
    def seekable(self) -> bool:
        """Whether the file can be read from any byte on."""
        return not self.compression and self.member is None and self.ranges and self.size is not None

    @property
    def front_to_back(self) -> bool:
        """Whether the file can be read only from its first record on, because its bytes cannot be sought or must be
        transcoded.
        """
        return not self.seekable or self.format.encoding != UTF8

    @property
    def can_be_cut(self) -> bool:
        """Whether several workers may read the file at the same time, each from another byte on."""
        return not self.front_to_back and self.format.seeks is not Seek.NOTHING

    @property
    def stored(self) -> int:
        """The stored bytes of the file: compressed, and without the archive around them. 0 if the size is not known."""
        return self.member.size if self.member else self.size or 0


@dataclass(frozen=True)
class Schema:
    """The columns of a file.

    Attributes
    ----------
    names : tuple of str, or None
        The columns in order; None for a file of encoded articles.
    types : mapping of str to pyarrow.DataType
        The types of the columns, and of the fields within them, by names with dots. A column that is not listed holds
        strings.
    start : int
        The first byte of the data, after a header.
    named : bool
        Whether the names come from the file itself.
    complete : bool
        False if a row may have further columns.
    absent : frozenset of str
        For JSON Lines, the columns that the job uses and that none of the first rows has.
    cr_ends : bool
        For CSV, whether a CR without an LF ends a record.
    delimiter : str
        For CSV, the character between fields that the file itself names; empty if it names none.
    class_names : mapping of str to tuple of str
        The columns of class numbers, from 0, for which the file itself names the classes, and these names.

    """

    names: tuple[str, ...] | None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    start: int = 0
    named: bool = True
    complete: bool = True
    absent: frozenset[str] = frozenset()
    cr_ends: bool = False
    delimiter: str = ""
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def every(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*(self.names or ()), *self.types)))


@dataclass(frozen=True)
class Fragment:
    """Consecutive rows of one file, if the format seeks by rows.

    Attributes
    ----------
    file : InputFile
        The file.
    start : int
        The number of the first row within the row group, or within the file if it has none.
    first_row : int
        The number of the first row within the file.
    rows : int
        The number of rows.
    at : int
        The byte of the file at which the row group, or the first row, begins. It decides which part of the file has the
        rows.
    held : int
        A rough number of bytes of text in the rows.
    group : int
        The number of the row group, if the format has row groups.

    """

    file: InputFile
    start: int
    first_row: int
    rows: int
    at: int
    held: int
    group: int = -1


@dataclass(frozen=True)
class FilePlan:
    """How a file is read.

    Attributes
    ----------
    fragments : sequence of Fragment
        The pieces of the file in order, each small enough for a chunk; none for a file that is read front to back.
    problems : sequence of str
        Messages about the file, for the report.

    """

    fragments: Sequence[Fragment] = ()
    problems: Sequence[str] = ()


class Seek(Enum):
    """Where reading can begin. ROWS: at any row, which metadata locate. RECORDS: at any record, once it is found.
    NOTHING: only at the front.
    """

    ROWS = auto()
    RECORDS = auto()
    NOTHING = auto()


@dataclass(frozen=True)
class Format(ABC):
    """Reads files of one kind.

    A format is an immutable value. What it must know to read a file is bound to it when the file is found (`for_model`)
    and planned (`for_schema`), and goes to the workers with the file. A subclass sets the class attributes and defines
    `schema`, and either `plan` and `read`, or `stream`. These must open files only with
    `broadsheet.pipeline.source.open.opening.open_at`, which compares each file with the plan.

    Attributes
    ----------
    name : str
        The name in messages.
    suffixes : tuple of str
        The suffixes of file names, in lower case, with the dot.
    seeks : Seek
        Where reading can begin.
    magic : bytes
        The first bytes of each file, which no file of another format has; empty if there are none.
    takes_header : bool
        Whether the user may name the columns of the files.
    takes_encoding : bool
        Whether the user may name the encoding of the files.
    jumps : bool
        Whether the files are read at many places. Then they must not be compressed, in an archive, or on a server that
        sends them only from the first byte on.
    limits : Limits
        The sizes that reading and planning keep to.
    encoding : str
        Python's name of the encoding of text in the files. Files in an encoding other than UTF-8 are opened as streams
        of UTF-8.

    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    seeks: ClassVar[Seek]
    magic: ClassVar[bytes] = b""
    takes_header: ClassVar[bool] = False
    takes_encoding: ClassVar[bool] = False
    jumps: ClassVar[bool] = False

    limits: Limits = LIMITS
    encoding: str = UTF8

    def for_model(self, symbols: int, length: int) -> Self:
        """Bind the model's frame, for formats of encoded articles.

        Parameters
        ----------
        symbols : int
            The number of characters in the model's alphabet.
        length : int
            The number of characters of each text that the model reads.

        Returns
        -------
        Format
            The bound format; by default this one.

        """
        return self

    def for_options(self, selection: Selection) -> Self:
        """Bind what the user says about the files, for formats of text.

        Parameters
        ----------
        selection : Selection
            It has the encoding of the files, and the dialect of CSV.

        Returns
        -------
        Format
            The bound format; by default this one.

        """
        return self

    def for_schema(self, schema: Schema) -> Self:
        """Bind the columns of a file.

        Parameters
        ----------
        schema : Schema
            The columns, as `schema` returned them.

        Returns
        -------
        Format
            The bound format; by default this one.

        """
        return self

    @abstractmethod
    def schema(self, file: InputFile, selection: Selection) -> Schema:
        """Read the columns of a file from its footer or its first records.

        Parameters
        ----------
        file : InputFile
            The file.
        selection : Selection
            The columns that the job uses, and the column names that the user has given.

        Returns
        -------
        Schema
            The columns and their types.

        Raises
        ------
        SourceError
            If the file cannot be read.
        UsageError
            If the user must change an option, for example the column names.

        """

    def rows_of(self, file: InputFile) -> int | None:
        """Return the number of rows that the file's metadata give, or None if only reading the file shows it.

        Raises
        ------
        SourceError
            If the file cannot be read.

        """
        return None

    def plan(self, file: InputFile, schema: Schema, selection: Selection, chunk_rows: int) -> FilePlan:
        """Cut a file into fragments, if `seeks` is `Seek.ROWS`.

        Parameters
        ----------
        file : InputFile
            The file.
        schema : Schema
            Its columns, as `schema` returned them.
        selection : Selection
            The columns that the job uses.
        chunk_rows : int
            The largest number of rows in a fragment.

        Returns
        -------
        FilePlan
            The fragments in order.

        Raises
        ------
        SourceError
            If the file cannot be read.
        UsageError
            If the user must change an option.

        """
        return FilePlan()

    def read(self, fragments: Sequence[Fragment], selection: Selection, spans: list[Span] | None) -> Iterator[Chunk]:
        """Read fragments of `plan`. This runs on a worker.

        Parameters
        ----------
        fragments : sequence of Fragment
            The rows to read: consecutive fragments of one file.
        selection : Selection
            The columns that the job uses.
        spans : list of Span or None
            A span "decode" is appended for the time spent parsing.

        Yields
        ------
        Chunk
            The rows of the fragments, in order. Each chunk has rows of one fragment.

        Raises
        ------
        SourceError
            If the file cannot be read, or has changed since it was planned.

        """
        raise NotImplementedError(f"{self.name} files are read front to back")

    def stream(self, file: InputFile, selection: Selection, chunk_rows: int) -> Iterator[Chunk]:
        """Read a whole file front to back, if `seeks` is `Seek.NOTHING`. This runs on a worker.

        Parameters
        ----------
        file : InputFile
            The file.
        selection : Selection
            The columns that the job uses.
        chunk_rows : int
            The largest number of rows in a chunk.

        Yields
        ------
        Chunk
            The rows of the file, in order. If the file is cut off or damaged, that is a problem of the last chunk and
            no error is raised.

        """
        raise NotImplementedError(f"{self.name} files are read in fragments")
