"""Reads in processes of their own, for a worker whose engine takes text faster than the threads of one process read it.
It also limits how much a worker reads before earlier chunks are classified and written.

A reader process takes one request at a time: to read a range. Its answer is a stream of chunks, whose values pass
through the ring (`ring_messages.py`). If nobody receives them, the process reads two chunks ahead, and waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from queue import Empty, LifoQueue
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from ...errors import BroadsheetError, SourceError, UsageError, first_of
from ...processes.child import Child
from ...processes.messages import Closed, packed, send
from ...telemetry.spans import Span, here
from ..formats.record_format import Counting
from ..formats.records import Extent
from ..plan.plan import Range, RangeEnd
from ..rows.chunk import Chunk, Selection
from ..rows.format import Format
from ..rows.limits import LIMITS
from .read import Skipped
from .ring import SLOT_BYTES, SLOTS_EACH, Reply, Ring
from .ring_messages import OnHost, PlaceTexts, receive_message

MOST_OF_ONE = LIMITS.chunk_bytes
"""Roughly the most bytes of a chunk. This process reserves them before it reads a chunk."""

MOST_BYTES = 8 * MOST_OF_ONE
"""The default number of bytes for which a `Room` has room."""

MOST_CHUNKS = 32
"""The default number of chunks: two for each task of a worker. A job that is stopped still labels the chunks that were
read, so more of them would delay its end.
"""


class Room:
    """Room for a number of bytes and chunks, which the threads of a process share."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_chunks: int = MOST_CHUNKS) -> None:
        self._most_bytes, self._most_chunks = most_bytes, most_chunks
        self._bytes = self._chunks = 0
        self._changed = threading.Condition()

    def reserve(self, count: int) -> None:
        """Wait until there is room for a chunk of `count` bytes, and reserve it."""
        with self._changed:
            self._changed.wait_for(lambda: self._fits(count))
            self._bytes, self._chunks = self._bytes + count, self._chunks + 1

    def grow(self, most_bytes: int) -> None:
        """Raise the limit to `most_bytes`, if that is more."""
        with self._changed:
            self._most_bytes = max(self._most_bytes, most_bytes)
            self._changed.notify_all()

    def give_back(self, count: int) -> None:
        """Give back `count` reserved bytes that a chunk does not need."""
        with self._changed:
            self._bytes -= count
            self._changed.notify_all()

    def release(self, count: int) -> None:
        """Release the room of a chunk of `count` bytes."""
        with self._changed:
            self._bytes, self._chunks = self._bytes - count, self._chunks - 1
            self._changed.notify_all()

    def _fits(self, count: int) -> bool:
        return not self._chunks or (self._chunks < self._most_chunks and self._bytes + count <= self._most_bytes)


def bytes_of(chunk: Chunk) -> int:
    """Return the bytes that a chunk holds, at most `MOST_OF_ONE`."""
    ids = 0 if chunk.ids is None else chunk.ids.nbytes
    texts = int(chunk.text.nbytes) + sum(int(texts.nbytes) for texts in chunk.prepared.values())
    return min(texts + chunk.kept_bytes + ids, MOST_OF_ONE)


_MODULE = "broadsheet.pipeline.source.read.reader_process"


class ReaderLost(BroadsheetError):
    """Raised if a reader process ends before its answer does."""


@dataclass(frozen=True)
class ReadRequest:
    """A request to read a range.

    Attributes
    ----------
    range : Range
        The range.
    selection : Selection
        The columns that the job uses.
    chunk_rows : int
        The largest number of rows in a chunk; 0 to only count the records.
    is_raw : bool
        Whether the worker finds the records itself. Then the answer is that of `read_raw`.
    are_texts_apart : bool
        Whether the bytes of texts are sent separately, so that the worker can choose their destination.

    """

    range: Range
    selection: Selection
    chunk_rows: int = 0
    is_raw: bool = False
    are_texts_apart: bool = False

    @property
    def files(self) -> str:
        """The names of what is read, for messages."""
        return first_of([file.path for file in self.range.files], 1) or self.range.name


@dataclass(frozen=True)
class Question:
    """A reader's question in the middle of an answer: whether to skip the chunk of that name. A bool answers it."""

    name: str


@dataclass(frozen=True)
class FileBegun:
    """The start of the next file of a range. After it come its blocks, each as a `RawBlock` or `HostRows`, and then a
    `FileDone`.

    Attributes
    ----------
    form : Format
        The format, bound to the columns of the file.
    selection : Selection
        The columns that the job uses, as they are in this file.
    row : int
        The number of the file's first row; 0 for a part of a file whose start is not known.
    extent : Extent or None
        See `OpenedFile`. It is sent before the file is read.

    """

    form: Format
    selection: Selection
    row: int
    extent: Extent | None


