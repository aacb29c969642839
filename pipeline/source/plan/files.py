"""Finds the input files of a job, and the registered format of each by its name. Only archives are opened, to list
their members, and files whose names do not tell their formats.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from heapq import heapreplace
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from ...errors import InputUnavailable, SourceError, UsageError
from ...processes.threads import available_cores, threads
from ...storage.buckets import State
from ...storage.names import (
    InArchive,
    file_part,
    in_archive,
    is_url,
    located,
    member_name,
    named,
    printable,
    root_of,
    without_secrets,
)
from ..formats.arrow import Arrow
from ..formats.csv import Csv, Tsv
from ..formats.jsonl import Jsonl
from ..formats.onehot import OneHot
from ..formats.parquet import Parquet
from ..formats.record_format import Text
from ..formats.wet import Wet
from ..formats.xlsx import Xlsx
from ..open.front_to_back import DAMAGE, ZIP_SUFFIX, is_hidden, list_members, member_path, open_member
from ..open.opening import open_at, open_location, reason
from ..open.remote import REQUESTS
from ..rows.compression import SUFFIXES
from ..rows.format import Format, InputFile, Member
from .content import HEADS, Kind, Told, told_by
from .search import NO_FORMAT, Listed, Problem, search

FORMAT_OF_SUFFIX: dict[str, Format] = {}
"""The formats by suffix, with the dot."""


def register(added: Format) -> None:
    """Register a format: from now on it reads the files with its suffixes.

    Parameters
    ----------
    added : Format
        The format. It is sent to the workers with each file, so they must be able to import its class.

    Raises
    ------
    ValueError
        If one of its suffixes belongs to another format.

    Examples
    --------
    >>> class Log(Text):
    ...     name = "log"
    ...     suffixes = (".log",)
    >>> register(Log())
    >>> report = broadsheet.classify("messages.log")

    """
    if taken := FORMAT_OF_SUFFIX.keys() & added.suffixes:
        raise ValueError(f"{added.name} cannot have {min(taken)}: it belongs to {FORMAT_OF_SUFFIX[min(taken)].name}")
    FORMAT_OF_SUFFIX.update(dict.fromkeys(added.suffixes, added))


def unregister(removed: Format) -> None:
    """Remove a registered format."""
    for suffix in removed.suffixes:
        del FORMAT_OF_SUFFIX[suffix]


for _format in (Csv(), Tsv(), Jsonl(), Parquet(), Arrow(), Text(), Wet(), Xlsx(), OneHot()):
    register(_format)


_REMEDIES = {
    ".xls": "save it as .xlsx or .csv",
    ".ods": "save it as .xlsx or .csv",
    ".tar": "unpack it",
    ".7z": "unpack it",
    ".rar": "unpack it",
}
_ONE_OBJECT = "it is a JSON object, as a configuration is, and not an object a line"
_OF_SPARK = re.compile(r"part-(?:[a-z]-)?\d{4}")
_MUST_JUMP = "a {} file is read at many places at once: {}"
_NO_RANGES = "its server cannot do that; download it first"

_OLD_VERSIONS = (
    "{} is a table of {}: all of its files are read, also those of earlier versions, with rows that were changed or "
    "deleted since. To label the current version, write that to files of its own first"
)

Identity = list[dict[str, Any]]
"""The input in a fingerprint."""


@dataclass(frozen=True)
class Files:
    """The files of a job as they were listed, with the names that the output gives them.

    Attributes
    ----------
    found : tuple of InputFile
        The files that can be read.
    problems : tuple of (str, str)
        The files and folders that cannot be read, each with a message.
    left_out : tuple of (str, str)
        What is skipped because it is no input: files in folders and archives, and folders that a pattern matches. Each
        has its reason.
    whole : tuple of InputFile
        If `found` is a share of the files, all of the files.
    remarks : tuple of str
        What the user should know about folders, although nothing is wrong.

    """

    found: tuple[InputFile, ...]
    problems: tuple[Problem, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    whole: tuple[InputFile, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        return [{"path": f.path, "size": f.size, "modified": f.modified, "digest": f.digest} for f in self.found]


def find_files(
    inputs: Sequence[str],
    symbols: int,
    length: int,
    whole_hash: bool = False,
    root: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    input_format: str | None = None,
) -> Files:
    """Return the files that `inputs` name. Raises UsageError if an input names nothing, or a file that has no known
    format.

    Parameters
    ----------
    inputs : sequence of str
        Paths, folders, patterns and URLs.
    symbols, length : int
        The model's number of symbols and length of a text, for files that are already encoded.
    whole_hash : bool
        Hash the content of each file, which reads all of it.
    root : path-like, optional
        The folder or URL to which names are relative. By default names are absolute.
    endpoint : str, optional
        The endpoint of buckets (see `bucket_client`).
    input_format : str, optional
        The name of the format of all files. By default the suffix of a file tells its format. The first bytes tell it
        for a file that is called .json, or part-00000 as Spark calls its files.

    """
    # List the files.
    top = root_of(root)
    # With one format for all files, every name may be input: `bool` is true for any of them.
    listed = search(inputs, bool if input_format else may_be_input, endpoint)
    find = _Find(top, symbols, length, endpoint)
    # Read the first bytes of files whose names do not tell their formats.
    said = next((form.suffixes[0] for form in FORMAT_OF_SUFFIX.values() if form.name == input_format), None)
    unsure = [] if said else [file for file in listed.files if _is_unsure(file.location)]
    with threads(REQUESTS) as pool:
        told = dict(zip((file.location for file in unsure), pool.map(find.told_of, unsure), strict=True))
    # Sort the files into those to read, problems, and files that are left out.
    named_here = {*inputs, *map(os.path.abspath, inputs)}
    for file in listed.files:
        if file.location not in told:
            find.add(file, said)
        elif told[file.location].kind is Kind.OTHER and file.location not in named_here:
            listed.left_out.append((file.location, _ONE_OBJECT))
        else:
            find.add_told(file, told[file.location])
    if find.unknown and not find.found and len(find.unknown) == len(find.problems):
        raise UsageError(find.unknown[0])
    # Give each file a name of its own, and hash the files if the user asked for it.
    files, problems = _told_apart(find.found), find.problems
    if whole_hash:
        files, unreadable = _hashed(files)
        problems += unreadable
    # Add folders that cannot be listed, and what was left out.
    unreadable = [(printable(named(path, top)), why) for path, why in listed.unreadable]
    problems += [(name, f"{name}: {why}; nothing in this folder was read") for name, why in unreadable]
    left_out = sorted((printable(named(path, top)), _with_remedy(path, why)) for path, why in listed.left_out)
    left_out += find.left_out
    # Refuse input without any file to read.
    if not (files or problems):
        if in_archive(inputs[0]) and not in_archive(left_out[0][0]):
            raise UsageError(f"no input at {inputs[0]!r}: the archive has no such file")
        raise UsageError(f"no input in {inputs[0]!r}: {len(left_out):,} files of other kinds, such as {left_out[0][0]}")
    remarks = [_OLD_VERSIONS.format(printable(named(path, top)), kind) for path, kind in listed.tables]
    return Files(tuple(files), tuple(problems), tuple(left_out), remarks=tuple(remarks))


def share_of(shard: str) -> tuple[int, int]:
    """Return the number of the share and the number of shares, parsed from a string such as "3/64".
    Raises UsageError.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", str(shard))
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"--shard is {shard!r}, it must be I/N: share I, from 1 on, of N")
    return number, count


