"""Where the batches of an Arrow IPC file or stream are, and what each takes in memory.

pyarrow tells this of a batch only by decoding it, which is what must not be done with one that stands for far more than
it is long. A message is metadata, as a FlatBuffers table, and a body. A file has a list of its messages at the end; a
stream is followed from message to message, without reading their bodies.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

FILE_MAGIC, FEATHER_MAGIC = b"ARROW1", b"FEA1"

_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_CONTINUED = 0xFFFFFFFF
_MOST_METADATA = 64 << 20
_BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("", "V4"), ("body", "<i8")])
_BUFFER = np.dtype([("offset", "<i8"), ("length", "<i8")])


class Message(NamedTuple):
    """A message in a file. offset, stop: its bytes. rows: of a batch. size: bytes it takes when it is decoded."""

    offset: int
    stop: int
    rows: int
    size: int


class Index(NamedTuple):
    """The messages of a file in order. schema_bytes: of a stream, which begins with its schema; 0 for a file. problem:
    why there may be more batches than these.
    """

    schema_bytes: int
    dictionaries: tuple[Message, ...]
    batches: tuple[Message, ...]
    problem: str = ""


def read_index(stream: BinaryIO, size: int) -> Index:
    """The messages of a file of `size` bytes. Raises ValueError where it is no Arrow file, or is damaged."""
    head = stream.read(len(FILE_MAGIC))
    if head.startswith(FEATHER_MAGIC):
        raise ValueError("it is a Feather file of version 1: write it again, with pyarrow.feather.write_feather")
    try:
        return _of_file(stream, size) if head == FILE_MAGIC else _of_stream(stream, size)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"not a readable Arrow file ({error})") from error


def _of_file(stream: BinaryIO, size: int) -> Index:
    tail = struct.calcsize("<i6s")
    stream.seek(max(size - tail, 0))
    length, magic = struct.unpack("<i6s", stream.read(tail))
    if magic != FILE_MAGIC or not 0 < length <= min(size, _MOST_METADATA):
        raise ValueError("not a readable Arrow file (cut off: its list of batches is missing)")
    stream.seek(size - tail - length)
    footer = _root(stream.read(length))
    dictionaries, batches = (
        tuple(_block(stream, size, block) for block in footer.structs(field, _BLOCK)) for field in (2, 3)
    )
    return Index(0, dictionaries, batches)


def _block(stream: BinaryIO, size: int, block: np.void) -> Message:
    offset, metadata, body = (int(block[name]) for name in ("offset", "metadata", "body"))
    if min(offset, body) < 0 or not 0 < metadata <= _MOST_METADATA or offset + metadata + body > size:
        raise ValueError("not a readable Arrow file (its list of batches leads out of it)")
    stream.seek(offset)
    data = stream.read(metadata)
    begin = 8 if _unpack("<I", data, 0) == _CONTINUED else 4
    return _message(stream, _root(data[begin:]), offset, offset + metadata, body)


def _of_stream(stream: BinaryIO, size: int) -> Index:
    """A stream that is cut off is read up to there."""
    at = schema_bytes = 0
    dictionaries: list[Message] = []
    batches: list[Message] = []
    problem = ""
    while at < size:
        stream.seek(at)
        prefix = stream.read(8).ljust(8, b"\xff")
        continued = _unpack("<I", prefix, 0) == _CONTINUED
        length = _unpack("<i", prefix, 4 if continued else 0)
        if length == 0:
            break
        begin = at + (8 if continued else 4)
        problem = f"cut off or damaged at byte {at:,}; all before is read"
        if not 0 < length <= _MOST_METADATA or begin + length > size:
            break
        stream.seek(begin)
        table = _root(stream.read(length))
        kind, body = table.integer(1, "<B"), table.integer(3, "<q")
        if body < 0 or begin + length + body > size:
            break
        if kind == _SCHEMA and not at:
            schema_bytes = begin + length + body
        elif kind in (_DICTIONARY, _BATCH) and schema_bytes:
            found = _message(stream, table, at, begin + length, body)
            (batches if kind == _BATCH else dictionaries).append(found)
        else:
            break
        at, problem = begin + length + body, ""
    if not schema_bytes:
        raise ValueError("not a readable Arrow file")
    return Index(schema_bytes, tuple(dictionaries), tuple(batches), problem)


def _message(stream: BinaryIO, message: _Table, offset: int, body: int, body_bytes: int) -> Message:
    """A message whose body begins at byte `body`."""
    table = message.table(2)
    if message.integer(1, "<B") == _DICTIONARY:
        table = table.table(1)
    size = body_bytes
    if table.has(3):  # each compressed buffer begins with its length decompressed, or -1 where it is as it is
        size = 0
        for buffer in table.structs(2, _BUFFER):
            if buffer["length"]:
                stream.seek(body + max(int(buffer["offset"]), 0))
                whole = _unpack("<q", stream.read(8), 0)
                size += int(buffer["length"]) if whole == -1 else whole
                if whole < -1:
                    raise ValueError("not a readable Arrow file (a buffer has less than no bytes)")
    rows = table.integer(0, "<q")
    if rows < 0:
        raise ValueError("not a readable Arrow file (a batch has less than no rows)")
    return Message(offset, body + body_bytes, rows, max(size, body_bytes))


class _Table:
    """A FlatBuffers table in `data`, at byte `at`. What leads out of the data raises struct.error or ValueError."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    def has(self, field: int) -> bool:
        return self._place(field) > 0

    def integer(self, field: int, kind: str) -> int:
        """0 where the field is not there."""
        place = self._place(field)
        return _unpack(kind, self._data, place) if place else 0

    def table(self, field: int) -> _Table:
        place = self._place(field)
        if not place:
            raise ValueError("not a readable Arrow file (a message without content)")
        return _Table(self._data, place + _unpack("<I", self._data, place))

    def structs(self, field: int, kind: np.dtype[np.void]) -> NDArray[np.void]:
        place = self._place(field)
        if not place:
            return np.empty(0, kind)
        begin = place + _unpack("<I", self._data, place)
        return np.frombuffer(self._data, kind, _unpack("<I", self._data, begin), begin + 4)

    def _place(self, field: int) -> int:
        """0 where the field is not there."""
        fields = self._at - _unpack("<i", self._data, self._at)
        slot = 4 + 2 * field
        if slot + 2 > _unpack("<H", self._data, fields):
            return 0
        offset = _unpack("<H", self._data, fields + slot)
        return self._at + offset if offset else 0


def _root(data: bytes) -> _Table:
    return _Table(data, _unpack("<I", data, 0))


def _unpack(kind: str, data: bytes, at: int) -> int:
    if at < 0:
        raise ValueError("not a readable Arrow file")
    return int(struct.unpack_from(kind, data, at)[0])
