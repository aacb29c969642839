"""Decompresses files with the libraries: gzip with their file classes, the other compressions unit by unit.

However large a file becomes, a read returns no more than was asked for, so memory is bounded.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from importlib.util import find_spec
from typing import BinaryIO, Protocol, TypeAlias, cast

from ..rows.compression import Compression
from .frames import HEADER_BYTES, Dictionaries, lz4_decoder, most_window

_HAS_ISAL = find_spec("isal") is not None  # isal has no wheel for some machines
_INPUT_BYTES = 64 << 10
PIECE_BYTES = 128 << 10
"""The number of bytes of content that one read asks for, and the most that are lost if it fails."""
_MOST_XZ = 256 << 20
"""The limit of memory for xz, in bytes; `xz -9` takes 65 MiB."""
_XZ_PADDING = 4
"""The number of zeros between xz streams and after them must be a multiple of this."""


class Content(Protocol):
    """The content of a file, read front to back."""

    def read1(self, size: int, /) -> bytes:
        """Return up to `size` bytes, or none at the end. A call that raises an error loses what it has read."""


_Decoder: TypeAlias = bz2.BZ2Decompressor
"""Decompresses one frame or stream. The decoders of the other libraries have the same methods."""


def content_of(stored: BinaryIO, compression: Compression | None, exact: bool = False) -> Content:
    """Return the content of a file. exact: use zlib for gzip, which loses the fewest bytes if it fails, and the same
    number on every machine.
    """
    if compression is None:
        return cast(Content, stored)
    if compression.name != "gzip":
        return _Units(cast(Content, stored), compression)
    if exact or not _HAS_ISAL:
        return gzip.GzipFile(fileobj=stored, mode="rb")
    from isal import igzip

    return cast(Content, igzip.IGzipFile(fileobj=stored, mode="rb"))


class _Units:
    """Zstd or lz4 frames, or bz2 or xz streams, one after the other. The file classes of the libraries (such as
    `bz2.BZ2File`) end without an error if something else follows a unit.
    """

    def __init__(self, stored: Content, compression: Compression) -> None:
        self._stored = stored
        self._compression = compression
        self._data = b""
        self._decoder: _Decoder | None = None
        self._dictionaries = Dictionaries()

    def read1(self, size: int) -> bytes:
        """Return up to `size` bytes, or none at the end."""
        while decoder := self._decoder or self._next():
            if decoder.eof:
                self._data, self._decoder = decoder.unused_data or b"", None
                if self._compression.name == "xz":
                    self._skip_padding()
                continue
            data = b""
            if decoder.needs_input:
                data, self._data = self._ahead(), b""
                if not data and getattr(decoder, "may_end", False):
                    return b""
                if not data:
                    raise EOFError(f"it ends within a {self._compression.name} {self._compression.unit}")
            if block := decoder.decompress(data, size):
                return block
        return b""

    def _next(self) -> _Decoder | None:
        """Return a decoder for the next unit, or None at the end. Raises NotSupported."""
        if not self._ahead():
            return None
        name = self._compression.name
        if name == "zstd":
            self._dictionaries.look(self._ahead)
            self._decoder = self._dictionaries.decoder(self._ahead(HEADER_BYTES))
        elif name == "lz4":
            self._decoder = lz4_decoder(self._ahead(HEADER_BYTES))
        elif name == "bz2":
            self._decoder = bz2.BZ2Decompressor()
        else:
            self._decoder = cast(_Decoder, lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_XZ))
        return self._decoder

    def _skip_padding(self) -> None:
        zeros = 0
        while self._ahead().startswith(b"\0"):
            data = self._data.lstrip(b"\0")
            zeros += len(self._data) - len(data)
            self._data = data
        if zeros % _XZ_PADDING:
            raise ValueError(f"{zeros} zeros follow, not a multiple of {_XZ_PADDING}")

    def _ahead(self, least: int = 1) -> bytes:
        """Return the bytes that no decoder has consumed yet: at least `least` of them, unless the file ends."""
        pieces, count = [self._data], len(self._data)
        while count < least and (piece := self._stored.read1(_INPUT_BYTES)):
            pieces.append(piece)
            count += len(piece)
        self._data = b"".join(pieces)
        return self._data


def why(error: Exception) -> str:
    """Return the reason why a file cannot be read further, in words that a user understands."""
    if "requires too much memory" in str(error):
        window = most_window()
        return (
            f"its zstd frame asks for a window of more than {1 << (window - 20):,} MiB: compress it with "
            f"--long={window} or less, or use fewer cores (taskset): all of them may take half of the memory"
        )
    return str(error).partition("\n")[0] or type(error).__name__


def beginning(
    head: bytes, compression: Compression | None, max_bytes: int = 64 << 20
) -> tuple[bytes, Exception | None]:
    """Decompress the first bytes of a file. Return the content, and the error that ended it, for example that the bytes
    end there.

    Parameters
    ----------
    head : bytes
        The first bytes.
    compression : Compression or None
        The compression of the file.
    max_bytes : int
        The largest number of decompressed bytes.

    """
    held, failure = _held(head, compression, max_bytes, PIECE_BYTES)
    if not held and failure is not None:  # a read that fails loses what it has decompressed, so read byte by byte
        held, failure = _held(head, compression, max_bytes, 1)
    return held, failure


def _held(head: bytes, compression: Compression | None, left: int, size: int) -> tuple[bytes, Exception | None]:
    """Decompress the first bytes of a file in pieces of `size` bytes."""
    content, pieces = content_of(cast(BinaryIO, io.BytesIO(head)), compression, exact=True), []
    try:
        while left > 0 and (piece := content.read1(min(left, size))):
            pieces.append(piece)
            left -= len(piece)
    except Exception as error:  # each library has errors of its own
        return b"".join(pieces), error
    return b"".join(pieces), None