def refuse_unfit_share(shard: str | None, update: bool, limit: int | None) -> None:
    """Raise UsageError for a string that names no share, or for an option that does not go with one."""
    if shard is None:
        return
    share_of(shard)
    for flag, given in (("--update", update), ("--limit", limit is not None)):
        if given:
            raise UsageError(f"{flag} does not go with --shard: the files are divided once, whole")


def divided(files: Files, shard: str, known: Container[str] | None) -> Files:
    """Return a share of the files. The same files give the same share wherever they are listed.

    Each file, the largest first, goes to the share that has the fewest bytes so far, or to the first of several
    such shares. Only the first share reports what could not be listed and what is skipped.

    Parameters
    ----------
    files : Files
        All files.
    shard : str
        The share, as in "3/64".
    known : container of str or None
        The names of the files that the share had before; None if it is new.

    """
    number, count = share_of(shard)
    taken: set[int] = set()
    shares = [(0, share) for share in range(1, count + 1)]
    order = sorted(range(len(files.found)), key=lambda at: (-files.found[at].stored, files.found[at].path))
    for at in order:
        size, share = shares[0]
        heapreplace(shares, (size + max(files.found[at].stored, 1), share))
        taken |= {at} if share == number else set()
    if known is not None:
        taken = {at for at, file in enumerate(files.found) if file.path in known}
    chosen = tuple(files.found[at] for at in sorted(taken))
    problems, left_out = (files.problems, files.left_out) if number == 1 else ((), ())
    return replace(files, found=chosen, problems=problems, left_out=left_out, whole=files.found)


