"""The input of a job, of any kind: its identity, its columns, and its ranges."""

from __future__ import annotations

import os
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ..errors import SourceError, UsageError, counted
from ..storage.names import as_url, in_archive
from .memory.items import Items, as_items
from .memory.stdin import STDIN, Stdin
from .memory.tables import MEMORY, Tables, as_tables, dask_selection, partition_chunk
from .open.ahead import ahead
from .plan.files import Files, Identity, find_files, may_be_input
from .plan.plan import Plan, Range, RangeEnd, Start, part_name, plan_files, range_name, refuse_useless
from .plan.search import Problem, search
from .read.read import Skipped, read_range
from .rows.chunk import Chunk, RowRange, Selection, first_chunks
from .rows.columns import may_hold
from .rows.compression import UTF8, not_decoded
from .rows.format import InputFile

_RANGES_AT_ONCE = 2
"""The number of ranges that are read here at once: while the last blocks of one are parsed, the first of the next are
read.
"""

_SHOWN = 60
"""How many characters a message shows of a text that was taken for a path."""


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
        """Treat a single string as one path, rather than as a sequence of characters."""
        return super().__new__(cls, [paths] if isinstance(paths, str) else [os.fspath(path) for path in paths])


@dataclass(frozen=True)
class UnreadableRows:
    """Rows that the client could not read.

    Attributes
    ----------
    name : str
        The name of the part that the rows would have become.
    reason : str
        Why they could not be read.

    """

    name: str
    reason: str


class Before(Protocol):
    """What earlier runs of a job did."""

    @property
    def committed(self) -> Container[str]:
        """The names of chunks that are committed, and of ranges that need not be read again."""

    def start_after(self, number: int, start: Start | None) -> Start | None:
        """Return where the range after this one begins in its file, or None if it is unknown.

        Parameters
        ----------
        number : int
            The number of this range.
        start : Start or None
            Where this range begins.

        """


class NothingBefore:
    """The state before the first run of a job."""

    committed: Container[str] = ()

    def start_after(self, number: int, start: Start | None) -> Start | None:
        return None


Ended = Callable[[RangeEnd], None]


def _unnoted(end: RangeEnd) -> None:
    """Ignore the end of a range. Used by callers that need no account of what was read."""


class Ranges(Protocol):
    """Yields the ranges that are still to be read, the largest first, and leaves out those that `before` has.

    Parameters
    ----------
    before : Before
        What earlier runs of the job did.
    ended : callable
        For rows in memory, called with the end of the range after its last row.

    """

    def __call__(self, before: Before, ended: Ended = _unnoted) -> Iterator[Range | UnreadableRows]: ...


@dataclass(frozen=True)
class JobInput:
    """A planned input.

    Attributes
    ----------
    selection : Selection
        The columns that the job uses, with the text columns and id types resolved.
    ranges : Ranges
        Yields the ranges to read.
    rows : int
        The number of rows; 0 if it is unknown.
    bytes : int
        The size of the files as they are stored.
    problems : tuple of (str, str)
        The files and folders that could not be listed, each with a message.
    plan : Plan or None
        The plan of the files, which is saved for a resumed job; None for rows in memory.

    """

    selection: Selection
    ranges: Ranges
    rows: int = 0
    bytes: int = 0
    problems: tuple[Problem, ...] = ()
    plan: Plan | None = None


@dataclass(frozen=True)
class RowsInMemory:
    """Rows in the client's memory, or rows that the client gets from an object that can be read only once."""

    held: Tables | Items
    identity: Identity

    @property
    def once(self) -> bool:
        """Whether the rows can be read only once."""
        return self.held.rows is None


@dataclass(frozen=True)
class DaskFrame:
    """A Dask DataFrame."""

    frame: Any
    identity: Identity


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
    input_format: str | None = None,
) -> Given:
    """Return the input of a job, before it is planned. Raises UsageError if there is no input.

    Parameters
    ----------
    source : object
        The input. A string is a path, and so is each item of `Paths` or of a list of `pathlib.Path`; a list of strings
        is articles.
    symbols, length : int
        The model's number of symbols and length of a text, for files that are already encoded.
    whole_hash : bool
        Hash the content of the files.
    by_content : bool
        Identify rows in memory by their hash. An object that can be read only once is never the same again.
    root : path-like, optional
        The folder or URL to which the names of files are relative. By default names are absolute.
    endpoint, input_format : str, optional
        See `find_files`.

    """
    if isinstance(source, Stdin):
        return source
    paths = paths_of(source)
    if paths is not None:
        try:
            return find_files(paths, symbols, length, whole_hash, root, endpoint, input_format)
        except UsageError as error:
            if message := _instead_of_path(source, error.message):
                raise UsageError(message) from error
            raise
    if hasattr(source, "__dask_graph__"):
        frame = _dask_frame(source)
        return DaskFrame(frame, [{"path": MEMORY, "digest": frame._name}])
    rows = as_tables(source) or as_items(source)
    if rows is None:
        raise UsageError(_refusal(source))
    once = f"read once: {uuid.uuid4().hex}" if rows.rows is None else ""
    return RowsInMemory(rows, [{"path": MEMORY, "digest": once or (rows.digest if by_content else "")}])


