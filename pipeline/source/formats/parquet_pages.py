"""The dictionary of a Parquet column, of which pyarrow tells nothing without decoding the column: its longest value.

A page begins with a header in Thrift's compact encoding: 1 is the kind of the page, 2 and 3 are its bytes decompressed
and compressed. A dictionary of strings holds the length of each, in four bytes, before the string.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

_DICTIONARY_PAGE = 2
_HEADER_BYTES = 256
_MOST_BYTES = 64 << 20  # of a dictionary that is looked into
_LENGTH = struct.Struct("<I")
_TRUE, _FALSE, _INTEGERS, _BINARY, _STRUCT = 1, 2, (4, 5, 6), 8, 12


def longest_value(stream: BinaryIO, column: pq.ColumnChunkMetaData) -> int:
    """Bytes of the longest string in a column's dictionary, or more; 0 where it has none."""
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
            return 0  # the header of other pages may be longer, with their least and greatest value
        return int(column.total_uncompressed_size)
    if column.compression != "UNCOMPRESSED":
        try:
            codec = {"LZ4": "lz4_raw"}.get(column.compression, column.compression.lower())
            data = pa.Codec(codec).decompress(data, size, asbytes=True)
        except (OSError, ValueError, pa.ArrowException):
            return int(size)
    longest = at = 0
    last = len(data) - _LENGTH.size
    while at <= last:
        (length,) = _LENGTH.unpack_from(data, at)
        if length > longest:
            longest = length
        at += _LENGTH.size + length
    return min(longest, int(size))


def _read_struct(data: bytes, at: int, fields: dict[int, Any]) -> int:
    """Read the fields of a Thrift struct by number; returns the position after it. Raises IndexError or ValueError."""
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
