"""The columns of a job's rows: those that are computed, those that are written, and the choice of rows by them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.output.parts import output_schema
from pipeline.output.where import Where
from pipeline.source.chunk import Selection


@dataclass(frozen=True)
class Columns:
    """written: of the parts. labelled: the same, or also the score of every class, where `where` names one of them.
    every_score: whether the engine has to return these. where: which rows are written; None for all.
    """

    written: pa.Schema
    labelled: pa.Schema
    every_score: bool
    where: Where | None

    def chosen(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which of the labelled rows are written, [N]."""
        return np.ones(len(table), np.bool_) if self.where is None else self.where.mask(table)

    def of_written(self, table: pa.Table, chosen: NDArray[np.bool_]) -> pa.Table:
        """The written columns of these rows."""
        table = table.select(self.written.names)
        return table if chosen.all() else table.filter(pa.array(chosen))


def columns_of(
    selection: Selection, classes: tuple[str, ...], top_k: int, scores: bool, expression: str | None
) -> Columns:
    """The columns of a job with these options. expression: of `where`.

    Raises UsageError for a kept column with the name of another, and an expression that does not fit the columns.
    """
    written = output_schema(selection, classes, top_k, scores)
    if expression is None:
        return Columns(written, written, scores, None)
    where, all_of_them = Where(expression), output_schema(selection, classes, top_k, all_scores=True)
    where.check(all_of_them)
    where.check_labels(classes)
    every_score = scores or not where.columns <= {*written.names}
    return Columns(written, all_of_them if every_score else written, every_score, where)