def paths_of(source: Any) -> list[str] | None:
    """Return the paths, patterns and URLs that a source stands for, or None if it is something else."""
    if isinstance(source, Paths):
        return [os.fspath(path) for path in source]
    if isinstance(source, str | os.PathLike):
        return [os.fspath(source)]
    if isinstance(source, list | tuple) and source and all(isinstance(s, Path) for s in source):
        return [os.fspath(s) for s in source]
    return None


def local_paths(source: Any, input_format: str | None = None) -> list[str]:
    """Return the paths of the local files that a source names; for a file in an archive, return the archive's path.

    Rows in memory have no paths. Raises the errors of `identify`.
    """
    names = [inside.archive if (inside := in_archive(name)) else name for name in paths_of(source) or ()]
    here = [name for name in names if as_url(name) is None]
    # With one format for all files, every name may be input: `bool` is true for any of them.
    return [file.location for file in search(here, bool if input_format else may_be_input).files] if here else []


def _instead_of_path(source: Any, message: str) -> str | None:
    """Return the message for a string that is probably a text to label and not a path, or None for any other source."""
    if not isinstance(source, str) or "://" in source or os.path.lexists(source):
        return None
    shown = source if len(source) <= _SHOWN else f"{source[:_SHOWN]}…"
    message = message.replace(repr(source), repr(shown))
    return f"{message}{'' if message.endswith('?') else '.'} To label a text, give a list of texts"


def _dask_frame(source: Any) -> Any:
    """Return a Dask DataFrame. A Series becomes a DataFrame with the column "text"."""
    from dask.dataframe import DataFrame, Series  # importing this takes a second, so it is done only if needed

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
    limit: int | None = None,
    cut: bool = True,
) -> JobInput:
    """Plan an input, or use the saved plan of its files.

    Parameters
    ----------
    given : Files, RowsInMemory, DaskFrame or Stdin
        The input.
    selection : Selection
        The columns that the job uses.
    chunk_rows : int
        The largest number of rows in a chunk.
    saved : Plan, optional
        The plan that an earlier run saved.
    limit : int, optional
        The largest number of rows to read.
    cut : bool
        Whether large files are cut into parts.

    Raises
    ------
    UsageError
        If a column does not exist.

    """
    refuse_unfit(given, selection)
    # Files have a plan, which may be saved.
    if isinstance(given, Files):
        if saved is not None:
            return planned_files(saved)
        plan = plan_files(given.found, selection, chunk_rows, limit, whole=given.whole, cut=cut)
        unread = tuple((path, None) for path, _ in given.problems)
        return planned_files(replace(plan, problems=given.problems, unread=unread, left_out=given.left_out))
    # Other inputs have none: their rows are cut into chunks as they are read.
    if isinstance(given, DaskFrame):
        selection = dask_selection(given.frame, selection)
        return JobInput(selection, partial(_partitions, given.frame, selection, limit))
    if isinstance(given, Stdin):
        selection = given.open(selection)
        arriving = first_chunks(given.chunks(selection, chunk_rows), limit)
        return JobInput(selection, partial(_in_memory, arriving, STDIN))
    selection, held = given.held.resolve(selection), given.held.rows

    def ranges(before: Before, ended: Ended = _unnoted) -> Iterator[Range | UnreadableRows]:
        return _in_memory(first_chunks(given.held.chunks(selection, chunk_rows), limit), MEMORY, before, ended)

    return JobInput(selection, ranges, rows=0 if held is None else min(limit or held, held))


def refuse_unfit(given: Given, selection: Selection) -> None:
    """Raise UsageError for an option that does not go with this kind of input."""
    if isinstance(given, Files):
        refuse_useless(given.found, selection)
        return
    if selection.answers:
        raise UsageError("an answer file goes with a one-hot file only")
    if isinstance(given, Stdin):
        return
    if selection.header is not None:
        raise UsageError("--columns is for a CSV or TSV without a header: these rows are in memory")
    if selection.encoding != UTF8 or selection.dialect:
        raise UsageError("an encoding or a dialect of CSV goes with files only: these rows are in memory")


