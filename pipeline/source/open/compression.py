"""What a file is by its first bytes, its compression and its encoding, and what turns it into UTF-8.

A decompressor is an object like those of `bz2` and `lzma`: it takes the bytes of one gzip member, zstd or lz4 frame, or
bz2 or xz stream, returns no more than it is asked for, and knows where that ends. So memory is bounded whatever a file
holds, and all compressions are read in one way.

Text in another encoding becomes a stream of UTF-8, in which bad bytes stay recognisable: a byte that is not valid in
the encoding becomes the code point U+DC00 plus the byte, written in three bytes. Those are not UTF-8, so the row that
holds them, and no other, is quarantined as a row of a UTF-8 file would be.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import re
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, BinaryIO, Protocol, cast

import lz4.frame

from ...errors import UsageError
from ...processes.threads import available_cores, available_memory

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


UTF8 = "utf-8"
_ESCAPE = "broadsheet-escape"
_ESCAPED = re.compile(rb"\xed([\xb0-\xb3])([\x80-\xbf])")
_NOT_OF_FILES = {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"}
_SAME = {"utf-8-sig": UTF8}  # a byte order mark is skipped in any file
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_LOOKED_AT, _MANY = 1000, 0.3
_REASON = re.compile(r" is not (\S+): (?:byte \d+ of it is|after [\d,]+ characters comes) 0x")


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(chr(0xDC00 + byte) for byte in error.object[error.start : error.end]), error.end


codecs.register_error(_ESCAPE, _escape)


def encoding_named(name: str) -> str:
    """Python's name of an encoding. Raises UsageError for one that is not known, or that files do not have."""
    try:
        found = codecs.lookup(name).name
        "".encode(found)  # not every codec is one of text
    except (LookupError, ValueError, TypeError, UnicodeError):
        found = "undefined"
    if found in _NOT_OF_FILES:
        raise UsageError(
            f"encoding {name!r} is not known: give one that Python has, e.g. utf-8, latin-1, cp1252, utf-16, gb18030"
        )
    return _SAME.get(found, found)


def looks_like(head: bytes) -> str | None:
    """The encoding that the first bytes of a file show, where that is UTF-16 or UTF-32; None for all others."""
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    low, high = head[:_LOOKED_AT:2], head[1:_LOOKED_AT:2]
    zeros = [half.count(0) > _MANY * max(len(half), 1) for half in (low, high)]
    if all(zeros):  # no text in any encoding of two bytes: such as a file of zeros
        return None
    return "utf-16-be" if zeros[0] else "utf-16-le" if zeros[1] else None


def why_not_decoded(value: bytes, encoding: str) -> str | None:
    """Why a value is not text, to follow its name: "is not UTF-8: byte 3 of it is 0xe9"; None where it is text."""
    try:
        value.decode(UTF8)
    except UnicodeDecodeError as error:
        if encoding == UTF8 or not _ESCAPED.match(value, error.start):
            return f"is not UTF-8: byte {error.start} of it is 0x{value[error.start]:02x}"
        before, byte = len(value[: error.start].decode(UTF8)), unescaped(value[error.start :][:3])[:1]
        return f"is not {encoding}: after {before:,} characters comes 0x{byte.hex()}"
    return None


def not_decoded(reason: str) -> str | None:
    """The encoding that a row does not have, where this reason for its quarantine says so."""
    found = _REASON.search(reason)
    return found and found[1]


def unescaped(head: bytes) -> bytes:
    """The first bytes of a row with its bad bytes as they are in the file."""
    return _ESCAPED.sub(lambda found: bytes([(found[1][0] & 0x03) << 6 | (found[2][0] & 0x3F)]), head)