def find_again(
    names: Sequence[str],
    root: str | os.PathLike[str] | None,
    whole_hash: bool,
    endpoint: str | None = None,
    input_format: str | None = None,
) -> Files:
    """Return the files that had these names in a job. Raises SourceError if one of them does not exist.

    Parameters
    ----------
    names : sequence of str
        The names.
    root : path-like, optional
        The folder to which relative names belong; by default the current one.
    whole_hash, endpoint, input_format
        See `find_files`.

    """
    if root is None and not all(is_url(name) or os.path.isabs(name) for name in names):
        root = os.getcwd()
    try:
        paths = [located(name, root_of(root)) for name in names]
        return find_files(paths, 0, 0, whole_hash, root, endpoint, input_format)
    except UsageError as error:
        raise SourceError(error.message) from error


def is_known(path: str) -> bool:
    """Whether the suffix of a path or URL belongs to a format, or to an archive."""
    suffix, compression = _suffixes(path)
    return suffix in FORMAT_OF_SUFFIX or (suffix == ZIP_SUFFIX and not compression)


def may_be_input(path: str) -> bool:
    """Whether the name of a file says that it is input, or leaves that to its content."""
    return is_known(path) or _is_unsure(path)


def _is_unsure(path: str) -> bool:
    """Whether only the content of a file tells its format. This is so if it is called .json, or part-00000 as Spark
    calls its files, even with a suffix that belongs to no format.
    """
    suffix, name = _suffixes(path)[0], (file_part(path) if is_url(path) else path).rpartition("/")[2]
    if suffix == ".json":
        return True
    return name.startswith("part-") and not is_known(path) and (not suffix or bool(_OF_SPARK.match(name)))


def _suffixes(path: str) -> tuple[str, str | None]:
    """Return the suffix of a file and its compression. Cached by suffix, because there may be very many files with few
    suffixes.
    """
    name = file_part(path) if is_url(path) else path
    parts = name.rpartition("/")[2].lstrip(".").lower().rsplit(".", 2)
    parts[0] = ""
    return _suffixes_of(".".join(parts))


@lru_cache(1024)
def _suffixes_of(end: str) -> tuple[str, str | None]:
    pure = PurePosixPath(f"name{end}")
    if pure.suffix in SUFFIXES:
        return PurePosixPath(pure.stem).suffix, SUFFIXES[pure.suffix]
    return pure.suffix, None


def takes_encoding(path: str) -> bool:
    """Whether the file of that name may be in an encoding other than UTF-8."""
    form = FORMAT_OF_SUFFIX.get(_suffixes(path)[0])
    return form is None or form.takes_encoding


def format_of(path: str) -> Format:
    """Return the format of the file with that name. Raises UsageError."""
    return _format_of(*_suffixes(path), path)


def _with_remedy(name: str, why: str) -> str:
    """Return the reason why a file is skipped, with a remedy if its name tells a format for which there is one."""
    remedy = _REMEDIES.get(_suffixes(name)[0]) if why == NO_FORMAT else None
    return f"{why}; {remedy}" if remedy else why


def _format_of(suffix: str, compression: str | None, name: str) -> Format:
    """Return the format of files with that suffix. name: the file's name for a message. Raises UsageError."""
    if suffix not in FORMAT_OF_SUFFIX:
        remedy = f"; {_REMEDIES[suffix]}" if suffix in _REMEDIES else ""
        known, packed = " ".join(FORMAT_OF_SUFFIX), " ".join(SUFFIXES)
        raise UsageError(
            f"{name}: its suffix belongs to no format{remedy}; known are {known}, also with {packed}, and .zip; "
            "--input-format names that of all files"
        )
    form = FORMAT_OF_SUFFIX[suffix]
    if compression and form.jumps:
        raise UsageError(f"{name}: {_MUST_JUMP.format(form.name, 'decompress it first')}")
    return form


