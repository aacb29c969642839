r"""Commits a chunk, reads it again, and checks it row by row.

A commit writes the parts and the quarantined rows of the chunk, and then its entry. The files count once the entry is
there.

Quarantined rows are JSON Lines with file, row, byte_offset, reason and head. The head is the first bytes of the row as
escaped text: well-formed UTF-8 stands for itself, any other byte is `\xNN`, and a backslash is doubled. So `unescape`
is exact.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from ..errors import OutputError
from ..labelling.counts import count_scores
from ..model.reference import NO_LABEL
from ..source.plan.plan import RangeEnd
from ..source.rows.chunk import QUARANTINE_SCHEMA
from ..source.rows.labels import NO_TRUTH
from ..storage.disk import Content
from .formats import part_files, read_part
from .layout import QUARANTINE, PartNames, entry_file, quarantine_file
from .model_columns import N_CHARS, ModelColumns, Names
from .record import ClosingEntry, Entry, FileRecord, Judged, from_json, to_json
from .store import Store, check_claim
from .where import Where

_ROWS = ["file", "row"]
_OF_COLUMNS = ("labels", "unlabelled", "truncated", "unknown_chars")
"""The figures of a model that must agree with its columns."""

_ESCAPE = re.compile(rb"\\(?:\\|x([0-9a-f]{2}))")


def commit_chunk(store: Store, table: pa.Table, quarantine: pa.Table, about: Entry, names: PartNames) -> Entry:
    """Write the files of a chunk, then its entry, and return the entry.

    You can run it twice, even at the same time, since every attempt writes the same bytes. Raises OutputError if the
    files cannot be written, or if another job has taken the folder.

    Parameters
    ----------
    store : Store
        The store of the output folder.
    table : pyarrow.Table
        The rows of the parts.
    quarantine : pyarrow.Table
        The rows in quarantine, with the columns of QUARANTINE_SCHEMA.
    about : Entry
        The entry, without its files.
    names : PartNames
        The names of the job's parts.

    """
    check = partial(check_claim, store, about.job)
    files: list[tuple[str, int, Content]] = [*part_files(table, names, about.chunk, about.job)]
    if len(quarantine):
        files.append((quarantine_file(about.chunk, about.job), len(quarantine), quarantine_bytes(quarantine)))
    store.add_all([(name, data) for name, _, data in files], check)
    records = (FileRecord(name, rows, len(data), hashlib.sha256(data).hexdigest()) for name, rows, data in files)
    entry = msgspec.structs.replace(about, files=tuple(records))
    store.add(entry_file(about.chunk, about.job), to_json(entry), check)
    return entry


def committed_entry(store: Store, chunk: str, job: str, names: PartNames) -> Entry | None:
    """Return the entry of a committed chunk, all of whose files are there with the right size; None for any other.

    names: the names of the job's parts.
    """
    name = entry_file(chunk, job)
    if not store.has(name):
        return None
    try:
        entry = from_json(store.read(name), Entry, store.root / name)
    except OutputError:
        return None
    ours = entry.chunk == chunk and entry.job == job and entry.has_files(names)
    return entry if ours and all(store.size(file.name) == file.bytes for file in entry.files) else None


def commit_end(store: Store, end: RangeEnd, job: str) -> None:
    """Write the closing entry of a range. Raises OutputError, also if another job has taken the folder."""
    same = {name: getattr(end, name) for name in ("files", "chunks", "problems", "unread")}
    after = UNSET if end.after is None else end.after
    entry = ClosingEntry(job=job, group=end.number, **same, after=after)
    store.add(entry.file_name, to_json(entry), partial(check_claim, store, job))


def read_committed(store: Store, file: FileRecord) -> bytes:
    """Return the content of a committed file. Raises OutputError unless its size and hash are those of its entry."""
    path, data = store.root / file.name, store.read(file.name)
    if len(data) != file.bytes:
        what = f"it has {len(data):,} bytes, its entry says {file.bytes:,}"
    elif hashlib.sha256(data).hexdigest() != file.sha256:
        what = f"the hash of its {len(data):,} bytes is not that in its entry"
    else:
        return data
    raise OutputError(f"{path} is damaged: {what}")


def committed_rows(store: Store, entry: Entry, schema: pa.Schema, chosen: pa.Schema | None = None) -> pa.Table:
    """Return the written rows of a chunk, in input order. Raises OutputError.

    schema: the columns of the job's parts. chosen: the columns to read, as in `read_part`; None for all. It must hold
    `file` and `row` if the chunk has several parts.
    """
    chosen = schema if chosen is None else chosen
    files = [file for file in entry.files if not file.name.startswith(QUARANTINE)]
    read = ((read_committed(store, file), file.name, store.root / file.name) for file in files)
    tables = [read_part(*about, schema, chosen) for about in read]
    rows = pa.concat_tables([chosen.empty_table(), *tables])
    if len(tables) < 2:
        return rows
    sources = pa.array([file for file, *_ in entry.sources], pa.string()).unique()
    order = pa.table([pc.index_in(rows.column("file"), sources), rows.column("row")], ["file", "row"])
    return rows.take(pc.sort_indices(order, [("file", "ascending"), ("row", "ascending")]))


def escape(head: bytes) -> str:
    return head.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unescape(text: str) -> bytes:
    return _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()) if match[1] else b"\\", text.encode())


def quarantine_bytes(rows: pa.Table) -> bytes:
    """Return the lines of a chunk's quarantine file. rows: a table with the schema QUARANTINE_SCHEMA."""
    lines = (row | {"head": escape(row["head"])} for row in rows.to_pylist())
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)


