"""Plain text: an article a line; an empty line is an empty article."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.source.chunk import Chunk, Selection, assemble
from pipeline.source.records import Records

COLUMNS = ("text",)


def parse(records: Records, file: str, first_row: int, selection: Selection) -> Chunk:
    """A chunk of `records`, the first of which is line `first_row` of `file`."""
    kept = [i for i in range(len(records)) if i not in records.problems]
    lines = [records.data[records.starts[i] : records.ends[i]] for i in kept]
    table = pa.table({COLUMNS[0]: pa.array(lines, pa.large_binary())})
    numbers = first_row + np.array(kept, np.int64)
    return assemble(file, numbers, table, selection, lambda i: records.raw(kept[i]), records.bad_rows(first_row))
