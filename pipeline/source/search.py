"""From what the user names to paths: files, folders, patterns and URLs.

A folder is searched with all below it, through symbolic links too; so is what a pattern leads to. Within one name, each
real folder is searched once, under the first of its names, so links may form loops. Names that begin with a dot or an
underscore are skipped in folders, and those with a dot by patterns, as shells do.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

import fsspec
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from pipeline.errors import UsageError
from pipeline.output.layout import ENTRIES, MANIFEST, OLD_MANIFEST, PARTS
from pipeline.source.opening import reason

Problem = tuple[str, str]
"""A path, and a message about the problem of that file or folder."""


@dataclass
class Found:
    """paths: of files, and of what else a name may stand for. left_out: of files whose suffix belongs to no format, and
    of folders that a pattern matches. problems: of folders that cannot be read. A path is as the operating system has
    it: see `printable`.
    """

    paths: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add(self, more: Found) -> None:
        self.paths += sorted(set(more.paths))
        self.left_out += sorted(set(more.left_out))
        self.problems += sorted(set(more.problems))

    def unreadable(self, folder: str, error: OSError) -> None:
        path = printable(folder)
        self.problems.append((path, f"{path}: {reason(error)}; nothing in this folder was read"))


def search(names: Sequence[str], is_known: Callable[[str], bool]) -> Found:
    """What paths, folders, patterns and fsspec URLs name: in the order given, sorted within each.

    is_known: whether the suffix of a path belongs to a format. Raises UsageError where a name stands for nothing.
    """
    found = Found()
    for name in names:
        here = _search_url(name, is_known) if "://" in name else _search_local(name, is_known)
        if not (here.paths or here.problems):
            others = f" ({len(here.left_out):,} files of other kinds)" if here.left_out else ""
            raise UsageError(f"no input at {name!r}: no such file, or a folder or pattern without one{others}")
        found.add(here)
    return found


def printable(path: str) -> str:
    r"""A path as text: bytes that are not UTF-8 as \xNN, and halves of surrogate pairs as \udNNN."""
    try:
        data = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = path.encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace")


def _search_local(name: str, is_known: Callable[[str], bool]) -> Found:
    try:
        if os.path.isdir(name):
            return _below(name, is_known)
        if os.path.lexists(name):
            return Found([name])
        return _matching(name) if glob.has_magic(name) else Found()
    except ValueError as error:  # a name with a null byte or half of a surrogate pair
        raise UsageError(f"no input at {name!r}: {error}") from error


def _below(top: str, is_known: Callable[[str], bool]) -> Found:
    """The files below a folder."""
    found, seen, waiting = Found(), set[tuple[int, ...]](), [top]
    while waiting:
        folder = waiting.pop()
        entries = _entries(folder, 0, seen, found)
        names = {entry.name for entry in entries}
        if {ENTRIES, PARTS} <= names and {MANIFEST, OLD_MANIFEST} & names:
            continue  # an output folder of this program is not input
        shown = [entry for entry in entries if not entry.name.startswith((".", "_"))]
        waiting += [entry.path for entry in reversed(shown) if _is_folder(entry)]
        for entry in shown:
            if not _is_folder(entry):
                (found.paths if is_known(entry.name) else found.left_out).append(entry.path)
    return found


def _matching(pattern: str) -> Found:
    """The files that a pattern matches, as `glob.glob` does: `**` stands for any number of folders."""
    found, seen = Found(), set[tuple[int, ...]]()
    parts = [part for part in pattern.split("/") if part]
    waiting = [("/" if pattern.startswith("/") else "", parts)]
    while waiting:
        folder, (first, *rest) = waiting.pop()
        if not glob.has_magic(first):
            path = os.path.join(folder, first)
            if rest and os.path.isdir(path):
                waiting.append((path, rest))
            elif not rest and os.path.lexists(path):
                (found.left_out if os.path.isdir(path) else found.paths).append(path)
            continue
        further = [(folder, rest)] if first == "**" and rest else []
        for entry in _entries(folder, len(rest), seen, found):
            if entry.name.startswith(".") and not first.startswith("."):
                continue
            if first == "**" and _is_folder(entry):
                further.append((os.path.join(folder, entry.name), ["**", *rest]))
            elif first != "**" and fnmatchcase(entry.name, first):
                path = os.path.join(folder, entry.name)
                if rest and _is_folder(entry):
                    further.append((path, rest))
                elif not rest:
                    (found.left_out if _is_folder(entry) else found.paths).append(path)
            elif first == "**" and not rest:
                found.paths.append(os.path.join(folder, entry.name))
        waiting += reversed(further)
    return found


def _entries(folder: str, kind: int, seen: set[tuple[int, ...]], found: Found) -> list[os.DirEntry[str]]:
    """A folder's entries by name; none where it was searched before in the same way, `kind`, or cannot be read."""
    try:
        about = os.stat(folder or ".")
        if (about.st_dev, about.st_ino, kind) in seen:
            return []
        seen.add((about.st_dev, about.st_ino, kind))
        with os.scandir(folder or ".") as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        found.unreadable(folder, error)
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Also a link to one. What cannot be examined counts as a file, whose problem is found when it is opened."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _search_url(name: str, is_known: Callable[[str], bool]) -> Found:
    try:
        fs, path = fsspec.core.url_to_fs(name)
        if isinstance(fs, LocalFileSystem):
            return _search_local(path, is_known)
        if glob.has_magic(path):
            found = Found()
            for one, info in fs.glob(path, detail=True).items():
                (found.left_out if info["type"] == "directory" else found.paths).append(fs.unstrip_protocol(one))
            return found
        if not fs.isdir(path):
            return Found([name] if fs.exists(path) else [])
        return _below_remote(fs, path, is_known)
    except Exception as error:  # drivers raise anything
        raise UsageError(f"{name}: {error or type(error).__name__}") from error


def _below_remote(fs: AbstractFileSystem, top: str, is_known: Callable[[str], bool]) -> Found:
    found = Found()
    paths: list[str] = []
    if _lists_at_once(fs):
        paths = fs.find(top)
    else:
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            try:
                for info in fs.ls(folder, detail=True):
                    if info["name"].rstrip("/") != folder.rstrip("/"):
                        (waiting if info["type"] == "directory" else paths).append(info["name"])
            except OSError as error:
                found.unreadable(fs.unstrip_protocol(folder), error)
    for path in paths:
        if not any(part.startswith((".", "_")) for part in PurePosixPath(path[len(top) :]).parts):
            (found.paths if is_known(path) else found.left_out).append(fs.unstrip_protocol(path))
    return found


def _lists_at_once(fs: AbstractFileSystem) -> bool:
    """Whether it lists a folder with all below it in a request of its own, as object stores do.

    fsspec's general `find` goes from folder to folder, and omits those that it cannot read.
    """
    kinds = set(type(fs).__mro__) - set(AsyncFileSystem.__mro__)
    return any({"find", "_find"} & vars(kind).keys() for kind in kinds)
