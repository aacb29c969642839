"""The interface of all formats, and the small values that they take and return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, Self

import pyarrow as pa

from ..telemetry.spans import Span
from .chunk import Chunk, Selection
from .compression import UTF8
from .limits import LIMITS, Limits


@dataclass(frozen=True)
class Member:
    """A file within a zip archive.

    Attributes
    ----------
    name : str
        Its path in the archive.
    offset : int
        The byte of the archive at which it begins, with its header.
    method : int
        The number of its compression.
    size, length : int
        Bytes, compressed and decompressed.
    checksum : int
        CRC-32 of its content.
    problem : str
        Why it cannot be read; empty where it can.

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
        What it is called in the output and in messages; see `broadsheet.pipeline.storage.names`.
    format : Format
        How it is read.
    compression : str or None
        Arrow's name of its compression, e.g. "gzip".
    size : int or None
        Bytes, compressed; of the archive that it is in, if it is in one. None where its server does not report it.
    modified : str
        Modification time in ns, or the equivalent of a remote file system, such as an ETag.
    location : str
        Absolute path or URL, by which a process in any working directory can open it; if it is in an archive, that
        one's.
    member : Member or None
        Its place in a zip archive.
    ranges : bool
        Whether its server sends it from any byte on, and not only from the first.
    digest : str
        SHA-256 of its content, where the user asked for it; of a member of an archive, of what the archive says of it.
    endpoint : str or None
        URL of the server that its bucket is on, where it is not the provider's own or that of the environment.

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
        """Whether its bytes can be read from any on."""
        return not self.compression and self.member is None and self.ranges and self.size is not None

    @property
    def front_to_back(self) -> bool:
        """Whether it can be read from its first record on only: its bytes cannot be sought, or are to be transcoded."""
        return not self.seekable or self.format.encoding != UTF8

    @property
    def can_be_cut(self) -> bool:
        """Whether several workers may read it at once, each from another byte on."""
        return not self.front_to_back and self.format.seeks is not Seek.NOTHING

    @property
    def stored(self) -> int:
        """Its bytes as they are stored: compressed, and without the archive around them. 0 where that is not known."""
        return self.member.size if self.member else self.size or 0


@dataclass(frozen=True)
class Schema:
    """The columns of a file.

    Attributes
    ----------
    names : tuple of str, or None
        The columns in order; None for a file of encoded articles.
    types : mapping of str to pyarrow.DataType
        Their types, and those of what is within them, by names with dots; a column that is not in it holds strings.
    start : int
        First byte of the data, after a header.
    named : bool
        Whether the names come from the file itself.
    complete : bool
        False where a row may have further columns.
    absent : frozenset of str
        Of JSON Lines, columns that the job uses and that none of the first rows has.
    cr_ends : bool
        Of CSV, whether a CR ends a record that no LF follows.
    delimiter : str
        Of CSV, the character between fields that the file itself names; empty where it names none.
    class_names : mapping of str to tuple of str
        The columns of class numbers from 0 for which the file itself names the classes, and these names.

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
    """Consecutive rows of one file, of a format that seeks by rows.

    Attributes
    ----------
    file : InputFile
        The file.
    start : int
        The first of the rows, counted within the row group, or in the file where it has none.
    first_row : int
        Number in the file of its first row.
    rows : int
        The number of rows.
    at : int
        The byte of the file at which the row group, or the first row, begins: by it a part of a file has its rows.
    held : int
        Bytes of text that it holds, about.
    group : int
        The row group, of a format that has some.

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
        The pieces of the file in order, each small enough for a chunk; none of a file that is read front to back.
    problems : sequence of str
        Messages about the file, for the report.

    """

    fragments: Sequence[Fragment] = ()
    problems: Sequence[str] = ()


class Seek(Enum):
    """Where reading can begin. ROWS: any row, by metadata. RECORDS: any record, once found. NOTHING: the front."""

    ROWS = auto()
    RECORDS = auto()
    NOTHING = auto()


@dataclass(frozen=True)
class Format(ABC):
    """How files of one kind are read.

    A format is an immutable value. What it needs to know to read a file is bound to it when the file is found
    (`for_model`) and planned (`for_schema`), and is sent to the workers with the file. A subclass sets the class
    attributes and defines `schema`, and either `plan` and `read`, or `stream`. They open files with
    `broadsheet.pipeline.source.open.opening.open_at` only, which compares each with the plan.

    Attributes
    ----------
    name : str
        Name in messages.
    suffixes : tuple of str
        Suffixes of its file names, in lower case, with the dot.
    seeks : Seek
        Where reading can begin.
    magic : bytes
        The first bytes of each of its files, which no file of another format has; empty where there are none.
    takes_header : bool
        Whether the user may name the columns of its files.
    takes_encoding : bool
        Whether the user may name the encoding of its files.
    jumps : bool
        Whether its files are read at many places, so that they cannot be compressed, in an archive, or on a server that
        sends them from the first byte on only.
    limits : Limits
        The sizes that reading and planning keep to.
    encoding : str
        Of the text in its files, by Python's name. Files in another than UTF-8 are opened as streams of UTF-8.

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
            Characters in the model's alphabet.
        length : int
            Characters of each article that the model reads.

        Returns
        -------
        Format
            The bound format; by default this one.

        """
        return self

    def for_options(self, selection: Selection) -> Self:
        """Bind what the user says of the files, for formats of text.

        Parameters
        ----------
        selection : Selection
            Their encoding, and the dialect of CSV.

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
            As `schema` returned it.

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
        """Return the number of rows that the file's own metadata give; None where only reading it shows them.

        Raises
        ------
        SourceError
            If the file cannot be read.

        """
        return None

    def plan(self, file: InputFile, schema: Schema, selection: Selection, chunk_rows: int) -> FilePlan:
        """Cut a file into fragments, where `seeks` is `Seek.ROWS`.

        Parameters
        ----------
        file : InputFile
            The file.
        schema : Schema
            Its columns, as `schema` returned them.
        selection : Selection
            The columns that the job uses.
        chunk_rows : int
            Rows in a fragment at most.

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
        """Read fragments of `plan`; runs on a worker.

        Parameters
        ----------
        fragments : sequence of Fragment
            The rows to read, of one file, which follow one another.
        selection : Selection
            The columns that the job uses.
        spans : list of Span or None
            A span "decode" is appended for the time spent parsing.

        Yields
        ------
        Chunk
            The rows of the fragments, in order, each of one fragment.

        Raises
        ------
        SourceError
            If the file cannot be read, or has changed since it was planned.

        """
        raise NotImplementedError(f"{self.name} files are read front to back")

    def stream(self, file: InputFile, selection: Selection, chunk_rows: int) -> Iterator[Chunk]:
        """Read a whole file front to back, where `seeks` is `Seek.NOTHING`; runs on a worker.

        Parameters
        ----------
        file : InputFile
            The file.
        selection : Selection
            The columns that the job uses.
        chunk_rows : int
            Rows in a chunk at most.

        Yields
        ------
        Chunk
            The rows of the file, in order. Where the file is cut off or damaged, that is a problem of the last chunk,
            not an error.

        """
        raise NotImplementedError(f"{self.name} files are read in fragments")
