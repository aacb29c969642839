"""Chooses rows of a finished job by their scores. The labels are there, so no model runs.

The result is a folder like any other, which can be verified and from which rows can be chosen again; or it is one file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET
from numpy.typing import NDArray

from ..errors import BroadsheetError, OutputError, UsageError, did_you_mean, renamed
from ..processes.threads import available_cores, threads
from ..source.open.ahead import in_order
from ..source.plan.plan import Plan
from ..source.rows.chunk import QUARANTINE_SCHEMA
from ..source.rows.columns import distinct
from ..storage.disk import refuse_outputs, write_file
from ..storage.names import located, root_of
from .account import Sums, range_numbers
from .commit import commit_chunk, committed_rows, judged_by, quarantine_table, read_committed
from .compact import compact_folder, refuse_compaction
from .cut import Amount, Chosen, Cut, ranking
from .finish import finish
from .folder import OutputFolder
from .formats import PART_FORMATS, check_writable
from .layout import CLAIM, EVERY_FOLDER, MANIFEST, PART_FORMAT_NAMES, PLAN, QUARANTINE, SUCCESS
from .merge import begin
from .model_columns import N_CHARS, Names
from .object_store import open_store, place_of
from .read_again import SomeRows, input_again, with_input
from .record import WRITER, Entry, Fingerprint, Judged, Totals, to_json
from .saved_plan import listing_digest
from .store import Location, Store, check_claim
from .verify import finished
from .where import Where, written

ROWS = ("file", "row")
_ROWS_AT_ONCE = 1 << 22
"""The number of rows to hold in memory. A single chunk may have more."""

_NAN = float("nan")  # the group of all NaNs: a NaN equals nothing, but a dict finds this very object
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class OneFile:
    """A single file for all rows of a job, or for all chosen rows, on a disk or in a bucket.

    Attributes
    ----------
    store : Store
        The folder that the file is in.
    name : str
        The name of the file in the folder.
    format : str
        The format of the file, which is also its ending.

    """

    store: Store
    name: str
    format: str

    @classmethod
    def of(cls, output: str | os.PathLike[str], endpoint: str | None) -> OneFile | None:
        """Return the file that a path or URL names; None for a folder."""
        place = place_of(output, endpoint)
        name, kind = str(place).rpartition("/")[2], str(place).rpartition(".")[2]
        if kind not in PART_FORMAT_NAMES or (isinstance(place, Path) and place.is_dir()):
            return None
        above = place.parent if isinstance(place, Path) else replace(place, key=place.key.rpartition("/")[0])
        return cls(open_store(above), name, kind)

    @property
    def place(self) -> Location:
        """The path or URL of the file."""
        return self.store.root / self.name

    @property
    def folder(self) -> Location:
        """The folder that holds the labels of a job until the file is made."""
        return self.store.root / f".{self.name}.job"

    def refuse(self, overwrite: bool, read: Callable[[], Iterable[str]]) -> None:
        """Raise UsageError if the file cannot be written or must not be replaced. read: see `refuse_outputs`."""
        if isinstance(self.place, Path):
            refuse_outputs({"--output": self.place}, overwrite, read)
            return
        refuse_outputs({}, overwrite, read, str(self.place))
        if not overwrite and self.store.has(self.name):
            raise UsageError(f"--output {self.place} is there already: give another name, or --overwrite")

    def write(self, rows: pa.Table) -> None:
        """Write all rows at once, so that nobody sees an incomplete file."""
        data = PART_FORMATS[self.format].write(rows)
        if isinstance(self.place, Path):
            write_file(self.place, data)
        else:
            self.store.put(self.name, data)

    def remove_folder(self) -> None:
        """Remove the job whose labels the file holds."""
        self.store.remove(str(self.folder).rpartition("/")[2])


@dataclass(frozen=True)
class Selected:
    """The result of `select`.

    Attributes
    ----------
    rows : int
        The number of rows of the job.
    chosen : int
        The number of rows that were chosen and written.
    cuts : dict
        For each group, in alphabetical order: how many rows it has (`rows`), how many of them are chosen (`chosen`),
        and the lowest score among these (`score`). Without `per` there is one group, called "". Without `top` and
        `count` the dict is empty.

    """

    rows: int
    chosen: int
    cuts: dict[Any, Cut]


@renamed(columns="keep", input="keep_all")
def select(
    labels: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    top: str | float | None = None,
    count: int | None = None,
    score: str | None = None,
    where: str | None = None,
    by: str | None = None,
    per: str | None = None,
    keep: Sequence[str] | None = None,
    keep_all: bool = False,
    root: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    format: str | None = None,  # noqa: A002 - as in `classify`
    partition_by: str | Iterable[str] | None = None,
    part_rows: int | None = None,
    overwrite: bool = False,
) -> Selected:
    """Choose rows of a finished job by their scores, without a model.

    You can choose the best share or number of rows, or the rows above a threshold. You can also choose all rows, to
    write them to one file or to add the columns of the input.

    Parameters
    ----------
    labels : str or path
        The output folder of a finished job, or its URL.
    output : str or path
        A folder for the chosen rows, which `verify` checks and another `select` reads. If the name ends in .parquet,
        .jsonl or .csv, it is one file, and all chosen rows must fit into memory.
    top : str or float, optional
        The share of rows with the highest scores, such as ``"10%"`` or 0.1, rounded up to whole rows. If several rows
        have the same score, the first in the input are chosen.
    count : int, optional
        The number of rows with the highest scores, instead of a share.
    score : str, optional
        A comparison that the score must satisfy, such as ``">= 0.8"``.
    where : str, optional
        An expression over the columns of the labels, see `classify`. Rows for which it is not true are neither chosen
        nor counted by `top`.
    by : str, optional
        The column of scores. Default: ``score``, the score of each row's label. ``score_NAME`` is the score of one
        class, if the job wrote the score of every class (``scores=True``).
    per : str, optional
        A column, such as ``file``. `top` and `count` apply separately to the rows with each of its values.
    keep : sequence of str, optional
        The columns to write. In a folder they follow ``file`` and ``row``. Default: all.
    keep_all : bool
        Also write every column of the input files, including the text. The input files are read again.
    root, endpoint : optional
        The root and the endpoint of the input files, see `verify`.
    format : str, optional
        The format of the parts, see `classify`. Default: the format of the job's parts.
    partition_by : str or sequence of str, optional
        Columns, which may include ``file``. Each of their values has a folder, see `classify`. Default: the columns of
        the job.
    part_rows : int, optional
        Join small parts, so that each has about this number of rows. Default: each part has the rows that are chosen
        from one part of the job.
    overwrite : bool
        See `classify`. Use it to repeat a selection that was interrupted. A selection that fails leaves nothing behind.

    Returns
    -------
    Selected
        The rows, and the threshold of each group.

    Raises
    ------
    UsageError
        If an option does not fit the columns of the job, or the output exists already.
    OutputError
        If the job is not finished or is damaged, or the output cannot be written.
    SourceError
        With `keep_all`, if an input file has changed or cannot be read.

    Examples
    --------
    >>> report = broadsheet.classify("news.csv", "labels", text_column=["title", "body"])
    >>> broadsheet.select("labels", "best", top="10%").chosen
    10

    """
    # Check the options against the job and the output.
    one_file = OneFile.of(output, endpoint)
    if one_file and (partition_by or part_rows or format not in (None, one_file.format)):
        flag = "--partition-by" if partition_by else "--part-rows" if part_rows else "--format"
        raise UsageError(f"{one_file.place} is one file, written at once: leave out {flag}")
    job = Labels(OutputFolder(place_of(labels, endpoint)))
    choice = _Choice(job, Amount.of(top, count), _and(by, score, where), by or Names().score, per)
    choice.check()
    if part_rows is not None:
        refuse_compaction(job.folder.path, msgspec.structs.replace(job.settings, layout=UNSET), job.plan is not None)
    files = job.plan.files if keep_all and job.plan else ()
    reads = lambda: [str(job.folder.path), *(located(file.path, root_of(root)) for file in files)]
    place = OutputFolder(place_of(output, endpoint))
    if one_file:
        one_file.refuse(overwrite, reads)
    else:
        refuse_outputs({}, overwrite, reads, str(place.path))
    source = input_again(job.plan, job.settings, root, endpoint) if keep_all else None
    schema = _schema(job, source, keep, whole=one_file is None)

    # Write the rows to one file.
    if one_file:
        with choice.made([*schema.names, *ROWS], source) as (cuts, chosen):
            rows = pa.concat_tables([schema.empty_table(), *(rows.select(schema.names) for _, rows in chosen)])
        one_file.write(rows)
        return Selected(job.totals.rows_written, len(rows), cuts)

    # Or write them to a folder, as the output of a job of its own.
    about = Chosen(
        rows=hashlib.sha256(job.folder.store.read(MANIFEST)).hexdigest(),
        by=None if choice.amount.is_all else choice.by,
        top=None if choice.amount.share is None else str(choice.amount.share),
        count=count,
        per=per,
        where=None if choice.where is None else choice.where.text,
        columns=None if keep is None else tuple(keep),
        with_input=keep_all,
    )
    fingerprint = _fingerprint(job, about, schema, format, partition_by)
    place.refuse_unless(False, overwrite, False)
    with choice.made(job.schema.names, source) as (cuts, chosen):
        totals = _write(job, chosen, schema, place, fingerprint, overwrite)
    if part_rows is not None:
        compact_folder(place, part_rows, lambda _: None)
    return Selected(job.totals.rows_written, totals.rows_written, cuts)


def _and(by: str | None, score: str | None, where: str | None) -> Where | None:
    """Return both conditions as one; None if neither is given. Raises UsageError for an invalid condition."""
    if score is not None and score.strip(" 0123456789.") == "":
        raise UsageError(f"--score {score!r} is no comparison: '>= {score.strip()}' chooses scores from there on")
    tests = [] if score is None else [Where(f"{written(by or Names().score)} {score}")]
    tests += [] if where is None else [Where(where)]
    return Where(" and ".join(f"({test.text})" for test in tests)) if tests else None


class Labels:
    """The rows of a finished job, which it reads again."""

    def __init__(self, folder: OutputFolder) -> None:
        self.folder = folder
        self.manifest, self.totals = finished(folder)
        self.settings = self.manifest.fingerprint.settings
        self.schema: pa.Schema = folder.schema(self.manifest)
        self.plan = folder.checked_plan(self.manifest)
        # Leave out the entries of an update that has ended since the manifest was read.
        every = folder.entries(self.manifest.fingerprint.id, range_numbers(self.plan))
        self.closed = every.closed
        entries = sorted(every.chunks.values(), key=lambda entry: [*map(int, entry.chunk.split("-")[1:])])
        starts = accumulate((entry.rows_written for entry in entries), initial=0)
        self.chunks = list(zip(starts, entries, strict=False))
        """The chunks in input order, each as a pair of the number of its first written row and its entry."""

    @property
    def at_once(self) -> int:
        """How many chunks may be held in memory at the same time. Large chunks, such as joined ones, allow fewer."""
        largest = max((entry.rows_written for _, entry in self.chunks), default=0)
        return max(1, min(2 * available_cores(), _ROWS_AT_ONCE // max(1, largest)))

    def rows(self, entry: Entry, columns: Iterable[str]) -> pa.Table:
        """Return some columns of a chunk's rows. Raises OutputError.

        If the chunk has several parts, `file` and `row` are read too, because they give the order of the rows.
        """
        several = sum(not file.name.startswith(QUARANTINE) for file in entry.files) > 1
        names = {*columns, *(ROWS if several else ())}
        chosen = pa.schema([field for field in self.schema if field.name in names])
        rows = committed_rows(self.folder.store, entry, self.schema, chosen)
        if len(rows) != entry.rows_written:
            raise OutputError(f"{entry.chunk} holds {len(rows):,} rows, its entry has {entry.rows_written:,}")
        return rows

    def quarantined(self, entry: Entry) -> pa.Table:
        """Return the quarantined rows of a chunk, with the reasons."""
        store = self.folder.store
        for file in entry.files:
            if file.name.startswith(QUARANTINE):
                return quarantine_table(read_committed(store, file), store.root / file.name)
        return QUARANTINE_SCHEMA.empty_table()


@dataclass(frozen=True)
class _Choice:
    """The conditions by which rows of a job are chosen.

    Attributes
    ----------
    job : Labels
        The job.
    amount : Amount
        How many rows of each group to choose.
    where : Where or None
        The condition that a row must satisfy; None if every row may be chosen.
    by : str
        The column of scores.
    per : str or None
        The column that groups the rows; None if all rows are one group.

    """

    job: Labels
    amount: Amount
    where: Where | None
    by: str
    per: str | None

    def check(self) -> None:
        """Raise UsageError if the conditions do not fit the columns of the job."""
        schema, path = self.job.schema, self.job.folder.path
        if not {N_CHARS.name, *(names.label for names in self.job.settings.labelled)} <= {*schema.names}:
            raise UsageError(f"columns were left out of {path}: choose from the labels that it comes from")
        if self.amount.is_all and self.per is not None:
            raise UsageError("--per goes with --top or --count")
        if self.where is not None:
            self.where.check(schema)
            if self.job.plan is not None and (classes := self.job.plan.selection.classes):
                self.where.check_labels({names.label: classes for names in self.job.settings.labelled})
        check_columns(schema, path, self.by, [] if self.per is None else [self.per])

    @contextmanager
    def made(self, columns: Iterable[str], source: Plan | None) -> Iterator[tuple[dict[Any, Cut], Iterator[SomeRows]]]:
        """Give the cuts, and an iterator over each chunk's entry and its chosen rows.

        The rows have these columns and those of `source`.
        """
        if self.amount.is_all:
            yield {}, self._chosen(columns, source, lambda first, end: None)
            return
        groups: dict[Any, int] = {} if self.per else {"": 0}
        with ranking(self._ranked(groups), self.amount) as best:
            names = sorted(groups, key=lambda name: (name is None, str(name)))
            cuts = {name: best.cuts.get(groups[name], Cut(0, 0, None)) for name in names}
            yield cuts, self._chosen(columns, source, best.between)

    def _ranked(self, groups: dict[Any, int]) -> Iterator[pa.Table]:
        """Yield the rows of each chunk that may be chosen, as a table of place, score and the number of the group.

        groups: a dict that this method fills with the number of each group.
        """
        calls = (partial(self._scores, *numbered) for numbered in self.job.chunks)
        for rows in side_by_side(calls, self.job.at_once):
            coded = rows.column("part").combine_chunks().dictionary_encode("encode")
            names = (_NAN if name != name else name for name in coded.dictionary.to_pylist())
            numbers = np.array([groups.setdefault(name, len(groups)) for name in names], np.int32)
            yield rows.set_column(2, "part", pa.array(numbers[coded.indices]))

    def _scores(self, first: int, entry: Entry) -> pa.Table:
        """Return the rows of a chunk that may be chosen, as a table of place, score and group.

        first: the place of the first row of the chunk.
        """
        rows = self.job.rows(entry, {self.by, self.per or self.by, *(self.where.columns if self.where else ())})
        group = plain(rows.column(self.per)) if self.per else pa.chunked_array([pa.repeat("", len(rows))])
        columns = [np.arange(first, first + len(rows)), rows.column(self.by), group]
        ranked = pa.table(columns, ["place", "score", "part"])
        may = ranked.column("score").is_valid()
        return ranked.filter(may if self.where is None else pc.and_(may, pa.array(self.where.mask(rows))))

    def _chosen(
        self, columns: Iterable[str], source: Plan | None, places: Callable[[int, int], NDArray[np.int64] | None]
    ) -> Iterator[SomeRows]:
        """Yield the entry of each chunk and its chosen rows.

        places: returns the places of the chosen rows among the rows from a first to an end, counted from the first;
        None if `where` alone decides.
        """

        def choose(entry: Entry, places: NDArray[np.int64] | None) -> SomeRows:
            where = self.where if places is None else None
            rows = self.job.rows(entry, {*columns, *(where.columns if where else ())})
            if where is not None:
                rows = rows.filter(pa.array(where.mask(rows)))
            return entry, rows if places is None else rows.take(pa.array(places))

        calls = (partial(choose, entry, places(at, at + entry.rows_written)) for at, entry in self.job.chunks)
        chosen = side_by_side(calls, self.job.at_once)
        return chosen if source is None else with_input(chosen, source)


def check_columns(schema: pa.Schema, path: object, by: str | None, per: Iterable[str]) -> None:
    """Raise UsageError unless rows have the column of scores `by`, if given, and can be grouped by the columns `per`.

    path: the path of the rows, for messages.
    """
    scores = [field.name for field in schema if field.type == pa.float32()]
    if by is not None and by not in scores:
        there = f"it has {', '.join(scores)}" if scores else "it has none"
        meant = did_you_mean(by, scores)
        raise UsageError(f"{by!r} is no column of scores of {path}: --by names one ({there}){meant}")
    for name in per:
        if name not in schema.names:
            raise UsageError(
                f"{path} has no column {name!r} (it has {', '.join(schema.names)}){did_you_mean(name, schema.names)}: "
                "--per takes one of them, which --id-column copies into the labels"
            )
        if pa.types.is_nested(schema.field(name).type):
            raise UsageError(f"the column {name!r} holds lists or structs: --per takes one with a value for each row")


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without its dictionary, if it has one."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def side_by_side(calls: Iterable[Callable[[], _Result]], at_once: int) -> Iterator[_Result]:
    """Run calls in threads and yield their results in order. at_once: how many results are held in memory."""
    with threads(available_cores()) as pool:
        yield from in_order(pool, calls, lambda: at_once)


def _schema(job: Labels, source: Plan | None, columns: Sequence[str] | None, whole: bool) -> pa.Schema:
    """Return the schema of the rows to write. whole: whether it always has `file` and `row`. Raises UsageError."""
    fields = list(source.selection.row_schema if source else ())
    fields += [field for field in job.schema if field.name not in {own.name for own in fields}]
    if columns is None:
        return pa.schema(fields)
    names = [field.name for field in fields]
    for name in columns:
        if name not in names:
            raise UsageError(f"there is no column {name!r} (there are {', '.join(names)}){did_you_mean(name, names)}")
    wanted = dict.fromkeys((*ROWS, *columns) if whole else columns)
    return pa.schema([fields[names.index(name)] for name in wanted])


def _fingerprint(
    job: Labels, about: Chosen, schema: pa.Schema, format_: str | None, by: str | Iterable[str] | None
) -> Fingerprint:
    """Return the fingerprint of the output. Raises UsageError if the columns do not fit the format or the folders.

    Parameters
    ----------
    job : Labels
        The job from which rows are chosen.
    about : Chosen
        The conditions by which rows are chosen.
    schema : pyarrow.Schema
        The columns that are written.
    format_ : str or None
        The format of the parts; None for the format of the job's parts.
    by : str, iterable of str or None
        The columns whose values have folders; None for the columns of the job.

    """
    kind = format_ or job.settings.names.format
    settings = msgspec.structs.replace(job.settings, chosen=about, format=kind, layout=UNSET)
    named = distinct("partition_by", by) if by else tuple(name for name in settings.names.by if name in schema.names)
    settings = msgspec.structs.replace(settings, partition_by=named if len(named) > 1 else next(iter(named), None))
    if settings.format not in PART_FORMAT_NAMES:
        raise UsageError(f"--format is {format_!r}, it must be one of {', '.join(PART_FORMAT_NAMES)}")
    check_writable(schema, settings.names, ())
    # The files of the job and of all its updates.
    listing = job.manifest.fingerprint.input if job.plan is None else listing_digest(job.plan.files)
    return msgspec.structs.replace(job.manifest.fingerprint, input=listing, settings=settings, writer=WRITER)


def _write(
    job: Labels,
    chosen: Iterable[SomeRows],
    schema: pa.Schema,
    place: OutputFolder,
    fingerprint: Fingerprint,
    overwrite: bool,
) -> Totals:
    """Write the chosen rows as the output of a job of its own, which has the chunks of the labels. Return its totals.

    After an error nothing is left.

    Parameters
    ----------
    job : Labels
        The job from which rows are chosen.
    chosen : iterable of tuple
        The entry of each chunk, and its chosen rows.
    schema : pyarrow.Schema
        The columns that are written.
    place : OutputFolder
        The output folder.
    fingerprint : Fingerprint
        The fingerprint of the output.
    overwrite : bool
        See `classify`.

    """
    plan = None if job.plan is None else msgspec.json.encode(job.plan) + b"\n"
    store, id_, names = place.store, fingerprint.id, fingerprint.settings.names
    check = partial(check_claim, store, id_)

    def commit(entry: Entry, rows: pa.Table) -> Entry:
        about = _entry(entry, rows, job.settings.labelled, id_)
        return commit_chunk(store, rows.select(schema.names), job.quarantined(entry), about, names)

    # Commit the chosen rows of each chunk, close the ranges, and finish.
    begin(place, fingerprint, schema, plan, False, overwrite)
    try:
        sums, counted = Sums(job.plan), {}
        for entry in side_by_side((partial(commit, *rows) for rows in chosen), job.at_once):
            sums.add(entry)
            counted[entry.chunk] = entry.digest
        for labelled in job.closed.values():
            closing = msgspec.structs.replace(labelled, job=id_)
            store.add(closing.file_name, to_json(closing), check)
            sums.add(closing)
        finish(place, sums.totals, schema, id_, counted, 0, 0)
        return sums.totals
    except BaseException as error:
        # Remove the output, unless another job has taken the folder.
        with suppress(BroadsheetError):
            for name in (SUCCESS, *EVERY_FOLDER, PLAN, MANIFEST, CLAIM):
                check()
                store.remove(name)
        if isinstance(error, OutputError):
            raise OutputError(re.sub("continue with --resume.*", "choose again", error.message)) from error
        raise


def _entry(labelled: Entry, rows: pa.Table, models: Sequence[Names], job: str) -> Entry:
    """Return the entry of a chunk's chosen rows. labelled: the entry of all rows of the chunk."""
    return Entry.of(
        map(partial(_judged, rows=rows), models, labelled.judged),
        rows.column(N_CHARS.name).to_numpy(),
        chunk=labelled.chunk,
        job=job,
        sources=labelled.sources,
        rows_read=labelled.rows_read,
        rows_filtered=labelled.rows_read - labelled.rows_quarantined - len(rows),
        rows_quarantined=labelled.rows_quarantined,
        problems=labelled.problems,
    )


def _judged(names: Names, labelled: Judged, rows: pa.Table) -> Judged:
    judged = judged_by(names, rows)
    # The scores of a model that gives numbers are not counted.
    return msgspec.structs.replace(judged, scores=UNSET) if labelled.scores is UNSET else judged
