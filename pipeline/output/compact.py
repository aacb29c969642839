"""Joins the many small parts of a finished job into a few parts of a target size, in the same folder.

A compaction is an update of the folder that labels nothing. Each of its ranges has the files of several ranges, each of
its chunks has the rows of several chunks, and its plan withdraws the ranges that it replaces. The old parts count until
its last step. If a compaction is stopped, at whatever moment, what it has written is removed.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import accumulate

import msgspec
import pyarrow as pa
from msgspec import UNSET

from ..errors import BroadsheetError, OutputError, UsageError
from ..processes.threads import available_cores
from ..source.open.ahead import in_order
from ..source.plan.plan import part_name
from ..source.rows.chunk import RowRange
from ..storage.disk import Content
from .account import Counts, range_numbers
from .commit import read_committed
from .finish import finish, seal
from .folder import OutputFolder
from .formats import joined_parts
from .layout import COMPACTING, PARTS, QUARANTINE, SUCCESS, PartNames, folder_values, quarantine_file, update_plan
from .object_store import place_of
from .record import (
    Accounted,
    ClosingEntry,
    Entry,
    FileRecord,
    ListedFile,
    Manifest,
    SavedPlan,
    Settings,
    from_json,
    to_json,
)
from .saved_plan import files_of, joined_plan, parts_of_saved
from .store import Store, check_claim

PART_ROWS = 1_000_000
"""The default number of rows of a part. Labels without a text then take about 20 MB of Parquet."""

_MOST_PART_BYTES = 256 << 20
"""The limit for a part that is joined from several, since it is held in memory while it is joined."""

_MOST_CHUNK_ROWS, _MOST_CHUNK_BYTES = 1 << 22, 1 << 30
"""The limits for a chunk whose rows are in many folders: `verify` and `select` hold some columns of all its rows."""

_MOST_AT_ONCE = 4
"""The number of parts that are joined at the same time."""


_Task = tuple[str, list[FileRecord], Callable[[list[bytes], str], Content]]
"""The name of a file, the files that it is made from, and a function that makes it from their contents and the name."""


@dataclass(frozen=True)
class Compacted:
    """What a compaction does.

    Attributes
    ----------
    parts_before, parts_after : int
        The number of parts of the folder before the compaction and after it.
    joined : int
        The number of parts that it reads and replaces; 0 if there is nothing to do.

    """

    parts_before: int
    parts_after: int
    joined: int


@dataclass(frozen=True)
class _Chunk:
    """What is known about a chunk before it is joined with others.

    Attributes
    ----------
    entry : str
        The name of its entry.
    rows, bytes : int
        The rows and bytes of its parts.
    folders : frozenset of str
        The folders that its parts are in. A job that is not partitioned has one folder for all parts.

    """

    entry: str
    rows: int
    bytes: int
    folders: frozenset[str]


@dataclass
class _Size:
    """The total size of some chunks.

    Attributes
    ----------
    rows, bytes, parts : int
        Sums over the chunks.
    folders : set of str
        The folders that their parts are in.

    """

    rows: int = 0
    bytes: int = 0
    parts: int = 0
    folders: set[str] = field(default_factory=set)

    def plus(self, chunks: Iterable[_Chunk]) -> _Size:
        """Add chunks to this size, and return it."""
        for chunk in chunks:
            self.rows += chunk.rows
            self.bytes += chunk.bytes
            self.parts += len(chunk.folders)
            self.folders |= chunk.folders
        return self

    def has_large_parts(self, part_rows: int) -> bool:
        """Return whether the parts are large enough to stay: on average they have at least half of the target size."""
        return self.parts > 0 and (
            2 * self.rows >= part_rows * self.parts or 2 * self.bytes >= _MOST_PART_BYTES * self.parts
        )

    def is_full(self, part_rows: int) -> bool:
        """Return whether one part in each folder would have the target size, or the chunk has reached its limit."""
        folders = max(1, len(self.folders))
        most_rows = min(part_rows * folders, _MOST_CHUNK_ROWS)
        return self.rows >= most_rows or self.bytes >= min(_MOST_PART_BYTES * folders, _MOST_CHUNK_BYTES)


@dataclass
class _Files:
    """Input files that stay together, and their chunks. They were read together, or are one large file.

    Attributes
    ----------
    numbers : range
        The numbers of their ranges. A large file has several.
    files : tuple of ListedFile
        The files.
    chunks : list of _Chunk
        The chunks, in the order of their rows.
    closed : list of ClosingEntry
        The closing entries of the ranges, in order.
    is_sound : bool
        Whether the files had no problems. A resumed job reads files with problems again, so their parts are not joined.
        Chosen rows are always sound, since no job can read their input again.

    """

    numbers: range
    files: tuple[ListedFile, ...]
    chunks: list[_Chunk] = field(default_factory=list)
    closed: list[ClosingEntry] = field(default_factory=list)
    is_sound: bool = True


@dataclass(frozen=True)
class _Joined:
    """A range of the compaction.

    Attributes
    ----------
    files : list of _Files
        The files of the range, one after the other.
    chunks : list of list of _Chunk
        For each new chunk, the chunks that it is joined from.

    """

    files: list[_Files]
    chunks: list[list[_Chunk]]

    @property
    def saves(self) -> int:
        """How many parts fewer the folder has once these are joined."""
        before = sum(len(chunk.folders) for files in self.files for chunk in files.chunks)
        return before - sum(len(_Size().plus(chunks).folders) for chunks in self.chunks)

    def closing(self, number: int, job: str) -> ClosingEntry:
        """Return the closing entry of the range. It counts all rows of a file that was cut as one.

        number: the number of the range.
        """
        rows: dict[str, int] = {}
        for path, count in (file for files in self.files for end in files.closed for file in end.files):
            rows[path] = rows.get(path, 0) + (count or 0)
        closed = [end for files in self.files for end in files.closed]
        return ClosingEntry(
            job=job,
            group=number,
            files=tuple(rows.items()),
            chunks=len(self.chunks),
            problems=tuple(dict.fromkeys(problem for end in closed for problem in end.problems)),
            unread=tuple(dict.fromkeys(file for end in closed for file in end.unread)),
        )


def compact(
    path: str | os.PathLike[str],
    part_rows: int = PART_ROWS,
    *,
    endpoint: str | None = None,
    told: Callable[[Compacted], None] | None = None,
) -> Compacted:
    """Put small parts of a finished job together, in its folder.

    The rows of small parts and their order stay, and so do the quarantine and the totals, except for the number of
    chunks. `verify`, `select` and updates work as before. Parts with half of the target or more stay as they are, and
    so do parts of files that could not be read completely. If the function fails or is interrupted, the folder stays
    as it was.

    Parameters
    ----------
    path : str or path
        The output folder of a finished job over files, or its URL.
    part_rows : int
        The rows that a part is to have, about. With folders for the values of a column, those of a part in each folder.
        A part that is put together has 256 MiB at most, and the parts of one chunk, one in each folder, together
        4,194,304 rows and 1 GiB.
    endpoint : str, optional
        As `classify` takes it.
    told : callable, optional
        Called before anything is written, with what will be done.

    Returns
    -------
    Compacted
        How many parts there were and are.

    Raises
    ------
    UsageError
        For a job whose parts cannot be put together: its rows were in memory, or it had a `limit`, say.
    OutputError
        For a job that is not finished or is damaged, or a folder that cannot be written, or is updated meanwhile.

    Examples
    --------
    >>> report = broadsheet.classify("news.csv", "labels", text_column=["title", "body"], chunk_size=10)
    >>> broadsheet.compact("labels")
    Compacted(parts_before=10, parts_after=1, joined=10)

    """
    if part_rows < 1:
        raise UsageError(f"part_rows is {part_rows}, it must be an integer of at least 1")
    return compact_folder(OutputFolder(place_of(path, endpoint)), part_rows, told)


def compact_folder(folder: OutputFolder, part_rows: int, told: Callable[[Compacted], None] | None) -> Compacted:
    """Compact a folder. See `compact`."""
    manifest, plan = _taken_up(folder)
    every = _files_of(folder, manifest, plan)
    joined = list(_joined(every, part_rows))
    parts = sum(len(chunk.folders) for files in every for chunk in files.chunks)
    replaced = sum(len(chunk.folders) for one in joined for files in one.files for chunk in files.chunks)
    about = Compacted(parts, parts - sum(one.saves for one in joined), replaced)
    if told is not None:
        told(about)
    if joined:
        _replace(folder, manifest, plan, joined, part_rows)
    return about


def refuse_compaction(path: object, settings: Settings, over_files: bool) -> None:
    """Raise UsageError for a job whose parts cannot be joined. over_files: whether its input is files."""
    copy = f"`broadsheet select {path} -o COPY.parquet` writes its rows into one file"
    if not over_files:
        raise UsageError(f"the parts of {path} cannot be joined: its rows were in memory. {copy}")
    if settings.limit is not None:
        raise UsageError(f"the parts of {path} cannot be joined: its job had a --limit. {copy}")
    if settings.layout is not UNSET:
        raise UsageError(f"{path} has a file for each input file (--layout attributes), and no parts to join")
    if settings.shard is not UNSET:
        raise UsageError(f"{path} is a share of a job: join its parts when you merge it with the others")


def _taken_up(folder: OutputFolder) -> tuple[Manifest, SavedPlan]:
    """Return the manifest and the plan of a finished job. Raises UsageError, OutputError.

    If an earlier compaction was stopped, this first repairs what it has left.
    """
    if not folder.is_begun:
        raise OutputError(f"{folder.path} is not an output folder of broadsheet")
    manifest = folder.manifest()
    refuse_compaction(folder.path, manifest.fingerprint.settings, manifest.plan is not None)
    check_claim(folder.store, manifest.fingerprint.id)
    plan = folder.checked_plan(manifest)
    assert plan is not None
    folder.discard_compaction(manifest)
    if manifest.totals is None or folder.under_way(manifest):
        raise OutputError(f"{folder.path} is not finished: continue with --resume, and then join its parts")
    if not folder.store.has(SUCCESS):
        folder.remove_withdrawn(manifest)
        seal(folder, manifest)
    return manifest, plan


def _files_of(folder: OutputFolder, manifest: Manifest, plan: SavedPlan) -> list[_Files]:
    """Return all files of a job, with what is known about their chunks."""
    # Make an object for each group of files in the plan.
    is_chosen = manifest.fingerprint.settings.chosen is not UNSET
    every: list[_Files] = []
    of_range: dict[int, _Files] = {}
    starts = accumulate(parts_of_saved(plan), initial=0)
    whole = files_of(plan)
    for at, cut in zip(starts, parts_of_saved(plan), strict=False):
        if whole[at]:  # a range without files was withdrawn
            every.append(_Files(range(at, at + cut), whole[at]))
            of_range |= dict.fromkeys(every[-1].numbers, every[-1])
    # Add what the entries say about chunks and about the ends of ranges.
    chunks: dict[int, list[tuple[tuple[int, int], _Chunk]]] = defaultdict(list)
    known: dict[str, str] = {}  # each folder once, as there may be millions of parts
    for entry, _ in folder.each_entry(manifest.fingerprint.id, range_numbers(plan), lambda _: None):
        if isinstance(entry, ClosingEntry):
            files = of_range.get(entry.group)
            if files is not None:
                files.closed.append(entry)
                files.is_sound &= is_chosen or not (entry.problems or entry.unread)
            continue
        range_number, number = map(int, entry.chunk.split("-")[1:])
        if files := of_range.get(range_number):
            parts = [file for file in entry.files if not file.name.startswith(QUARANTINE)]
            within = (file.name.rpartition("/")[0] for file in parts)
            folders = frozenset(known.setdefault(name, name) for name in within)
            about = _Chunk(entry.file_name, entry.rows_written, sum(file.bytes for file in parts), folders)
            chunks[files.numbers.start].append(((range_number, number), about))
            files.is_sound &= not entry.problems
    # Put the chunks in order, and check that no closing entry is missing.
    for files in every:
        files.chunks = [chunk for _, chunk in sorted(chunks[files.numbers.start], key=lambda one: one[0])]
        files.closed.sort(key=lambda end: end.group)
        if len(files.closed) != len(files.numbers):
            raise OutputError(f"{folder.path} is damaged: a closing entry is missing. --resume repairs this")
    return every


def _joined(every: Iterable[_Files], part_rows: int) -> Iterator[_Joined]:
    """Yield the new ranges in order. Each is made of files whose parts are small."""
    held: list[_Files] = []
    size = _Size()
    for files in every:
        if files.is_sound and not _Size().plus(files.chunks).has_large_parts(part_rows):
            held.append(files)
            if size.plus(files.chunks).is_full(part_rows):
                yield from _range_of(held, part_rows)
                held, size = [], _Size()
    yield from _range_of(held, part_rows)


def _range_of(held: list[_Files], part_rows: int) -> Iterator[_Joined]:
    """Yield one range of these files, if it has fewer parts than they have now."""
    joined = _Joined(held, _cut([chunk for one in held for chunk in one.chunks], part_rows))
    if joined.saves:
        yield joined


def _cut(chunks: Iterable[_Chunk], part_rows: int) -> list[list[_Chunk]]:
    """Return lists of chunks, each to become one chunk. A last list that is too small is added to the one before."""
    cut: list[list[_Chunk]] = []
    size = _Size()
    for chunk in chunks:
        if not cut or size.is_full(part_rows):
            cut.append([])
            size = _Size()
        cut[-1].append(chunk)
        size.plus([chunk])
    if len(cut) > 1 and not size.is_full(part_rows // 2):
        last = cut.pop()
        cut[-1] += last
    return cut


def _replace(
    folder: OutputFolder, manifest: Manifest, plan: SavedPlan, joined: Sequence[_Joined], part_rows: int
) -> None:
    """Write the new ranges, and withdraw the ranges that they replace.

    Parameters
    ----------
    folder : OutputFolder
        The folder of the job.
    manifest, plan
        The manifest that is saved there, and the plan of the job with all of its updates.
    joined : sequence of _Joined
        The new ranges.
    part_rows : int
        The target number of rows of a part, which the plan records.

    """
    job, number, schema = manifest.fingerprint.id, len(manifest.updates) + 1, folder.schema(manifest)
    compaction = _plan(plan, joined, part_rows)
    saved = [folder.plan_of(manifest, n) for n in range(number)]
    whole = joined_plan([*(one for one in saved if one is not None), compaction])
    data = msgspec.json.encode(compaction) + b"\n"
    check = partial(_check, folder, manifest, number, sha256(data).digest())
    folder.begin_update(number, data, job)
    with _undone_if_stopped(folder, manifest, number, compaction):
        counted = {entry.chunk: entry.digest for entry in _written(folder, manifest, schema, compaction, joined, check)}
        totals = folder.totals(whole, job, {*range_numbers(whole)} - {*(compaction.withdrawn or ())})
        check()
        finish(folder, totals, schema, job, counted, number, len(manifest.updates))


def _plan(plan: SavedPlan, joined: Sequence[_Joined], part_rows: int) -> SavedPlan:
    """Return the plan of the compaction."""
    files_of_ranges = [one.files for one in joined]
    return msgspec.structs.replace(
        plan,
        version=COMPACTING,
        files=tuple(file for range_files in files_of_ranges for files in range_files for file in files.files),
        groups=tuple(sum(len(files.files) for files in range_files) for range_files in files_of_ranges),
        parts=UNSET,
        first_group=plan.ranges,
        problems=(),
        unread=(),
        whole=UNSET,
        withdrawn=tuple(number for range_files in files_of_ranges for files in range_files for number in files.numbers),
        compacted=part_rows,
    )


def _check(folder: OutputFolder, manifest: Manifest, number: int, plan: bytes) -> None:
    """Raise OutputError if another job has taken the folder or has continued there. plan: the digest of our plan."""
    check_claim(folder.store, manifest.fingerprint.id)
    name = update_plan(number, manifest.fingerprint.id)
    if not folder.store.has(name) or sha256(folder.store.read(name)).digest() != plan:
        raise OutputError(
            f"the parts of {folder.path} were not joined: a job has gone on there meanwhile. No label is lost; join "
            "them when it is done"
        )


@contextmanager
def _undone_if_stopped(folder: OutputFolder, manifest: Manifest, number: int, plan: SavedPlan) -> Iterator[None]:
    """If the block raises, remove what the compaction has written, unless its parts count already."""
    try:
        yield
    except BaseException as error:
        with suppress(BroadsheetError):  # if this fails, it is undone when the folder is used next
            if folder.manifest() == manifest and folder.compaction_under_way(manifest) == (number, plan):
                folder.discard_compaction(manifest)
                folder.store.add(SUCCESS, b"", partial(check_claim, folder.store, manifest.fingerprint.id))
        if isinstance(error, OutputError):
            remedy = f"then join the parts again. The labels in {folder.path} are as they were"
            raise OutputError(re.sub("then continue with --resume.*", remedy, error.message)) from error
        raise


def _written(
    folder: OutputFolder,
    manifest: Manifest,
    schema: pa.Schema,
    plan: SavedPlan,
    joined: Sequence[_Joined],
    check: Callable[[], None],
) -> Iterator[Entry]:
    """Write all ranges, and yield the entry of each of their chunks.

    Parameters
    ----------
    folder, manifest
        The folder of the job, and its manifest.
    schema : pyarrow.Schema
        The columns of the parts.
    plan : SavedPlan
        The plan of the compaction.
    joined : sequence of _Joined
        The ranges of the compaction.
    check : callable
        A function that raises an error if nothing may be written any more.

    """
    store, job = folder.store, manifest.fingerprint.id
    at_once = min(_MOST_AT_ONCE, available_cores())
    with _threads(store.readers) as readers, _threads(at_once) as pool:
        join = partial(_join, store, manifest, schema, check, readers)
        calls = (
            partial(join, part_name(number, at), [chunk.entry for chunk in chunks])
            for number, one in enumerate(joined, plan.first_group)
            for at, chunks in enumerate(one.chunks)
        )
        yield from in_order(pool, calls, lambda: at_once)
        closings = (one.closing(number, job) for number, one in enumerate(joined, plan.first_group))
        list(readers.map(lambda end: store.add(end.file_name, to_json(end), check), closings))


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Start a thread pool that waits for its running calls, even after an error: what they write is then removed."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _join(
    store: Store,
    manifest: Manifest,
    schema: pa.Schema,
    check: Callable[[], None],
    readers: Executor,
    chunk: str,
    names: Sequence[str],
) -> Entry:
    """Join several chunks into one, commit it as `commit_chunk` does, and return its entry.

    Parameters
    ----------
    store : Store
        The store of the folder.
    manifest : Manifest
        The manifest of the job.
    schema : pyarrow.Schema
        The columns of the parts.
    check : callable
        A function that raises an error if nothing may be written any more.
    readers : concurrent.futures.Executor
        The threads that read entries and join parts.
    chunk : str
        The name of the new chunk.
    names : sequence of str
        The names of the entries of the chunks to join, in order.

    """
    # Read the entries of the chunks.
    job, of_parts = manifest.fingerprint.id, manifest.fingerprint.settings.names
    entries = list(readers.map(lambda name: from_json(store.read(name), Entry, store.root / name), names))
    # Join the parts of each folder, and the quarantined rows, into one file each.
    join = partial(joined_parts, schema=schema)
    tasks: list[_Task] = [(name, files, join) for name, files in _parts(entries, of_parts, chunk, job).items()]
    quarantined = [file for entry in entries for file in entry.files if file.name.startswith(QUARANTINE)]
    if quarantined:
        tasks.append((quarantine_file(chunk, job), quarantined, lambda contents, name: b"".join(contents)))

    def write(task: _Task) -> FileRecord:
        name, files, join_all = task
        data = join_all([read_committed(store, file) for file in files], name)
        store.add(name, data, check)
        return FileRecord(name, sum(file.rows for file in files), len(data), sha256(data).hexdigest())

    # Commit the entry after its files.
    entry = _sum(entries, chunk, job, tuple(readers.map(write, tasks)))
    store.add(entry.file_name, to_json(entry), check)
    return entry


def _parts(entries: Iterable[Entry], names: PartNames, chunk: str, job: str) -> dict[str, list[FileRecord]]:
    """Return the files that each part of a chunk is made from, by the name of the part, in the order of an entry."""
    by_folders: dict[tuple[str | None, ...], list[FileRecord]] = defaultdict(list)
    for file in (file for entry in entries for file in entry.files if file.name.startswith(f"{PARTS}/")):
        by_folders[tuple(folder_values(file.name).values())].append(file)
    return {name: by_folders[values] for name, values in names.files(chunk, job, by_folders)}


def _sum(entries: Sequence[Entry], chunk: str, job: str, files: tuple[FileRecord, ...]) -> Entry:
    """Return the entry of a chunk that has the rows of several."""
    counts = Counts()
    for entry in entries:
        counts.count(entry)
    totals = counts.totals
    return Entry(
        **{name: getattr(totals, name) for name in Accounted.__struct_fields__},
        chunk=chunk,
        job=job,
        sources=tuple(_together(source for entry in entries for source in entry.sources)),
        multi_label=entries[0].multi_label,
        problems=(),
        files=files,
    )


def _together(sources: Iterable[RowRange]) -> list[RowRange]:
    """Return ranges of rows, in which two are merged if the second begins where the first ends."""
    one_by_one: list[RowRange] = []
    for source in sources:
        last = one_by_one[-1] if one_by_one else None
        if last is not None and last.path == source.path and last.first + last.rows == source.first:
            one_by_one[-1] = last._replace(rows=last.rows + source.rows)
        else:
            one_by_one.append(source)
    return one_by_one
