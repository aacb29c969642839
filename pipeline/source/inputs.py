"""The input of a job, of any kind: its identity, its columns, and its chunks in input order."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ..errors import InputChanged, SourceError, UsageError
from ..storage.names import as_url, in_archive
from .chunk import Chunk, Selection, first_chunks
from .columns import may_hold
from .find.files import Files, Identity, find_files, is_known
from .find.search import Problem, search
from .formats.base import Scan, Seek
from .memory.items import Items, as_items
from .memory.stdin import STDIN, Stdin
from .memory.tables import MEMORY, Tables, as_tables, dask_selection, partition_chunk
from .open.ahead import ahead
from .open.compression import UTF8
from .plan.plan import (
    Group,
    GroupChunk,
    GroupEnd,
    Plan,
    RowGroups,
    Unit,
    group_name,
    part_name,
    plan_files,
    refuse_useless,
    split,
    to_split,
)
from .plan.scan import Scanner, no_scan, threads_scanner
from .read.read import read_group

_SPLIT_AT_ONCE, _FOUND_AHEAD = 4, 64
"""Large files whose chunks are looked for at the same time, and how many chunks of each are found before their turn."""

_GROUPS_AT_ONCE = 2
"""That are read here: while the last blocks of one are parsed, the first of the next are read."""

_SHOWN = 60
"""Characters of a text that is taken for a path, in a message."""


class Paths(tuple[str, ...]):
    """Several paths, folders, globs or fsspec URLs as one source; a plain list of strings is a list of articles.

    Parameters
    ----------
    paths : iterable of str or pathlib.Path
        The paths, in the order in which their rows are read.

    Examples
    --------
    >>> report = broadsheet.classify(broadsheet.Paths(["january.csv", "february/*.parquet"]), "labels")

    """

    def __new__(cls, paths: str | Iterable[str | os.PathLike[str]] = ()) -> Paths:
        """One path, given as a string, is that path and not its characters."""
        return super().__new__(cls, [paths] if isinstance(paths, str) else [os.fspath(path) for path in paths])


@dataclass(frozen=True)
class Loaded:
    """A chunk that the client has read. name: of its part. sources: (file, first row, rows) of its pieces."""

    name: str
    sources: tuple[tuple[str, int, int], ...]
    chunk: Chunk


@dataclass(frozen=True)
class Partition:
    """A partition of a Dask DataFrame. frame: its delayed pandas DataFrame. sources: how many rows is not known yet."""

    name: str
    number: int
    frame: Any
    sources: tuple[()] = ()


@dataclass(frozen=True)
class UnreadChunk:
    """A chunk that the client could not read, and why; the rest of its file is not read either."""

    name: str
    reason: str
    sources: tuple[()] = ()


Source = Unit | RowGroups | Group | Loaded | Partition | UnreadChunk
Ended = Callable[[GroupEnd], None]


def _unnoted(end: GroupEnd) -> None:
    """For who needs no account of what was read."""


class Chunks(Protocol):
    """Returns what is to be done, the largest tasks first, without chunks and groups whose name is in `done`. ended:
    called with the end of each group whose chunks are found here, after the last of them.
    """

    def __call__(self, done: Container[str], ended: Ended = _unnoted) -> Iterator[Source]: ...


@dataclass(frozen=True)
class JobInput:
    """A planned input. selection: with its text columns and id types resolved. rows: 0 where not known.
    bytes: stored, of files. problems: of what could not be listed. plan: of files, to be saved for a resumed job; None
    for rows in memory.
    """

    selection: Selection
    chunks: Chunks
    rows: int = 0
    bytes: int = 0
    problems: tuple[Problem, ...] = ()
    plan: Plan | None = None


@dataclass(frozen=True)
class RowsInMemory:
    """Rows in the client's memory, or that the client gets from an object which is read once."""

    held: Tables | Items
    identity: Identity

    @property
    def once(self) -> bool:
        return self.held.rows is None


