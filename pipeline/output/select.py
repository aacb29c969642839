"""Choosing rows of a finished job by their scores: the labels are there, so no model runs. What is chosen is a folder
like any other, which can be verified and from which rows can be chosen again; or one file.
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
from .account import Sums, groups_of
from .commit import commit_chunk, committed_rows, judged_by, quarantine_table, read_committed
from .compact import compact_folder, refuse_compaction
from .cut import Amount, Chosen, Cut, ranking
from .finish import finish
from .folder import OutputFolder
from .formats import PART_FORMATS, check_writable
from .layout import CLAIM, EVERY_FOLDER, FORMATS, MANIFEST, PLAN, QUARANTINE, SUCCESS
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
"""So many are held in memory, or those of two chunks."""

_NAN = float("nan")  # the group of all, which are equal to nothing but this very object
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class OneFile:
    """A file for all rows, on a disk or in a bucket: those of a job, or those that are chosen.

    Attributes
    ----------
    store : Store
        The folder that it is in.
    name : str
        Its name there.
    format : str
        That of parts: its ending.

    """

    store: Store
    name: str
    format: str

    @classmethod
    def of(cls, output: str | os.PathLike[str], endpoint: str | None) -> OneFile | None:
        """The file that a path or URL names; None for a folder."""
        place = place_of(output, endpoint)
        name, kind = str(place).rpartition("/")[2], str(place).rpartition(".")[2]
        if kind not in FORMATS or (isinstance(place, Path) and place.is_dir()):
            return None
        above = place.parent if isinstance(place, Path) else replace(place, key=place.key.rpartition("/")[0])
        return cls(open_store(above), name, kind)

    @property
    def place(self) -> Location:
        """Where it is to be."""
        return self.store.root / self.name

    @property
    def folder(self) -> Location:
        """Where the labels of a job are until the file is made."""
        return self.store.root / f".{self.name}.job"

    def refuse(self, overwrite: bool, read: Callable[[], Iterable[str]]) -> None:
        """Raise UsageError where it cannot be written, or must not be replaced. read: as of `refuse_outputs`."""
        if isinstance(self.place, Path):
            refuse_outputs({"--output": self.place}, overwrite, read)
            return
        refuse_outputs({}, overwrite, read, str(self.place))
        if not overwrite and self.store.has(self.name):
            raise UsageError(f"--output {self.place} is there already: give another name, or --overwrite")

    def write(self, rows: pa.Table) -> None:
        """Write all rows at once: nobody sees a part of it."""
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
    """What `select` has chosen.

    Attributes
    ----------
    rows : int
        Rows of the job from which it was chosen.
    chosen : int
        Rows that were written.
    cuts : dict
        By group, in alphabetical order: how many rows it has (`rows`), how many of them are chosen (`chosen`), and the
        lowest score among these (`score`). One group, called "", without `per`; empty without `top` and `count`.

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
    """Choose rows of a finished job by their scores, without a model: the best share, or those above a threshold. Or
    all of them, to have them in one file, or with the columns of the input.

    Parameters
    ----------
    labels : str or path
        The output folder of a finished job, or its URL.
    output : str or path
        Where the chosen rows go: a folder of the same form, which `verify` checks and another `select` reads; or one
        file, if it ends in .parquet, .jsonl or .csv, which all of them must fit into memory for.
    top : str or float, optional
        The share of rows with the highest scores, such as ``"10%"`` or 0.1, rounded up to whole rows. Of rows with the
        same score, those that come first in the input are chosen.
    count : int, optional
        The same as a number of rows.
    score : str, optional
        A comparison that the score must satisfy, such as ``">= 0.8"``.
    where : str, optional
        An expression as `classify` takes it, over the columns of the labels. Rows for which it is not true are neither
        chosen nor counted by `top`.
    by : str, optional
        The column of scores. Default: ``score``, that of each row's label; ``score_NAME`` is that of one class, where
        the job wrote those (``scores=True``).
    per : str, optional
        A column: `top` and `count` are taken of the rows with each of its values apart. ``file`` is one.
    keep : sequence of str, optional
        The columns to write; in a folder after ``file`` and ``row``. Default: all.
    keep_all : bool
        Write every column of the input files too, the text among them. They are read again.
    root, endpoint : optional
        Of the input files, as `verify` takes them.
    format : str, optional
        Of the parts, as `classify` takes it. Default: as those of the job.
    partition_by : str or sequence of str, optional
        Columns, ``file`` too, each of whose values has a folder, as `classify` has it. Default: as those of the job.
    part_rows : int, optional
        Join small parts, so that each has about so many rows. Default: each part has the rows that are chosen of one of
        the job's.
    overwrite : bool
        As of `classify`. A choice that is interrupted is made again with it; one that fails leaves nothing behind.

    Returns
    -------
    Selected
        The rows, and the threshold of each group.

    Raises
    ------
    UsageError
        For an option that does not fit the columns of the job, or an output that is there already.
    OutputError
        For a job that is not finished or is damaged, or an output that cannot be written.
    SourceError
        With `keep_all`, for an input file that has changed or cannot be read.

    Examples
    --------
    >>> report = broadsheet.classify("news.csv", "labels", text_column=["title", "body"])
    >>> broadsheet.select("labels", "best", top="10%").chosen
    10

    """
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
    if one_file:
        with choice.made([*schema.names, *ROWS], source) as (cuts, chosen):
            rows = pa.concat_tables([schema.empty_table(), *(rows.select(schema.names) for _, rows in chosen)])
        one_file.write(rows)
        return Selected(job.totals.rows_written, len(rows), cuts)
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
    """Both conditions as one. Raises UsageError where one is none."""
    if score is not None and score.strip(" 0123456789.") == "":
        raise UsageError(f"--score {score!r} is no comparison: '>= {score.strip()}' chooses scores from there on")
    tests = [] if score is None else [Where(f"{written(by or Names().score)} {score}")]
    tests += [] if where is None else [Where(where)]
    return Where(" and ".join(f"({test.text})" for test in tests)) if tests else None


