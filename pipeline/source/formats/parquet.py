"""Parquet: a fragment is a run of rows of one row group.

A file of a few hundred bytes may stand for hundreds of gigabytes of text: a dictionary of one long value, and a hundred
thousand references to it. So row groups are decoded in batches of bounded size; where a fragment takes several, each
text is cut to what the model reads, and its characters are counted before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.errors import SourceError
from pipeline.source.chunk import HEAD_BYTES, Chunk, Selection, as_bytes, assemble, concat, cut, is_textual
from pipeline.source.formats.base import FilePlan, Format, Fragment, InputFile, Scan, Schema, Seek
from pipeline.source.formats.parquet_pages import longest_value
from pipeline.source.limits import LIMITS, Limits
from pipeline.source.opening import open_at
from pipeline.telemetry.spans import Span

_MOST_ROWS = 1 << 31  # of a row group; a damaged footer may claim any number
_ROWS_AT_ONCE = 4096  # of a large row group, in which the sizes of values are not known
_UNKNOWN_BYTES = 1 << 20  # a row may take, where lists are among the columns or values repeat those before them


@dataclass(frozen=True)
class Parquet(Format):
    """length: characters that the model reads."""

    name = "parquet"
    suffixes = (".parquet", ".pq")
    seeks = Seek.ROWS
    magic = b"PAR1\x15"  # the last byte begins the first Thrift header; no text begins with it

    length: int = 0

    def for_model(self, symbols: int, length: int) -> Parquet:
        return replace(self, length=length)

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        with open_at(file) as stream:
            schema = _open(file, stream).schema_arrow
        # All string layouts count as one type.
        types = {f.name: pa.string() if is_textual(f.type) else f.type for f in schema}
        return Schema(tuple(schema.names), types)

    def plan(self, file: InputFile, schema: Schema, selection: Selection, chunk_rows: int, scan: Scan) -> FilePlan:
        with open_at(file) as stream:
            footer = _open(file, stream).metadata
        fragments = []
        row = 0
        for group in range(footer.num_row_groups):
            about = footer.row_group(group)
            if about.num_rows > _MOST_ROWS:
                raise SourceError(f"{file.path}: row group {group} claims to hold {about.num_rows:,} rows")
            size = _stored_bytes(about, selection.columns)
            most = max(1, min(chunk_rows, self.limits.chunk_bytes * about.num_rows // max(size, 1)))
            for at in range(0, about.num_rows, most):
                count = min(most, about.num_rows - at)
                held = size * count // about.num_rows
                fragments.append(Fragment(file, at, at + count, row + at, count, group, held=held))
            row += about.num_rows
        return FilePlan(fragments)

    def read(self, fragment: Fragment, selection: Selection, spans: list[Span] | None = None) -> Iterator[Chunk]:
        with _looking_up:
            found = _row_group(fragment.file, fragment.group, selection.columns)
        pieces: list[Chunk] = []
        at, stop = fragment.start, fragment.start + fragment.rows
        while at < stop:
            decoded = found.take(at, stop)
            for table, n_chars in _bounded(decoded, selection, self.length, self.limits):
                first = fragment.first_row - fragment.start + at
                chunk = _chunk(table, fragment.file.path, first, selection)
                if n_chars is not None:
                    chunk = replace(chunk, n_chars=n_chars[chunk.rows.column("row").to_numpy() - first])
                elif len(table) < fragment.rows:
                    chunk = cut(chunk, self.length)
                pieces.append(chunk)
                at += len(table)
                if sum(piece.kept_bytes for piece in pieces) > (most := _most_decoded(self.limits)):
                    raise SourceError(
                        f"{fragment.file.path}: the id columns of {fragment.rows:,} rows from {fragment.first_row:,} "
                        f"on take more than {most >> 20} MiB: choose others, or a smaller --chunk-size"
                    )
        yield concat(pieces)


def _most_decoded(limits: Limits) -> int:
    """Bytes of decoded rows that are held of a row group."""
    return 4 * limits.chunk_bytes


_looking_up = threading.Lock()


@lru_cache(maxsize=2)
def _row_group(file: InputFile, group: int, columns: tuple[str, ...]) -> _RowGroup:
    """Size, time and hash are part of `file`, so a long-lived worker never uses the cached group of an old file."""
    return _RowGroup(file, group, columns)


class _RowGroup:
    """The columns of one row group, decoded from its first row on; the last rows are kept for further fragments.

    A row group of ordinary size is decoded once, and kept whole: a second thread waits for the first.
    """

    def __init__(self, file: InputFile, group: int, columns: tuple[str, ...]) -> None:
        self._file, self._group, self._columns = file, group, columns
        self._limits = file.format.limits
        self._most = _most_decoded(self._limits)
        self._decoding = threading.Lock()
        self._restart()

    def _restart(self) -> None:
        self._kept: deque[tuple[int, pa.Table]] = deque()
        self._decoded = 0
        self._batches = self._decode()

    def take(self, start: int, stop: int) -> pa.Table:
        """Rows from `start` on: up to `stop`, or fewer where they take much memory.

        Text is bytes, or a dictionary of strings. Raises SourceError where the rows cannot be read.
        """
        with self._decoding:
            if start < (self._kept[0][0] if self._kept else self._decoded):
                self._restart()  # another thread is further ahead than what is kept
            held = 0
            while self._decoded <= start or (self._decoded < stop and held < 2 * self._limits.chunk_bytes):
                table = self._next_batch()
                self._kept.append((self._decoded, table))
                self._decoded += len(table)
                held += table.nbytes if self._decoded > start else 0
                while sum(t.nbytes for _, t in self._kept) > self._most and self._ends(0) <= start:
                    self._kept.popleft()
            parts = []
            for i, (first, table) in enumerate(self._kept):
                if first < stop and self._ends(i) > start:
                    skipped = max(start - first, 0)
                    parts.append(table.slice(skipped, stop - first - skipped))
            return pa.concat_tables(parts)

    def _ends(self, i: int) -> int:
        first, table = self._kept[i]
        return first + len(table)

    def _next_batch(self) -> pa.Table:
        try:
            return as_bytes(pa.Table.from_batches([next(self._batches)]))
        except StopIteration:
            self._restart()
            rows = f"{self._file.path}: row group {self._group} holds fewer rows than its footer has"
            raise SourceError(rows) from None
        except SourceError:
            self._restart()
            raise

    def _decode(self) -> Iterator[pa.RecordBatch]:
        """Batches that take at most `_most_decoded` bytes, by what the footer and the dictionaries tell.

        A small row group with very long values keeps its dictionaries, and so needs little more memory than it is long;
        an ordinary one does not, since to find repeated values takes longer than to copy them.
        """
        try:
            with open_at(self._file) as stream:
                parquet = _open(self._file, stream)
                about, names = parquet.metadata.row_group(self._group), list(self._columns)
                stored = _stored_bytes(about, self._columns)
                rows = self._most // _longest_row(parquet, stream, self._group, names)
                if stored > self._most:
                    rows = min(rows, _ROWS_AT_ONCE)
                elif rows < min(about.num_rows, _ROWS_AT_ONCE) and stored <= self._limits.chunk_bytes:
                    strings = [name for name in names if is_textual(parquet.schema_arrow.field(name).type)]
                    parquet, rows = pq.ParquetFile(stream, read_dictionary=strings), about.num_rows
                rows, left = max(1, min(rows, about.num_rows)), about.num_rows
                for batch in parquet.iter_batches(rows, row_groups=[self._group], columns=names, use_threads=False):
                    left -= len(batch)
                    if not left:
                        break  # the file and its buffers are not kept while the last rows are in use
                    yield batch
                else:
                    return
                del parquet
            yield batch
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise SourceError(f"{self._file.path}: row group {self._group} cannot be read: {error}") from error


def _open(file: InputFile, stream: BinaryIO) -> pq.ParquetFile:
    """Raises SourceError where it is not a Parquet file."""
    try:
        return pq.ParquetFile(stream)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(f"{file.path}: not a readable Parquet file ({error})") from error


def _columns_of(about: pq.RowGroupMetaData, names: Sequence[str]) -> list[pq.ColumnChunkMetaData]:
    """Those of the columns, and of what is nested in them."""
    columns = [about.column(i) for i in range(about.num_columns)]
    return [c for c in columns if {c.path_in_schema, c.path_in_schema.partition(".")[0]} & {*names}]


def _stored_bytes(about: pq.RowGroupMetaData, names: Sequence[str]) -> int:
    """Bytes of the columns in a row group, decompressed, with repeated values once where they are in a dictionary."""
    return sum(max(column.total_uncompressed_size, 0) for column in _columns_of(about, names))


def _longest_row(parquet: pq.ParquetFile, stream: BinaryIO, group: int, names: list[str]) -> int:
    """The bytes that a row takes at most, where its values are in dictionaries: the sum of their longest."""
    longest = 1
    for column in _columns_of(parquet.metadata.row_group(group), names):
        if column.path_in_schema not in names or "DELTA_BYTE_ARRAY" in column.encodings:
            longest += _UNKNOWN_BYTES
        elif column.physical_type == "BYTE_ARRAY":
            longest += longest_value(stream, column)
    return longest


def _bounded(
    table: pa.Table, selection: Selection, length: int, limits: Limits
) -> Iterator[tuple[pa.Table, NDArray[np.int64] | None]]:
    """Runs of rows that take a bounded size without dictionaries; with the characters of their text, where it is cut.

    The only text column is cut in its dictionary, once for all rows that have a text.
    """
    encoded = [name for name in table.column_names if pa.types.is_dictionary(table.column(name).type)]
    if not encoded:
        yield table, None
        return
    table = table.combine_chunks()
    n_chars = None
    others = {*selection.kept, selection.truth}
    if len(selection.text) == 1 and selection.text[0] in {*encoded} - others:
        text = table.column(selection.text[0]).combine_chunks()
        values, counts = _cut_values(text.dictionary, length)
        place = table.column_names.index(selection.text[0])
        short = pa.DictionaryArray.from_arrays(text.indices, values)
        table, n_chars = table.set_column(place, selection.text[0], short), _gathered(counts, text.indices)
    sizes = np.zeros(len(table), np.int64)
    for name in encoded:
        column = table.column(name).combine_chunks()
        sizes += _gathered(pc.binary_length(column.dictionary), column.indices)
    after = np.cumsum(sizes)
    at = 0
    while at < len(table):
        before = int(after[at - 1]) if at else 0
        stop = max(at + 1, int(np.searchsorted(after, before + limits.chunk_bytes, "right")))
        yield table.slice(at, stop - at), None if n_chars is None else n_chars[at:stop]
        at = stop


def _cut_values(values: pa.Array, length: int) -> tuple[pa.Array, pa.Array]:
    """Strings up to `length` characters, and how many each has; one that will be quarantined stays as it is."""
    values = values.cast(pa.large_binary())
    cut, counts = [], []
    for value in values.to_pylist():
        try:
            text = "" if value is None or len(value) > LIMITS.field_bytes else value.decode("utf-8")
        except UnicodeDecodeError:
            text = ""
        cut.append(text[:length].encode() if text else value)
        counts.append(len(text))
    return pa.array(cut, pa.large_binary()), pa.array(counts, pa.int64())


def _gathered(values: pa.Array, indices: pa.Array) -> NDArray[np.int64]:
    """int64, one for each index; 0 for nulls."""
    found = pc.fill_null(pc.take(values, indices), 0)
    return np.asarray(found.cast(pa.int64()).to_numpy(zero_copy_only=False))


def _chunk(table: pa.Table, path: str, first_row: int, selection: Selection) -> Chunk:
    texts = table.column(selection.text[0])

    def raw(i: int) -> tuple[None, bytes]:
        value = texts[i].as_py() or b""
        return None, (value.encode() if isinstance(value, str) else value)[:HEAD_BYTES]

    return assemble(path, first_row + np.arange(len(table)), table, selection, raw)