def quarantine_table(data: bytes, path: object) -> pa.Table:
    """Return the rows that `quarantine_bytes` wrote. Raises OutputError, which names `path`, for any other data."""
    try:
        rows = [json.loads(line) for line in data.splitlines()]
        return pa.Table.from_pylist([row | {"head": unescape(row["head"])} for row in rows], QUARANTINE_SCHEMA)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise OutputError(f"{path} holds no quarantined rows of a job ({error})") from error


def check_chunk(store: Store, entry: Entry, schema: pa.Schema, where: Where | None, names: Sequence[Names]) -> None:
    """Raise OutputError unless a chunk agrees with its entry.

    Its files must be unchanged and hold what the entry says. Each row of its sources must be there once, written or
    quarantined, except for the filtered rows, of which only the number is known.

    The figures of the entry must be those of its rows if the columns for them are there. Rows that were chosen from
    another job may lack some columns.

    Parameters
    ----------
    store : Store
        The store of the output folder.
    entry : Entry
        The entry.
    schema : pyarrow.Schema
        The columns of the job's parts.
    where : Where or None
        The condition that each written row must satisfy, if all columns that it names are there.
    names : sequence of Names
        The names of each model's columns.

    """
    # Choose the columns to look at.
    named = where.columns if where is not None else set()
    decided = where if named <= set(schema.names) else None
    filled = {*_ROWS, N_CHARS.name, *(column for own in names for column in (own.truncated, own.unknown_chars))}
    judged = filled | {name for own in names for name in (own.label, own.score)}
    looked_at = judged | (named if decided else set())
    columns = pa.schema([field for field in schema if field.name in looked_at])
    # Read the files.
    parts, tables = [], []
    for file in entry.files:
        path, data = store.root / file.name, read_committed(store, file)
        quarantined = file.name.startswith(QUARANTINE)
        if quarantined:
            table = quarantine_table(data, path).select(_ROWS)
        else:
            table = read_part(data, file.name, path, schema, columns)
            parts.append(table)
        if len(table) != file.rows:
            raise OutputError(f"{path} holds {len(table):,} rows, its entry has {file.rows:,}")
        if any(table.column(name).null_count for name in table.column_names if quarantined or name in filled):
            raise OutputError(f"{path} has a null in `file`, `row` or a count column")
        if decided and not quarantined and not decided.mask(table).all():
            raise OutputError(f"{path} has a row for which the job's `where` is not true")
        tables.append(table.select(_ROWS))
    # Compare the rows with the sources and the figures of the entry.
    _check_rows(entry, tables)
    if judged <= set(schema.names):
        _check_figures(entry, pa.concat_tables([columns.empty_table(), *parts]), names)