class _Find:
    """Turns listed files into input files.

    `found`, `problems` and `left_out` are as in `Files`. `unknown` has a message for each problem that another option
    may solve.
    """

    def __init__(self, root: str | None, symbols: int, length: int, endpoint: str | None) -> None:
        self.found: list[InputFile] = []
        self.problems: list[Problem] = []
        self.left_out: list[tuple[str, str]] = []
        self.unknown: list[str] = []
        self._root, self._symbols, self._length, self._endpoint = root, symbols, length, endpoint
        # One object for all files of a format, because it is sent to the workers with each file.
        self._bound: dict[int, Format] = {}

    def told_of(self, listed: Listed) -> Told:
        """Return what the first bytes of a file tell. Raises InputUnavailable if its server cannot be reached."""
        if listed.problem:
            return Told(Kind.UNREADABLE, reason=listed.problem)
        state = State(listed.size, listed.modified)
        try:
            for size in HEADS:
                raw = open_location(listed.location, listed.ranges, state, self._endpoint, size)
                with io.BufferedReader(raw) as stream:
                    told = _told(stream, size, listed.location)
                if told.kind is not Kind.CUT:
                    break
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                message = f"{without_secrets(listed.location)}: {reason(error)}. Try again later"
                raise InputUnavailable(message) from error
            return Told(Kind.UNREADABLE, reason=reason(error))
        return told

    def _told_of_member(self, archive: Listed, member: Member) -> Told:
        """Return what the first bytes of a file in an archive tell."""
        if member.problem:
            return Told(Kind.UNREADABLE, reason=member.problem)
        try:
            with io.BufferedReader(open_location(archive.location, endpoint=self._endpoint)) as stored:
                for size in HEADS:
                    told = _told(open_member(stored, member), size, member.name)
                    if told.kind is not Kind.CUT:
                        break
                    stored.seek(0)
        except (*DAMAGE, OSError) as error:
            return Told(Kind.UNREADABLE, reason=reason(error) if isinstance(error, OSError) else str(error))
        return told

    def add_told(self, listed: Listed, told: Told) -> None:
        """Add a file whose first bytes tell its format, or note what is wrong with it. Raises UsageError if the file is
        outside the root.
        """
        name = printable(named(listed.location, self._root))
        if told.kind is Kind.READABLE:
            try:
                self.add(listed, told.suffix)
            except UsageError as error:  # such as a compressed file of a format that must not be compressed
                self.problems.append((name, error.message))
            return
        self._refuse(name, told)

    def _refuse(self, name: str, told: Told) -> None:
        """Note a file that cannot be read according to its first bytes."""
        self.problems.append((name, f"{name}: {told.reason}. It was not read"))
        if told.kind in (Kind.UNKNOWN, Kind.OTHER):
            self.unknown.append(f"{name}: {told.reason}")

    def add(self, listed: Listed, said: str | None) -> None:
        """Add a listed file or, if it is an archive, its members. Raises UsageError if it is outside the root or has no
        known format. said: the suffix of its format, which replaces that of its name.
        """
        location = listed.location
        suffix, compression = _suffixes(location)
        suffix = suffix if suffix == ZIP_SUFFIX else said or suffix
        inside = in_archive(location)
        is_archive = (suffix, compression) == (ZIP_SUFFIX, None)
        form = None
        if not inside and not is_archive:
            form = _format_of(suffix, compression, printable(named(location, None)))
        name = printable(named(location, self._root))
        try:
            if listed.problem:
                raise SourceError(f"{name}: {listed.problem}")
            if printable(location) != location:
                raise SourceError(f"{name}: its name is not UTF-8, so the output could not name it; rename it")
            if form is None:
                self._look_into(replace(listed, location=inside.archive if inside else location), inside)
            else:
                if form.jumps and not listed.ranges:
                    raise SourceError(f"{name}: {_MUST_JUMP.format(form.name, _NO_RANGES)}")
                self._take(listed, name, form, compression)
        except SourceError as error:
            self.problems.append((name, error.message))

    def _take(
        self, listed: Listed, name: str, form: Format, compression: str | None, member: Member | None = None
    ) -> None:
        """Add an input file.

        Parameters
        ----------
        listed : Listed
            The file, or the archive that it is in.
        name : str
            The name of the file.
        form : Format
            The format that the suffix tells.
        compression : str or None
            The compression that the suffix tells.
        member : Member, optional
            What the archive says about the file. With the archive's size and time, this identifies the file.

        """
        digest = ""
        if member:
            about = f"{member.checksum:08x} {member.length} {member.name}"
            digest = hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()
        file = InputFile(
            path=name,
            format=self._bound.setdefault(id(form), form.for_model(self._symbols, self._length)),
            compression=compression,
            size=listed.size,
            modified=listed.modified,
            location=listed.location,
            member=member,
            ranges=listed.ranges,
            digest=digest,
            endpoint=self._endpoint,
        )
        self.found.append(file)

    def _look_into(self, listed: Listed, inside: InArchive | None) -> None:
        """Add the members of an archive that have the name in the URL or match its pattern. Without one, add all
        members.
        """
        # Choose the members by the name or pattern in the URL. A member of exactly that name has priority, because a
        # name may hold characters that are special in a pattern.
        shown, wanted = named(listed.location, self._root), member_path(inside.member) if inside else "*"
        members = _members(listed.location, shown, self._endpoint)
        matching = (member for member in members if not is_hidden(member) and fnmatchcase(member.name, wanted))
        seen: set[str] = set()
        for member in [member for member in members if member.name == wanted] or matching:
            # Find the format of a member, if need be by its first bytes.
            name = printable(member_name(member.name, shown))
            suffix, compression = _suffixes(member.name)
            told = self._told_of_member(listed, member) if _is_unsure(member.name) else None
            if told and told.kind is Kind.OTHER and member.name != wanted:
                self.left_out.append((name, _ONE_OBJECT))
                continue
            if told and told.kind is not Kind.READABLE:
                self._refuse(name, told)
                continue
            suffix = told.suffix if told else suffix
            # Refuse members that cannot be read, and add the others.
            try:
                if suffix == ZIP_SUFFIX:
                    raise SourceError(f"{name}: an archive in an archive is not read: unpack the outer one")
                if suffix not in FORMAT_OF_SUFFIX:
                    self.left_out.append((name, _with_remedy(member.name, NO_FORMAT)))
                    continue
                if member.name in seen:
                    raise SourceError(
                        f"{name}: the archive holds another file of this name, which was read; this one was not"
                    )
                seen.add(member.name)
                form = _format_of(suffix, compression, name)
                if form.jumps:
                    raise SourceError(f"{name}: {_MUST_JUMP.format(form.name, 'unpack the archive first')}")
                if member.problem:
                    raise SourceError(f"{name}: {member.problem}")
                self._take(listed, name, form, compression, member)
            except (SourceError, UsageError) as error:
                self.problems.append((name, error.message))
        if not (seen or self.problems or self.left_out):
            self.left_out.append((shown, "the archive is empty"))


