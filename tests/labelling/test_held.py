"""Chunks of long texts: cut by what is kept of them, not by what is thrown away."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from reading import found, read_files, read_split

from pipeline.source.chunk import Chunk, Selection, concat
from pipeline.source.limits import Limits
from pipeline.source.memory.items import as_items
from pipeline.source.memory.tables import as_tables

ROWS, READS, CHUNK_ROWS = 120, 100, 40
LIMITS = Limits(chunk_bytes=30_000, part_bytes=8_000)
"""Forty beginnings of long texts, or four whole ones, are less than `chunk_bytes`."""

TEXTS = [f"{i} é " + "a long text " * 500 for i in range(ROWS)]


def from_file(folder: Path, kind: str, selection: Selection) -> Sequence[Chunk]:
    table = pa.table({"id": range(ROWS), "text": TEXTS})
    path = folder / f"f.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=12)
    elif kind == "arrow":
        pyarrow.feather.write_feather(table, str(path), chunksize=15)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    read = read_files if kind == "jsonl" else read_split
    return read(found([path], LIMITS), selection, CHUNK_ROWS).chunks


def from_memory(kind: str, selection: Selection) -> Sequence[Chunk]:
    rows = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    source = as_tables(pa.Table.from_pylist(rows)) if kind == "table" else as_items(iter(rows))
    assert source is not None
    return list(source.chunks(source.resolve(selection), CHUNK_ROWS, LIMITS))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl", "table", "iterator"])
def test_long_texts_make_chunks_by_what_is_kept_of_them(tmp_path: Path, kind: str) -> None:
    def read(selection: Selection) -> Sequence[Chunk]:
        in_file = kind in ("parquet", "arrow", "jsonl")
        return from_file(tmp_path, kind, selection) if in_file else from_memory(kind, selection)

    chunks = read(Selection(("text",), reads=READS))
    most = {"parquet": 36, "arrow": 30}.get(kind, CHUNK_ROWS)  # whole row groups, and whole batches
    assert [len(chunk) for chunk in chunks[:-1]] == [most] * (len(chunks) - 1)
    whole = concat(chunks)
    assert whole.rows["row"].to_pylist() == [*range(ROWS)]
    assert [text.decode() for text in whole.text.to_pylist()] == [text[:READS] for text in TEXTS]
    assert whole.n_chars is not None
    assert whole.n_chars.tolist() == [len(text) for text in TEXTS]
    kept = read(
        Selection(("text",), kept=("id",), kept_types=(pa.string(),), reads=READS)
    )  # which may be the long ones
    assert max(map(len, kept)) < 10
    assert sum(map(len, kept)) == ROWS