class Transcoded:
    """A stream of text in some encoding as a stream of UTF-8, read front to back."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(_ESCAPE)
        self._left = b""
        self._ended = False

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end."""
        while not (self._left or self._ended):
            block = self._stream.read(size)
            self._ended = not block
            self._left = self._decoder.decode(block, self._ended).encode(UTF8, "surrogatepass")
        found, self._left = self._left[:size], self._left[size:]
        return found

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Transcoded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_HAS_ISAL = find_spec("isal") is not None  # it has no wheel for some machines
_WINDOWS = (27, 31)
"""Of a zstd frame, as powers of two: 128 MiB, what zstd itself always allows, and 2 GiB, the longest that it has."""
_MOST_XZ = 256 << 20
"""Bytes of memory for xz; `xz -9` takes 65 MiB."""
HEAD_BYTES = 1000
"""So many first bytes of a file tell its compression."""
_SURE_BYTES = 8
"""Fewer are no whole file of any compression, so they could be anything."""
_NOT_TEXT = frozenset(range(32)) - frozenset(b"\t\n\v\f\r\x1a\x1b")
"""Bytes that are in no text of an encoding that is compatible with ASCII."""


class Decoder(Protocol):
    """Decompresses one member, frame or stream."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


@dataclass(frozen=True)
class Compression:
    """One of them. unit: what a file is a sequence of. decoder: the fastest. exact: the one that decides which bytes of
    damaged data can be read, the same on every machine. padding: zeros between units and at the end are allowed in
    multiples of so many; 0 for none. mark: what units begin with, where reading goes on after a damaged one.
    """

    name: str
    suffix: str
    unit: str
    begins: Callable[[bytes], bool]
    decoder: Callable[[], Decoder]
    exact: Callable[[], Decoder]
    padding: int = 0
    mark: bytes = b""


class _Zlib:
    """The interpreter's own, as a `Decoder`: it is fed in small pieces, since it copies what it does not use."""

    _PIECE = 16 << 10

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=31)
        self._pending = b""
        self._at = 0
        self._full = False  # the last call returned as much as it might: there may be more

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        return not (self.eof or self._full) and self._at == len(self._pending)

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data + self._pending[self._at :] if self.eof else b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data:
            self._pending, self._at = self._pending[self._at :] + data, 0
        found: list[bytes] = []
        room = max_length
        while room and not self.eof:
            piece = self._pending[self._at : self._at + self._PIECE]
            block = self._decoder.decompress(piece, room)
            self._at += len(piece) - len(self._decoder.unconsumed_tail)
            found.append(block)
            room -= len(block)
            if not piece:
                break
        self._full = not room
        return b"".join(found)


def _igzip() -> Decoder:
    from isal import igzip_lib

    return cast(Decoder, igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP))


