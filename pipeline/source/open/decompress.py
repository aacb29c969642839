"""A compressed file as a stream: every byte before the position at which it is cut off or damaged, then an error.

Zstd files of several frames (pzstd, the seekable format) are decompressed by several cores, in order. Where a frame
ends is told by the headers of its blocks, without decompressing it. Whatever is irregular ends this: a large frame,
damage, anything unknown. From there on the file is read by one core, which knows what to say.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from typing import BinaryIO

from ...errors import InputUnavailable, SourceError
from ...processes.threads import available_cores
from .ahead import PARSING, in_order
from .compression import COMPRESSIONS, GZIP_MAGIC, Compression, Decoder, beginning, is_skippable, refusal

_INPUT_BYTES = 256 << 10
_LEAST_INPUT = 1 << 10
_HEAD_BYTES = 18  # of a unit: as many as the longest header that is looked at
_CAREFUL_BYTES = 2 * _INPUT_BYTES
"""So many are fed one by one where decompression has failed: what a failing call has decompressed is lost."""
_MOST_OUTPUT = 8 << 20
"""More than one such byte can stand for."""

_LEAST_CUT_OFF, _TAILS = 4 << 20, (64 << 10, 256 << 10)
"""Stored bytes of a unit of which only the tail is read again where it is cut off, first the smaller one."""
_MOST_LAST = 4 << 20


class Damaged(Exception):
    """It is cut off or damaged; everything before has been read."""


class Raw:
    """The bytes of a file as they are stored, from `start` on, fed to a decoder in pieces.

    A piece becomes smaller where units are, since a decoder copies what it does not use.
    """

    def __init__(self, stream: BinaryIO, start: int) -> None:
        self._stream = stream
        _go_to(stream, start)
        self._buffer = b""
        self._at = 0
        self._begin = start
        self._piece = _INPUT_BYTES
        self._careful: int | None = None

    @property
    def place(self) -> int:
        """The byte of the file that comes next."""
        return self._begin + self._at

    @property
    def is_careful(self) -> bool:
        """Whether the next bytes are fed one by one."""
        return self._careful is not None and self._careful <= self.place < self._careful + _CAREFUL_BYTES

    def be_careful(self, place: int) -> None:
        """Feed the bytes after this one of the file one by one."""
        self._careful = place

    def take(self) -> bytes:
        """The next piece; empty at the end."""
        most = self._piece
        if self.is_careful:
            most = 1
        elif self._careful is not None and self.place < self._careful:
            most = min(most, self._careful - self.place)
        self._fill(1)
        found = self._buffer[self._at : self._at + most]
        self._at += len(found)
        self._piece = min(2 * self._piece, _INPUT_BYTES)
        return found

    def give_back(self, count: int, unit_bytes: int) -> None:
        """A unit of so many bytes ended before the last `count` of those taken."""
        self._at -= count
        self._piece = min(max(2 * unit_bytes, _LEAST_INPUT), _INPUT_BYTES)

    def head(self) -> bytes:
        """The next bytes, which are not taken."""
        self._fill(_HEAD_BYTES)
        return self._buffer[self._at : self._at + _HEAD_BYTES]

    def skip_zeros(self) -> int:
        """Pass over zeros, and say how many there were."""
        count = 0
        self._fill(1)
        while self._buffer.startswith(b"\0", self._at):
            rest = self._buffer[self._at :]
            zeros = len(rest) - len(rest.lstrip(b"\0"))
            self._at += zeros
            count += zeros
            self._fill(1)
        return count

    def close(self) -> None:
        self._stream.close()

    def _fill(self, least: int) -> None:
        while len(self._buffer) - self._at < least:
            block = self._stream.read(_LEAST_INPUT if self.is_careful else _INPUT_BYTES)
            self._begin += self._at
            self._buffer, self._at = self._buffer[self._at :] + block, 0
            if not block:
                return


class Decompressed:
    """A compressed file, decompressed by one core, unit after unit.

    Where the fastest decoder fails, the unit is read again by the one that is the same on every machine, in smaller
    steps. So what is read of a file that is cut off, and the message, do not depend on libraries.

    open_raw: opens the file anew. start: the byte at which a unit begins.
    """

    def __init__(self, open_raw: Callable[[], BinaryIO], compression: Compression, start: int = 0) -> None:
        self._open_raw = open_raw
        self._compression = compression
        self._raw = Raw(open_raw(), start)
        self._unit_start = start
        self._unit_given = 0
        self._fed = start  # the byte of the file at which the last piece began
        self._decoder: Decoder | None = None
        self._exact = False
        self._ready = memoryview(b"")
        self._failure: Exception | None = None
        self._last: deque[bytes] = deque()  # of what was read, so that a unit that is cut off is not read again
        self._last_bytes = 0

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises Damaged, or what the file raises, after all that is before."""
        while not self._ready and self._failure is None:
            try:
                block = self._next(_MOST_OUTPUT if self._exact else size)
            except Damaged as error:
                self._failure = error
            except InputUnavailable:
                raise
            except Exception as error:  # of the decoder, each of which has errors of its own, or of the file
                self._back(error)
            else:
                if len(block) <= size:
                    return block
                self._ready = memoryview(block)
        if not self._ready and self._failure is not None and not self._goes_on():
            raise self._failure
        found, self._ready = bytes(self._ready[:size]), self._ready[size:]
        return found

    def close(self) -> None:
        self._raw.close()

    def _next(self, size: int) -> bytes:
        """Some bytes; none at the end of the file."""
        while True:
            decoder = self._decoder or self._begin()
            if decoder is None:
                return b""
            if decoder.eof:
                self._end(decoder)
                continue
            data = b""
            if decoder.needs_input:
                self._fed = self._raw.place
                data = self._raw.take()
                if not data:
                    raise EOFError(f"it ends within a {self._compression.name} {self._compression.unit}")
            if block := decoder.decompress(data, size):
                self._unit_given += len(block)
                if self._compression.rest is not None:
                    self._last.append(block)
                    self._last_bytes += len(block)
                    while self._last_bytes - len(self._last[0]) >= _MOST_LAST:
                        self._last_bytes -= len(self._last.popleft())
                return block

    def _begin(self) -> Decoder | None:
        """A decoder for the next unit; None at the end of the file."""
        self._unit_start = self._fed = self._raw.place
        self._unit_given = 0
        head = self._raw.head()
        if not head:
            return None
        if not self._compression.begins(head):
            what = f"{self._compression.name} {self._compression.unit}"
            raise Damaged(f"what follows is no {what}" if self._raw.place else f"it does not begin with a {what}")
        if why := refusal(self._compression, head):
            raise Damaged(why)
        self._decoder = (self._compression.exact if self._exact else self._compression.decoder)()
        return self._decoder

    def _end(self, decoder: Decoder) -> None:
        self._raw.give_back(len(decoder.unused_data or b""), self._raw.place - self._unit_start)
        self._decoder, self._exact = None, False
        if padding := self._compression.padding:
            zeros = self._raw.skip_zeros()
            if zeros % padding:
                raise Damaged(f"{zeros} zeros follow, not a multiple of {padding}")

    def _back(self, error: Exception) -> None:
        """Read the unit again to where the failing call began, and on from there with care, unless that was done."""
        if self._raw.is_careful or (self._exact and self._fed < self._raw.place <= self._fed + 1):
            self._failure = _told(error)
            return
        given = self._unit_given
        try:
            if isinstance(error, EOFError) and (rest := self._rest()) is not None:
                self._ready, self._failure = memoryview(rest), _told(error)
                return
            self._raw.close()
            self._raw = Raw(self._open_raw(), self._unit_start)
            self._raw.be_careful(self._fed)
            self._exact = True
            self._decoder, self._unit_given = None, 0
            while self._unit_given < given and self._next(min(given - self._unit_given, _INPUT_BYTES)):
                pass
        except Exception as again:
            self._failure = _told(again)

    def _goes_on(self) -> bool:
        """Whether there is a unit with the mark after a damaged one: then that is read next, after a zero byte."""
        if not (self._compression.mark and isinstance(self._failure, Damaged)):
            return False
        place = _next_marked(self._open_raw, self._unit_start + 1, self._compression.mark)
        if place is None:
            return False
        self._raw.close()
        self._raw = Raw(self._open_raw(), place)
        self._decoder, self._exact, self._failure = None, False, None
        self._ready = memoryview(b"\0")
        return True

    def _rest(self) -> bytes | None:
        """What `exact` reads of a large unit that is cut off after all that was read; None where it must be asked."""
        end = self._raw.place
        if self._compression.rest is None or self._exact or end - self._unit_start < _LEAST_CUT_OFF:
            return None
        for size in _TAILS:
            with closing(self._open_raw()) as stream:
                if not stream.seekable():
                    return None
                stream.seek(end - size)
                tail = stream.read(size)
            if (rest := self._compression.rest(tail, b"".join(self._last))) is not None:
                return rest
        return None


