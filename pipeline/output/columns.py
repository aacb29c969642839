"""The columns of a job's rows: those that are computed, those that are written, and the choice of rows by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..engine.base import Predictions
from ..labelling.scored import Scoring
from ..source.chunk import Chunk, Selection
from .model_columns import TRUTH, ModelColumns
from .parts import label_table, output_schema
from .where import Where


@dataclass(frozen=True)
class Columns:
    """written: of the parts. computed: the same, or also the score of every class, where `where` names one of them.
    models: those that each model fills, for `computed`. where: which rows are written; None for all.
    """

    written: pa.Schema
    computed: pa.Schema
    models: tuple[ModelColumns, ...]
    where: Where | None

    @property
    def scoring(self) -> tuple[Scoring, ...]:
        """What is asked of each model."""
        return tuple(columns.scoring for columns in self.models)

    def table(self, chunk: Chunk, predictions: Sequence[Predictions]) -> pa.Table:
        """The labelled rows of a chunk. predictions: by each model."""
        return label_table(chunk, predictions, self.computed, self.models)

    def chosen(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which of the labelled rows are written, [N]."""
        return np.ones(len(table), np.bool_) if self.where is None else self.where.mask(table)

    def of_written(self, table: pa.Table, chosen: NDArray[np.bool_]) -> pa.Table:
        """The written columns of these rows."""
        table = table.select(self.written.names)
        return table if chosen.all() else table.filter(pa.array(chosen))


def columns_of(selection: Selection, models: Sequence[ModelColumns], expression: str | None) -> Columns:
    """The columns of a job with these options. models: what each fills. expression: of `where`.

    Raises UsageError for a kept column with the name of another, and an expression that does not fit the columns.
    """
    every = tuple(models)
    written = output_schema(selection, every)
    if expression is None:
        return Columns(written, written, every, None)
    every_score = tuple(columns.with_every_score for columns in every)
    where, all_of_them = Where(expression), output_schema(selection, every_score)
    where.check(all_of_them)
    labels = {columns.names.label: columns.labels for columns in every}
    where.check_labels({TRUTH.name: every[0].truths or every[0].classes, **labels})
    if where.columns <= {*written.names}:
        return Columns(written, written, every, where)
    return Columns(written, all_of_them, every_score, where)
