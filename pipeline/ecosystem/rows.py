"""Rows of another library's, labelled at once on the engine of this process: Arrow tables in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline.ecosystem.resident import Resident, in_use, resident
from pipeline.errors import SourceError
from pipeline.labeller import checked, classify
from pipeline.model.charcnn import Model
from pipeline.model.several import load_models
from pipeline.options import Options
from pipeline.output.columns import Columns, columns_of
from pipeline.output.memory import every_row
from pipeline.output.parts import REASON
from pipeline.source.chunk import Chunk, Selection
from pipeline.source.limits import CHUNK_ROWS
from pipeline.source.tables import MEMORY, of_table, resolve


@dataclass(frozen=True)
class Labels:
    """What is to be said of rows, by which models. selection: with its text column resolved."""

    models: tuple[Resident, ...]
    options: Options
    selection: Selection
    columns: Columns

    @property
    def schema(self) -> pa.Schema:
        """The columns that are added to rows, the last of which is why a row has no label."""
        computed = list(self.columns.written)[len(self.selection.row_schema) :]
        return pa.schema([*computed, REASON])

    def of(self, table: pa.Table) -> pa.Table:
        """The columns of N rows, in their order. table: with the columns of the selection.

        Raises SourceError, if that is asked for, for the first row that cannot be labelled.
        """
        found, row = [], 0
        with in_use(self.models) as [engine, *_]:
            rows = self.options.chunk_size or CHUNK_ROWS[engine.backend.device]
        for chunk in of_table(table).chunks(self.selection, rows):
            found.append(self._of_chunk(chunk, row))
            row += chunk.rows_read
        labelled = pa.concat_tables(found).select(self.schema.names)
        if self.options.strict and labelled[REASON.name].null_count < len(labelled):
            bad = next(row for row, why in enumerate(labelled[REASON.name]) if why.is_valid)
            raise SourceError(f"row {bad}: {labelled[REASON.name][bad].as_py()} (--strict stops here)")
        return labelled

    def _of_chunk(self, chunk: Chunk, row: int) -> pa.Table:
        with in_use(self.models) as engines:
            predictions = classify(chunk.texts, engines, self.columns.labellings)
        sources = ((MEMORY, row, chunk.rows_read),)
        found = checked(chunk, predictions, engines, self.columns.labellings, first=False)
        return every_row(self.columns.table(found.chunk, found.predictions), found.chunk, sources)


def labels_of(models: Sequence[str | Path | Model], options: Options, schema: pa.Schema) -> Labels:
    """What is to be said of rows with this schema. Raises UsageError for a column or option that does not fit."""
    loaded = load_models(models)
    how = (options.device, options.precision, options.kernels)
    named = tuple(resident(model, *how)[0] for model in models)
    selection = resolve(schema, options.selection(loaded))
    return Labels(named, options, selection, columns_of(selection, options.labellings(loaded), None))