@dataclass(frozen=True)
class HostRows:
    """Rows of a file that the reader process has parsed. After the first of these, no raw blocks follow in the file.

    Attributes
    ----------
    chunk : Chunk
        The rows, with numbers from 0.
    sizes : ndarray
        int64 [N], the bytes of each record.
    stored : int
        See `RawBlock`.

    """

    chunk: Chunk
    sizes: NDArray[np.int64]
    stored: int


@dataclass(frozen=True)
class FileDone:
    """The end of a file.

    Attributes
    ----------
    problems, notes, extent, counting
        See `OpenedFile`.
    error : Exception or None
        The reason why the file could not be read further.

    """

    problems: list[str]
    notes: list[str]
    extent: Extent | None
    counting: Counting | None
    error: SourceError | UsageError | None


@dataclass(frozen=True)
class Size:
    """Tells the worker the number of bytes of the chunk that the next item holds."""

    bytes: int


@dataclass(frozen=True)
class Item:
    """An item of an answer, with the spans of its reading. The last item is a `RangeEnd`."""

    value: Any
    spans: list[Span]


@dataclass(frozen=True)
class RawEnd:
    """The end of an answer to a raw request."""


@dataclass(frozen=True)
class Failure:
    """The error that ends an answer."""

    error: Exception
    spans: list[Span]


