"""From what the user names to files: those that paths, folders, patterns and URLs stand for, as they are listed.

What a listing tells of a file, its size and when it was modified, is all that a job needs to know of it before the file
is read, so none is opened here. A folder is searched with all below it, through symbolic links too; so is what a
pattern leads to. Within one name, each real folder is searched once, under the first of its names, so links may form
loops. Names that begin with a dot or an underscore are skipped in folders, and those with a dot by patterns, as shells
do. Of a dataset that Hugging Face `datasets` has saved, the shards are input; its descriptions and what it has cached
are not.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from pipeline.errors import UsageError
from pipeline.output.layout import ENTRIES, MANIFEST, OLD_MANIFEST, PARTS
from pipeline.source.names import as_url, in_archive, is_url, member_name, without_secrets
from pipeline.source.opening import is_web, listed_state, reason, refuse_irregular, remote, why

Problem = tuple[str, str]
"""A path, and a message about the problem of that file or folder."""

_OF_DATASETS = {"dataset_info.json", "dataset_dict.json", "state.json"}
_CACHED_BY_DATASETS = "cache-*.arrow"


@dataclass(frozen=True)
class Listed:
    """A file as its folder, bucket or server lists it.

    location: its absolute path or URL, as the operating system has it: see `printable`. size: in bytes; None where a
    server of the web does not tell it. modified: its time in ns; of a remote file, an ETag or the like. ranges: whether
    it can be read from any byte on, which a server of the web may not allow. problem: why it cannot be read, if it is
    no regular file.
    """

    location: str
    size: int | None
    modified: str
    ranges: bool = True
    problem: str = ""


@dataclass
class Found:
    """files: what a name stands for, within an archive with size and time of the archive. left_out: paths of files
    whose suffix belongs to no format, and of folders that a pattern matches. unreadable: folders, each with the reason.
    """

    files: list[Listed] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def add(self, more: Found) -> None:
        """Add what another name stands for; what two names stand for is read once."""
        known = {file.location for file in self.files}
        files = {file.location: file for file in more.files if file.location not in known}
        self.files += sorted(files.values(), key=lambda file: file.location)
        self.left_out += sorted({*more.left_out} - {*self.left_out})
        self.unreadable += sorted({*more.unreadable} - {*self.unreadable})

    def is_unreadable(self, folder: str, error: OSError) -> None:
        self.unreadable.append((folder, reason(error)))


def search(names: Sequence[str], is_known: Callable[[str], bool]) -> Found:
    """The files that paths, folders, patterns and URLs name: in the order given, sorted within each.

    is_known: whether the suffix of a path or URL belongs to what can be read. Raises UsageError where a name stands for
    nothing.
    """
    found = Found()
    is_known = _by_suffix(is_known)
    for name in names:
        url = None if "://" not in name and os.path.lexists(name) else as_url(name)
        here = _search_url(url, is_known) if url else _search_local(name, is_known)
        if not (here.files or here.unreadable):
            others = f" ({len(here.left_out):,} files of other kinds)" if here.left_out else ""
            shown = without_secrets(url or name)
            raise UsageError(f"no input at {shown!r}: no such file, or a folder or pattern without one{others}")
        found.add(here)
    return found


def printable(path: str) -> str:
    r"""A path as text: bytes that are not UTF-8 as \xNN, and halves of surrogate pairs as \udNNN."""
    if path.isascii():
        return path
    try:
        data = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = path.encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace")


def _by_suffix(is_known: Callable[[str], bool]) -> Callable[[str], bool]:
    """The same, asked once for names that end in the same two suffixes: folders hold a hundred thousand such."""
    known = lru_cache(1024)(is_known)

    def ask(name: str) -> bool:
        if is_url(name):
            return is_known(name)
        _, *suffixes = name.rpartition("/")[2].rsplit(".", 2)
        return known(".".join(["name", *suffixes]))

    return ask


def _search_local(name: str, is_known: Callable[[str], bool]) -> Found:
    try:
        if os.path.isdir(name):
            return _below(os.path.abspath(name), is_known)
        if os.path.lexists(name):
            return Found([_listed(os.path.abspath(name))])
        return _matching(os.path.abspath(name)) if glob.has_magic(name) else Found()
    except ValueError as error:  # a name with a null byte or half of a surrogate pair
        raise UsageError(f"no input at {name!r}: {error}") from error


def _listed(path: str | os.DirEntry[str]) -> Listed:
    location = os.fspath(path)
    try:
        about = path.stat() if isinstance(path, os.DirEntry) else os.stat(path)
        refuse_irregular(about.st_mode)
    except OSError as error:
        return Listed(location, 0, "", problem=reason(error))
    return Listed(location, about.st_size, str(about.st_mtime_ns))


def _below(top: str, is_known: Callable[[str], bool]) -> Found:
    """The files below a folder."""
    found, seen, waiting = Found(), set[tuple[int, ...]](), [top]
    while waiting:
        folder = waiting.pop()
        entries = _entries(folder, 0, seen, found)
        names = {entry.name for entry in entries}
        if {ENTRIES, PARTS} <= names and {MANIFEST, OLD_MANIFEST} & names:
            continue  # an output folder of this program is not input
        shown = [entry for entry in entries if not (entry.name.startswith((".", "_")) or _is_beside(entry.name, names))]
        waiting += [entry.path for entry in reversed(shown) if _is_folder(entry)]
        for entry in shown:
            if _is_folder(entry):
                continue
            if is_known(entry.name):
                found.files.append(_listed(entry))
            else:
                found.left_out.append(entry.path)
    return found


def _is_beside(name: str, names: set[str]) -> bool:
    """Whether a file belongs to a dataset of Hugging Face in its folder, and holds none of its rows."""
    return bool(_OF_DATASETS & names) and (name in _OF_DATASETS or fnmatchcase(name, _CACHED_BY_DATASETS))


def _matching(pattern: str) -> Found:
    """The files that an absolute pattern matches, as `glob.glob` does: `**` stands for any number of folders."""
    found, seen = Found(), set[tuple[int, ...]]()
    waiting = [("/", [part for part in pattern.split("/") if part])]

    def add(entry: os.DirEntry[str]) -> None:
        if _is_folder(entry):
            found.left_out.append(entry.path)
        else:
            found.files.append(_listed(entry))

    while waiting:
        folder, (first, *rest) = waiting.pop()
        if not glob.has_magic(first):
            path = os.path.join(folder, first)
            if rest and os.path.isdir(path):
                waiting.append((path, rest))
            elif not rest and os.path.isdir(path):
                found.left_out.append(path)
            elif not rest and os.path.lexists(path):
                found.files.append(_listed(path))
            continue
        further = [(folder, rest)] if first == "**" and rest else []
        for entry in _entries(folder, len(rest), seen, found):
            if entry.name.startswith(".") and not first.startswith("."):
                continue
            if first == "**" and _is_folder(entry):
                further.append((entry.path, ["**", *rest]))
            elif first == "**" and not rest:
                add(entry)
            elif first != "**" and fnmatchcase(entry.name, first):
                if not rest:
                    add(entry)
                elif _is_folder(entry):
                    further.append((entry.path, rest))
        waiting += reversed(further)
    return found


def _entries(folder: str, kind: int, seen: set[tuple[int, ...]], found: Found) -> list[os.DirEntry[str]]:
    """A folder's entries by name; none where it was searched before in the same way, `kind`, or cannot be read."""
    try:
        about = os.stat(folder)
        if (about.st_dev, about.st_ino, kind) in seen:
            return []
        seen.add((about.st_dev, about.st_ino, kind))
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        found.is_unreadable(folder, error)
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Also a link to one. What cannot be examined counts as a file, whose problem is found when it is opened."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _search_url(name: str, is_known: Callable[[str], bool]) -> Found:
    shown = without_secrets(name)
    try:
        if inside := in_archive(name):
            archive = as_url(inside.archive)
            here = _search_url(archive, is_known) if archive else _search_local(inside.archive, is_known)
            return Found([replace(f, location=member_name(inside.member, f.location)) for f in here.files])
        fs, path = remote(name)
        if isinstance(fs, LocalFileSystem):
            return _search_local(path, is_known)
        if is_web(name) and ("?" in name or (is_known(name) and not glob.has_magic(shown))):
            return Found([_listed_at(name, fs.info(path))])  # to look for files below it would read all of it
        if glob.has_magic(path):
            found = Found()
            for one, info in fs.glob(path, detail=True).items():
                if info["type"] == "directory":
                    found.left_out.append(fs.unstrip_protocol(one))
                else:
                    found.files.append(_listed_at(fs.unstrip_protocol(one), info))
            return found
        if not fs.isdir(path):
            return Found([_listed_at(name, fs.info(path))] if fs.exists(path) else [])
        return _below_remote(fs, path, is_known)
    except UsageError:
        raise
    except Exception as error:  # drivers raise anything
        raise UsageError(f"{shown}: {why(error)}") from error


