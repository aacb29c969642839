"""Decodes what the libraries do not handle in zstd and lz4 frames: dictionaries, and lz4's legacy frame.

If a zstd file has its own dictionary, it is used. It comes in a frame that other programs skip, as in the .warc.zst
files of https://iipc.github.io/warc-specifications/specifications/warc-zstd/. Legacy frames are described in
https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from ...errors import install
from ...processes.threads import available_cores, available_memory

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZSTD_MAGIC, LZ4_MAGIC, LEGACY_MAGIC = b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\x02\x21\x4c\x18"
HEADER_BYTES = 18
"""The length of the longest header of a frame."""

_WINDOWS = (27, 31)
"""Windows of a zstd frame, as powers of two: 128 MiB, which zstd always allows, and 2 GiB, the longest
window there is.
"""
_DICTIONARY_MAGIC = b"\x37\xa4\x30\xec"
_MOST_DICTIONARY = 32 << 20
_SKIPPABLE = struct.Struct("<II")
_LENGTH = 4
_HAS_DICTIONARY = 0x1
"""A bit of the flags of an lz4 frame, which follow its magic number."""
_LEGACY_BLOCK = 8 << 20
_MOST_LEGACY = _LEGACY_BLOCK + _LEGACY_BLOCK // 255 + 16
"""The largest size of a compressed block. Data that cannot be compressed becomes a little longer."""


class NotSupported(Exception):
    """Raised for content that is whole but cannot be read here. Its message gives the reason and a remedy."""


@cache
def most_window() -> int:
    """Return the longest window of a zstd frame that is allowed here, as a power of two. If every core reads such a
    file, the windows take half of the memory.
    """
    smallest, largest = _WINDOWS
    return max(smallest, min(largest, (available_memory() // (2 * available_cores())).bit_length() - 1))


def is_skippable(head: bytes) -> bool:
    """Whether these bytes begin a frame that zstd and lz4 skip, such as a table of other frames or a dictionary."""
    return len(head) >= 4 and 0x50 <= head[0] <= 0x5F and head[1:4] == b"\x2a\x4d\x18"


class Dictionaries:
    """The dictionaries of a zstd file that the file itself holds."""

    def __init__(self) -> None:
        self._by_id: dict[int, Any] = {}
        self._last: Any = None

    def look(self, ahead: Callable[[int], bytes]) -> None:
        """Note the dictionary in a frame that is skipped.

        ahead: a function that takes a number and returns at least this number of the next bytes, unless the file ends.
        """
        head = ahead(_SKIPPABLE.size)
        if not is_skippable(head) or len(head) < _SKIPPABLE.size:
            return
        size = _SKIPPABLE.unpack_from(head)[1]
        content = ahead(_SKIPPABLE.size + len(_DICTIONARY_MAGIC))[_SKIPPABLE.size :]
        if size > _MOST_DICTIONARY or not content.startswith((_DICTIONARY_MAGIC, ZSTD_MAGIC)):
            return
        content = ahead(_SKIPPABLE.size + size)[_SKIPPABLE.size :][:size]
        try:
            if content.startswith(ZSTD_MAGIC):
                content = zstd.ZstdDecompressor().decompress(content, _MOST_DICTIONARY)
            if content.startswith(_DICTIONARY_MAGIC):
                self._last = zstd.ZstdDict(content)
                self._by_id[self._last.dict_id] = self._last
        except (zstd.ZstdError, ValueError):  # the frame is for another program
            return

    def decoder(self, head: bytes) -> Any:
        """Return a decoder for the frame that begins with these bytes. Raises NotSupported if its dictionary is not in
        the file.
        """
        options = {int(zstd.DecompressionParameter.window_log_max): most_window()}
        wanted = 0
        if head.startswith(ZSTD_MAGIC):
            with suppress(zstd.ZstdError):  # the decoder reports what is wrong
                wanted = zstd.get_frame_info(head[:HEADER_BYTES]).dictionary_id
        if wanted and wanted not in self._by_id:
            raise NotSupported(
                f"a zstd frame was compressed with dictionary {wanted}, which is not in the file: decompress it first "
                "(zstd -d -D DICTIONARY FILE)"
            )
        return zstd.ZstdDecompressor(self._by_id.get(wanted, self._last), options)


def lz4_decoder(head: bytes) -> Any:
    """Return a decoder for the lz4 frame that begins with these bytes.

    Raises NotSupported if it needs a dictionary, or lz4 is not installed.
    """
    try:
        import lz4.frame
    except ModuleNotFoundError as error:
        raise NotSupported(f"lz4 is not installed: {install('lz4')}, or decompress the file first (lz4 -d)") from error
    if head.startswith(LEGACY_MAGIC):
        return LegacyLz4()
    if head.startswith(LZ4_MAGIC) and head[4:5] and head[4] & _HAS_DICTIONARY:
        raise NotSupported(
            "an lz4 frame was compressed with a dictionary, which is not in the file: decompress it first "
            "(lz4 -d -D DICTIONARY FILE)"
        )
    return lz4.frame.LZ4FrameDecompressor()


class LegacyLz4:
    """Decompresses lz4's legacy frame, which `lz4 -l` writes in blocks of 8 MiB. It has the methods of the other
    decoders.

    `may_end` says whether the file may end here. A legacy frame does not say where it ends: it ends with the file, or
    where another frame begins.
    """

    def __init__(self) -> None:
        self._stored = bytearray()
        self._ready = memoryview(b"")
        self._has_begun = False
        self.eof = False
        self.unused_data = b""

    @property
    def needs_input(self) -> bool:
        return not self._ready and not self._is_whole

    @property
    def may_end(self) -> bool:
        return self._has_begun and not (self._stored or self._ready)

    @property
    def _is_whole(self) -> bool:
        """Whether all bytes of the next block have arrived."""
        if len(self._stored) < _LENGTH:
            return False
        return self._size > _MOST_LEGACY or len(self._stored) >= _LENGTH + self._size

    @property
    def _size(self) -> int:
        """The size of the next block in compressed bytes."""
        return int.from_bytes(self._stored[:_LENGTH], "little")

    def decompress(self, data: bytes, max_bytes: int) -> bytes:
        """Return up to `max_bytes` decompressed bytes. data: the next stored bytes, which may be empty."""
        self._stored += data
        if not self._has_begun:
            if len(self._stored) < len(LEGACY_MAGIC):
                return b""
            del self._stored[: len(LEGACY_MAGIC)]
            self._has_begun = True
        if not self._ready and self._is_whole:
            self._next_block()
        block, self._ready = bytes(self._ready[:max_bytes]), self._ready[max_bytes:]
        return block

    def _next_block(self) -> None:
        size = self._size
        if size > _MOST_LEGACY:  # this is the magic number of another frame
            self.eof, self.unused_data = True, bytes(self._stored)
            return
        block = self._stored[_LENGTH : _LENGTH + size]
        del self._stored[: _LENGTH + size]
        import lz4.block

        self._ready = memoryview(lz4.block.decompress(block, uncompressed_size=_LEGACY_BLOCK))