class Readers:
    """The reader processes of this worker. They end with the worker at the latest.

    Parameters
    ----------
    count : int
        The number of processes, one for each core.
    at_once : int
        How many processes start now. The others start when they are needed. A start takes half a second of a core.
    slot_bytes : int
        See `Ring`.

    """

    def __init__(self, count: int, at_once: int, slot_bytes: int = SLOT_BYTES) -> None:
        self.ring = Ring(count, slot_bytes)
        self.count = count
        self._numbers = [*range(count)]
        self._under_way = 0
        self._lock = threading.Lock()
        self._closed = False
        self._running: set[_Reader] = set()
        self._free: LifoQueue[_Reader | None] = LifoQueue()
        """Has None in place of a process that is started when it is needed."""
        for left in reversed(range(count)):  # last in, first out: started processes are used first
            self._free.put(self._started() if left < at_once else None)

    def read_range(
        self,
        range_: Range,
        selection: Selection,
        chunk_rows: int,
        skip: Callable[[str], bool],
        spans: list[Span],
        reserve: Callable[[int], bool],
        place_texts: PlaceTexts | None = None,
    ) -> Generator[Chunk | Skipped | RangeEnd, None, None]:
        """Read a range in a process. This waits for a process before it returns.

        Parameters
        ----------
        range_, selection, chunk_rows, skip, spans
            See `broadsheet.pipeline.source.read.read.read_range`.
        reserve : callable
            Called with the number of bytes before a chunk is received. It returns True as soon as there is room for the
            chunk, and False if the rest is not wanted.
        place_texts : callable, optional
            Returns a destination for the texts of a chunk, by their number of bytes. By default they go to this
            process's memory.

        Raises
        ------
        ReaderLost
            If the process ends before its answer does.

        """
        request = ReadRequest(range_, selection, chunk_rows, are_texts_apart=place_texts is not None)
        return holding_a_process(self._answers(request, skip, reserve, spans, place_texts or OnHost))

    def read_raw(self, range_: Range, selection: Selection, spans: list[Span]) -> Generator[Any, Reply | None, None]:
        """Have a process fill the slots of the ring with the records of a range. This waits for a process before it
        returns.

        Parameters
        ----------
        range_, selection, spans
            See `broadsheet.pipeline.source.read.read.read_range`.

        Yields
        ------
        FileBegun, RawBlock, HostRows or FileDone
            The messages about each file of the range, in order. `send` the reply to a `RawBlock`; the generator then
            yields None.

        Raises
        ------
        ReaderLost
            If the process ends before its answer does.

        """
        return holding_a_process(self._raw_messages(range_, selection, spans))

    def _raw_messages(
        self, range_: Range, selection: Selection, spans: list[Span]
    ) -> Generator[Any, Reply | None, None]:
        """Yield None as soon as there is a process, then what `read_raw` yields."""
        with self._process() as reader:
            yield None
            reader.ask(ReadRequest(range_, selection, is_raw=True))
            while isinstance(message := reader.next(), Item | Failure):
                if isinstance(message, Failure):
                    raise message.error
                spans += [replace(one, where=here()) for one in message.spans]
                reply = yield message.value
                while reply is not None:
                    reader.tell(reply)
                    reply = yield None

    def count_range(self, range_: Range, selection: Selection) -> RangeEnd:
        """Count the records of a range in a process. Raises the errors of `read_range`."""
        request = ReadRequest(range_, selection)
        with closing(holding_a_process(self._answers(request, lambda _: False, lambda _: True, []))) as answers:
            end: RangeEnd = next(answers)
            return end

    def close(self) -> None:
        """End the processes, also those that are reading. Threads that wait for one get ReaderLost."""
        with self._lock:
            self._closed = True
            for reader in self._running:
                reader.kill()
        with suppress(Empty):
            while True:
                self._discard(self._free.get_nowait())
        for _ in range(self.count):  # for the threads that wait for a process
            self._free.put(None)
        self.ring.close()

    def _answers(
        self,
        request: ReadRequest,
        skip: Callable[[str], bool],
        reserve: Callable[[int], bool],
        spans: list[Span],
        place_texts: PlaceTexts = OnHost,
    ) -> Generator[Any, None, None]:
        """Yield None as soon as there is a process, then the items of its answer.

        Parameters
        ----------
        request : ReadRequest
            The request.
        skip, reserve, spans, place_texts
            See `read_range`.

        """
        # Answer the questions of the process, and yield the items that it sends, until the range ends.
        with self._process() as reader:
            yield None
            reader.ask(request)
            while True:
                message = reader.next(place_texts)
                if isinstance(message, Size):
                    if not reserve(message.bytes):
                        return
                    continue
                if isinstance(message, Question):
                    reader.tell(skip(message.name))
                    continue
                assert isinstance(message, Item | Failure)
                spans += [replace(one, where=here()) for one in message.spans]
                if isinstance(message, Failure):
                    raise message.error
                yield message.value
                if isinstance(message.value, RangeEnd):
                    return
                del message  # its chunk need not stay in memory while this waits for the next one

    @contextmanager
    def _process(self) -> Iterator[_Reader]:
        """Return a context with a process that answers one request. If the answer is not received to its end, the
        process is replaced.
        """
        reader = self._free.get()
        self._change_under_way(+1)
        try:
            if reader is None or not reader.is_alive:
                self._discard(reader)
                reader = self._started()
            if reader is None:
                raise BroadsheetError("no process to read files can start: the worker is closing, or out of memory")
            yield reader
        finally:
            self._change_under_way(-1)
            if reader is not None and reader.asked is not None:
                self._discard(reader)
                reader = self._started()
            self._free.put(reader)

    def _change_under_way(self, change: int) -> None:
        """Change the number of requests under way, and with it the cores that each reader may use."""
        with self._lock:
            self._under_way += change
            self.ring.share.set(self.count // max(1, self._under_way))

    def _started(self) -> _Reader | None:
        """Start a process. Return None if none can be started."""
        with self._lock:
            if self._closed:
                return None
            number = self._numbers.pop()
            try:
                reader = _Reader(self.ring, number)
            except OSError:
                self._numbers.append(number)
                return None
            self._running.add(reader)
            return reader

    def _discard(self, reader: _Reader | None) -> None:
        if reader is not None:
            reader.end()
            with self._lock:
                self._running.discard(reader)
                self._numbers.append(reader.number)


def holding_a_process(items: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
    """Run a generator up to its first item, which is None, and return it. From then on it holds a process, and its
    `close` gives the process back.

    A task reserves a process before it reserves room for a chunk. If tasks held room and waited for a process, the
    tasks with a process could wait for that room, and all of them would wait forever.
    """
    next(items)
    return items


class _Reader(Child):
    """A reader process. Raises OSError if it cannot be started.

    Parameters
    ----------
    ring : Ring
        The slots of all readers.
    number : int
        The number of this reader among those that run.

    Attributes
    ----------
    asked : ReadRequest or None
        The request whose answer has not been received to its end.

    """

    def __init__(self, ring: Ring, number: int) -> None:
        arguments = (ring.descriptor, number * SLOTS_EACH, ring.slot_bytes)
        super().__init__(_MODULE, *arguments, descriptors=[ring.descriptor])
        self.number = number
        self._ring = ring
        self.asked: ReadRequest | None = None

    def ask(self, request: ReadRequest) -> None:
        """Send a request. `next` returns its answer."""
        self.asked = request
        with suppress(Closed):  # `next` raises the error
            send(self.connection, [cloudpickle.dumps(request)])

    def tell(self, reply: Reply | bool) -> None:
        """Send the reply about a slot, or the answer to a question."""
        with suppress(Closed):
            send(self.connection, packed(reply))

    def next(self, place_texts: PlaceTexts = OnHost) -> Size | Item | Question | Failure | RawEnd:
        """Return the next message of the answer. place_texts: see `receive_message`. Raises ReaderLost."""
        try:
            message: Size | Item | Question | Failure | RawEnd
            message = receive_message(self.connection, self._ring, place_texts)
        except Closed as error:
            files = "" if self.asked is None else self.asked.files
            raise ReaderLost(f"{files}: the process that read it {self.how_it_ended()}") from error
        if isinstance(message, Failure | RawEnd) or (isinstance(message, Item) and isinstance(message.value, RangeEnd)):
            self.asked = None
        return message
