"""--limit: the first rows in input order, of every kind of source, and nothing after them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from pipeline import Paths, UsageError, classify, verify
from pipeline.model.charcnn import Model


def rows_of(report) -> list[tuple[str, int]]:
    return [(Path(row["file"]).name, row["row"]) for row in report.to_arrow().to_pylist()]


@pytest.fixture
def files(tmp_path: Path) -> Paths:
    """40 rows in each of six files; the last cannot be read at all. Row 3 of two of them is bad."""
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [f'"number\n{i}"' if i != 3 else "caf\xe9" for i in range(40)]  # records of several lines
    (folder / "a.csv").write_text("text\n" + "\n".join(lines) + "\n", "latin-1")
    pq.write_table(pa.table({"text": [f"number {i}" for i in range(40)]}), folder / "b.parquet", row_group_size=16)
    with gzip.open(folder / "c.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": f"number {i}" if i != 3 else i}) + "\n" for i in range(40))
    (folder / "d.txt").write_text("".join(f"number {i}\n" for i in range(40)))
    (folder / "e.jsonl").write_text("".join(json.dumps({"text": f"number {i}"}) + "\n" for i in range(40)))
    (folder / "f.parquet").write_bytes(b"no Parquet file")
    return Paths(sorted(map(str, folder.iterdir())))


def test_the_first_rows_of_files_of_every_kind(
    client: Client, small_model: Model, files: Paths, tmp_path: Path
) -> None:
    """Wherever the limit falls: within a record file, a row group, a compressed file, at the end of a file."""
    order = [(name, row) for name in ("a.csv", "b.parquet", "c.jsonl.gz", "d.txt", "e.jsonl") for row in range(40)]
    for limit in (4, 50, 80, 100, 131):
        report = classify(files, model=small_model, client=client, chunk_size=24, limit=limit)
        assert (report.rows_read, rows_of(report)) == (limit, order[:limit])
        assert report.exit_code == 0  # the last file was not opened
    everything = classify(files, model=small_model, client=client, chunk_size=24, limit=10_000)
    assert (everything.rows_read, everything.exit_code) == (200, 3)
    first = everything.to_pandas().iloc[:122]
    pd.testing.assert_frame_equal(first, classify(files, model=small_model, client=client, limit=122).to_pandas())


def test_a_limited_job_is_resumed_and_verified(
    client: Client, small_model: Model, files: Paths, tmp_path: Path
) -> None:
    options = {"model": small_model, "client": client, "chunk_size": 24}
    for limit in (50, 90):
        out = tmp_path / f"out{limit}"
        assert classify(files, out, limit=limit, **options).rows_read == limit
        assert verify(out, input=True).rows_read == limit
        for part in sorted((out / "parts").rglob("*.parquet"))[1::2]:
            part.unlink()
        with pytest.raises(UsageError, match=f"add limit={limit} in place of limit=7"):
            classify(files, out, limit=7, resume=True, **options)
        assert classify(files, out, limit=limit, resume=True, **options).rows_read == limit
        assert verify(out, input=True).rows_read == limit


def test_the_first_rows_in_memory(client: Client, small_model: Model) -> None:
    texts = [f"number {i}" for i in range(90)]
    frame = dd.from_pandas(pd.DataFrame({"text": texts}), npartitions=4)
    expected = classify(texts, model=small_model, client=client).to_pandas()["score"].tolist()
    for limit in (30, 46):
        for source in (texts, frame):
            report = classify(source, model=small_model, client=client, chunk_size=24, limit=limit)
            assert report.to_pandas()["score"].tolist() == expected[:limit]