@dataclass(frozen=True)
class DaskFrame:
    """A Dask DataFrame."""

    frame: Any
    identity: Identity


def one_worker() -> int:
    """For who has no cluster."""
    return 1


Scanners = Callable[[], AbstractContextManager[Scanner | None]]
"""Makes a scanner of large files; its value is None where threads of this process are to scan."""

Given = Files | RowsInMemory | DaskFrame | Stdin
"""The input of a job, before it is planned."""


def identify(
    source: Any,
    symbols: int,
    length: int,
    *,
    whole_hash: bool = False,
    by_content: bool = False,
    root: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
) -> Given:
    """The input of a job, before it is planned. Raises UsageError where there is none.

    symbols, length: of the model, for files that are encoded already. whole_hash: hash what is in the files.
    by_content: identify rows in memory by a hash of them; what is read once is never the same again. root: names of
    files are relative to it, else absolute. endpoint: of buckets, as of `bucket_client`. A string is a path, and so is
    each item of `Paths` or of a list of `pathlib.Path`; a list of strings is articles.
    """
    if isinstance(source, Stdin):
        return source
    paths = paths_of(source)
    if paths is not None:
        return _find(source, paths, symbols, length, whole_hash, root, endpoint)
    if _is_dask(source):
        frame = _dask_frame(source)
        return DaskFrame(frame, [{"path": MEMORY, "digest": frame._name}])
    tables = as_tables(source)
    rows = as_items(source) if tables is None else tables
    if rows is None:
        raise UsageError(_refusal(source))
    if rows.rows is None:
        return RowsInMemory(rows, [{"path": MEMORY, "digest": f"read once: {uuid.uuid4().hex}"}])
    return RowsInMemory(rows, [{"path": MEMORY, "digest": rows.digest if by_content else ""}])


def paths_of(source: Any) -> list[str] | None:
    """The paths, patterns and URLs that a source is; None for anything else."""
    if isinstance(source, Paths):
        return [os.fspath(path) for path in source]
    if isinstance(source, str | os.PathLike):
        return [os.fspath(source)]
    if isinstance(source, list | tuple) and source and all(isinstance(s, Path) for s in source):
        return [os.fspath(s) for s in source]
    return None


def local_paths(source: Any) -> list[str]:
    """The paths of the files here, archives themselves, that a source names: nothing of rows in memory. Raises as
    `identify`.
    """
    names = [inside.archive if (inside := in_archive(name)) else name for name in paths_of(source) or ()]
    here = [name for name in names if as_url(name) is None]
    return [file.location for file in search(here, is_known).files] if here else []


def _find(
    source: Any,
    paths: list[str],
    symbols: int,
    length: int,
    whole_hash: bool,
    root: str | os.PathLike[str] | None,
    endpoint: str | None,
) -> Files:
    try:
        return find_files(paths, symbols, length, whole_hash, root, endpoint)
    except UsageError as error:
        if isinstance(source, str) and "://" not in source and not os.path.lexists(source):
            shown = source if len(source) <= _SHOWN else f"{source[:_SHOWN]}…"
            raise UsageError(
                f"no input at {shown!r}: no such file, or a folder or pattern without one. To label a text, give a "
                "list of texts"
            ) from error
        raise


def _is_dask(source: Any) -> bool:
    if not hasattr(source, "__dask_graph__"):
        return False
    from dask.base import is_dask_collection  # takes a tenth of a second to import, so only where it is needed

    return bool(is_dask_collection(source))


def _dask_frame(source: Any) -> Any:
    """A Dask DataFrame; of a Series, with the column "text"."""
    from dask.dataframe import DataFrame, Series  # takes a second to import, so only where it is needed

    if isinstance(source, DataFrame):
        return source
    if isinstance(source, Series):
        return source.to_frame("text")
    raise UsageError(_refusal(source))