@cache
def _most_window() -> int:
    """Of a zstd frame here, as a power of two: where every core reads such a file, they take half of the memory."""
    least, most = _WINDOWS
    return max(least, min(most, (available_memory() // (2 * available_cores())).bit_length() - 1))


def _zstd() -> Decoder:
    limit = {int(zstd.DecompressionParameter.window_log_max): _most_window()}
    return cast(Decoder, zstd.ZstdDecompressor(options=limit))


def _xz() -> Decoder:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_XZ)


def _lz4() -> Decoder:
    return cast(Decoder, lz4.frame.LZ4FrameDecompressor())


def _magic(magic: bytes) -> Callable[[bytes], bool]:
    """Whether a unit with these first bytes has this beginning, also if it is cut off within it."""
    return lambda head: bool(head) and head[: len(magic)] == magic[: len(head)]


GZIP_MAGIC = b"\x1f\x8b\x08"
_is_gzip = _magic(GZIP_MAGIC)
_is_zstd_frame = _magic(b"\x28\xb5\x2f\xfd")
_is_xz = _magic(b"\xfd7zXZ\x00")
_is_lz4_frame = _magic(b"\x04\x22\x4d\x18")


def _is_zstd(head: bytes) -> bool:
    return _is_zstd_frame(head) or is_skippable(head)


def _is_lz4(head: bytes) -> bool:
    return _is_lz4_frame(head) or is_skippable(head)


def _is_bz2(head: bytes) -> bool:
    """Three letters and a digit alone could be text: a block or the end of the stream follows."""
    digits = (b"", *(b"%d" % digit for digit in range(1, 10)))
    follow = head[4:10]
    magics = (b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90")
    return _magic(b"BZh")(head) and head[3:4] in digits and any(magic.startswith(follow) for magic in magics)


def is_skippable(head: bytes) -> bool:
    """Whether it begins with a frame of zstd's (or lz4's) that holds no data, such as a table of the others."""
    return len(head) >= 4 and 0x50 <= head[0] <= 0x5F and head[1:4] == b"\x2a\x4d\x18"


COMPRESSIONS = {
    found.name: found
    for found in (
        Compression("gzip", ".gz", "member", _is_gzip, _igzip if _HAS_ISAL else _Zlib, _Zlib, padding=1),
        Compression("zstd", ".zst", "frame", _is_zstd, _zstd, _zstd),
        Compression("bz2", ".bz2", "stream", _is_bz2, bz2.BZ2Decompressor, bz2.BZ2Decompressor),
        Compression("xz", ".xz", "stream", _is_xz, _xz, _xz, padding=4),
        Compression("lz4", ".lz4", "frame", _is_lz4, _lz4, _lz4),
    )
}
"""By Arrow's names."""
SUFFIXES = {found.suffix: found.name for found in COMPRESSIONS.values()}
"""The compression that a name promises."""


def compression_of(head: bytes, named: str | None = None) -> Compression | None:
    """The compression of a file by its first bytes, whatever its name says; None where it has none.

    What begins like nothing that is known, and not like text either, is damaged: it has the compression that is named.
    """
    expected = COMPRESSIONS.get(named or "")
    if expected and expected.begins(head):
        return expected
    found = next((each for each in COMPRESSIONS.values() if len(head) >= _SURE_BYTES and each.begins(head)), None)
    return found or (None if _is_text(head) else expected)


def _is_text(head: bytes) -> bool:
    return not any(byte in _NOT_TEXT for byte in head) or looks_like(head) is not None


def refusal(compression: Compression, head: bytes) -> str:
    """Why a unit that begins so cannot be decompressed, in words of a user; empty where nothing is known."""
    if compression.name == "zstd" and (window := _window(head)) > 1 << (most := _most_window()):
        remedy = "compress it without --long"
        if window <= 1 << _WINDOWS[1]:
            remedy = (
                f"compress it with --long={most}, or use fewer cores (taskset): all of them may take half of the memory"
            )
        return f"its zstd frame asks for a window of {window >> 20:,} MiB, more than {1 << (most - 20):,}: {remedy}"
    return ""


def beginning(head: bytes, most: int = 64 << 20) -> bytes:
    """What the first bytes of a file hold, decompressed, as far as they go, and no more than `most`."""
    compression = compression_of(head)
    if compression is None:
        return head
    found: list[bytes] = []
    while head and most > 0:
        decoder = compression.decoder()
        try:
            while most > 0 and not decoder.eof and (head or not decoder.needs_input):
                found.append(decoder.decompress(head, min(most, 1 << 20)))
                most -= len(found[-1])
                head = b""
        except Exception:  # each library has errors of its own
            break
        head = (decoder.unused_data or b"") if decoder.eof else b""
    return b"".join(found)


def _window(head: bytes) -> int:
    """Bytes of the window that a zstd frame asks for (RFC 8878, 3.1.1.1.2); 0 where it has no such field."""
    if not head.startswith(b"\x28\xb5\x2f\xfd") or len(head) < 18:
        return 0
    descriptor: Any = head[4]
    if descriptor & 0x20:  # one segment: the window is the content
        skipped = (0, 1, 2, 4)[descriptor & 3]
        width = (1, 2, 4, 8)[descriptor >> 6]
        return int.from_bytes(head[5 + skipped : 5 + skipped + width], "little") + (256 if width == 2 else 0)
    exponent, mantissa = head[5] >> 3, head[5] & 7
    base = 1 << (10 + exponent)
    return base + (base >> 3) * mantissa
