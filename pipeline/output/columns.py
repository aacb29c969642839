"""The columns of a job's rows: those that are computed, those that are written, and the choice of rows by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..engine.base import Predictions
from ..source.chunk import Chunk, Selection
from .labelling import TRUTH, Labelling
from .parts import label_table, output_schema
from .where import Where


@dataclass(frozen=True)
class Columns:
    """written: of the parts. labelled: the same, or also the score of every class, where `where` names one of them.
    labellings: what each model is to say of a row, for `labelled`. where: which rows are written; None for all.
    """

    written: pa.Schema
    labelled: pa.Schema
    labellings: tuple[Labelling, ...]
    where: Where | None

    def table(self, chunk: Chunk, predictions: Sequence[Predictions]) -> pa.Table:
        """The labelled rows of a chunk. predictions: by each model."""
        return label_table(chunk, predictions, self.labelled, self.labellings)

    def chosen(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which of the labelled rows are written, [N]."""
        return np.ones(len(table), np.bool_) if self.where is None else self.where.mask(table)

    def of_written(self, table: pa.Table, chosen: NDArray[np.bool_]) -> pa.Table:
        """The written columns of these rows."""
        table = table.select(self.written.names)
        return table if chosen.all() else table.filter(pa.array(chosen))


def columns_of(selection: Selection, labellings: Sequence[Labelling], expression: str | None) -> Columns:
    """The columns of a job with these options. expression: of `where`.

    Raises UsageError for a kept column with the name of another, and an expression that does not fit the columns.
    """
    asked = tuple(labellings)
    written = output_schema(selection, asked)
    if expression is None:
        return Columns(written, written, asked, None)
    every_score = tuple(labelling.with_every_score for labelling in asked)
    where, all_of_them = Where(expression), output_schema(selection, every_score)
    where.check(all_of_them)
    labels = {labelling.names.label: labelling.labels for labelling in asked}
    where.check_labels({TRUTH.name: asked[0].truths or asked[0].classes, **labels})
    if where.columns <= {*written.names}:
        return Columns(written, written, asked, where)
    return Columns(written, all_of_them, every_score, where)
