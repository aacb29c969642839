"""Names input files, for the column `file`, for messages, and for a job's fingerprint.

The name of a file is its absolute path or its URL. With a root, it is the part of these below the root. A file in a zip
archive has the name that fsspec gives it, `zip://member.csv::/data/archive.zip`, so that fsspec, pandas and Dask can
open it. No name contains the password of a URL, or the part of a web URL after `?`, which may be a signature.
"""

from __future__ import annotations

import glob
import os
import re
from typing import NamedTuple

from ..errors import UsageError

PARTS, ENTRIES, MANIFEST = "parts", "_entries", "_manifest.json"
"""Names in the output folder of a job: two of its folders, and the file that says which job it is."""

OLD_MANIFEST = "manifest.json"
"""The manifest of version 1. A folder that has one is recognised by it and refused."""

_MEMBER, _IN = "zip://", "::"
_ONE_SLASH = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/+")
_PASSWORD = re.compile(r"(\w://[^/@:\s]*):[^/@\s]*@")
_QUERY = re.compile(r"(https?://(?:(?!::)[^\s?#'\"])*)[?#](?:(?!::)[^\s'\"])*")


class InArchive(NamedTuple):
    """A file within a zip archive, or several files if `member` is a pattern."""

    member: str
    archive: str


def is_url(name: str) -> bool:
    return "://" in name


def is_web(url: str) -> bool:
    """Return whether a URL is one of the web, rather than of an object store or another file system."""
    return url.startswith(("http://", "https://"))


def as_url(name: str) -> str | None:
    """Return a URL as it was given; None if the name is not a URL.

    `pathlib.Path` turns s3://bucket into s3:/bucket, and this function turns it back.
    """
    return _ONE_SLASH.sub(r"\1://", name) if _ONE_SLASH.match(name) else None


def member_name(member: str, archive: str) -> str:
    """Return the name of a file in an archive."""
    return f"{_MEMBER}{member}{_IN}{archive}"


def in_archive(name: str) -> InArchive | None:
    """Return the parts of the name of a file in an archive; None for any other name."""
    if not (name.startswith(_MEMBER) and _IN in name):
        return None
    return InArchive(*name.removeprefix(_MEMBER).split(_IN, 1))


def file_part(name: str) -> str:
    """Return the part of a name that ends in the suffix of the file, without its archive and without a query."""
    inside = in_archive(name)
    return inside.member if inside else without_secrets(name)


def without_secrets(text: str) -> str:
    """Return a URL, or a message with URLs, without passwords and without the query and fragment of web URLs."""
    return _QUERY.sub(r"\1", _PASSWORD.sub(r"\1@", text)) if is_url(text) else text


def printable(path: str) -> str:
    r"""Return a path as text, with bytes that are not UTF-8 as \xNN and halves of surrogate pairs as \udNNN."""
    if path.isascii():
        return path
    try:
        data = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = path.encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace")


def refuse_not_utf8(option: str, value: object) -> None:
    """Raise UsageError if a text or a path, or one of several, is not UTF-8."""
    for path in value if isinstance(value, tuple) else (value,):
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if printable(text) != text:
            raise UsageError(f"{option} is {text!r}, which is not UTF-8")


def absolute(name: str) -> str:
    """Return a path or a pattern as an absolute one, and a URL as it is."""
    if inside := in_archive(name):
        return member_name(inside.member, absolute(inside.archive))
    if is_url(name):
        return name
    if glob.has_magic(name) and not os.path.lexists(name):  # escape the folder, which may look like a pattern
        return os.path.normpath(os.path.join(glob.escape(os.getcwd()), name))
    return os.path.abspath(name)


def root_of(root: str | os.PathLike[str] | None) -> str | None:
    """Return a root as an absolute path or URL. Raises UsageError if there is no such folder."""
    if root is None:
        return None
    given = os.fspath(root)
    if url := as_url(given):
        return url.rstrip("/")
    if not os.path.isdir(given):
        raise UsageError(f"the root {given} is no folder")
    return os.path.abspath(given)


def named(location: str, root: str | None) -> str:
    """Return the name of the file at an absolute path or URL. Raises UsageError if it is not below the root."""
    if inside := in_archive(location):
        return member_name(inside.member, named(inside.archive, root))
    name = without_secrets(location)
    if root is None:
        return name
    below = name.removeprefix(root.rstrip("/") + "/")
    if below == name:
        raise UsageError(f"{name} is not below the root {root}")
    return below


def located(name: str, root: str | None) -> str:
    """Return the absolute path or URL of the file with this name.

    root: the root of relative names. Default: the current folder.
    """
    if inside := in_archive(name):
        return member_name(inside.member, located(inside.archive, root))
    if is_url(name) or os.path.isabs(name) or root is None:
        return absolute(name)
    return f"{root.rstrip('/')}/{name}"
