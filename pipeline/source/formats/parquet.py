"""Parquet. A fragment is a run of rows of one row group.

A file of a few hundred bytes may stand for hundreds of gigabytes of text: a dictionary with one long value, and a
hundred thousand references to it, which may be within structs and lists. So row groups are decoded in batches of
bounded size, or as dictionaries. If a fragment takes several batches, each text is cut to what the model reads, and its
characters are counted first.

The size of a batch depends on the longest value in a column's dictionary, which is read from the dictionary's page by
this file. pyarrow gives it only after it has decoded the dictionary and a page after it into a hash table. For a row
group of 80 MB, which pyarrow reads in 83 ms, that takes 32 ms, and reading the page here takes 2 to 5 ms. A page begins
with a header in Thrift's compact encoding: field 1 is the kind of the page, and fields 2 and 3 are its decompressed and
compressed bytes. A dictionary of strings holds the length of each string, in four bytes, before the string.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import SourceError
from ...telemetry.spans import Span
from ..open.opening import expect, open_at
from ..rows.chunk import Chunk, Selection, held_together
from ..rows.columns import projected
from ..rows.format import FilePlan, Format, Fragment, InputFile, Schema, Seek
from ..rows.labels import class_names_in
from ..rows.layouts import as_bytes, holds
from .parquet_check import FOOTERS, as_file
from .tables import Rows, bounded_chunks, most_decoded, types_of, why_no_schema

_DICTIONARY_PAGE = 2
_HEADER_BYTES = 256
_MOST_BYTES = 64 << 20  # the longest dictionary that is examined, in bytes
_LENGTH = struct.Struct("<I")
_TRUE, _FALSE, _INTEGERS, _BINARY, _STRUCT = 1, 2, (4, 5, 6), 8, 12


def longest_value(stream: BinaryIO, column: pq.ColumnChunkMetaData) -> int:
    """Return an upper bound of the bytes of the longest string in a column's dictionary, or 0 if it has
    no dictionary.
    """
    # Read the header of the page and, if it is a dictionary, the page.
    start = column.dictionary_page_offset or column.data_page_offset
    stream.seek(start)
    header: dict[int, Any] = {}
    try:
        begin = _read_struct(stream.read(_HEADER_BYTES), 0, header)
        size, compressed = header[2], header[3]
        if header[1] != _DICTIONARY_PAGE:
            return 0
        if not 0 <= max(size, compressed) <= _MOST_BYTES:
            return max(int(size), 0)
        stream.seek(start + begin)
        data = stream.read(compressed)
    except (IndexError, KeyError, TypeError, ValueError):
        if header.get(1, _DICTIONARY_PAGE) != _DICTIONARY_PAGE:
            return 0  # headers of other pages may be longer, with the smallest and largest value
        return int(column.total_uncompressed_size)
    # Decompress the page.
    if column.compression != "UNCOMPRESSED":
        try:
            codec = {"LZ4": "lz4_raw"}.get(column.compression, column.compression.lower())
            data = pa.Codec(codec).decompress(data, size, asbytes=True)
        except (OSError, ValueError, pa.ArrowException):
            return int(size)
    # Step from string to string by their lengths.
    longest = at = 0
    last = len(data) - _LENGTH.size
    while at <= last:
        (length,) = _LENGTH.unpack_from(data, at)
        if length > longest:
            longest = length
        at += _LENGTH.size + length
    return min(longest, int(size))


def _read_struct(data: bytes, at: int, fields: dict[int, Any]) -> int:
    """Read the fields of a Thrift struct by number. Return the position after it. Raises IndexError or ValueError."""
    number = 0
    while data[at]:
        step, kind = data[at] >> 4, data[at] & 15
        at += 1
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif kind in _INTEGERS:
            fields[number], at = _integer(data, at)
        elif kind == _BINARY:
            length, at = _varint(data, at)
            at += length
        elif kind == _STRUCT:
            fields[number] = {}
            at = _read_struct(data, at, fields[number])
        else:
            raise ValueError(f"a page header holds a field of type {kind}")
    return at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


_MOST_ROWS = 1 << 31  # rows of a row group; a damaged footer may claim any number
_ROWS_AT_ONCE = 4096  # rows of a large row group whose values have unknown sizes
_MAGIC = b"PAR1"
_NO_FILE = as_file(b"")  # a file for pyarrow, which reads only its metadata
_TAIL_BYTES = 64 << 10  # bytes that are read first: most footers are shorter
_FOOTERS = 16  # footers in the cache: one is read for all row groups of its file
_BUFFER = 4 << 20
"""How many bytes of a row group's columns are read in one go, and copied, if the columns take more than
`_ALL_AT_ONCE`.
"""

_ALL_AT_ONCE = 24 << 20
_PARTS_AT_ONCE, _OF_SHORT_TEXTS, _SHORT_BYTES = 2, 4, 1 << 10
"""How many parts of `Limits.part_bytes` are decoded in one go; how many if rows are short; and the largest average size
of short rows, in bytes. Short texts of a chunk are decoded together, so that they need not be joined. Most bytes of
long texts are dropped.
"""

_UNKNOWN_BYTES = 1 << 20
"""How many bytes a row is taken to need if the file does not tell: if a value may repeat most of the value before it,
as with the encoding DELTA_BYTE_ARRAY, or a list may repeat one long value any number of times.
"""

_VALUE_BYTES = 16  # the largest number of bytes that a value takes beside its text


class Parquet(Format):
    name = "parquet"
    suffixes = (".parquet", ".pq")
    seeks = Seek.ROWS
    jumps = True
    magic = b"PAR1\x15"  # the last byte begins the first Thrift header; no text begins with it

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        schema = _schema(file)
        return Schema(tuple(schema.names), types_of(schema), class_names=class_names_in(schema))

    def rows_of(self, file: InputFile) -> int:
        return int(_footer(file).num_rows)

    def plan(self, file: InputFile, schema: Schema, selection: Selection, chunk_rows: int) -> FilePlan:
        footer = _footer(file)
        fragments = []
        row = 0
        for group in range(footer.num_row_groups):
            about = footer.row_group(group)
            if about.num_rows > _MOST_ROWS:
                raise SourceError(f"{file.path}: row group {group} claims to hold {about.num_rows:,} rows")
            begin = min((start for start, _ in map(_bytes_of, _columns_of(about, selection.columns))), default=0)
            size = held_together(_stored_bytes(about, selection.columns), about.num_rows, selection)
            max_rows = max(1, min(chunk_rows, self.limits.chunk_bytes * about.num_rows // max(size, 1)))
            for at in range(0, about.num_rows, max_rows):
                count = min(max_rows, about.num_rows - at)
                held = size * count // about.num_rows
                fragments.append(Fragment(file, at, row + at, count, begin, held, group))
            row += about.num_rows
        return FilePlan(fragments)

    def read(self, fragments: Sequence[Fragment], selection: Selection, spans: list[Span] | None) -> Iterator[Chunk]:
        for group, inside in groupby(fragments, lambda fragment: fragment.group):
            first, *others = inside
            rows = Rows(_decoded(first.file, group, selection.columns), first.start, first.file.path)
            for fragment in (first, *others):
                yield from bounded_chunks(rows.take(fragment.rows), fragment, selection)


def _decoded(file: InputFile, group: int, columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """Yield the rows of a row group in batches that take at most `most_decoded` bytes, judging by the footer and the
    dictionaries. Texts are bytes, or a dictionary of strings.

    A small row group with very long values keeps its dictionaries, and so needs little more memory than its size in the
    file. An ordinary row group does not, because finding repeated values takes longer than copying them.

    Raises SourceError if the rows cannot be read.
    """
    limits, max_bytes = file.format.limits, most_decoded(file.format.limits)
    try:
        with open_at(file) as stream:
            # Open the row group. Large ones are read through a buffer, small ones in one go.
            footer = _footer(file)
            about, names = footer.row_group(group), list(columns)
            compressed = sum(stop - start for start, stop in map(_bytes_of, _columns_of(about, names)))
            options = {"buffer_size": 0 if compressed <= _ALL_AT_ONCE else _BUFFER, "pre_buffer": False}
            options |= {"page_checksum_verification": True}  # if the pages have any
            parquet = pq.ParquetFile(stream, metadata=footer, **options)
            # Choose how many rows a batch has, and whether strings stay in dictionaries.
            left = about.num_rows
            stored = _stored_bytes(about, columns)
            row, average = _row_bytes(parquet, stream, group, names, max_bytes), stored // max(left, 1)
            rows, longest, strings = max_bytes // row.longest, row.longest, row.in_lists
            is_unknown = row.encoded > _UNKNOWN_BYTES
            if stored > max_bytes:
                rows = min(rows, _ROWS_AT_ONCE)
            elif rows < min(left, _ROWS_AT_ONCE) and stored <= limits.chunk_bytes and not is_unknown:
                strings = row.strings
                rows, longest = max_bytes // row.encoded, average
            if strings:
                parquet = pq.ParquetFile(stream, metadata=footer, read_dictionary=strings, **options)
            parts = _PARTS_AT_ONCE if average > _SHORT_BYTES else _OF_SHORT_TEXTS
            rows = min(rows, parts * limits.part_bytes // max(longest, average, 1))
            rows = max(1, min(rows, left))
            # Decode batch after batch, and yield them.
            expect(stream, map(_bytes_of, _columns_of(about, columns)))
            held, size = list[pa.RecordBatch](), 0
            for batch in parquet.iter_batches(rows, row_groups=[group], columns=names, use_threads=False):
                left -= len(batch)
                held.append(batch)
                size += batch.nbytes
                if not left:
                    break  # so that the file and its buffers are not in memory while the last rows are in use
                if is_unknown and not strings and size < limits.part_bytes:
                    continue  # these rows take far fewer bytes than they might
                yield as_bytes(projected(pa.Table.from_batches(held), columns))
                held, size = [], 0
            else:
                raise SourceError(f"{file.path}: row group {group} holds fewer rows than its footer has")
            del parquet
        yield as_bytes(projected(pa.Table.from_batches(held), columns))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise SourceError(f"{file.path}: row group {group} cannot be read: {error}") from error


@lru_cache(maxsize=_FOOTERS)
def _footer(file: InputFile) -> pq.FileMetaData:
    """Return the footer of a file. Raises SourceError if it is not a Parquet file, or its metadata is damaged."""
    with open_at(file) as stream:
        try:
            footer = _footer_bytes(stream)
            if footer is None:  # pyarrow says why
                return pq.ParquetFile(stream).metadata
            if problem := FOOTERS.problem(footer):
                raise SourceError(f"{file.path}: not a readable Parquet file ({problem})")
            return pq.read_metadata(pa.BufferReader(as_file(footer)))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise SourceError(f"{file.path}: not a readable Parquet file ({why_no_schema(error)})") from error


def _footer_bytes(stream: BinaryIO) -> bytes | None:
    """Return the bytes of a file's footer, or None if it has none that can be checked, for example because it is
    encrypted.
    """
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - _TAIL_BYTES, 0))
    tail = stream.read(_TAIL_BYTES)
    length = int.from_bytes(tail[-8:-4], "little")
    if not tail.endswith(_MAGIC) or not 0 < length <= size - len(_MAGIC) - 8:
        return None
    if length + 8 > len(tail):
        stream.seek(size - length - 8)
        tail = stream.read(length + 8)
    return tail[-length - 8 : -8]


def _schema(file: InputFile) -> pa.Schema:
    """Return the schema of a file. Raises the SourceErrors of `_footer`, and one for a type that Arrow
    does not have.
    """
    try:
        return pq.ParquetFile(pa.BufferReader(_NO_FILE), metadata=_footer(file)).schema_arrow
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(f"{file.path}: not a readable Parquet file ({why_no_schema(error)})") from error


def _columns_of(about: pq.RowGroupMetaData, names: Sequence[str]) -> list[pq.ColumnChunkMetaData]:
    """Return the named columns, and the columns that are nested in them."""
    columns = [about.column(i) for i in range(about.num_columns)]
    begins = tuple(f"{name}." for name in names)
    return [c for c in columns if f"{c.path_in_schema}.".startswith(begins)]


def _bytes_of(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return where a column of a row group begins in the file, and where it ends."""
    start = column.dictionary_page_offset or column.data_page_offset
    return start, start + column.total_compressed_size


