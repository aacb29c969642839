"""Choosing rows of a finished job by their scores: the labels are there, so no model runs. What is chosen is a folder
like any other, which can be resumed and verified and from which rows can be chosen again; or one file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from ..errors import UsageError, did_you_mean
from ..labelling.counts import count_lengths
from ..processes.threads import available_cores, threads
from ..source.chunk import QUARANTINE_SCHEMA
from ..source.columns import distinct
from ..source.open.ahead import in_order
from ..source.plan.plan import part_name
from ..storage.disk import refuse_outputs, write_file
from ..storage.names import located, root_of
from .account import Committed, Sums
from .commit import commit_chunk, committed_rows, scores_of
from .cut import Amount, Chosen, Cut, Ranked, chosen, find_cuts, ranked, ties_before
from .finish import finish
from .folder import OutputFolder
from .formats import PART_FORMATS, check_writable
from .layout import FORMATS, MANIFEST, QUARANTINE
from .merge import begin
from .model_columns import N_CHARS, Names
from .object_store import place_of
from .read_again import InputAgain, input_again, with_input
from .record import WRITER, Entry, Fingerprint, Judged, Manifest, Totals, to_json
from .saved_plan import listing_digest
from .store import check_claim
from .verify import finished
from .where import Where, written

_ROWS = ("file", "row")
_FILE = pa.field("file", pa.dictionary(pa.int32(), pa.string()))
_MOST_HELD = 20_000_000
"""Rows whose scores are kept from pass to pass, of 12 bytes each; the others are read again."""


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
    columns: Sequence[str] | None = None,
    input: bool = False,  # noqa: A002 - the command calls it --input
    root: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    format: str | None = None,  # noqa: A002 - as in `classify`
    partition_by: str | Iterable[str] | None = None,
    resume: bool = False,
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
    columns : sequence of str, optional
        The columns to write; in a folder after ``file`` and ``row``. Default: all.
    input : bool
        Write every column of the input files too, the text among them. They are read again.
    root, endpoint : optional
        Of the input files, as `verify` takes them.
    format : str, optional
        Of the parts, as `classify` takes it. Default: as those of the job.
    partition_by : str or sequence of str, optional
        Columns, ``file`` too, each of whose values has a folder, as `classify` has it. Default: as those of the job.
    resume, overwrite : bool
        As of `classify`.

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
        With `input`, for an input file that has changed or cannot be read.

    Examples
    --------
    >>> report = broadsheet.classify("news.csv", "labels", text_column=["title", "body"])
    >>> broadsheet.select("labels", "best", top="10%").chosen
    10

    """
    name = os.fspath(output)
    one_file = Path(name).suffix[1:] if Path(name).suffix[1:] in FORMATS else None
    if one_file and (resume or partition_by or format not in (None, one_file)):
        flag = "--resume" if resume else "--partition-by" if partition_by else "--format"
        raise UsageError(f"{name} is one file, written at once: leave out {flag}")
    folder = OutputFolder(place_of(labels, endpoint))
    manifest, totals = finished(folder)
    job = _Labels(folder, manifest)
    chooser = _Chooser.of(job, Amount.of(top, count), _and(by, score, where), by, per)
    files = job.plan.files if input and job.plan else ()
    reads = lambda: [str(folder.path), *(located(file.path, root_of(root)) for file in files)]
    place = OutputFolder(place_of(output, endpoint))
    refuse_outputs({"--output": name} if one_file else {}, overwrite, reads, None if one_file else str(place.path))
    source = input_again(job.plan, job.settings, root, endpoint) if input else None
    schema = _schema(job, source, columns, whole=one_file is None)
    if one_file:
        found = (rows.select(schema.names) for _, rows in _rows(job, chooser, source, [*schema.names, *_ROWS]))
        rows = pa.concat_tables([schema.empty_table(), *found])
        write_file(name, PART_FORMATS[one_file].write(rows))
        return Selected(totals.rows_written, len(rows), chooser.cuts)
    about = Chosen(
        rows=hashlib.sha256(folder.store.read(MANIFEST)).hexdigest(),
        by=chooser.by if not chooser.amount.is_all else None,
        top=None if chooser.amount.share is None else str(chooser.amount.share),
        count=chooser.amount.count,
        per=per,
        where=None if chooser.where is None else chooser.where.text,
        columns=None if columns is None else tuple(columns),
        with_input=input,
    )
    fingerprint = _fingerprint(job, about, schema, format, partition_by)
    kept = _write(job, chooser, schema, source, place, fingerprint, resume, overwrite)
    return Selected(totals.rows_written, kept.rows_written, chooser.cuts)