class Labels:
    """A finished job, whose rows are read again."""

    def __init__(self, folder: OutputFolder) -> None:
        self.folder = folder
        self.manifest, self.totals = finished(folder)
        self.settings = self.manifest.fingerprint.settings
        self.schema: pa.Schema = folder.schema(self.manifest)
        self.plan = folder.checked_plan(self.manifest)
        # Those of an update that has ended since the manifest was read are not of this job.
        every = folder.entries(self.manifest.fingerprint.id, groups_of(self.plan))
        self.closed = every.closed
        entries = sorted(every.chunks.values(), key=lambda entry: [*map(int, entry.chunk.split("-")[1:])])
        starts = accumulate((entry.rows_written for entry in entries), initial=0)
        self.chunks = list(zip(starts, entries, strict=False))
        """In input order, each with the number of its first written row."""

    @property
    def at_once(self) -> int:
        """How many chunks may be held in memory at the same time: fewer of those that were joined."""
        largest = max((entry.rows_written for _, entry in self.chunks), default=0)
        return max(1, min(2 * available_cores(), _ROWS_AT_ONCE // max(1, largest)))

    def rows(self, entry: Entry, columns: Iterable[str]) -> pa.Table:
        """Some columns, with those that say which row it is where several parts are put together by them."""
        several = sum(not file.name.startswith(QUARANTINE) for file in entry.files) > 1
        names = {*columns, *(ROWS if several else ())}
        chosen = pa.schema([field for field in self.schema if field.name in names])
        rows = committed_rows(self.folder.store, entry, self.schema, chosen)
        if len(rows) != entry.rows_written:
            raise OutputError(f"{entry.chunk} holds {len(rows):,} rows, its entry has {entry.rows_written:,}")
        return rows

    def quarantined(self, entry: Entry) -> pa.Table:
        """The rows of a chunk that have no label, with the reasons."""
        store = self.folder.store
        for file in entry.files:
            if file.name.startswith(QUARANTINE):
                return quarantine_table(read_committed(store, file), store.root / file.name)
        return QUARANTINE_SCHEMA.empty_table()


@dataclass(frozen=True)
class _Choice:
    """Which rows of a job are chosen.

    Attributes
    ----------
    job : Labels
        The job.
    amount : Amount
        How many rows of each group.
    where : Where or None
        Which rows may be chosen; None for all.
    by : str
        The column of scores.
    per : str or None
        The column by which rows are grouped; None where all are one group.

    """

    job: Labels
    amount: Amount
    where: Where | None
    by: str
    per: str | None

    def check(self) -> None:
        """Raise UsageError for what does not fit the columns of the job."""
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
        """The cuts; and each chunk's entry with its chosen rows, with these columns and those of `source`."""
        if self.amount.is_all:
            yield {}, self._chosen(columns, source, lambda first, end: None)
            return
        groups: dict[Any, int] = {} if self.per else {"": 0}
        with ranking(self._ranked(groups), self.amount) as best:
            names = sorted(groups, key=lambda name: (name is None, str(name)))
            cuts = {name: best.cuts.get(groups[name], Cut(0, 0, None)) for name in names}
            yield cuts, self._chosen(columns, source, best.between)

    def _ranked(self, groups: dict[Any, int]) -> Iterator[pa.Table]:
        """What is ranked of each chunk. groups: gets the number of each."""
        calls = (partial(self._scores, *numbered) for numbered in self.job.chunks)
        for rows in side_by_side(calls, self.job.at_once):
            coded = rows.column("part").combine_chunks().dictionary_encode("encode")
            names = (_NAN if name != name else name for name in coded.dictionary.to_pylist())
            numbers = np.array([groups.setdefault(name, len(groups)) for name in names], np.int32)
            yield rows.set_column(2, "part", pa.array(numbers[coded.indices]))

    def _scores(self, first: int, entry: Entry) -> pa.Table:
        """The rows of a chunk that may be chosen, with their group."""
        rows = self.job.rows(entry, {self.by, self.per or self.by, *(self.where.columns if self.where else ())})
        group = plain(rows.column(self.per)) if self.per else pa.chunked_array([pa.repeat("", len(rows))])
        columns = [np.arange(first, first + len(rows)), rows.column(self.by), group]
        ranked = pa.table(columns, ["place", "score", "part"])
        may = ranked.column("score").is_valid()
        return ranked.filter(may if self.where is None else pc.and_(may, pa.array(self.where.mask(rows))))

    def _chosen(
        self, columns: Iterable[str], source: Plan | None, places: Callable[[int, int], NDArray[np.int64] | None]
    ) -> Iterator[SomeRows]:
        """places: of the chosen rows among those from one to another; None where `where` alone decides."""

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
    """Raise UsageError unless rows have the scores `by`, where it is given, and can be grouped by the columns `per`.
    path: of the rows.
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
    """The values of a column that may be a dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def side_by_side(calls: Iterable[Callable[[], _Result]], at_once: int) -> Iterator[_Result]:
    """The results in order. at_once: how many are held in memory."""
    with threads(available_cores()) as pool:
        yield from in_order(pool, calls, lambda: at_once)


def _schema(job: Labels, source: Plan | None, columns: Sequence[str] | None, whole: bool) -> pa.Schema:
    """Of what is written. whole: `file` and `row` are always there. Raises UsageError."""
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
    """The fingerprint of the output. Raises UsageError for a format, or folders, that the columns do not fit.

    Parameters
    ----------
    job : Labels
        The job from which rows are chosen.
    about : Chosen
        How they are chosen.
    schema : pyarrow.Schema
        The columns that are written.
    format_ : str or None
        The format of the parts; None for that of the job.
    by : str, iterable of str or None
        The columns whose values have folders; None for those of the job.

    """
    kind = format_ or job.settings.names.format
    settings = msgspec.structs.replace(job.settings, chosen=about, format=kind, layout=UNSET)
    named = distinct("partition_by", by) if by else tuple(name for name in settings.names.by if name in schema.names)
    settings = msgspec.structs.replace(settings, partition_by=named if len(named) > 1 else next(iter(named), None))
    if settings.format not in FORMATS:
        raise UsageError(f"--format is {format_!r}, it must be one of {', '.join(FORMATS)}")
    check_writable(schema, settings.names, ())
    # With updates, the files of all of them.
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
    """Write the chosen rows as the output of a job of its own, whose chunks are those of the labels. After an error
    nothing is left.

    Parameters
    ----------
    job : Labels
        The job from which rows are chosen.
    chosen : iterable of tuple
        Each chunk's entry, and its chosen rows.
    schema : pyarrow.Schema
        The columns that are written.
    place : OutputFolder
        The output.
    fingerprint : Fingerprint
        What decides its content.
    overwrite : bool
        As of `classify`.

    """
    plan = None if job.plan is None else msgspec.json.encode(job.plan) + b"\n"
    store, id_, names = place.store, fingerprint.id, fingerprint.settings.names
    check = partial(check_claim, store, id_)

    def commit(entry: Entry, rows: pa.Table) -> Entry:
        about = _entry(entry, rows, job.settings.labelled, id_)
        return commit_chunk(store, rows.select(schema.names), job.quarantined(entry), about, names)

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
        with suppress(BroadsheetError):
            for name in (SUCCESS, *EVERY_FOLDER, PLAN, MANIFEST, CLAIM):
                check()
                store.remove(name)
        if isinstance(error, OutputError):
            raise OutputError(re.sub("continue with --resume.*", "choose again", error.message)) from error
        raise


def _entry(labelled: Entry, rows: pa.Table, models: Sequence[Names], job: str) -> Entry:
    """The entry of a chunk's chosen rows. labelled: that of the rows they are from."""
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
    # Those of a model of numbers are not counted.
    return msgspec.structs.replace(judged, scores=UNSET) if labelled.scores is UNSET else judged