def _stored_bytes(about: pq.RowGroupMetaData, names: Sequence[str]) -> int:
    """Return the decompressed bytes of the columns in a row group. Repeated values in a dictionary count once."""
    return sum(max(column.total_uncompressed_size, 0) for column in _columns_of(about, names))


class _RowBytes(NamedTuple):
    """The largest number of bytes that a decoded row of a row group takes, as far as dictionaries tell.

    Attributes
    ----------
    longest, encoded : int
        In bytes, the sum of the longest values, and that sum without the values of `strings`.
    strings : list of str
        The columns that can be read as dictionaries.
    in_lists : list of str
        The columns that must be read as dictionaries, because one row may have all of their values.

    """

    longest: int
    encoded: int
    strings: list[str]
    in_lists: list[str]


def _row_bytes(parquet: pq.ParquetFile, stream: BinaryIO, group: int, names: list[str], max_bytes: int) -> _RowBytes:
    """Return the largest number of bytes that a row takes.

    Parameters
    ----------
    parquet, stream : pyarrow.parquet.ParquetFile, BinaryIO
        The file.
    group : int
        The row group.
    names : list of str
        The columns that are read.
    max_bytes : int
        The largest number of bytes that are decoded in one go.

    """
    about = parquet.metadata.row_group(group)
    leaves = {leaf.path: leaf for leaf in map(parquet.schema.column, range(about.num_columns))}
    nested = (field for field in parquet.schema_arrow if pa.types.is_nested(field.type))
    views = tuple(
        f"{field.name}." for field in nested if holds(field.type, pa.types.is_string_view, pa.types.is_binary_view)
    )
    longest = encoded = 0
    strings, in_lists = [], []
    for column in _columns_of(about, names):
        path, count = column.path_in_schema, -(-column.num_values // max(about.num_rows, 1))
        leaf = leaves[path]
        fixed, text, can_be = count * (_VALUE_BYTES + max(leaf.length, 0)), 0, False
        if column.physical_type == "BYTE_ARRAY" and "DELTA_BYTE_ARRAY" in column.encodings:
            fixed += _UNKNOWN_BYTES
        elif column.physical_type == "BYTE_ARRAY":
            text = longest_value(stream, column)
            can_be = leaf.logical_type.type in ("STRING", "NONE") and not path.startswith(views)
            # Arrow cannot read that encoding as a dictionary.
            can_be = can_be and "DELTA_LENGTH_BYTE_ARRAY" not in column.encodings
        if leaf.max_repetition_level and text * column.num_values > max_bytes:
            text, fixed = 0, fixed if can_be else fixed + _UNKNOWN_BYTES
            in_lists += [path] * can_be
        strings += [path] * can_be
        longest, encoded = longest + fixed + count * text, encoded + fixed + (0 if can_be else count * text)
    return _RowBytes(max(longest, 1), max(encoded, 1), strings, in_lists)
