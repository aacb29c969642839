"""Input files: what each is, and which format it has."""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from pipeline.errors import SourceError, UsageError
from pipeline.source import archive
from pipeline.source.compression import HEAD_BYTES, SUFFIXES, compression_of
from pipeline.source.formats.base import Format, InputFile, Member, Seek
from pipeline.source.formats.registry import FORMATS
from pipeline.source.names import file_part, in_archive, located, member_name, named, root_of
from pipeline.source.opening import open_at, open_location, reason
from pipeline.source.search import Listed, Problem, printable, search
from pipeline.threads import available_cores, threads

_HASHED_BYTES = 64 << 10
_REMEDIES = {
    ".xls": "save it as .xlsx or .csv",
    ".ods": "save it as .xlsx or .csv",
    ".json": "name it .jsonl if it has an object a line, else write it so",
    ".tar": "unpack it",
    ".7z": "unpack it",
    ".rar": "unpack it",
}
_ONE_READER = "a {} file is read at many places at once: {}"
_NO_RANGES = "its server cannot do that; download it first"

Identity = list[dict[str, Any]]
"""The input in a fingerprint."""


@dataclass(frozen=True)
class Files:
    """Files as they were found, before they are planned. problems: of those that cannot be read, and of folders.
    left_out: of files whose suffix belongs to no format, in folders and archives, and of folders that a pattern
    matches. All are called as `names` has it.
    """

    found: tuple[InputFile, ...]
    problems: tuple[Problem, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        return [{"path": f.path, "size": f.size, "modified": f.modified, "digest": f.digest} for f in self.found]

    @property
    def bytes_to_scan(self) -> int:
        """The size of the files that are scanned for the beginnings of their records."""
        return sum(f.size for f in self.found if not f.front_to_back and f.format.seeks is Seek.RECORDS)


def find_files(
    inputs: Sequence[str],
    symbols: int,
    length: int,
    whole_hash: bool = False,
    root: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
) -> Files:
    """The files that `inputs` name. Raises UsageError where one names nothing, or a file of no format.

    symbols, length: of the model, for files that are encoded already. whole_hash: hash all of a file, not its edges.
    root: the folder or URL to which names are relative; by default they are absolute.
    endpoint: of buckets, as of `bucket_client`.
    """
    top = root_of(root)
    found = search(inputs, is_known, endpoint)
    for file in found.files:
        if not in_archive(file.location):
            _refuse_unknown(file.location)
    look = partial(_look, root=top, whole=whole_hash, endpoint=endpoint)
    with threads(available_cores()) as pool:
        looked = list(pool.map(look, found.files))
    unreadable = [(printable(named(path, top)), why) for path, why in found.unreadable]
    files = _told_apart(file for each in looked for file in each.found)
    problems = [problem for each in looked for problem in each.problems]
    problems += [(name, f"{name}: {why}; nothing in this folder was read") for name, why in unreadable]
    left_out = [printable(named(path, top)) for path in found.left_out]
    left_out += [path for each in looked for path in each.left_out]
    if not (files or problems):
        if in_archive(inputs[0]) and not in_archive(left_out[0]):
            raise UsageError(f"no input at {inputs[0]!r}: the archive has no such file")
        raise UsageError(f"no input in {inputs[0]!r}: {len(left_out):,} files of other kinds, such as {left_out[0]}")
    bound = tuple(replace(file, format=file.format.for_model(symbols, length)) for file in files)
    return Files(bound, tuple(problems), tuple(left_out))


def find_again(
    names: Sequence[str], root: str | os.PathLike[str] | None, whole: bool, endpoint: str | None = None
) -> list[InputFile]:
    """Files by what they were called in a job. root: of relative names; by default the current folder.

    Raises SourceError where one cannot be read, UsageError where it has no known format.
    """
    top = root_of(root)
    members: dict[str, dict[str, Member]] = {}

    def find(name: str) -> InputFile:
        inside = in_archive(name)
        if not inside:
            return _describe(located(name, top), name, whole, endpoint)
        member = members[inside.archive].get(inside.member)
        if member is None:
            raise SourceError(f"{name}: it is no longer in the archive")
        return _describe_member(located(inside.archive, top), name, member, whole, endpoint)

    for archive_name in {inside.archive for inside in map(in_archive, names) if inside}:
        members[archive_name] = {m.name: m for m in _members(located(archive_name, top), archive_name, endpoint)}
    with threads(available_cores()) as pool:
        return list(pool.map(find, names))


def is_known(path: str) -> bool:
    """Whether the suffix of a path or URL belongs to a format, or to an archive."""
    suffix, compression = _suffixes(path)
    return suffix in FORMATS or (suffix == archive.SUFFIX and not compression)


def _suffixes(path: str) -> tuple[str, str | None]:
    pure = PurePosixPath(file_part(path).lower())
    if pure.suffix in SUFFIXES:
        return PurePosixPath(pure.stem).suffix, SUFFIXES[pure.suffix]
    return pure.suffix, None


def _refuse_unknown(path: str) -> None:
    if _suffixes(path) != (archive.SUFFIX, None):
        format_of(path, printable(named(path, None)))


def format_of(path: str, name: str) -> tuple[Format, str | None]:
    """Format and compression by the file's suffixes. name: of it. Raises UsageError."""
    suffix, compression = _suffixes(path)
    if suffix not in FORMATS:
        remedy = f"; {_REMEDIES[suffix]}" if suffix in _REMEDIES else ""
        known, packed = " ".join(FORMATS), " ".join(SUFFIXES)
        raise UsageError(
            f"{name}: its suffix belongs to no format{remedy}; known are {known}, also with {packed}, and .zip"
        )
    found = FORMATS[suffix]
    if compression and found.jumps:
        raise UsageError(f"{name}: {_ONE_READER.format(found.name, 'decompress it first')}")
    return found, compression


def _look(listed: Listed, root: str | None, whole: bool, endpoint: str | None) -> Files:
    """The file that was listed, or the members of the archive that it is. Raises UsageError outside the root."""
    location = listed.location
    name = printable(named(location, root))
    try:
        if listed.problem:
            raise SourceError(f"{name}: {listed.problem}")
        if printable(location) != location:
            raise SourceError(f"{name}: its name is not UTF-8, so the output could not name it; rename it")
        inside = in_archive(location)
        if inside or _suffixes(location)[0] == archive.SUFFIX:
            archive_at, wanted = (inside.archive, inside.member) if inside else (location, "*")
            return _look_into(archive_at, root, wanted, whole, endpoint)
        return Files((_describe(location, name, whole, endpoint),))
    except SourceError as error:
        return Files((), ((name, error.message),))


def _look_into(location: str, root: str | None, wanted: str, whole: bool, endpoint: str | None) -> Files:
    """The members of an archive that have this name or match this pattern."""
    shown = named(location, root)
    found: list[InputFile] = []
    problems: list[Problem] = []
    left_out: list[str] = []
    seen: set[str] = set()
    for member in _members(location, shown, endpoint):
        if archive.is_hidden(member) or not (member.name == wanted or fnmatchcase(member.name, wanted)):
            continue
        name = printable(member_name(member.name, shown))
        suffix, _ = _suffixes(member.name)
        try:
            if suffix == archive.SUFFIX:
                raise SourceError(f"{name}: an archive in an archive is not read: unpack the outer one")
            if suffix not in FORMATS:
                left_out.append(name)
                continue
            if member.name in seen:
                raise SourceError(
                    f"{name}: the archive holds another file of this name, which was read; this one was not"
                )
            seen.add(member.name)
            found.append(_describe_member(location, name, member, whole, endpoint))
        except (SourceError, UsageError) as error:
            problems.append((name, error.message))
    if not (found or problems or left_out):
        left_out = [shown]
    return Files(tuple(found), tuple(problems), tuple(left_out))


def _members(location: str, name: str, endpoint: str | None) -> list[Member]:
    try:
        with open_location(location, endpoint=endpoint) as raw:
            if not raw.ranges:
                raise SourceError(f"{name}: {_ONE_READER.format('zip', _NO_RANGES)}")
            return archive.list_members(raw)
    except OSError as error:
        raise SourceError(f"{name}: {reason(error)}") from error


def _describe(location: str, name: str, whole: bool, endpoint: str | None) -> InputFile:
    """Size, time and hash of a file (of all of it if `whole`).

    Raises SourceError where it cannot be read, or has the first bytes of another format.
    """
    found, compression = format_of(location, name)
    try:
        with open_location(location, endpoint=endpoint) as raw:
            state, ranges = raw.state(), raw.ranges
            if not ranges and found.jumps:
                raise SourceError(f"{name}: {_ONE_READER.format(found.name, _NO_RANGES)}")
            with cast(BinaryIO, io.BufferedReader(raw)) as stream:
                head = stream.read(_HASHED_BYTES)
                digest, size = _digest(stream, head, state.size if ranges else None, whole)
    except OSError as error:
        raise SourceError(f"{name}: {reason(error)}") from error
    _refuse_other(name, head, found)
    if not found.jumps:
        packed = compression_of(head[:HEAD_BYTES], compression)
        compression = packed.name if packed else None
    return InputFile(name, found, compression, size, state.modified, digest, location, ranges=ranges, endpoint=endpoint)


def _describe_member(location: str, name: str, member: Member, whole: bool, endpoint: str | None) -> InputFile:
    """The same of a member of an archive, whose hash is that of its checksum unless `whole`."""
    found, compression = format_of(member.name, name)
    if found.jumps:
        raise SourceError(f"{name}: {_ONE_READER.format(found.name, 'unpack the archive first')}")
    if member.problem:
        raise SourceError(f"{name}: {member.problem}")
    if not member.length:
        raise SourceError(f"{name}: the file is empty")
    try:
        with open_location(location, endpoint=endpoint) as raw:
            state = raw.state()
    except OSError as error:
        raise SourceError(f"{name}: {reason(error)}") from error
    about = f"{member.checksum:08x} {member.length} {member.name}"
    digest = hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()
    file = InputFile(
        name, found, compression, state.size or 0, state.modified, digest, location, member, endpoint=endpoint
    )
    if whole:
        with open_at(replace(file, compression=None)) as stream:
            content = hashlib.sha256()
            while block := stream.read(1 << 22):
                content.update(block)
        file = replace(file, digest=content.hexdigest())
    return file


def _digest(stream: BinaryIO, head: bytes, size: int | None, whole: bool) -> tuple[str, int]:
    """SHA-256 of a file whose first bytes have been read, and its size. size: None where it can only be counted."""
    digest = hashlib.sha256(head)
    if size is not None and not whole:
        stream.seek(max(size - _HASHED_BYTES, 0))
        digest.update(stream.read(_HASHED_BYTES))
        return digest.hexdigest(), size
    tail, count = head, len(head)
    while block := stream.read(1 << 22):
        count += len(block)
        if whole:
            digest.update(block)
        else:
            tail = (tail + block)[-_HASHED_BYTES:]
    if not whole:
        digest.update(tail)
    return digest.hexdigest(), count


def _refuse_other(name: str, head: bytes, found: Format) -> None:
    """Raise SourceError for the first bytes of another format."""
    kinds = {other.name: (other.magic, other.suffixes[0]) for other in FORMATS.values()}
    kinds[archive.SUFFIX[1:]] = (archive.MAGIC, archive.SUFFIX)
    others = {kind: suffix for kind, (magic, suffix) in kinds.items() if magic and head.startswith(magic)}
    if others and found.name not in others:
        what, suffixes = " or ".join(others), " or ".join(others.values())
        raise SourceError(f"{name}: it is a {what} file by its first bytes; rename it ({suffixes})")


def _told_apart(files: Iterable[InputFile]) -> list[InputFile]:
    """Each file once. Those whose URLs differ in their queries only have a number in their names."""
    count: Counter[str] = Counter()
    found: dict[tuple[str, Member | None], InputFile] = {}
    for file in files:
        if (key := (file.location, file.member)) not in found:
            count[file.path] += 1
            number = count[file.path]
            found[key] = replace(file, path=f"{file.path}#{number}") if number > 1 else file
    return list(found.values())