def _next_marked(open_raw: Callable[[], BinaryIO], start: int, mark: bytes) -> int | None:
    """The byte, `start` or later, at which a gzip member begins whose content begins with the mark."""
    with closing(open_raw()) as stream:
        _go_to(stream, start)
        held = block = stream.read(_INPUT_BYTES)
        while held:
            looked_at = max(0, len(held) - (_LEAST_INPUT if block else 0))
            for found in re.finditer(re.escape(GZIP_MAGIC), held[: looked_at + len(GZIP_MAGIC) - 1]):
                if beginning(held[found.start() :][:_LEAST_INPUT], len(mark)) == mark:
                    return start + found.start()
            held, start = held[looked_at:], start + looked_at
            block = stream.read(_INPUT_BYTES) if block else b""
            held += block
    return None


def decompressed(data: bytes, compression: Compression, most: int) -> bytes | None:
    """The content of a small file at once; None where it is not one whole unit of up to `most` bytes of content, which
    `Decompressed` reads.
    """
    head = data[:_HEAD_BYTES]
    if not compression.begins(head) or refusal(compression, head):
        return None
    decoder = compression.decoder()
    try:
        found = decoder.decompress(data, most + 1)
    except Exception:  # each library has errors of its own
        return None
    return found if decoder.eof and not decoder.unused_data and len(found) <= most else None