def _check_figures(entry: Entry, rows: pa.Table, names: Sequence[Names]) -> None:
    """Raise OutputError unless the figures of an entry are those of its written rows."""
    same = len(entry.judged) == len(names) and entry.chars == (pc.sum(rows.column(N_CHARS.name)).as_py() or 0)
    for own, judged in zip(names, entry.judged, strict=False):
        found = judged_by(own, rows)
        same = same and judged.scores in (UNSET, found.scores)
        same = same and all(getattr(judged, name) == getattr(found, name) for name in _OF_COLUMNS)
    if not same:
        raise OutputError(f"{entry.chunk}: the labels or counts in its entry are not those of its part")


def judged_by(names: Names, rows: pa.Table) -> Judged:
    """Return the figures of a model over written rows, which are counted from its columns."""
    labels, scores = rows.column(names.label), rows.column(names.score)
    without = labels.null_count
    if pa.types.is_list(labels.type):
        without = pc.sum(pc.equal(pc.list_value_length(labels), 0)).as_py() or 0
        labels, scores = pc.list_flatten(labels), pc.list_flatten(scores)
    given = labels.is_valid()
    coded = labels.filter(given).combine_chunks().dictionary_encode()
    classes, numbers = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    counts = count_scores(classes, numbers, scores.filter(given).to_numpy())
    return Judged(
        labels={name: sum(bins) for name, bins in counts.items()},
        scores=counts,
        unlabelled=without,
        multi_label=names.multi_label,
        truncated=pc.sum(rows.column(names.truncated)).as_py() or 0,
        unknown_chars=pc.sum(rows.column(names.unknown_chars)).as_py() or 0,
        doubtful={},
        confusion=None,
    )


def _check_rows(entry: Entry, tables: Iterable[pa.Table]) -> None:
    """Raise OutputError unless each row of the entry's sources is there once, except for filtered rows."""
    rows_of: dict[str, list[np.ndarray]] = defaultdict(list)
    for table in tables:
        names = table.column("file").combine_chunks().dictionary_encode()
        numbers, which = table.column("row").to_numpy(), names.indices.to_numpy()
        for i, file in enumerate(names.dictionary.to_pylist()):
            rows_of[file].append(numbers[which == i])
    count = sum(len(piece) for pieces in rows_of.values() for piece in pieces)
    if count != entry.rows_read - entry.rows_filtered:
        raise OutputError(
            f"{entry.chunk}: {entry.rows_read:,} rows were read and {entry.rows_filtered:,} filtered, {count:,} are "
            "written or quarantined"
        )
    expected: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for file, first, rows in entry.sources:
        expected[file].append((first, first + rows))
    for file, pieces in rows_of.items():  # the number is right, so what is left to find are duplicates and other rows
        here = np.concatenate(pieces)
        if len(np.unique(here)) < len(here) or not _within(here, expected[file]).all():
            raise OutputError(f"{entry.chunk}: rows of {file} are missing or duplicated")


def _within(rows: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    """Return a mask of the rows that are in one of the ranges."""
    within = np.zeros(len(rows), np.bool_)
    for first, end in ranges:
        within |= (rows >= first) & (rows < end)
    return within


def is_of(entry: Entry, models: Sequence[ModelColumns]) -> bool:
    """Return whether an entry has labels of these models only."""
    if len(entry.judged) != len(models):
        return False
    for judged, model in zip(entry.judged, models, strict=True):
        count = len(model.classes)
        if not judged.labels.keys() <= {*model.classes}:
            return False
        if not all(NO_TRUTH <= a < count and NO_LABEL <= b < count for a, b, _ in judged.confusion or ()):
            return False
    return True
