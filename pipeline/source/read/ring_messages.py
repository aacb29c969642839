"""Messages of a reader process whose large frames go through the ring: chunks, with their texts and kept columns.

The small frames go through the socket, together with the sizes of the large ones. The large frames follow one after
another, in pieces: the reader copies a piece to a slot, and the worker copies it to its destination and frees the slot.
A piece may hold several frames, and a frame may take several pieces.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...processes.messages import LARGE, Frame, Pickler, packed, receive, send, unpacked
from ..rows.chunk import OffHost, are_blank, buffers_of
from .ring import Filled, Freed, Ring, Slots

PIECE_BYTES = 4 << 20
"""The largest size of a piece in bytes. Smaller pieces would mean more messages, and larger ones more memory, because a
slot takes only as much memory as was written to it.
"""


@dataclass(frozen=True)
class _InPieces:
    """The header of a message for the worker. Some of its frames follow in pieces.

    The frames are the tables, each as a buffer of Arrow's stream format, then the pickle, then the other buffers.

    Attributes
    ----------
    tables : int
        The number of tables.
    follow : list of int or None
        The size in bytes of each frame that follows; None for a frame that comes with this header through the socket.
    text_bytes : int or None
        The bytes of the texts that follow the frames; None if the texts are not sent separately.

    """

    tables: int
    follow: list[int | None]
    text_bytes: int | None


class Place(Protocol):
    """A destination in memory for bytes that arrive in pieces."""

    def write(self, at: int, piece: NDArray[np.uint8], slot: int) -> None:
        """Copy a piece to its place.

        Parameters
        ----------
        at : int
            The first byte of the destination to write.
        piece : ndarray
            uint8 [bytes], in a slot of the ring. The slot may be filled again once this returns.
        slot : int
            The number of the slot.

        """

    def texts(self, offsets: NDArray[np.int64], is_blank: NDArray[np.bool_]) -> OffHost | pa.LargeBinaryArray:
        """Return the N texts whose bytes have arrived.

        Parameters
        ----------
        offsets : ndarray
            int64 [N + 1]: where each text begins in the destination, and where the last one ends.
        is_blank : ndarray
            bool [N]: which texts hold nothing but white space.

        """


class OnHost:
    """A destination in the memory of this process (see `Place`)."""

    def __init__(self, size: int) -> None:
        self.buffer = pa.allocate_buffer(size)
        self._held = np.frombuffer(self.buffer, np.uint8)

    def write(self, at: int, piece: NDArray[np.uint8], slot: int) -> None:
        self._held[at : at + len(piece)] = piece  # NumPy releases the GIL here; an assignment to a memoryview would not

    def texts(self, offsets: NDArray[np.int64], is_blank: NDArray[np.bool_]) -> pa.LargeBinaryArray:
        return pa.Array.from_buffers(pa.large_binary(), len(is_blank), [None, pa.py_buffer(offsets), self.buffer])


PlaceTexts = Callable[[int], Place]
"""Returns a destination for the texts of a chunk, by their number of bytes."""


def send_message(
    connection: socket.socket, slots: Slots, message: object, apart: pa.LargeBinaryArray | None = None
) -> None:
    """Send a message to the worker.

    Parameters
    ----------
    connection : socket
        The connection to the worker.
    slots : Slots
        The slots of this process.
    message : object
        The message.
    apart : pyarrow.LargeBinaryArray, optional
        Texts in the message whose bytes are sent separately, so that the worker can choose their destination.

    Raises
    ------
    Closed
        If the worker has ended.

    """
    pickler = _Pickler(apart)
    pickled = pickler.frames(message)
    frames = [*pickler.tables, *([frame] for frame in pickled)]
    sizes = [sum(memoryview(part).nbytes for part in frame) for frame in frames]
    follow = [size if size >= LARGE else None for size in sizes]
    if apart is None and not pickler.tables and not any(follow):
        send(connection, pickled)
        return
    through_socket, parts = list[Frame](), list[NDArray[np.uint8]]()
    for frame, size in zip(frames, follow, strict=True):
        if size is None:
            through_socket.append(b"".join(map(memoryview, frame)))
        else:
            parts += [np.frombuffer(part, np.uint8) for part in frame]
    if apart is not None:
        data, offsets = buffers_of(apart)
        parts.append(data[offsets[0] : offsets[-1]])
    header = _InPieces(len(pickler.tables), follow, None if apart is None else len(parts[-1]))
    send(connection, [*packed(header), *through_socket])
    for filled in _filled(slots, parts):
        send(connection, packed(filled))


def receive_message(connection: socket.socket, ring: Ring, place_texts: PlaceTexts) -> Any:
    """Return the next message of a reader. Raises Closed.

    Parameters
    ----------
    connection : socket
        The connection to the reader.
    ring : Ring
        The slots of all readers.
    place_texts : callable
        Returns a destination for texts that are sent separately.

    """
    received = receive(connection)
    message = unpacked(received)
    if not isinstance(message, _InPieces):
        return message
    through_socket, frames, text = iter(received[1:]), list[pa.Buffer](), None
    places: list[tuple[Place, int]] = []
    for size in message.follow:
        if size is None:
            frames.append(next(through_socket))
        else:
            place = OnHost(size)
            frames.append(place.buffer)
            places.append((place, size))
    if message.text_bytes is not None:
        text = place_texts(message.text_bytes)
        places.append((text, message.text_bytes))
    _fill(places, connection, ring)
    return _Unpickler(frames[message.tables :], frames[: message.tables], text).load()


def _filled(slots: Slots, parts: Sequence[NDArray[np.uint8]]) -> Iterator[Filled]:
    """Copy the parts of frames, each uint8 [bytes], to slots. Yield the message about each slot once it is full."""
    memory = np.frombuffer(slots.memory, np.uint8)
    room = min(slots.slot_bytes, PIECE_BYTES)
    begin, used = slots.reserve(), 0
    for part in parts:
        at = 0
        while at < len(part):
            if used == room:
                yield slots.give_bytes(used)
                begin, used = slots.reserve(), 0
            assert begin is not None  # only blocks can be refused, and there are none here
            count = min(room - used, len(part) - at)
            memory[begin + used : begin + used + count] = part[at : at + count]
            at, used = at + count, used + count
    if used:
        yield slots.give_bytes(used)


def _fill(places: Sequence[tuple[Place, int]], connection: socket.socket, ring: Ring) -> None:
    """Copy the pieces that arrive to their destinations. places: each destination with its size in bytes."""
    piece, slot, used = np.empty(0, np.uint8), -1, 0
    for place, size in places:
        at = 0
        while at < size:
            if used == len(piece):
                filled: Filled = unpacked(receive(connection))
                piece, slot, used = np.frombuffer(ring.block(filled.slot, filled.size), np.uint8), filled.slot, 0
            count = min(len(piece) - used, size - at)
            place.write(at, piece[used : used + count], slot)
            at, used = at + count, used + count
            if used == len(piece):
                send(connection, packed(Freed()))


@dataclass(frozen=True)
class _Table:
    """The place of a table in a pickle.

    Attributes
    ----------
    number : int
        The number of the table among those of the message.

    """

    number: int


class _Pickler(Pickler):
    """Pickles a message without its tables, and without the bytes of texts that are sent separately.

    Attributes
    ----------
    tables : list of list of buffer
        The parts of each table in Arrow's stream format. Most are its own buffers, so that nothing is copied.

    Parameters
    ----------
    apart : pyarrow.LargeBinaryArray or None
        The texts that are sent separately.

    """

    def __init__(self, apart: pa.LargeBinaryArray | None) -> None:
        super().__init__()
        self.tables: list[list[Frame]] = []
        self._apart = apart

    def stream(self, table: pa.Table) -> _Table:
        parts = _Parts()
        with pa.ipc.new_stream(pa.PythonFile(parts, "w"), table.schema) as writer:
            writer.write_table(table)
        self.tables.append(parts.written)
        return _Table(len(self.tables) - 1)

    def persistent_id(self, thing: object) -> Any:
        if isinstance(thing, _Table):
            return thing.number
        if self._apart is None or thing is not self._apart:
            return None
        offsets = buffers_of(self._apart)[1]
        return offsets - offsets[0], are_blank(self._apart)


class _Parts:
    """A file that keeps everything that is written to it, without a copy."""

    def __init__(self) -> None:
        self.written: list[Frame] = []
        self.closed = False

    def write(self, part: Frame) -> None:
        self.written.append(part)

    def flush(self) -> None:
        """Do nothing. Arrow calls this on files."""

    def close(self) -> None:
        self.closed = True


class _Unpickler(pickle.Unpickler):
    """Unpickles a message.

    Parameters
    ----------
    frames : sequence of buffer
        The pickle, and the buffers that belong to it.
    tables : sequence of buffer
        The tables, in Arrow's stream format.
    text : Place or None
        The destination of texts that were sent separately.

    """

    def __init__(self, frames: Sequence[Frame], tables: Sequence[Frame], text: Place | None) -> None:
        super().__init__(BytesIO(frames[0]), buffers=frames[1:])
        self._tables, self._text = tables, text

    def persistent_load(self, found: Any) -> Any:
        if isinstance(found, int):
            return self._tables[found]
        assert self._text is not None
        return self._text.texts(*found)