def _told(error: Exception) -> Exception:
    """An error of the file as it is, one of a decoder as damage."""
    if isinstance(error, OSError | SourceError | Damaged):
        return error
    return Damaged(str(error).partition("\n")[0] or type(error).__name__)


def _go_to(stream: BinaryIO, place: int) -> None:
    if stream.seekable():
        stream.seek(place)
        return
    while place and (block := stream.read(min(place, 1 << 22))):
        place -= len(block)


ZSTD = COMPRESSIONS["zstd"]
MOST_STORED = 16 << 20
"""Compressed bytes of a frame; a larger one is read by one core."""
_MOST_CONTENT = 32 << 20
_LEAST_BYTES = 4 << 20
_MOST_BLOCKS = 100_000
_READ_BYTES = 4 << 20
_MOST_CORES = 16


def frames_pay(compression: Compression, stored: int) -> bool:
    """Whether several cores may be faster than one, for a file of so many compressed bytes."""
    return compression is ZSTD and stored >= _LEAST_BYTES and PARSING.share() > 1


def frames_can_be_cut(head: bytes) -> bool:
    """Whether a file with these first bytes, `MOST_STORED` of them, begins with frames that several cores can read."""
    data = memoryview(head)
    try:
        while data and (count := frame_bytes(data)) is not None:
            if not is_skippable(bytes(data[:4])):
                return count < len(data)
            data = data[count:]
    except Irregular:
        pass
    return False


class Irregular(Exception):
    """No frame begins here that could be cut out."""


