"""The common part of formats whose files are a sequence of records, separated by a scan.

An uncompressed file of UTF-8 is scanned for the beginnings of its records, so that it can be read from the middle and
rows have numbers. A compressed file, or one in another encoding, has one reader: the rows of a small one are counted
first, and if it fits a chunk, one task reads it whole.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.errors import InputChanged, SourceError, UsageError
from pipeline.source.chunk import Chunk, Selection, assemble, concat, empty_chunk
from pipeline.source.encoding import UTF8, looks_like, unescaped
from pipeline.source.formats.base import FilePlan, Format, Fragment, InputFile, Scan, Schema, Seek, Stream
from pipeline.source.opening import open_at
from pipeline.source.records import BOM, Records, Split, cut, read_records
from pipeline.telemetry.spans import Span, span

_COLUMN = "text"


class Head(NamedTuple):
    """A file's first bytes, from `start`, after a byte order mark. final: they are the whole file. failure: the error
    of a damaged compressed file after them.
    """

    data: bytes
    start: int
    final: bool
    failure: SourceError | None = None


@dataclass(frozen=True)
class Piped(InputFile):
    """What comes through a pipe, of which only the first records can be examined before it is read."""

    first: Head = field(kw_only=True)


@dataclass(frozen=True)
class RecordFormat(Format):
    """A format of records: a subclass defines `split`. By default each record is an article, in the column "text"."""

    seeks = Seek.RECORDS

    def for_options(self, encoding: str, delimiter: str | None) -> RecordFormat:
        return replace(self, encoding=encoding)

    def for_columns(self, names: tuple[str, ...]) -> RecordFormat:
        return self

    @abstractmethod
    def split(self, buffer: bytes, final: bool) -> Split:
        """The records of `buffer`, which begins at a record; `final` where the stream ends with it."""

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        return Schema((_COLUMN,), start=self.head(file).start, named=False)

    def parse(self, records: Records, path: str, first_row: int, selection: Selection) -> Chunk:
        """A chunk of `records`, the first of which is record `first_row` of the file."""
        kept = [i for i in range(len(records)) if i not in records.problems]
        contents = [records.data[records.starts[i] : records.ends[i]] for i in kept]
        table = pa.table({_COLUMN: pa.array(contents, pa.large_binary())})
        numbers = first_row + np.array(kept, np.int64)
        return assemble(path, numbers, table, selection, lambda i: records.raw(kept[i]), records.bad_rows(first_row))

    def head(self, file: InputFile) -> Head:
        """Raises SourceError where the file cannot be opened, UsageError where its encoding is plainly another."""
        if isinstance(file, Piped):
            return file.first
        block, final, failure = b"", False, None
        with open_at(file) as stream:
            try:
                while len(block) < self.limits.block_bytes and not final:
                    more = stream.read(self.limits.block_bytes - len(block))
                    block, final = block + more, not more
            except InputChanged:
                raise
            except SourceError as error:
                failure = error
        if other := looks_like(block):
            raise UsageError(f"{file.path}: it looks like {other.upper()}: --encoding {other}")
        start = len(BOM) if block.startswith(BOM) else 0
        return Head(block[start:], start, final, failure)

    def plan(self, file: InputFile, schema: Schema, selection: Selection, chunk_rows: int, scan: Scan) -> FilePlan:
        if not file.front_to_back:
            return self._cut(file, schema.start, chunk_rows, scan(file, schema.start, self.split))
        if file.stored > self.limits.counted_bytes:
            return FilePlan(streamed=True)
        with open_at(file, schema.start) as stream:
            records = read_records(stream, self.split, schema.start, limits=self.limits)
            plan = self._cut(file, schema.start, chunk_rows, records)
        return plan if len(plan.fragments) < 2 else FilePlan(streamed=True)

    def _cut(self, file: InputFile, start: int, chunk_rows: int, blocks: Iterator[Records]) -> FilePlan:
        """Cut a file into fragments at the beginnings of records."""
        fragments: list[Fragment] = []
        problems: list[str] = []
        begin, first_row, row, regular = start, 0, 0, True
        try:
            for records, new in cut(blocks, chunk_rows, self.limits.chunk_bytes):
                if new and row:
                    stop = int(records.offsets[0])
                    fragments.append(Fragment(file, begin, stop, first_row, row - first_row, regular=regular))
                    begin, first_row, regular = stop, row, True
                row += len(records)
                regular &= not records.problems
        except SourceError as error:
            if not file.front_to_back or isinstance(error, InputChanged):
                raise
            if not row:  # else the rows before the damage are read, and the problem is reported with them
                problems.append(error.message)
        if row > first_row:
            whole = None if file.front_to_back else file.size
            fragments.append(Fragment(file, begin, whole, first_row, row - first_row, regular=regular))
        return FilePlan(fragments, problems)

    def shorten(self, fragment: Fragment, rows: int) -> Fragment:
        """It ends where the first record begins that it no longer holds."""
        left = rows
        with open_at(fragment.file, fragment.start) as source:
            for records in read_records(source, self.split, fragment.start, fragment.size, self.limits):
                if left < len(records):
                    return replace(fragment, stop=int(records.offsets[left]), rows=rows)
                left -= len(records)
        raise InputChanged(f"{fragment.file.path}: it has fewer records than when it was planned")

    def read(self, fragment: Fragment, selection: Selection, spans: list[Span] | None = None) -> Iterator[Chunk]:
        file, row = fragment.file, fragment.first_row
        size = None if file.front_to_back else fragment.size
        for chunk, count, _ in self._chunks(file, fragment.start, size, row, fragment.rows, selection, spans):
            yield chunk
            row += count
        if row != fragment.first_row + fragment.rows:
            found = row - fragment.first_row
            raise SourceError(
                f"{file.path}: {found} records at byte {fragment.start:,}, where {fragment.rows} were planned: "
                "the file was changed while the job ran"
            )

    def stream(self, stream: Stream, selection: Selection, chunk_rows: int) -> Iterator[Chunk]:
        held: list[Chunk] = []
        for chunk, _, new in self._chunks(stream.file, stream.start, None, 0, chunk_rows, selection):
            if new and held:
                yield concat(held)
                held = []
            held.append(chunk)
        if held:
            yield concat(held)

    def _chunks(
        self,
        file: InputFile,
        start: int,
        size: int | None,
        row: int,
        chunk_rows: int,
        selection: Selection,
        spans: list[Span] | None = None,
    ) -> Iterator[tuple[Chunk, int, bool]]:
        """Chunks, how many records each covers, and whether it begins a new chunk of the plan."""
        with open_at(file, start, None if size is None else start + size) as source:
            blocks = read_records(source, self.split, start, size, self.limits)
            try:
                for records, new in cut(blocks, chunk_rows, self.limits.chunk_bytes):
                    with span("decode", spans, "read"):
                        chunk = self.parse(records, file.path, row, selection)
                    if self.encoding != UTF8:
                        heads = [unescaped(head) for head in chunk.quarantine.column("head").to_pylist()]
                        table = chunk.quarantine.drop_columns("head").append_column(
                            "head", pa.array(heads, pa.binary())
                        )
                        chunk = replace(chunk, quarantine=table)
                    yield chunk, len(records), new
                    row += len(records)
            except SourceError as error:
                if not file.front_to_back or isinstance(error, InputChanged):
                    raise
                yield empty_chunk(selection, (error.message,)), 0, False
