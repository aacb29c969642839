"""What input files are called: in the column `file`, in messages, and in a job's fingerprint.

A file is called by its absolute path or its URL; or, with a root, by what follows it. A file in a zip archive is called
as fsspec calls it, `zip://member.csv::/data/archive.zip`, so that fsspec, pandas and Dask can open it by that name.
Passwords in URLs, and what follows a `?` in those of the web, which may be a signature, are in no name.
"""

from __future__ import annotations

import glob
import os
import re
from typing import NamedTuple

from ..errors import UsageError

PARTS, ENTRIES, MANIFEST = "parts", "_entries", "_manifest.json"
"""Of a folder that holds the output of a job: two folders in it, and the file that says which job."""

OLD_MANIFEST = "manifest.json"
"""The manifest of version 1, by which such a folder is recognised and refused."""

_MEMBER, _IN = "zip://", "::"
_ONE_SLASH = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/+")
_PASSWORD = re.compile(r"(\w://[^/@:\s]*):[^/@\s]*@")
_QUERY = re.compile(r"(https?://(?:(?!::)[^\s?#'\"])*)[?#](?:(?!::)[^\s'\"])*")


class InArchive(NamedTuple):
    """A file within a zip archive; or several, where `member` is a pattern."""

    member: str
    archive: str


def is_url(name: str) -> bool:
    return "://" in name


def is_web(url: str) -> bool:
    """Whether a URL is one of the web, rather than of an object store or another file system."""
    return url.startswith(("http://", "https://"))


def as_url(name: str) -> str | None:
    """A URL as it was given, where the name is one: `pathlib.Path` makes s3:/bucket of s3://bucket. Else None."""
    return _ONE_SLASH.sub(r"\1://", name) if _ONE_SLASH.match(name) else None


def member_name(member: str, archive: str) -> str:
    """The name of a file in an archive."""
    return f"{_MEMBER}{member}{_IN}{archive}"


def in_archive(name: str) -> InArchive | None:
    """The parts of such a name; None for any other."""
    if not (name.startswith(_MEMBER) and _IN in name):
        return None
    return InArchive(*name.removeprefix(_MEMBER).split(_IN, 1))


def file_part(name: str) -> str:
    """The part of a name that ends in the suffix of the file: without its archive, and without a query."""
    inside = in_archive(name)
    return inside.member if inside else without_secrets(name)


def without_secrets(text: str) -> str:
    """A URL, or a message that holds some, without passwords, and without what follows the path of one of the web."""
    return _QUERY.sub(r"\1", _PASSWORD.sub(r"\1@", text)) if is_url(text) else text


def printable(path: str) -> str:
    r"""A path as text: bytes that are not UTF-8 as \xNN, and halves of surrogate pairs as \udNNN."""
    if path.isascii():
        return path
    try:
        data = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = path.encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace")


def refuse_not_utf8(option: str, value: object) -> None:
    """Raise UsageError for a text, a path, or one of several, that is not UTF-8."""
    for path in value if isinstance(value, tuple) else (value,):
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if printable(text) != text:
            raise UsageError(f"{option} is {text!r}, which is not UTF-8")


def absolute(name: str) -> str:
    """An absolute path or pattern; a URL as it is."""
    if inside := in_archive(name):
        return member_name(inside.member, absolute(inside.archive))
    if is_url(name):
        return name
    if glob.has_magic(name) and not os.path.lexists(name):  # whose folder may look like a pattern
        return os.path.normpath(os.path.join(glob.escape(os.getcwd()), name))
    return os.path.abspath(name)


def root_of(root: str | os.PathLike[str] | None) -> str | None:
    """A root as an absolute path or URL. Raises UsageError where there is no such folder."""
    if root is None:
        return None
    given = os.fspath(root)
    if url := as_url(given):
        return url.rstrip("/")
    if not os.path.isdir(given):
        raise UsageError(f"the root {given} is no folder")
    return os.path.abspath(given)


def named(location: str, root: str | None) -> str:
    """What the file at an absolute path or URL is called. Raises UsageError where it is not below the root."""
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
    """The absolute path or URL of a file that is called so. root: of relative names; by default the current folder."""
    if inside := in_archive(name):
        return member_name(inside.member, located(inside.archive, root))
    if is_url(name) or os.path.isabs(name) or root is None:
        return absolute(name)
    return f"{root.rstrip('/')}/{name}"