def frame_bytes(data: memoryview) -> int | None:
    """Compressed bytes of the frame at the beginning of `data` (RFC 8878, 3.1.1); None where it goes on after it."""
    try:
        if is_skippable(bytes(data[:4])):
            place = 8 + _number(data, 4, 4)
            return place if place <= len(data) else None
        if not ZSTD.begins(bytes(data[:4])):
            raise Irregular
        flags = _number(data, 4, 1)
        one_segment = flags >> 5 & 1
        place = 5 + (not one_segment) + (0, 1, 2, 4)[flags & 3] + (one_segment, 2, 4, 8)[flags >> 6]
        last = blocks = 0
        while not last:
            if (blocks := blocks + 1) > _MOST_BLOCKS:
                raise Irregular
            block = _number(data, place, 3)
            last, kind, size = block & 1, block >> 1 & 3, block >> 3
            place += 3 + (1 if kind == 1 else size)
        place += 4 * (flags >> 2 & 1)
    except IndexError:
        return None
    return place if place <= len(data) else None


class Frames:
    """A zstd file, decompressed by several cores as far as its frames can be cut out.

    open_raw: opens the file anew. stored: its bytes; a frame that is the whole file is one core's.
    """

    def __init__(self, open_raw: Callable[[], BinaryIO], stored: int) -> None:
        self._open_raw = open_raw
        self._stored = stored
        self._raw = open_raw()
        self._buffer = memoryview(b"")
        self._place = 0  # the byte of the file at which the buffer begins
        self._contents = in_order(_pool(), self._calls(), lambda: min(PARSING.share(), _MOST_CORES))
        self._ready = memoryview(b"")
        self._rest: Decompressed | None = None

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises as `Decompressed` does."""
        while not self._ready and self._rest is None:
            place, content = next(self._contents, (self._place, None))
            if content is None:
                self._give_up()
                self._rest = Decompressed(self._open_raw, ZSTD, place)
            else:
                self._ready = memoryview(content)
        if self._ready:
            found, self._ready = bytes(self._ready[:size]), self._ready[size:]
            return found
        assert self._rest is not None
        return self._rest.read(size)

    def close(self) -> None:
        self._give_up()
        if self._rest is not None:
            self._rest.close()

    def _calls(self) -> Iterator[Callable[[], tuple[int, bytes | None]]]:
        """What decompresses each frame, and says where it begins, up to where one core must read on: at the end of the
        file, and where it cannot be read. Of a frame longer than a block all is read next, so it is searched twice.
        """
        block = b" "
        while block:
            try:
                count = frame_bytes(self._buffer) if self._buffer else None
                if count == self._stored:
                    return
                if count is not None:
                    frame, self._buffer = bytes(self._buffer[:count]), self._buffer[count:]
                    self._place += count
                    yield partial(_content, frame, self._place - count)
                    continue
                held = len(self._buffer)
                block = self._raw.read(_READ_BYTES if held < _READ_BYTES else MOST_STORED - held)
            except (Irregular, OSError, SourceError):
                return
            self._buffer = memoryview(b"".join((self._buffer, block)))

    def _give_up(self) -> None:
        self._contents.close()
        self._buffer = memoryview(b"")
        self._raw.close()


def _content(frame: bytes, place: int) -> tuple[int, bytes | None]:
    """Where a frame begins, and what it holds; None where that is too much, or cannot be read."""
    decoder = ZSTD.decoder()
    found = []
    room = _MOST_CONTENT
    try:
        while not decoder.eof and room:
            found.append(decoder.decompress(frame, min(room, 4 << 20)))
            frame = b""
            room -= len(found[-1])
            if decoder.needs_input and not decoder.eof:
                return place, None
    except Exception:  # whatever it is, one core finds it again and says it
        return place, None
    return place, b"".join(found) if decoder.eof else None


def _number(data: memoryview, place: int, width: int) -> int:
    """Raises IndexError where the data end before it."""
    if place + width > len(data):
        raise IndexError
    return int.from_bytes(data[place : place + width], "little")


@cache
def _pool() -> ThreadPoolExecutor:
    """One for all files of this process."""
    return ThreadPoolExecutor(min(available_cores(), _MOST_CORES), "frames")
