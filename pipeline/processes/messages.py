"""Messages between a process and its children, over a socket: pickles, with the bytes of arrays next to them.

Sending and receiving release the GIL, and a received message is not copied again. Pickle is safe here: each end is a
process of the same user that started the other or was started by it, and nobody else can open the sockets.
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
"""The number of frames, and the bytes of the first part: the size of each frame, and the small frames themselves."""
_SIZE = 8
_ALIGNED = 64
"""Each frame begins at a multiple of this many bytes, as Arrow requires."""
LARGE = 64 << 10
"""A frame of this many bytes or more is received into its own memory, so that it does not keep others alive."""


class Closed(Exception):
    """The other side has closed the connection, or its process has ended."""


def packed(thing: object) -> list[Frame]:
    """Return the frames of a message: a pickle, and the buffers that belong to it."""
    return Pickler().frames(thing)


def unpacked(frames: Sequence[Frame]) -> Any:
    return pickle.loads(frames[0], buffers=frames[1:])


def pieces(frames: Sequence[Frame]) -> list[memoryview]:
    """Return the pieces of a message in the order in which they are sent."""
    views = [memoryview(frame) for frame in frames]
    small = [view.cast("B") if view.nbytes else b"" for view in views if view.nbytes < LARGE]
    sizes = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    first = b"".join(bytes(piece) + bytes(-len(piece) % _ALIGNED) for piece in (sizes, *small))
    return [memoryview(_HEAD.pack(len(views), len(first)) + first), *(v for v in views if v.nbytes >= LARGE)]


def send(connection: socket.socket, frames: Sequence[Frame]) -> None:
    """Send a message. Raises Closed."""
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
    """Receive the frames of the next message. Raises Closed."""
    count, length = _HEAD.unpack(_exactly(connection, _HEAD.size))
    first = _exactly(connection, length)
    return [first[place] if place else _exactly(connection, size) for size, place in _places(count, first)]


def taken(came: bytearray) -> list[Frame] | None:
    """Remove the first message from the received bytes and return its frames; None until all of it has arrived."""
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
    """Return the size of each frame of a message, and its place in `first` if it is small."""
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
    """Pickles an object, with Arrow data as one buffer of Arrow's stream format.

    So only the rows of a slice are sent, and few objects. The buffers of a whole array, such as the text of a chunk,
    are sent as they are.
    """

    def __init__(self) -> None:
        self._file = BytesIO()
        self._buffers: list[pickle.PickleBuffer] = []
        super().__init__(self._file, protocol=5, buffer_callback=self._buffers.append)

    def frames(self, thing: object) -> list[Frame]:
        """Return the pickle, and the buffers that belong to it."""
        self.dump(thing)
        return [self._file.getvalue(), *(buffer.raw() for buffer in self._buffers)]

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, pa.Table):
            return _table, (self.stream(thing),)
        if isinstance(thing, pa.Array) and thing.get_total_buffer_size() > thing.nbytes + LARGE:
            return _array, (self.stream(pa.table([pa.chunked_array([thing])], [""])),)
        return NotImplemented

    def stream(self, table: pa.Table) -> Any:
        """Return the object to pickle instead of a table. Unpickled, it is a buffer of Arrow's stream format."""
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
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # a column without rows has no chunk