def _told(stream: BinaryIO, size: int, name: str) -> Told:
    """Return what the first `size` bytes of a file tell. name: the file's own name, which ends in its suffixes."""
    suffix, compression = _suffixes(name)
    head = stream.read(size)
    return told_by(head, len(head) < size, compression, suffix == ".json", FORMAT_OF_SUFFIX.values())


def _members(location: str, name: str, endpoint: str | None) -> list[Member]:
    try:
        with open_location(location, endpoint=endpoint) as raw:
            if not raw.ranges:
                raise SourceError(f"{name}: {_MUST_JUMP.format('zip', _NO_RANGES)}")
            return list_members(raw)
    except OSError as error:
        raise SourceError(f"{name}: {reason(error)}") from error


def _hashed(files: Sequence[InputFile]) -> tuple[list[InputFile], list[Problem]]:
    """Return the files with the SHA-256 of their content, and the problems of those that cannot be read."""

    def hashed(file: InputFile) -> InputFile | Problem:
        content = hashlib.sha256()
        try:
            with _as_stored(file) as stream:
                while block := stream.read(1 << 22):
                    content.update(block)
        except SourceError as error:
            return file.path, error.message
        except OSError as error:
            return file.path, f"{file.path}: {reason(error)}"
        return replace(file, digest=content.hexdigest())

    with threads(available_cores()) as pool:
        results = list(pool.map(hashed, files))
    return [r for r in results if isinstance(r, InputFile)], [r for r in results if not isinstance(r, InputFile)]


def _as_stored(file: InputFile) -> BinaryIO:
    """Open the bytes of a file as they are stored. Those of an archive's member are decompressed as the archive
    requires.
    """
    if file.member:
        return open_at(replace(file, compression=None))
    return cast(BinaryIO, open_location(file.location, file.ranges, endpoint=file.endpoint))


def _told_apart(files: Iterable[InputFile]) -> list[InputFile]:
    """Return each file once. Files whose URLs differ only in their queries get numbers in their names."""
    count: Counter[str] = Counter()
    files_once: dict[tuple[str, Member | None], InputFile] = {}
    for file in files:
        if (key := (file.location, file.member)) not in files_once:
            count[file.path] += 1
            number = count[file.path]
            files_once[key] = replace(file, path=f"{file.path}#{number}") if number > 1 else file
    return list(files_once.values())
