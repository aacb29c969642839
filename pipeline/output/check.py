"""A committed chunk against its entry, row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from ..errors import OutputError
from ..measures.accuracy import count_scores
from ..model.reference import NO_LABEL
from ..source.columns import NO_TRUTH
from .commit import quarantine_table, read_committed
from .formats import read_part
from .layout import QUARANTINE
from .model_columns import N_CHARS, ModelColumns, Names
from .record import Entry
from .store import Store
from .where import Where

_ROWS = ["file", "row"]


def check_chunk(store: Store, entry: Entry, schema: pa.Schema, where: Where | None, names: Sequence[Names]) -> None:
    """Raise OutputError unless the files of an entry are as they were written, hold what it says, and each row of its
    sources is there once, written or quarantined, but for as many as were filtered. schema: of the job's parts. Each
    written row must satisfy `where`, if all its columns are there; and the figures of the entry must be those of its
    rows, where their columns are there: of rows chosen from another job's, some may be left out. names: of each model's
    columns.
    """
    named = where.columns if where is not None else set()
    decided = where if named <= set(schema.names) else None
    filled = {*_ROWS, N_CHARS.name, *(column for each in names for column in _figures(each).values())}
    judged = filled | {name for each in names for name in (each.label, each.score)}
    looked_at = judged | (named if decided else set())
    columns = pa.schema([field for field in schema if field.name in looked_at])
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
            raise OutputError(f"{path} has a null among file, row and counts")
        if decided and not quarantined and not decided.mask(table).all():
            raise OutputError(f"{path} has a row for which the job's `where` is not true")
        tables.append(table.select(_ROWS))
    _check_rows(entry, tables)
    if judged <= set(schema.names):
        _check_figures(entry, pa.concat_tables([columns.empty_table(), *parts]), names)


def _figures(names: Names) -> dict[str, str]:
    """Figures of a model that are the sums of columns, and these."""
    return {"truncated": names.truncated, "unknown_chars": names.unknown_chars}


def _check_figures(entry: Entry, rows: pa.Table, names: Sequence[Names]) -> None:
    """The entry's share of the totals must be that of its written rows."""
    same = len(entry.judged) == len(names) and entry.chars == (pc.sum(rows.column(N_CHARS.name)).as_py() or 0)
    for each, judged in zip(names, entry.judged, strict=False):
        scores, unlabelled = scores_of(rows.column(each.label), rows.column(each.score))
        sums = {name: pc.sum(rows.column(column)).as_py() or 0 for name, column in _figures(each).items()}
        labels = {name: sum(bins) for name, bins in scores.items()}
        same = same and (labels, unlabelled) == (judged.labels, judged.unlabelled)
        same = same and judged.scores in (UNSET, scores)
        same = same and all(getattr(judged, name) == sums[name] for name in sums)
    if not same:
        raise OutputError(f"{entry.chunk}: the labels or counts in its entry are not those of its part")


def scores_of(labels: pa.ChunkedArray, scores: pa.ChunkedArray) -> tuple[dict[str, tuple[int, ...]], int]:
    """Rows by label and score, and rows without a label, of columns of labels and scores, or of lists of them."""
    without = labels.null_count
    if pa.types.is_list(labels.type):
        without = pc.sum(pc.equal(pc.list_value_length(labels), 0)).as_py() or 0
        labels, scores = pc.list_flatten(labels), pc.list_flatten(scores)
    given = labels.is_valid()
    coded = labels.filter(given).combine_chunks().dictionary_encode()
    classes, numbers = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    return count_scores(classes, numbers, scores.filter(given).to_numpy()), without


def _check_rows(entry: Entry, tables: Iterable[pa.Table]) -> None:
    """Each row of the entry's sources must be there once, but for those that were filtered."""
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    for table in tables:
        names = table.column("file").combine_chunks().dictionary_encode()
        numbers, which = table.column("row").to_numpy(), names.indices.to_numpy()
        for i, file in enumerate(names.dictionary.to_pylist()):
            found[file].append(numbers[which == i])
    count = sum(len(piece) for pieces in found.values() for piece in pieces)
    if count != entry.rows_read - entry.rows_filtered:
        raise OutputError(
            f"{entry.chunk}: {entry.rows_read:,} rows were read and {entry.rows_filtered:,} filtered, {count:,} are "
            "written or quarantined"
        )
    expected: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for file, first, rows in entry.sources:
        expected[file].append((first, first + rows))
    for file, pieces in found.items():  # as many as there must be, none twice, none that was not read
        here = np.concatenate(pieces)
        if len(np.unique(here)) < len(here) or not _within(here, expected[file]).all():
            raise OutputError(f"{entry.chunk}: rows of {file} are missing or duplicated")


def _within(rows: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    """Which rows are in one of the ranges."""
    found = np.zeros(len(rows), np.bool_)
    for first, end in ranges:
        found |= (rows >= first) & (rows < end)
    return found


def is_of(entry: Entry, models: Sequence[ModelColumns]) -> bool:
    """Whether an entry's labels are those of the models."""
    if len(entry.judged) != len(models):
        return False
    for judged, model in zip(entry.judged, models, strict=True):
        count = len(model.classes)
        if not judged.labels.keys() <= {*model.labels}:
            return False
        if not all(NO_TRUTH <= a < count and NO_LABEL <= b < count for a, b, _ in judged.confusion or ()):
            return False
    return True
