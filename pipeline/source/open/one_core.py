"""Which large files only one core can read, and how fast that is: the user could store them otherwise."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import BinaryIO, cast

from ...errors import UsageError
from ..formats.base import InputFile
from . import frames, rapidgzip_reader
from .compression import HEAD_BYTES, Compression, compression_of
from .decompress import Damaged, Decompressed
from .opening import LocalFile, open_location

_LARGE_BYTES = 1 << 30
"""From which size on it is worth saying: a core takes some ten seconds for so much."""

_SECONDS = 0.3
_HEAD_BYTES = frames.MOST_STORED


def slow_to_read(files: Sequence[InputFile]) -> str | None:
    """A remark about the largest of the files, if it is large and one core must read it. None where it cannot be read:
    the job itself says that.
    """
    large = [file for file in files if file.stored >= _LARGE_BYTES]
    try:
        remark = how_it_is_read(max(large, key=lambda file: file.stored)) if large else None
    except (OSError, UsageError):
        return None
    others = f" (the largest of {len(large):,} files of 1 GiB and more)" if len(large) > 1 else ""
    return remark + others if remark else None


def how_it_is_read(file: InputFile) -> str | None:
    """A remark about a compressed file that one core must read, with the rate at which it does; None for others.

    It decompresses the beginning of the file for that, 0.3 s long. Raises OSError.
    """
    if file.member is not None or file.format.jumps:
        return None
    with open_location(file.location, file.ranges, endpoint=file.endpoint, stop=_HEAD_BYTES) as raw:
        head = cast(BinaryIO, io.BufferedReader(raw)).read(_HEAD_BYTES)
        is_local = isinstance(raw, LocalFile)
    compression = compression_of(head[:HEAD_BYTES], file.compression)
    if compression is None:
        return None
    if rapidgzip_reader.pays(compression, file.stored) and is_local:
        return None
    if frames.pay(compression, file.stored) and frames.can_be_cut(head):
        return None
    what = "one zstd frame, or several large ones" if compression is frames.ZSTD else compression.name
    return f"{file.path}: {what}, read by one core ({_rate(head, compression):,.0f} MB/s){_remedy(compression)}"


def _remedy(compression: Compression) -> str:
    if compression.name in rapidgzip_reader.LEAST_BYTES and not rapidgzip_reader.is_there():
        return "; more with rapidgzip: pip install rapidgzip"
    return "; pzstd writes zstd that all cores can read"


def _rate(head: bytes, compression: Compression) -> float:
    """MB of content in a second of a core, whatever else this machine does."""
    stream = Decompressed(lambda: io.BytesIO(head), compression)
    began, count = time.thread_time(), 0
    try:
        while time.thread_time() < began + _SECONDS and (block := stream.read(1 << 20)):
            count += len(block)
    except Damaged:  # the file goes on
        pass
    return count / 1e6 / (time.thread_time() - began)
