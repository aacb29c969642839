"""Recognises archives that cannot be read by their first bytes, whatever their names are, so that none
is read as text.
"""

from __future__ import annotations

import tarfile

TAR_BYTES = tarfile.BLOCKSIZE
"""The size of the header of a tar archive's first member, by which the archive is known."""

_MAGIC = {b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!\x1a\x07": "rar"}


def container_of(head: bytes) -> str | None:
    """Return the name of the archive that begins with these bytes, or None for anything else.

    head: at least the first `TAR_BYTES` bytes of a file, or all bytes of a shorter file.
    """
    if _is_tar(head):
        return "tar"
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def _is_tar(head: bytes) -> bool:
    """Whether the bytes begin with the header of a member and its checksum is right. The oldest archives have no magic
    number.
    """
    try:
        tarfile.TarInfo.frombuf(head[:TAR_BYTES], tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True
