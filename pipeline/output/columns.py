"""Makes the table of a job's rows from the copied columns and the predictions, and chooses the rows to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..engine.base import Predictions
from ..errors import UsageError
from ..labelling.scored import Scoring
from ..source.rows.chunk import Chunk, RowRange, Selection
from ..source.rows.labels import NO_TRUTH
from .model_columns import N_CHARS, TRUTH, ModelColumns
from .where import Where

if TYPE_CHECKING:
    import pandas as pd

REASON = pa.field("reason", pa.string())
"""The last column of results in memory, which says why a row has no label."""


def output_schema(selection: Selection, models: Sequence[ModelColumns]) -> pa.Schema:
    """Return the schema of a part. Raises UsageError if a kept column has the name of another column."""
    rows, truth = selection.row_schema, bool(selection.truth or selection.answers)
    computed = computed_columns(models, truth)
    for name in rows.names[2:]:
        if name in ("file", "row", *computed.names, REASON.name):
            raise UsageError(
                f"the column {name!r} cannot be copied: the output has a column of that name. Rename it, or leave it "
                "out of those to copy"
            )
    return pa.schema([*rows, *computed])


def computed_columns(models: Sequence[ModelColumns], truth: bool) -> pa.Schema:
    """Return the columns that a job adds to `file`, `row` and the kept columns.

    Raises UsageError if two of them have the same name.
    """
    fields: list[pa.Field] = []
    for model in models:
        fields += model.first
        if truth and model is models[0]:
            fields.append(TRUTH)
        fields += model.more
    fields += [N_CHARS, *(field for model in models for field in model.of_text)]
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two models have a column {name!r}: give one of them another file name")
    return pa.schema(fields)


@dataclass(frozen=True)
class Columns:
    """The columns of a job's output.

    Attributes
    ----------
    written : pyarrow.Schema
        The columns of the parts.
    computed : pyarrow.Schema
        The columns to compute: those of the parts, and the score of every class if `where` names the score of a class
        that is not written.
    models : tuple of ModelColumns
        The columns of `computed` that each model fills.
    where : Where or None
        The condition for writing a row; None if all rows are written.

    """

    written: pa.Schema
    computed: pa.Schema
    models: tuple[ModelColumns, ...]
    where: Where | None

    @property
    def scoring(self) -> tuple[Scoring, ...]:
        """What each model has to compute."""
        return tuple(columns.scoring for columns in self.models)

    def table(self, chunk: Chunk, predictions: Sequence[Predictions]) -> pa.Table:
        """Return the labelled rows of a chunk: the columns of `chunk.rows`, then those of each model's predictions."""
        arrays = {N_CHARS.name: pa.array(predictions[0].n_chars)}
        for model, predicted in zip(self.models, predictions, strict=True):
            arrays |= model.columns(predicted)
        if chunk.truth is not None:
            names = pa.array(self.models[0].truths or self.models[0].classes, pa.string())
            arrays[TRUTH.name] = names.take(pa.array(chunk.truth, mask=chunk.truth == NO_TRUTH))
        computed = self.computed.names[chunk.rows.num_columns :]
        return pa.table([*chunk.rows.columns, *(arrays[name] for name in computed)], self.computed)

    def chosen(self, table: pa.Table) -> NDArray[np.bool_]:
        """Return which of the labelled rows are written, [N]."""
        return np.ones(len(table), np.bool_) if self.where is None else self.where.mask(table)

    def of_written(self, table: pa.Table, chosen: NDArray[np.bool_]) -> pa.Table:
        """Return the chosen rows with the columns that are written."""
        table = table.select(self.written.names)
        return table if chosen.all() else table.filter(pa.array(chosen))


def columns_of(selection: Selection, models: Sequence[ModelColumns], expression: str | None) -> Columns:
    """Return the columns of a job with these options.

    models: the columns that each model fills. expression: the expression of `where`; None to write all rows.

    Raises UsageError if a kept column has the name of another column, or if the expression does not fit the columns.
    """
    every = tuple(models)
    written = output_schema(selection, every)
    if expression is None:
        return Columns(written, written, every, None)
    every_score = tuple(replace(columns, scores=True) for columns in every)
    where, all_of_them = Where(expression), output_schema(selection, every_score)
    where.check(all_of_them)
    labels = {columns.names.label: columns.classes for columns in every}
    where.check_labels({TRUTH.name: every[0].truths or every[0].classes, **labels})
    if where.columns <= {*written.names}:
        return Columns(written, written, every, where)
    return Columns(written, all_of_them, every_score, where)


@dataclass(frozen=True)
class ChunkRows:
    """The rows of a chunk of results in memory.

    Attributes
    ----------
    table : pyarrow.Table
        All rows of the chunk.
    quarantine : pyarrow.Table
        The rows in quarantine.
    index : pandas.Index or None
        The index of a Dask DataFrame's partition; None for other rows.
    texts : bytes
        The digest of the texts; empty for a chunk that was set aside.

    """

    table: pa.Table
    quarantine: pa.Table
    index: pd.Index | None = None
    texts: bytes = b""


def every_row(labelled: pa.Table, chunk: Chunk) -> pa.Table:
    """Return the labelled and the quarantined rows of a chunk in input order, with the column `reason`."""
    labelled = labelled.append_column(REASON, pa.nulls(len(labelled), REASON.type))
    if not len(chunk.quarantine):
        return labelled
    bad = chunk.quarantine.select(["file", "row", "reason"])
    if chunk.bad is not None:
        bad = pa.table([*bad.columns, *chunk.bad.columns], [*bad.column_names, *chunk.bad.column_names])
    rows = pa.concat_tables([labelled, bad], promote_options="default")
    files = pa.array(list(dict.fromkeys(source.path for source in chunk.sources)), pa.string())
    return rows.take(np.lexsort((rows["row"], pc.index_in(rows["file"], files))))


def rows_set_aside(schema: pa.Schema, sources: Sequence[RowRange], reason: str) -> pa.Table:
    """Return the rows of a chunk that was set aside, none of which has a label. schema: that of results in memory."""
    table = schema.empty_table()
    for file, first, count in sources:
        known = pa.table({"file": [file] * count, "row": range(first, first + count), "reason": [reason] * count})
        table = pa.concat_tables([table, known], promote_options="default")
    return table
