"""Labels rows of another library at once, on the engine of this process, from Arrow table to Arrow table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.base import Texts
from ..engine.on_gpu import OnGpu
from ..errors import SourceError, UsageError
from ..labelling.scored import score, score_chunk
from ..model.charcnn import Model
from ..model.several import load_models
from ..options import Options
from ..output.columns import REASON, Columns, columns_of, every_row
from ..source.memory.tables import MEMORY, of_table, resolve
from ..source.rows.chunk import QUARANTINE_SCHEMA, Chunk, RowRange, Selection
from ..source.rows.limits import CHUNK_ROWS, LIMITS
from .resident import Resident, in_use, resident

ModelOrModels = str | Path | Model | Iterable[str | Path | Model]
"""The types that the option `model` accepts."""

_TOO_LONG = pa.scalar(LIMITS.long_text)


@dataclass(frozen=True)
class Labels:
    """Labels rows with some models and options.

    Attributes
    ----------
    models : tuple of Resident
        The models.
    options : Options
        The options. Only `chunk_size` and `strict` are used here.
    selection : Selection
        The columns to read from a row, with the text column resolved.
    columns : Columns
        The columns that are computed.

    """

    models: tuple[Resident, ...]
    options: Options
    selection: Selection
    columns: Columns

    @property
    def schema(self) -> pa.Schema:
        """The columns that are added to rows. The last one is the reason why a row has no label."""
        computed = list(self.columns.written)[len(self.selection.row_schema) :]
        return pa.schema([*computed, REASON])

    def of(self, table: pa.Table) -> pa.Table:
        """Return the columns of N rows, in their order. `table` has the columns of the selection.

        Raises SourceError for the first row that cannot be labelled, if the options are strict.
        """
        tables, row = [], 0
        with in_use(self.models) as [engine, *_]:
            rows = self.options.chunk_size or CHUNK_ROWS[engine.backend.device]
        for chunk in of_table(table).chunks(self.selection, rows):
            tables.append(self._of_chunk(chunk, row))
            row += chunk.rows_read
        return self._refuse_bad(pa.concat_tables(tables).select(self.schema.names))

    def _refuse_bad(self, labelled: pa.Table) -> pa.Table:
        if self.options.strict and labelled[REASON.name].null_count < len(labelled):
            bad = next(row for row, why in enumerate(labelled[REASON.name]) if why.is_valid)
            raise SourceError(f"row {bad}: {labelled[REASON.name][bad].as_py()} (--strict stops here)")
        return labelled

    def of_gpu(self, given: OnGpu) -> pa.Table:
        """Return the columns of N texts that are on a GPU, in their order.

        Raises UsageError if the models are computed on a CPU, and SourceError as in `of`.
        """
        with in_use(self.models) as [engine, *_]:
            device = engine.backend.device
            rows = self.options.chunk_size or CHUNK_ROWS[device]
        if device == "cpu" and not isinstance(given.texts.data, np.ndarray):
            raise UsageError("the texts are on a GPU, and the model is computed on the CPU: give device='cuda'")
        if any(model.windows is not None for model in self.columns.models):
            raise UsageError("windows are cut on the host, and the texts are on a GPU: leave out windows")
        tables = [self.columns.computed.empty_table().append_column(REASON, pa.nulls(0, REASON.type))]
        for first in range(0, len(given.texts), rows):
            texts = replace(given.texts, offsets=given.texts.offsets[first : first + rows + 1])
            tables.append(self._of_chunk(_without_text(len(texts), first, self.selection), first, texts))
        labelled = pa.concat_tables(tables).select(self.schema.names)
        reasons = pc.if_else(pa.array(given.null), "the text is null", pa.scalar(None, REASON.type))
        reasons = pc.if_else(pa.array(np.diff(given.texts.offsets) > LIMITS.field_bytes), _TOO_LONG, reasons)
        bad = reasons.is_valid()
        columns = [pc.if_else(bad, pa.scalar(None, column.type), column) for column in labelled.columns[:-1]]
        return self._refuse_bad(pa.table([*columns, pc.coalesce(labelled[REASON.name], reasons)], self.schema))

    def _of_chunk(self, chunk: Chunk, row: int, texts: Texts | None = None) -> pa.Table:
        """Return the columns of a chunk that begins with this row.

        `texts` are its texts, if the chunk has none itself.
        """
        scoring = self.columns.scoring
        with in_use(self.models) as engines:
            scored = score_chunk(chunk, engines, scoring, compute=lambda own: score(texts or own, engines, scoring))
        sources = (RowRange(MEMORY, row, chunk.rows_read),)
        return every_row(self.columns.table(scored.chunk, scored.predictions), replace(scored.chunk, sources=sources))


def _without_text(rows: int, first: int, selection: Selection) -> Chunk:
    """Return a chunk whose text is elsewhere."""
    about = pa.table([pa.repeat(MEMORY, rows), pa.array(np.arange(first, first + rows))], selection.row_schema)
    return Chunk(pa.repeat(pa.scalar(b"", pa.large_binary()), rows), about, QUARANTINE_SCHEMA.empty_table())


def labels_of(model: ModelOrModels, options: Options, schema: pa.Schema) -> Labels:
    """Return how to label rows with this schema. Raises UsageError for a column or option that does not fit."""
    models = [model] if isinstance(model, str | Path | Model) else list(model)
    loaded = load_models(models, options.network, options.preparation)
    engine_options = (options.device, options.precision, options.kernels, options.network)
    given = models if options.preparation is None else loaded.loaded
    named = tuple(resident(one, *engine_options)[0] for one in given)
    selection = resolve(schema, options.selection(loaded))
    return Labels(named, options, selection, columns_of(selection, options.model_columns(loaded), None))
