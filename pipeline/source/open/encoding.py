"""Text in other encodings than UTF-8: a stream of bytes becomes one of UTF-8, in which bad bytes stay recognisable.

A byte that is not valid in the encoding becomes the code point U+DC00 plus the byte, written in three bytes. Those are
not UTF-8, so the row that holds them, and no other, is quarantined as a row of a UTF-8 file would be.
"""

from __future__ import annotations

import codecs
import re
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