def _refusal(source: Any) -> str:
    kind = type(source).__name__
    remedies = {
        "LazyFrame": "it is a query: give .collect() of it",
        "DuckDBPyConnection": "give .to_arrow_reader() of it",
        "DatasetDict": "give one of its splits, for example dataset['train']",
        "IterableDatasetDict": "give one of its splits, for example dataset['train']",
        "dict": "give a list of texts or of dicts, or its .values()",
    }
    remedy = remedies.get(kind, "give paths, texts or dicts in a list or iterator, or a DataFrame or table")
    return f"cannot classify a {kind}: {remedy}"


def open_input(
    given: Given,
    selection: Selection,
    chunk_rows: int,
    saved: Plan | None = None,
    scanner: Scanners = threads_scanner,
    limit: int | None = None,
    workers: Callable[[], int] = one_worker,
) -> JobInput:
    """Plan an input, or use the plan of its files that was saved before. scanner: makes the one for large files, once
    there are some to scan. limit: only so many rows. workers: how many there are, asked once the chunks are wanted.

    Raises UsageError for a column that does not exist.
    """
    refuse_unfit(given, selection)
    if isinstance(given, Files):
        plan = plan_files(given.found, selection, chunk_rows, limit, whole=given.whole) if saved is None else saved
        unread = tuple((path, None) for path, _ in given.problems)
        return planned_files(replace(plan, problems=given.problems, unread=unread), scanner, workers)
    if isinstance(given, Stdin):
        selection = given.open(selection)

        def arriving(done: Container[str], ended: Ended = _unnoted) -> Iterator[Source]:
            return _loaded(first_chunks(given.chunks(selection, chunk_rows), limit), STDIN, done, ended)

        return JobInput(selection, arriving)
    if isinstance(given, DaskFrame):
        selection = dask_selection(given.frame, selection)
        return JobInput(selection, partial(_partitions, given.frame, selection, limit))
    selection, held = given.held.resolve(selection), given.held.rows

    def chunks(done: Container[str], ended: Ended = _unnoted) -> Iterator[Source]:
        read = first_chunks(given.held.chunks(selection, chunk_rows), limit)
        return _loaded(read, MEMORY, done, ended)

    return JobInput(selection, chunks, rows=0 if held is None else min(limit or held, held))


def refuse_unfit(given: Given, selection: Selection) -> None:
    """Raise UsageError for an option that goes with input of another kind."""
    if isinstance(given, Files):
        refuse_useless(given.found, selection)
        return
    if selection.answers:
        raise UsageError("an answer file goes with a one-hot file only")
    if isinstance(given, Stdin):
        return
    if selection.header is not None:
        raise UsageError("--columns is for a CSV or TSV without a header: these rows are in memory")
    if selection.encoding != UTF8 or selection.delimiter:
        raise UsageError("an encoding or a delimiter goes with files only: these rows are in memory")


def planned_files(plan: Plan, scanner: Scanners, workers: Callable[[], int] = one_worker) -> JobInput:
    """Groups for workers to read, and the chunks of large files, which are found beside the job."""

    def chunks(done: Container[str], ended: Ended = _unnoted) -> Iterator[Source]:
        used = (group for group in plan.groups if group.files or not group.number)
        left = (group for group in used if group_name(group.number) not in done)
        ordered = sorted(left, key=lambda group: group.bytes, reverse=True)
        chosen = to_split(ordered, plan.chunk_rows, workers)
        splits = [group for group in ordered if group.number in chosen]
        with _scanning(scanner, splits) as scan:
            found = ahead((partial(_split, group, plan, scan) for group in splits), _SPLIT_AT_ONCE, _FOUND_AHEAD)
            with closing(found):
                yield from (group for group in ordered if group.number not in chosen)
                for each in found:
                    if isinstance(each, GroupEnd):
                        ended(each)
                    elif isinstance(each, Group | UnreadChunk) or not _is_done(each, done):
                        yield each

    return JobInput(plan.selection, chunks, bytes=plan.bytes, problems=plan.problems, plan=plan)


