"""From what the user names to paths: files, folders, patterns and URLs.

A folder is searched with all below it, through symbolic links too; so is what a pattern leads to. Within one name, each
real folder is searched once, under the first of its names, so links may form loops. Names that begin with a dot or an
underscore are skipped in folders, and those with a dot by patterns, as shells do. Of a dataset that Hugging Face
`datasets` has saved, the shards are input; its descriptions and what it has cached are not.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from pipeline.errors import UsageError
from pipeline.output.layout import ENTRIES, MANIFEST, OLD_MANIFEST, PARTS
from pipeline.source.names import absolute, as_url, in_archive, member_name, without_secrets
from pipeline.source.opening import is_web, reason, remote, why

Problem = tuple[str, str]
"""A path, and a message about the problem of that file or folder."""

_OF_DATASETS = {"dataset_info.json", "dataset_dict.json", "state.json"}
_CACHED_BY_DATASETS = "cache-*.arrow"


@dataclass
class Found:
    """paths: of files, and of what else a name may stand for. left_out: of files whose suffix belongs to no format, and
    of folders that a pattern matches. unreadable: folders, each with the reason. A path is absolute, and as the
    operating system has it: see `printable`.
    """

    paths: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def add(self, more: Found) -> None:
        """Add what another name stands for; what two names stand for is read once."""
        self.paths += sorted({absolute(path) for path in more.paths} - {*self.paths})
        self.left_out += sorted({absolute(path) for path in more.left_out} - {*self.left_out})
        self.unreadable += sorted({(absolute(path), why) for path, why in more.unreadable} - {*self.unreadable})

    def is_unreadable(self, folder: str, error: OSError) -> None:
        self.unreadable.append((folder, reason(error)))


def search(names: Sequence[str], is_known: Callable[[str], bool]) -> Found:
    """What paths, folders, patterns and fsspec URLs name: in the order given, sorted within each.

    is_known: whether the suffix of a path or URL belongs to what can be read. Raises UsageError where a name stands for
    nothing.
    """
    found = Found()
    for name in names:
        url = None if "://" not in name and os.path.lexists(name) else as_url(name)
        here = _search_url(url, is_known) if url else _search_local(name, is_known)
        if not (here.paths or here.unreadable):
            others = f" ({len(here.left_out):,} files of other kinds)" if here.left_out else ""
            shown = without_secrets(url or name)
            raise UsageError(f"no input at {shown!r}: no such file, or a folder or pattern without one{others}")
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
        shown = [entry for entry in entries if not (entry.name.startswith((".", "_")) or _is_beside(entry.name, names))]
        waiting += [entry.path for entry in reversed(shown) if _is_folder(entry)]
        for entry in shown:
            if not _is_folder(entry):
                (found.paths if is_known(entry.name) else found.left_out).append(entry.path)
    return found


def _is_beside(name: str, names: set[str]) -> bool:
    """Whether a file belongs to a dataset of Hugging Face in its folder, and holds none of its rows."""
    return bool(_OF_DATASETS & names) and (name in _OF_DATASETS or fnmatchcase(name, _CACHED_BY_DATASETS))


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
            return Found([member_name(inside.member, path) for path in here.paths])
        fs, path = remote(name)
        if isinstance(fs, LocalFileSystem):
            return _search_local(path, is_known)
        if is_web(name) and ("?" in name or (is_known(name) and not glob.has_magic(shown))):
            fs.info(path)
            return Found([name])  # to look for files below it would read all of it
        if glob.has_magic(path):
            found = Found()
            for one, info in fs.glob(path, detail=True).items():
                (found.left_out if info["type"] == "directory" else found.paths).append(fs.unstrip_protocol(one))
            return found
        if not fs.isdir(path):
            return Found([name] if fs.exists(path) else [])
        return _below_remote(fs, path, is_known)
    except UsageError:
        raise
    except Exception as error:  # drivers raise anything
        raise UsageError(f"{shown}: {why(error)}") from error


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
                found.is_unreadable(fs.unstrip_protocol(folder), error)
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
