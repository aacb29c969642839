"""Reader processes: reading for a worker whose engine takes text faster than the threads of one process read it; and
room in a process for chunks: so much is read before others are classified and written.

A process takes one request at a time: to read a range. Its answer is a stream of chunks. While nobody takes them, the
process reads two ahead, and waits.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from queue import Empty, LifoQueue
from typing import IO, Any

import cloudpickle

from ...errors import BroadsheetError, cause, first_of
from ...processes.child import Child
from ...processes.messages import Closed, Frame, packed, receive, send, unpacked
from ...telemetry.spans import Span, here
from ..chunk import Chunk, Selection
from ..limits import LIMITS
from ..plan.plan import Range, RangeEnd
from .read import Skipped

MOST_OF_ONE = LIMITS.chunk_bytes
"""What a chunk takes at most, about: so much is taken before one is read in this process."""

_MOST_BYTES = 8 * MOST_OF_ONE
_MOST_CHUNKS = 32
"""Two for each task of a worker: a job that is stopped labels those that were read."""


class Room:
    """For so many bytes and chunks, shared by the threads of a process."""

    def __init__(self, most_bytes: int = _MOST_BYTES, most_chunks: int = _MOST_CHUNKS) -> None:
        self._most_bytes, self._most_chunks = most_bytes, most_chunks
        self._bytes = self._chunks = 0
        self._changed = threading.Condition()

    def take(self, count: int) -> None:
        """Wait until there is room for a chunk of so many bytes, and take it."""
        with self._changed:
            self._changed.wait_for(lambda: self._fits(count))
            self._bytes, self._chunks = self._bytes + count, self._chunks + 1

    def shrink(self, count: int) -> None:
        """Give back bytes that a chunk does not take after all."""
        with self._changed:
            self._bytes -= count
            self._changed.notify_all()

    def leave(self, count: int) -> None:
        """Give back the room of a chunk of so many bytes."""
        with self._changed:
            self._bytes, self._chunks = self._bytes - count, self._chunks - 1
            self._changed.notify_all()

    def _fits(self, count: int) -> bool:
        return not self._chunks or (self._chunks < self._most_chunks and self._bytes + count <= self._most_bytes)


def bytes_of(chunk: Chunk) -> int:
    """Bytes that a chunk holds, `MOST_OF_ONE` at most."""
    ids = 0 if chunk.ids is None else chunk.ids.nbytes
    texts = int(chunk.text.nbytes) + sum(int(texts.nbytes) for texts in chunk.prepared.values())
    return min(texts + chunk.kept_bytes + ids, MOST_OF_ONE)


_MODULE = "broadsheet.pipeline.source.read.reader_process"
_SOCKET_BYTES = 1 << 20


class ReaderLost(BroadsheetError):
    """A reader process has ended in the middle of what it read."""


@dataclass(frozen=True)
class Request:
    """To read a range.

    Attributes
    ----------
    part : Range
        The range.
    selection : Selection
        The columns that the job uses.
    chunk_rows : int
        Rows in a chunk at most; 0 where the records are to be counted only.

    """

    part: Range
    selection: Selection
    chunk_rows: int = 0

    @property
    def files(self) -> str:
        """What is read, for messages."""
        return first_of([file.path for file in self.part.files], 1) or self.part.name


@dataclass(frozen=True)
class Question:
    """A reader's, in the middle of an answer: whether the chunk of that name is to be skipped. A bool answers it."""

    name: str


@dataclass(frozen=True)
class Size:
    """The next item holds a chunk of so many bytes."""

    bytes: int


@dataclass(frozen=True)
class Item:
    """One of an answer's, and the spans of its reading. The last is a `RangeEnd`."""

    value: Any
    spans: list[Span]


@dataclass(frozen=True)
class Failure:
    """The error that ends an answer."""

    error: Exception
    spans: list[Span]


class Share:
    """How many cores a request may use now: all of the readers', divided by the requests under way. A file of one
    byte, which all processes see.
    """

    def __init__(self, descriptor: int) -> None:
        self._bytes = mmap.mmap(descriptor, 1)

    def get(self) -> int:
        return max(1, self._bytes[0])

    def set(self, cores: int) -> None:
        self._bytes[0] = min(max(1, cores), 255)


def _shared_byte() -> IO[bytes]:
    """A file without a name. Its byte is written, as a page of a hole on a full disk would kill who writes to it.

    Raises BroadsheetError.
    """
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - as long as its readers
        file.write(b"\1")
        file.flush()
    except OSError as error:
        where = tempfile.gettempdir()
        raise BroadsheetError(f"cannot write to {where}: {cause(error)}; set TMPDIR to a folder with space") from error
    return file