@contextmanager
def _scanning(scanner: Scanners, splits: Iterable[Group]) -> Iterator[Scan]:
    """How the records of large files are found."""
    if not any(group.files[0].format.seeks is Seek.RECORDS for group in splits):
        yield no_scan
        return
    with scanner() as found:
        if found is not None:
            yield found.scan
            return
        with threads_scanner() as here:
            yield here.scan


def _split(group: Group, plan: Plan, scan: Scan) -> Iterator[Unit | RowGroups | Group | GroupEnd | UnreadChunk]:
    chunks = 0
    try:
        for each in split(group, plan.selection, plan.chunk_rows, scan):
            chunks += len(each.units) if isinstance(each, RowGroups) else 1
            yield each
    except InputChanged as error:
        yield UnreadChunk(part_name(group.number, chunks), error.message)


def _is_done(each: Unit | RowGroups, done: Container[str]) -> bool:
    return all(unit.name in done for unit in (each.units if isinstance(each, RowGroups) else [each]))


def _loaded(chunks: Iterable[Chunk], path: str, done: Container[str], ended: Ended) -> Iterator[Source]:
    """Chunks that are read here, up to the first that cannot be."""
    row = count = 0
    try:
        for chunk in chunks:
            name = part_name(0, count)
            if name not in done:
                yield Loaded(name, ((path, row, chunk.rows_read),), chunk)
            row, count = row + chunk.rows_read, count + 1
    except SourceError as error:
        yield UnreadChunk(part_name(0, count), error.message)
        return
    ended(GroupEnd(0, ((path, row),), count))


def _partitions(
    frame: Any, selection: Selection, limit: int | None, done: Container[str], ended: Ended = _unnoted
) -> Iterator[Source]:
    """One chunk a partition. With a limit the partitions up to it are counted first, each where Dask computes it."""
    count = 0
    for number, partition in enumerate(frame[may_hold(frame.columns, selection.columns)].to_delayed()):
        if limit is not None:
            rows = frame.partitions[number].shape[0].compute()
            partition, limit = partition.iloc[:limit] if rows > limit else partition, limit - rows
        name, count = part_name(0, number), number + 1
        if name not in done:
            yield Partition(name, number, partition)
        if limit is not None and limit <= 0:
            break
    ended(GroupEnd(0, ((MEMORY, None),), count))


def read_here(job_input: JobInput) -> Iterator[GroupChunk | GroupEnd | UnreadChunk]:
    """All of an input in its order, read in this process."""
    if job_input.plan is not None:
        plan, selection = job_input.plan, job_input.selection
        reads = (partial(read_group, group, selection, plan.chunk_rows, lambda _: False) for group in plan.groups)
        with closing(ahead(reads, _GROUPS_AT_ONCE, 1)) as found:
            yield from found
        return
    for source in job_input.chunks(()):
        if isinstance(source, Loaded):
            yield GroupChunk(source.name, source.sources, source.chunk)
        elif isinstance(source, Partition):
            chunk = partition_chunk(source.frame.compute(), source.number, job_input.selection)
            yield GroupChunk(source.name, ((f"partition {source.number}", 0, chunk.rows_read),), chunk)
        elif isinstance(source, UnreadChunk):
            yield source


def chunks_here(job_input: JobInput) -> Iterator[Chunk]:
    """Every chunk in input order, read in this process.

    Raises SourceError for a file that is not wholly readable; single bad rows are in the quarantine of their chunk.
    """
    if job_input.problems:
        raise SourceError(job_input.problems[0][1])
    for found in read_here(job_input):
        if isinstance(found, UnreadChunk):
            raise SourceError(found.reason)
        if isinstance(found, GroupEnd):
            if found.problems:
                raise SourceError(found.problems[0][1])
        elif found.chunk is not None:
            if found.chunk.problems:
                raise SourceError(found.chunk.problems[0])
            yield found.chunk