def _listed_at(url: str, info: dict[str, Any]) -> Listed:
    try:
        return Listed(url, *listed_state(info))
    except OSError as error:
        return Listed(url, 0, "", problem=reason(error))


def _below_remote(fs: AbstractFileSystem, top: str, is_known: Callable[[str], bool]) -> Found:
    found = Found()
    about: dict[str, dict[str, Any]] = {}
    if _lists_at_once(fs):
        about = fs.find(top, detail=True)
    else:
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            try:
                for info in fs.ls(folder, detail=True):
                    if info["type"] == "directory" and info["name"].rstrip("/") != folder.rstrip("/"):
                        waiting.append(info["name"])
                    elif info["type"] != "directory":
                        about[info["name"]] = info
            except OSError as error:
                found.is_unreadable(fs.unstrip_protocol(folder), error)
    for path, info in about.items():
        if any(part.startswith((".", "_")) for part in PurePosixPath(path[len(top) :]).parts):
            continue
        if is_known(path):
            found.files.append(_listed_at(fs.unstrip_protocol(path), info))
        else:
            found.left_out.append(fs.unstrip_protocol(path))
    return found


def _lists_at_once(fs: AbstractFileSystem) -> bool:
    """Whether it lists a folder with all below it in a request of its own, as object stores do.

    fsspec's general `find` goes from folder to folder, and omits those that it cannot read.
    """
    kinds = set(type(fs).__mro__) - set(AsyncFileSystem.__mro__)
    return any({"find", "_find"} & vars(kind).keys() for kind in kinds)
