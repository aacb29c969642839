"""The rows of a chunk for results in memory: each row of the input once, those without a label with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.source.chunk import Chunk


def every_row(labelled: pa.Table, chunk: Chunk, sources: Sequence[tuple[str, int, int]]) -> pa.Table:
    """The labelled and the quarantined rows of a chunk, in input order.

    sources: (file, first row, rows) of each piece that it was read from, in input order.
    """
    if not len(chunk.quarantine):
        return labelled
    bad = chunk.quarantine.select(["file", "row", "reason"])
    rows = pa.concat_tables([labelled, bad], promote_options="default")
    files = pa.array(list(dict.fromkeys(file for file, *_ in sources)), pa.string())
    return rows.take(np.lexsort((rows["row"], pc.index_in(rows["file"], files))))
