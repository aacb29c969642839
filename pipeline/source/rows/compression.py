"""Finds the compression and the encoding of a file by its first bytes, and turns other encodings into UTF-8.

Text in another encoding becomes a stream of UTF-8 in which bad bytes stay recognisable: a byte that is not valid in
the encoding becomes the code point U+DC00 plus the byte, written in three bytes. These are not valid UTF-8, so the row
that holds them, and no other, is quarantined like a bad row of a UTF-8 file.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from ...errors import UsageError

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
"""How many first bytes are searched for zeros; and the share of zeros in every second byte from which on they are
taken for UTF-16.
"""

_REASON = re.compile(r" is not (\S+): (?:byte \d+ of it is|after [\d,]+ characters comes) 0x")
"""Finds the encoding in the texts of `why_not_decoded`, which are stored with the quarantined rows."""


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(chr(0xDC00 + byte) for byte in error.object[error.start : error.end]), error.end


codecs.register_error(_ESCAPE, _escape)


def encoding_named(name: str) -> str:
    """Return Python's name of an encoding. Raises UsageError if it is unknown, or is no encoding of files."""
    try:
        encoding = codecs.lookup(name).name
        "".encode(encoding)  # some codecs are not for text
    except (LookupError, ValueError, TypeError, UnicodeError):
        encoding = "undefined"
    if encoding in _NOT_OF_FILES:
        raise UsageError(
            f"encoding {name!r} is not known: give one that Python has, e.g. utf-8, latin-1, cp1252, utf-16, gb18030"
        )
    return _SAME.get(encoding, encoding)


def looks_like(head: bytes) -> str | None:
    """Return the encoding that the first bytes of a file show if it is UTF-16 or UTF-32, and None otherwise."""
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    low, high = head[:_LOOKED_AT:2], head[1:_LOOKED_AT:2]
    zeros = [half.count(0) > _MANY * max(len(half), 1) for half in (low, high)]
    if all(zeros):  # no encoding of two bytes gives this: it may be a file of zeros
        return None
    return "utf-16-be" if zeros[0] else "utf-16-le" if zeros[1] else None


def why_not_decoded(value: bytes, encoding: str) -> str | None:
    """Return why a value is not text, in words that follow its name: "is not UTF-8: byte 3 of it is 0xe9". Return None
    if it is text.
    """
    try:
        value.decode(UTF8)
    except UnicodeDecodeError as error:
        if encoding == UTF8 or not _ESCAPED.match(value, error.start):
            return f"is not UTF-8: byte {error.start} of it is 0x{value[error.start]:02x}"
        before, byte = len(value[: error.start].decode(UTF8)), unescaped(value[error.start :][:3])[:1]
        return f"is not {encoding}: after {before:,} characters comes 0x{byte.hex()}"
    return None


def not_decoded(reason: str) -> str | None:
    """Return the encoding in which a row could not be read, if the reason for its quarantine says that."""
    match = _REASON.search(reason)
    return match and match[1]


def unescaped(head: bytes) -> bytes:
    """Return the first bytes of a row with its bad bytes as they are in the file."""
    return _ESCAPED.sub(lambda match: bytes([(match[1][0] & 0x03) << 6 | (match[2][0] & 0x3F)]), head)


class Transcoded:
    """Turns a stream of text in some encoding into a stream of UTF-8, read front to back."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(_ESCAPE)
        self._left = b""
        self._ended = False

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, or none at the end."""
        while not (self._left or self._ended):
            block = self._stream.read(size)
            self._ended = not block
            self._left = self._decoder.decode(block, self._ended).encode(UTF8, "surrogatepass")
        text, self._left = self._left[:size], self._left[size:]
        return text

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Transcoded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


HEAD_BYTES = 1000
"""How many first bytes of a file tell its compression."""
_SURE_BYTES = 8
"""A file with fewer bytes is no whole file of any compression, so it could be anything."""
_NOT_TEXT = frozenset(range(32)) - frozenset(b"\t\n\v\f\r\x1a\x1b")
"""Bytes that no text has in an encoding that is compatible with ASCII."""


@dataclass(frozen=True)
class Compression:
    """A compression that files may have.

    Attributes
    ----------
    name : str
        The name that Arrow gives it.
    suffix : str
        The suffix of a file's name that promises it.
    unit : str
        The unit whose repetition makes a file.
    begins : callable
        Whether a unit can begin with these bytes, also if they end early.

    """

    name: str
    suffix: str
    unit: str
    begins: Callable[[bytes], bool]


def _magic(magic: bytes) -> Callable[[bytes], bool]:
    """Return a function that tells whether a unit with this magic number can begin with given bytes, also if they end
    early.
    """
    return lambda head: bool(head) and head[: len(magic)] == magic[: len(head)]


def _frame(magic: bytes) -> Callable[[bytes], bool]:
    """Return a function that tells whether a zstd or lz4 frame, or one that is skipped, can begin with given bytes."""
    return lambda head: _magic(magic)(head) or _is_skippable(head)


_is_lz4 = _frame(b"\x04\x22\x4d\x18")
_is_legacy_lz4 = _magic(b"\x02\x21\x4c\x18")


def _is_bz2(head: bytes) -> bool:
    """Whether the bytes begin a bz2 stream. Its three letters and digit alone could be text, so a block or the end of
    the stream must follow.
    """
    digits = (b"", *(b"%d" % digit for digit in range(1, 10)))
    follow = head[4:10]
    magics = (b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90")
    return _magic(b"BZh")(head) and head[3:4] in digits and any(magic.startswith(follow) for magic in magics)


def _is_skippable(head: bytes) -> bool:
    """Whether the bytes begin a frame of zstd or lz4 that holds no data, such as a table of the other frames."""
    return len(head) >= 4 and 0x50 <= head[0] <= 0x5F and head[1:4] == b"\x2a\x4d\x18"


COMPRESSIONS = {
    compression.name: compression
    for compression in (
        Compression("gzip", ".gz", "member", _magic(b"\x1f\x8b\x08")),
        Compression("zstd", ".zst", "frame", _frame(b"\x28\xb5\x2f\xfd")),
        Compression("bz2", ".bz2", "stream", _is_bz2),
        Compression("xz", ".xz", "stream", _magic(b"\xfd7zXZ\x00")),
        Compression("lz4", ".lz4", "frame", lambda head: _is_lz4(head) or _is_legacy_lz4(head)),
    )
}
"""The compressions by Arrow's names."""
SUFFIXES = {compression.suffix: compression.name for compression in COMPRESSIONS.values()}
"""The compression that each suffix promises."""


def compression_of(head: bytes, named: str | None = None) -> Compression | None:
    """Return the compression of a file by its first bytes, whatever its name says, or None if it has none.

    A file that begins like no known compression and not like text is damaged. Its compression is the one that its name
    promises.
    """
    expected = COMPRESSIONS.get(named or "")
    if expected and expected.begins(head):
        return expected
    known = COMPRESSIONS.values() if len(head) >= _SURE_BYTES else ()
    shown = next((compression for compression in known if compression.begins(head)), None)
    return shown or (None if _is_text(head) else expected)


def _is_text(head: bytes) -> bool:
    return not any(byte in _NOT_TEXT for byte in head) or looks_like(head) is not None