def planned_files(plan: Plan) -> JobInput:
    """Return the ranges of files. Those whose files were largest when they were listed come first."""

    def ranges(before: Before, ended: Ended = _unnoted) -> Iterator[Range | UnreadableRows]:
        left: list[Range] = []
        start: Start | None = None
        reread_files: tuple[InputFile, ...] | None = None  # the files of the last range that is to be read
        for range_ in plan.ranges:
            # A part of a file gets its first row number from the part before it. So once a part is to be read, the
            # later parts of that file are read too; the rows of their committed chunks are only counted.
            is_done = range_name(range_.number) in before.committed and range_.files is not reread_files
            if not is_done and (range_.files or not plan.files):
                left.append(replace(range_, start=start if range_.part_number else None))
                reread_files = range_.files
            if range_.is_last:
                start = None
            else:
                start = before.start_after(range_.number, start if range_.part_number else Start(0, 0))
        yield from sorted(left, key=lambda range_: sum(file.stored for file in range_.files), reverse=True)

    return JobInput(plan.selection, ranges, bytes=plan.bytes, problems=plan.problems, plan=plan)


def _in_memory(
    chunks: Iterable[Chunk], path: str, before: Before, ended: Ended = _unnoted
) -> Iterator[Range | UnreadableRows]:
    """Yield a range for each chunk that is read here, and stop at the first that cannot be read."""
    row = count = 0
    try:
        for chunk in chunks:
            if (name := part_name(0, count)) not in before.committed:
                sources = (RowRange(path, row, chunk.rows_read),)
                yield Range(0, chunk=count, content=replace(chunk, name=name, sources=sources))
            row, count = row + chunk.rows_read, count + 1
    except SourceError as error:
        yield UnreadableRows(part_name(0, count), error.message)
        return
    ended(RangeEnd(0, ((path, row),), count))


def _partitions(
    frame: Any, selection: Selection, limit: int | None, before: Before, ended: Ended = _unnoted
) -> Iterator[Range | UnreadableRows]:
    """Yield a range for each partition. With a limit, Dask first counts the rows of the partitions up to the limit.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame
        The frame.
    selection : Selection
        The columns that the job uses.
    limit : int or None
        The largest number of rows to read.
    before : Before
        What earlier runs of the job did.
    ended : callable
        Called with the end of the range after its last row.

    """
    from dask import delayed

    count = 0
    for number, partition in enumerate(frame[may_hold(frame.columns, selection.columns)].to_delayed()):
        if limit is not None:
            rows = frame.partitions[number].shape[0].compute()
            partition, limit = partition.iloc[:limit] if rows > limit else partition, limit - rows
        name, count = part_name(0, number), number + 1
        if name not in before.committed:
            yield Range(0, chunk=number, content=delayed(partition_chunk)(partition, number, name, selection))
        if limit is not None and limit <= 0:
            break
    ended(RangeEnd(0, ((MEMORY, None),), count))


def read_in_this_process(job_input: JobInput) -> Iterator[Chunk | RangeEnd | UnreadableRows]:
    """Yield the chunks of an input in their order, read in this process."""
    if job_input.plan is not None:
        plan, selection = job_input.plan, job_input.selection
        # Read each file whole: the rows of a later part would have no numbers until the parts before it are read.
        whole = replace(plan, parts=(1,) * len(plan.sizes))
        reads = (partial(read_range, range_, selection, plan.chunk_rows, lambda _: False) for range_ in whole.ranges)
        with closing(ahead(reads, _RANGES_AT_ONCE, 1)) as items:
            yield from (item for item in items if not isinstance(item, Skipped))  # this run skips no chunk
        return
    for source in job_input.ranges(NothingBefore()):
        if isinstance(source, UnreadableRows):
            yield source
        else:
            yield source.content if isinstance(source.content, Chunk) else source.content.compute()


def chunks_here(job_input: JobInput) -> Iterator[Chunk]:
    """Yield every chunk in the order of the input, read in this process.

    Raises SourceError if a file cannot be read to its end. Single bad rows go to the quarantine of their chunk, and a
    warning at the end counts those that are in another encoding.
    """
    undecoded: Counter[str] = Counter()
    if job_input.problems:
        raise SourceError(job_input.problems[0][1])
    for item in read_in_this_process(job_input):
        if isinstance(item, UnreadableRows):
            raise SourceError(item.reason)
        if item.problems:
            problem = item.problems[0]
            raise SourceError(problem if isinstance(problem, str) else problem[1])
        if isinstance(item, Chunk):
            reasons = item.quarantine.column("reason").to_pylist()
            undecoded.update(name for reason in reasons if (name := not_decoded(reason)))
            yield item
    for name, rows in undecoded.items():
        message = f"{counted(rows, 'row')} cannot be read as {name}: name the encoding that they have, such as latin-1"
        warnings.warn(message, stacklevel=2)
