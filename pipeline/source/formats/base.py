"""What a format is, and the small values that it takes and gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar

import pyarrow as pa

from pipeline.source.chunk import Chunk, Selection
from pipeline.source.limits import LIMITS, Limits
from pipeline.source.records import Records, Splitter
from pipeline.telemetry.spans import Span


@dataclass(frozen=True)
class InputFile:
    """One file of a job. modified: time in ns, or what the file system has instead. digest: sha256 of its first and
    last 64 KiB, or of all. location: where any process of this file system finds it, whatever folder it runs in.
    """

    path: str
    format: Format
    compression: str | None
    size: int
    modified: str
    digest: str
    location: str


@dataclass(frozen=True)
class Schema:
    """The columns of a file.

    names: None where articles are encoded already. types: Arrow types by name, strings where there is none. start:
    first byte of data. named: by the file itself. complete: no row has further columns.
    """

    names: tuple[str, ...] | None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    start: int = 0
    named: bool = True
    complete: bool = True


@dataclass(frozen=True)
class Fragment:
    """Rows `first_row` to `first_row + rows` of a file: bytes start to stop (stop None: to the end), or, where a format
    seeks by rows, rows start to stop of row group `group`, or of the file. regular: no record has a problem, as far as
    the scan for their beginnings can tell.
    """

    file: InputFile
    start: int
    stop: int | None
    first_row: int
    rows: int
    group: int = -1
    regular: bool = False

    @property
    def size(self) -> int:
        """Bytes of the file; 0 where it is counted in rows."""
        if self.file.format.seeks is not Seek.RECORDS:
            return 0
        return (self.stop or self.file.size) - self.start


@dataclass(frozen=True)
class Stream:
    """A file of unknown length, the job's file `number`, read front to back from byte `start`, decompressed."""

    number: int
    file: InputFile
    start: int


@dataclass(frozen=True)
class FilePlan:
    """fragments: in order, each of which fits a chunk. problems: messages. streamed: the file is to be read front to
    back instead.
    """

    fragments: Sequence[Fragment] = ()
    problems: Sequence[str] = ()
    streamed: bool = False


class Seek(Enum):
    """Where reading can begin: at any row, known from the file's own metadata (such a file is never compressed, for it
    is read at many places at once); at any record, found by a scan; only at the front.
    """

    ROWS = auto()
    RECORDS = auto()
    NOTHING = auto()


Scan = Callable[[InputFile, int, Splitter], Iterator[Records]]
"""Where the records of an uncompressed file begin, from a byte on; see `Scanner.scan`."""


@dataclass(frozen=True)
class Format(ABC):
    """How files of one kind are read. It is a value: what it needs to know to read a file is bound to it when the file
    is found and planned, and travels to the workers with the file.

    suffixes: of file names, in lower case, with the dot. magic: bytes that each of its files begins with, and none of
    another format. memory_mapped: local files only. takes_header: the user may name its columns.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    seeks: ClassVar[Seek]
    magic: ClassVar[bytes] = b""
    memory_mapped: ClassVar[bool] = False
    takes_header: ClassVar[bool] = False

    limits: Limits = LIMITS

    def for_model(self, symbols: int, length: int) -> Format:
        """The format where articles may be encoded already, for a model of `symbols` characters and this length."""
        return self

    def for_columns(self, names: tuple[str, ...]) -> Format:
        """The format for a file with these columns."""
        return self

    @abstractmethod
    def schema(self, file: InputFile, selection: Selection) -> Schema:
        """The file's columns, from its footer or first records.

        Raises SourceError where it cannot be read, UsageError where the user must change what was asked for.
        """

    def plan(self, file: InputFile, schema: Schema, selection: Selection, chunk_rows: int, scan: Scan) -> FilePlan:
        """The file in pieces of up to `chunk_rows` rows. Raises SourceError and UsageError as `schema` does."""
        return FilePlan(streamed=True)

    def read(self, fragment: Fragment, selection: Selection, spans: list[Span] | None = None) -> Iterator[Chunk]:
        """The rows of a fragment that `plan` gave. spans: the time of parsing is noted there, as "decode".

        Raises SourceError where the file cannot be read, or is no longer what was planned.
        """
        raise NotImplementedError(f"{self.name} files are read front to back")

    def stream(self, stream: Stream, selection: Selection, chunk_rows: int) -> Iterator[Chunk]:
        """The chunks of a file that `plan` said is streamed, of up to `chunk_rows` rows each. What cuts the file off is
        a problem of the last chunk, not an error.
        """
        raise NotImplementedError(f"{self.name} files are read in fragments")
