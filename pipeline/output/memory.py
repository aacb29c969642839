"""The rows of a chunk for results in memory: each row of the input once, those without a label with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..source.chunk import Chunk
from .parts import REASON


def every_row(labelled: pa.Table, chunk: Chunk, sources: Sequence[tuple[str, int, int]]) -> pa.Table:
    """The labelled and the quarantined rows of a chunk in input order, with the column `reason`.

    sources: (file, first row, rows) of each piece that it was read from, in input order.
    """
    labelled = labelled.append_column(REASON, pa.nulls(len(labelled), REASON.type))
    if not len(chunk.quarantine):
        return labelled
    bad = chunk.quarantine.select(["file", "row", "reason"])
    if chunk.bad is not None:
        bad = pa.table([*bad.columns, *chunk.bad.columns], [*bad.column_names, *chunk.bad.column_names])
    rows = pa.concat_tables([labelled, bad], promote_options="default")
    files = pa.array(list(dict.fromkeys(file for file, *_ in sources)), pa.string())
    return rows.take(np.lexsort((rows["row"], pc.index_in(rows["file"], files))))


def rows_set_aside(schema: pa.Schema, sources: Sequence[tuple[str, int, int]], reason: str) -> pa.Table:
    """The rows of a chunk that was set aside, none of them labelled. schema: of results in memory."""
    table = schema.empty_table()
    for file, first, count in sources:
        known = pa.table({"file": [file] * count, "row": range(first, first + count), "reason": [reason] * count})
        table = pa.concat_tables([table, known], promote_options="default")
    return table