def _and(by: str | None, score: str | None, where: str | None) -> Where | None:
    """Both conditions as one. Raises UsageError where one is none."""
    told = [] if score is None else [f"{written(by or Names().score)} {score}"]
    told += [] if where is None else [where]
    for each in told:
        _ = Where(each).columns
    return Where(" and ".join(f"({each})" for each in told)) if told else None


class _Labels:
    """A finished job, whose rows are read again."""

    def __init__(self, folder: OutputFolder, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.settings = manifest.fingerprint.settings
        self.schema: pa.Schema = folder.schema(manifest)
        self.plan = folder.checked_plan(manifest)

    @cached_property
    def committed(self) -> Committed:
        return self.folder.entries(self.manifest.fingerprint.id)

    @cached_property
    def chunks(self) -> list[Entry]:
        """In the order of the input."""
        closed = sorted(self.committed.closed.items())
        names = (part_name(number, chunk) for number, end in closed for chunk in range(end.chunks))
        return [self.committed.chunks[name] for name in names if name in self.committed.chunks]

    def rows(self, entry: Entry, columns: Sequence[str]) -> pa.Table:
        """Some columns, with those that say which row it is where several parts are put together by them. The names of
        files are a dictionary.
        """
        several = sum(not file.name.startswith(QUARANTINE) for file in entry.files) > 1
        names = {*columns, *(_ROWS if several else ())}
        coded = pa.schema([_FILE if field.name == _FILE.name else field for field in self.schema])
        return committed_rows(
            self.folder.store, entry, self.schema, pa.schema([field for field in coded if field.name in names])
        )


@dataclass(frozen=True)
class _Chooser:
    """Which rows are chosen. Files are read for the cuts once they are asked for."""

    job: _Labels
    amount: Amount
    where: Where | None
    by: str
    per: str | None
    _held: dict[int, Ranked] = field(default_factory=dict)
    _room: list[int] = field(default_factory=lambda: [_MOST_HELD])

    @classmethod
    def of(cls, job: _Labels, amount: Amount, where: Where | None, by: str | None, per: str | None) -> _Chooser:
        """Raises UsageError for what does not fit the columns of the job."""
        schema, column = job.schema, by or Names().score
        if not {N_CHARS.name, *(names.label for names in job.settings.labelled)} <= {*schema.names}:
            raise UsageError(f"columns were left out of {job.folder.path}: choose from the labels that it comes from")
        if amount.is_all and per is not None:
            raise UsageError("--per goes with --top or --count")
        if where is not None:
            where.check(schema)
        scores = [field.name for field in schema if field.type == pa.float32()]
        if column not in scores:
            meant = did_you_mean(column, scores)
            there = f"it has {', '.join(scores)}" if scores else "it has none"
            raise UsageError(f"{column!r} is no column of scores of {job.folder.path}: --by names one ({there}){meant}")
        if per is not None and per not in schema.names:
            raise UsageError(
                f"{job.folder.path} has no column {per!r} (it has {', '.join(schema.names)})"
                f"{did_you_mean(per, schema.names)}: --per takes one of them, which --id-column copies into the labels"
            )
        if per is not None and pa.types.is_nested(schema.field(per).type):
            raise UsageError(f"the column {per!r} holds lists or structs: --per takes one with a value for each row")
        return cls(job, amount, where, column, per)

    @cached_property
    def cuts(self) -> dict[Any, Cut]:
        if self.amount.is_all:
            return {}
        found = find_cuts(self._ranked, self.amount)
        return {name: found[name] for name in sorted(found, key=lambda name: (name is None, str(name)))}

    @cached_property
    def _ties(self) -> list[dict[Any, int]]:
        """Of each chunk, as `ties_before` has it."""
        partial_ties = any(cut.chosen_ties < cut.ties for cut in self.cuts.values())
        return list(ties_before(self._ranked(), self.cuts)) if partial_ties else []

    def prepare(self) -> None:
        """Find the cuts, and where rows have the same score how many of these are before each chunk."""
        self._ties  # noqa: B018 - computed once, by the first who asks

    def rows(self, number: int, columns: Sequence[str]) -> pa.Table:
        """The chosen rows of a chunk, with these columns at least. Without cuts its parts are read once."""
        needed = [*columns, *(self.where.columns if self.where and self.amount.is_all else ())]
        rows = self.job.rows(self.job.chunks[number], needed)
        if not self.amount.is_all:
            places = chosen(self._ranked_of(number), self.cuts, self._ties[number] if self._ties else {})
            rows = rows.take(pa.array(places))
        elif self.where is not None:
            rows = rows.take(pa.array(np.flatnonzero(self.where.mask(rows))))
        return rows.cast(pa.schema([self.job.schema.field(name) for name in rows.column_names]))

    def _ranked(self) -> Iterator[Ranked]:
        with threads(available_cores()) as pool:
            calls = (partial(self._ranked_of, number) for number in range(len(self.job.chunks)))
            yield from in_order(pool, calls, lambda: 2 * available_cores())

    def _ranked_of(self, number: int) -> Ranked:
        """Of a chunk; read once, as long as there is room."""
        if number not in self._held:
            rows, places = self._may(self.job.chunks[number])
            scores = rows.column(self.by).combine_chunks().to_numpy(zero_copy_only=False)
            groups = None
            if self.per is not None:
                groups = rows.column(self.per).cast(self.job.schema.field(self.per).type).combine_chunks()
            if len(places) < len(rows):
                scores, groups = scores[places], None if groups is None else groups.take(pa.array(places))
            found = ranked(places, scores, groups)
            if self._room[0] < len(places):
                return found
            self._room[0] -= len(places)
            self._held[number] = found
        return self._held[number]

    def _may(self, entry: Entry) -> tuple[pa.Table, np.ndarray]:
        """The rows of a chunk with their scores, and the places of those that may be ranked."""
        needed = [self.by, self.per or self.by, *(self.where.columns if self.where else ())]
        rows = self.job.rows(entry, needed)
        may = None if self.where is None else self.where.mask(rows)
        if rows.column(self.by).null_count:
            valid = rows.column(self.by).is_valid().to_numpy()
            may = valid if may is None else may & valid
        every = np.arange(len(rows), dtype=np.int32)
        return rows, every if may is None else every[may]


def _schema(job: _Labels, source: InputAgain | None, columns: Sequence[str] | None, whole: bool) -> pa.Schema:
    """Of what is written. whole: `file` and `row` are always there. Raises UsageError."""
    fields = list(source.schema if source else ())
    fields += [field for field in job.schema if field.name not in {each.name for each in fields}]
    if columns is None:
        return pa.schema(fields)
    names = [field.name for field in fields]
    for name in columns:
        if name not in names:
            raise UsageError(f"there is no column {name!r} (there are {', '.join(names)}){did_you_mean(name, names)}")
    wanted = dict.fromkeys((*_ROWS, *columns) if whole else columns)
    return pa.schema([fields[names.index(name)] for name in wanted])


def _rows(
    job: _Labels, chooser: _Chooser, source: InputAgain | None, columns: Sequence[str], done: Iterable[str] = ()
) -> Iterator[tuple[Entry, pa.Table]]:
    """Of each chunk that is not done, its entry and its chosen rows with these columns of the labels."""
    chooser.prepare()
    skipped = {*done}

    def choose(number: int) -> tuple[Entry, pa.Table]:
        entry = job.chunks[number]
        return entry, job.schema.empty_table() if entry.chunk in skipped else chooser.rows(number, columns)

    with threads(available_cores()) as pool:
        calls = (partial(choose, number) for number in range(len(job.chunks)))
        found = in_order(pool, calls, lambda: 2 * available_cores())
        for entry, rows in found if source is None else with_input(found, source):
            if entry.chunk not in skipped:
                yield entry, rows


def _fingerprint(
    job: _Labels, about: Chosen, schema: pa.Schema, format_: str | None, by: str | Iterable[str] | None
) -> Fingerprint:
    """Raises UsageError for a format, or folders, that the columns do not fit."""
    settings = msgspec.structs.replace(
        job.settings, chosen=about, format=format_ or job.settings.names.format, layout=UNSET
    )
    named = distinct("partition_by", by) if by else tuple(name for name in settings.names.by if name in schema.names)
    settings = msgspec.structs.replace(settings, partition_by=named if len(named) > 1 else next(iter(named), None))
    if settings.format not in FORMATS:
        raise UsageError(f"--format is {format_!r}, it must be one of {', '.join(FORMATS)}")
    check_writable(schema, settings.names, ())
    # With updates, the files of all of them.
    listing = job.manifest.fingerprint.input if job.plan is None else listing_digest(job.plan.files)
    return msgspec.structs.replace(job.manifest.fingerprint, input=listing, settings=settings, writer=WRITER)


def _write(
    job: _Labels,
    chooser: _Chooser,
    schema: pa.Schema,
    source: InputAgain | None,
    place: OutputFolder,
    fingerprint: Fingerprint,
    resume: bool,
    overwrite: bool,
) -> Totals:
    """The chosen rows as the output of a job of its own, whose chunks are those of the labels."""
    plan = None if job.plan is None else msgspec.json.encode(job.plan) + b"\n"
    store, id_, names = place.store, fingerprint.id, fingerprint.settings.names
    done = begin(place, fingerprint, schema, plan, resume, overwrite)
    counted = {name: entry.digest for name, entry in done.chunks.items()}
    nothing = QUARANTINE_SCHEMA.empty_table()
    with threads(available_cores()) as pool:

        def commit(entry: Entry, rows: pa.Table) -> tuple[str, bytes]:
            about = _entry(entry, rows, job.settings.labelled, id_)
            return entry.chunk, commit_chunk(store, rows.select(schema.names), nothing, about, names).digest

        calls = (partial(commit, *found) for found in _rows(job, chooser, source, job.schema.names, counted))
        counted |= dict(in_order(pool, calls, lambda: 2 * available_cores()))
    for end in job.committed.closed.values():
        closed = msgspec.structs.replace(end, job=id_)
        store.add(closed.file_name, to_json(closed), partial(check_claim, store, id_))
    sums = Sums(job.plan)
    for found, _ in place.each_entry(id_, None, lambda _: None):
        sums.add(found)
    finish(place, sums.totals, schema, id_, counted, 0, 0)
    return sums.totals


def _entry(labelled: Entry, rows: pa.Table, models: Sequence[Names], job: str) -> Entry:
    """The entry of a chunk's chosen rows. labelled: that of the rows they are from."""
    n_chars = rows.column(N_CHARS.name).to_numpy()
    first, *others = map(partial(_judged, rows=rows), models, labelled.judged)
    return Entry(
        chunk=labelled.chunk,
        job=job,
        sources=labelled.sources,
        rows_read=labelled.rows_read,
        rows_written=len(rows),
        rows_filtered=labelled.rows_read - len(rows),
        rows_quarantined=0,
        chars=int(n_chars.sum()),
        lengths=tuple(count_lengths(n_chars)),
        problems=labelled.problems,
        others=tuple(others) or UNSET,
        **msgspec.structs.asdict(first),
    )


def _judged(names: Names, labelled: Judged, rows: pa.Table) -> Judged:
    scores, unlabelled = scores_of(rows.column(names.label), rows.column(names.score))
    return Judged(
        labels={name: sum(bins) for name, bins in scores.items()},
        scores=UNSET if labelled.scores is UNSET else scores,  # those of a model of numbers are not counted
        unlabelled=unlabelled,
        multi_label=names.multi_label,
        truncated=pc.sum(rows.column(names.truncated)).as_py() or 0,
        unknown_chars=pc.sum(rows.column(names.unknown_chars)).as_py() or 0,
        doubtful={},
        confusion=None,
    )
