"""Messages between a process and its children, over a socket: pickles, with the bytes of arrays beside them.

Sending and receiving release the GIL, and what is received is not copied once it has arrived. Pickle is safe here: each
end is a process of the same user that the other end started or was started by, and nobody else can open the sockets.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from io import BytesIO
from typing import Any, TypeAlias

import pyarrow as pa

Frame: TypeAlias = bytes | memoryview | pa.Buffer

_HEAD = struct.Struct("<QQ")
"""The number of frames, and the bytes of what comes first: the size of each, and the small ones themselves."""
_SIZE = 8
_ALIGNED = 64
"""Each begins at a multiple of so many bytes, as Arrow wants it."""
LARGE = 64 << 10
"""A frame of so many bytes is received into memory of its own, which it does not keep alive for others."""


class Closed(Exception):
    """The other side has closed the connection, or its process has ended."""


def packed(thing: object) -> list[Frame]:
    """The frames of a message: a pickle, and the buffers that belong to it."""
    return Pickler().frames(thing)


def unpacked(frames: Sequence[Frame]) -> Any:
    return pickle.loads(frames[0], buffers=frames[1:])


def pieces(frames: Sequence[Frame]) -> list[memoryview]:
    """What is sent of a message, one after the other."""
    views = [memoryview(frame) for frame in frames]
    small = [view.cast("B") if view.nbytes else b"" for view in views if view.nbytes < LARGE]
    sizes = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    first = b"".join(bytes(piece) + bytes(-len(piece) % _ALIGNED) for piece in (sizes, *small))
    return [memoryview(_HEAD.pack(len(views), len(first)) + first), *(v for v in views if v.nbytes >= LARGE)]


def send(connection: socket.socket, frames: Sequence[Frame]) -> None:
    """Raises Closed."""
    left = pieces(frames)
    try:
        while left:
            sent = connection.sendmsg(left)
            while left and sent >= left[0].nbytes:
                sent -= left.pop(0).nbytes
            if left:
                left[0] = left[0][sent:]
    except OSError as error:
        raise Closed from error


def receive(connection: socket.socket) -> list[pa.Buffer]:
    """The frames of the next message. Raises Closed."""
    count, length = _HEAD.unpack(_exactly(connection, _HEAD.size))
    first = _exactly(connection, length)
    return [first[place] if place else _exactly(connection, size) for size, place in _places(count, first)]


def taken(came: bytearray) -> list[Frame] | None:
    """The frames of the first message of what has come, which is then without it; None until all of it is there."""
    if len(came) < _HEAD.size:
        return None
    count, length = _HEAD.unpack_from(came)
    begin = end = _HEAD.size + length
    if len(came) < end:
        return None
    places = _places(count, memoryview(bytes(came[_HEAD.size : end])))
    end += sum(size for size, place in places if place is None)
    if len(came) < end:
        return None
    whole = memoryview(bytes(memoryview(came)[:end]))
    del came[:end]
    frames: list[Frame] = []
    for size, place in places:
        if place is None:
            frames.append(whole[begin : begin + size])
            begin += size
        else:
            frames.append(whole[_HEAD.size :][place])
    return frames


def _places(count: int, first: Frame) -> list[tuple[int, slice | None]]:
    """The size of each frame of a message, and where it is in `first`, if it is small."""
    found: list[tuple[int, slice | None]] = []
    at = _padded(count * _SIZE)
    for size in struct.unpack_from(f"<{count}Q", first):
        is_small = size < LARGE
        found.append((size, slice(at, at + size) if is_small else None))
        at += _padded(size) if is_small else 0
    return found


def _padded(size: int) -> int:
    return size + -size % _ALIGNED


def _exactly(connection: socket.socket, size: int) -> pa.Buffer:
    buffer = pa.allocate_buffer(size)
    view = memoryview(buffer)
    while view:
        try:
            count = connection.recv_into(view, 0, socket.MSG_WAITALL)
        except OSError as error:
            raise Closed from error
        if not count:
            raise Closed
        view = view[count:]
    return buffer


class Pickler(pickle.Pickler):
    """Pickles one thing, and Arrow data as one buffer of Arrow's stream format: only the rows that a slice has, and few
    objects. The buffers of an array that is whole, such as the text of a chunk, are sent as they are.
    """

    def __init__(self) -> None:
        self._file = BytesIO()
        self._buffers: list[pickle.PickleBuffer] = []
        super().__init__(self._file, protocol=5, buffer_callback=self._buffers.append)

    def frames(self, thing: object) -> list[Frame]:
        """The pickle, and the buffers that belong to it."""
        self.dump(thing)
        return [self._file.getvalue(), *(buffer.raw() for buffer in self._buffers)]

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, pa.Table):
            return _table, (self.stream(thing),)
        if isinstance(thing, pa.Array) and thing.get_total_buffer_size() > thing.nbytes + LARGE:
            return _array, (self.stream(pa.table([pa.chunked_array([thing])], [""])),)
        return NotImplemented

    def stream(self, table: pa.Table) -> Any:
        """What is pickled in place of a table, and becomes a buffer of Arrow's stream format when it is unpickled."""
        return pickle.PickleBuffer(_stream(table))


def _stream(table: pa.Table) -> pa.Buffer:
    size = pa.MockOutputStream()
    _write(table, size)
    buffer = pa.allocate_buffer(size.size())
    _write(table, pa.FixedSizeBufferWriter(buffer))
    return buffer


def _write(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def _table(buffer: Frame) -> pa.Table:
    return pa.ipc.open_stream(buffer).read_all()


def _array(buffer: Frame) -> pa.Array:
    column = _table(buffer).column(0)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # without rows it has no chunk
