"""Zip archives: their members, each of which is an input file that is read front to back."""

from __future__ import annotations

import errno
import io
import struct
import zipfile
import zlib
from typing import Any, BinaryIO, cast

from ..formats.base import Member

SUFFIX = ".zip"
MAGIC = b"PK\x03\x04"
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)
"""What `zipfile` raises where a member cannot be read."""

_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # of others `zipfile` bounds no memory
_ENCRYPTED = 0x1
_MOST_BYTES = 64 << 20  # of the list of members, which `zipfile` reads at once
_HEADER = struct.Struct("<4s22xHH")


def list_members(raw: io.RawIOBase) -> list[Member]:
    """The files in an archive, in its order. Raises OSError where it cannot be read."""
    try:
        with zipfile.ZipFile(cast(BinaryIO, _Bounded(raw))) as archive:
            return [
                Member(i.filename, i.header_offset, i.compress_type, i.compress_size, i.file_size, i.CRC, _problem(i))
                for i in archive.infolist()
                if not i.is_dir()
            ]
    except (*DAMAGE, ValueError, OverflowError, NotImplementedError, struct.error) as error:
        raise OSError(errno.EINVAL, f"not a readable zip archive ({error})") from error


def is_hidden(member: Member) -> bool:
    """Whether it, or a folder that it is in, has the name of what is skipped in folders, such as __MACOSX."""
    return any(part.startswith((".", "_")) for part in member.name.split("/"))


def open_member(stream: BinaryIO, member: Member) -> BinaryIO:
    """The content of a member of the archive in `stream`, decompressed as it is read, and compared with its checksum.

    It is found by its place, since an archive may have very many members, and a list of them takes long to read. Raises
    OSError, on opening, and what is in `DAMAGE`, on reading.
    """
    stream.seek(member.offset)
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        raise OSError(errno.EINVAL, "the archive is damaged: a member does not begin where its list says")
    _, name_bytes, extra_bytes = _HEADER.unpack(header)
    stream.seek(name_bytes + extra_bytes, io.SEEK_CUR)
    about = zipfile.ZipInfo(member.name)
    about.compress_type, about.CRC = member.method, member.checksum
    about.compress_size, about.file_size = member.size, member.length
    return cast(BinaryIO, zipfile.ZipExtFile(stream, "r", about))


def _problem(about: zipfile.ZipInfo) -> str:
    if about.flag_bits & _ENCRYPTED:
        return "it is encrypted; unpack the archive with its password"
    if about.compress_type not in _METHODS:
        return f"it is compressed by method {about.compress_type}, which cannot be read; unpack the archive"
    if "::" in about.filename:
        return "its name holds '::', which separates a member from its archive; rename it"
    return ""


class _Bounded(io.BufferedReader):
    """An archive of which no more is read at once than a list of members may take."""

    def read(self, size: Any = -1) -> bytes:
        if size is not None and size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"the list of its members is longer than {_MOST_BYTES >> 20} MiB")
        return super().read(_MOST_BYTES if size is None or size < 0 else size)