class Readers:
    """Reader processes of this worker, which end with it at the latest. count: how many, one for a core. at_once: that
    many start now, the others when they are needed; a start takes half a second of a core.
    """

    def __init__(self, count: int, at_once: int) -> None:
        self._count = count
        self._under_way = 0
        self._lock = threading.Lock()
        self._closed = False
        self._running: set[_Reader] = set()
        self._file = _shared_byte()
        self._share = Share(self._file.fileno())
        self._free: LifoQueue[_Reader | None] = LifoQueue()
        """None in place of one that is to be started when it is needed."""
        for left in reversed(range(count)):  # those that have started are taken first
            self._free.put(self._started() if left < at_once else None)

    def read_range(
        self,
        part: Range,
        selection: Selection,
        chunk_rows: int,
        skip: Callable[[str], bool],
        spans: list[Span],
        take: Callable[[int], bool],
    ) -> Generator[Chunk | Skipped | RangeEnd, None, None]:
        """Read a range in a process, which this waits for.

        Parameters
        ----------
        part, selection, chunk_rows, skip, spans
            As of `broadsheet.pipeline.source.read.read.read_range`.
        take : callable
            Called before a chunk of so many bytes is received; it returns once there is room for it, and False where
            the rest is not wanted.

        Raises
        ------
        ReaderLost
            If the process ends in the middle.

        """
        return _with_process(self._answers(Request(part, selection, chunk_rows), skip, take, spans))

    def count_range(self, part: Range, selection: Selection) -> RangeEnd:
        """Count the records of a range in a process. Raises as `read_range` does."""
        request = Request(part, selection)
        with closing(_with_process(self._answers(request, lambda _: False, lambda _: True, []))) as answers:
            end: RangeEnd = next(answers)
            return end

    def close(self) -> None:
        """End the processes, those too that are reading: whoever waits for one gets ReaderLost."""
        with self._lock:
            self._closed = True
            for reader in self._running:
                reader.kill()
        with suppress(Empty):
            while True:
                self._discard(self._free.get_nowait())
        for _ in range(self._count):  # for those that wait
            self._free.put(None)

    def _answers(
        self, request: Request, skip: Callable[[str], bool], take: Callable[[int], bool], spans: list[Span]
    ) -> Generator[Any, None, None]:
        """None once there is a process, then the items of its answer. A process whose answer is not taken to its end is
        replaced by another.
        """
        reader = self._free.get()
        whole = True
        self._note(+1)
        try:
            yield None
            if reader is None or not reader.is_alive:
                self._discard(reader)
                reader = self._started()
            if reader is None:
                raise BroadsheetError("no process to read files can start: the worker is closing, or out of memory")
            whole = False
            reader.tell([cloudpickle.dumps(request)])
            while not whole:
                message = reader.next(request)
                if isinstance(message, Size):
                    if not take(message.bytes):
                        return
                    continue
                if isinstance(message, Question):
                    reader.tell(packed(skip(message.name)))
                    continue
                spans += [replace(one, where=here()) for one in message.spans]
                whole = isinstance(message, Failure) or isinstance(message.value, RangeEnd)
                if isinstance(message, Failure):
                    raise message.error
                yield message.value
        finally:
            self._note(-1)
            if not whole:
                self._discard(reader)
                reader = self._started()
            self._free.put(reader)

    def _note(self, change: int) -> None:
        with self._lock:
            self._under_way += change
            self._share.set(self._count // max(1, self._under_way))

    def _started(self) -> _Reader | None:
        """A new process; None where none can be started."""
        with self._lock:
            if self._closed:
                return None
            try:
                reader = _Reader(self._file.fileno())
            except OSError:
                return None
            self._running.add(reader)
            return reader

    def _discard(self, reader: _Reader | None) -> None:
        if reader is not None:
            reader.end()
            with self._lock:
                self._running.discard(reader)


def _with_process(answers: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Wait for a process now, not with the first item."""
    next(answers)
    return answers


class _Reader(Child):
    """One process. Raises OSError where it cannot be started."""

    def __init__(self, share: int) -> None:
        super().__init__(_MODULE, share, descriptors=[share], buffer_bytes=_SOCKET_BYTES)

    def tell(self, frames: Sequence[Frame]) -> None:
        with suppress(Closed):  # `next` says so
            send(self.connection, frames)

    def next(self, request: Request) -> Size | Item | Question | Failure:
        """The next message. Raises ReaderLost."""
        try:
            message: Size | Item | Question | Failure = unpacked(receive(self.connection))
        except Closed as error:
            raise ReaderLost(f"{request.files}: the process that read it {self.how_it_ended()}") from error
        return message
