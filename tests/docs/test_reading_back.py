"""The code of docs/output.md that reads the output, run as it is printed: every library returns what was written."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import PROGRAMS
from pages import blocks

from broadsheet.pipeline import classify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.several import load_models

datasets = pytest.importorskip("datasets")

TEXTS = [
    "Ministers met again to discuss the border.",
    "The home team won the cup final after extra time.",
    "Oil prices fell as traders weighed new supply.",
    "A probe sent back its first images of the moon.",
]
"""A text of each class of the shipped model."""

MORE_THAN_ANY_SAMPLE = 21_000
"""More rows than any reader looks at to find types. DuckDB looks at 20,480."""

LABELS = {
    "mixed": ("007", "01001", "1e5", "2024-01-31"),
    "numbers": ("007", "01001", "2", "30"),
    "dates": ("2024-01-31", "2024-02-01", "2023-12-24", "1999-01-01"),
    "truth": ("true", "false", "True", "0"),
}
CODES: dict[str, list[str | None]] = {
    "mixed": ["007", "01001", "1e5", "2024-01-31", "true", "", None],
    "numbers": ["007", "01001", "12345678901234567890123"],
    "dates": ["2024-01-31", "2024-02-01"],
    "truth": ["true", "false"],
}
LATE = ["007", "", "2024-01-31", "true", "1e5", 'a "quote"\nand a line', "null", "NaN"]
"""Values of a column that begins with nulls."""

JOBS: dict[str, dict[str, Any]] = {
    "Parquet": {},
    "A folder for each value": {"partition_by": ["code", "label"]},
    "JSON Lines": {"format": "jsonl"},
    "JSON Lines, a folder for each value": {"format": "jsonl", "partition_by": ["code", "label"]},
    "CSV": {"format": "csv"},
    "CSV, a folder for each value": {"format": "csv", "partition_by": ["code", "label"]},
}
"""The headings of docs/output.md, and the options of the job whose output is read there."""


@pytest.fixture(scope="module")
def ngrams() -> Callable[[tuple[str, ...]], Model]:
    """Give the shipped model other names for its classes."""
    (shipped,) = load_models(["ag-news"]).loaded
    return lambda classes: dataclasses.replace(shipped, classes=classes)


def source(kind: str) -> pa.Table:
    rows = MORE_THAN_ANY_SAMPLE + len(LATE) if kind == "mixed" else 400
    codes = CODES[kind]
    return pa.table(
        {
            "text": [f"{TEXTS[i % 4]} {i}" for i in range(rows)],
            "id": [f"{i:06}" for i in range(rows)],
            "code": [codes[i // 4 % len(codes)] for i in range(rows)],
            "note": [None] * (rows - len(LATE)) + LATE,
        }
    )


def as_arrow(read: Any) -> pa.Table:
    """Return what a library has read as an Arrow table."""
    if isinstance(read, dd.DataFrame):
        read = read.compute()
    if isinstance(read, pl.LazyFrame):
        read = read.collect()
    if isinstance(read, pd.DataFrame):
        return pa.Table.from_pandas(read, preserve_index=False)
    if isinstance(read, pl.DataFrame):
        return read.to_arrow()
    if isinstance(read, datasets.Dataset):
        return read.data.table
    return read.to_arrow_table() if isinstance(read, duckdb.DuckDBPyRelation) else read


def values(table: pa.Table, name: str) -> list[Any]:
    """Return the values of a column. A float32 stays one, even if it was read as a float64."""
    column = table.column(name)
    if name == "score":
        return np.asarray(column.to_pylist(), np.float32).tolist()
    return column.to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("job", JOBS)
def test_every_library_gives_back_what_was_written(
    job: str, kind: str, ngrams: Callable[[tuple[str, ...]], Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    pq.write_table(source(kind), "in.parquet")
    options = {"model": ngrams(LABELS[kind]), "network": "none", "keep": ["id", "code", "note"], "root": "."}
    report = classify("in.parquet", "OUT", **options, **JOBS[job])
    written = classify("in.parquet", **options).to_arrow().drop_columns("reason")
    assert set(written["label"].to_pylist()) == {*LABELS[kind]}
    assert report.to_arrow().select(written.column_names).equals(written)
    (code,) = blocks("output.md", "python")[job.partition(",")[0]]
    names: dict[str, Any] = {}
    exec(code, names)
    readers = {name: read for name, read in names.items() if name.startswith(("in_", "lazily_in_"))}
    assert len(readers) >= 5
    for reader, read in readers.items():
        table = as_arrow(read)
        table = table.sort_by("row") if "partition_by" in JOBS[job] or "duckdb" in reader else table
        assert {*table.column_names} == {*written.column_names}, reader
        for name in written.column_names:
            assert values(table, name) == values(written, name), (reader, name)


@pytest.mark.slow
def test_labels_are_joined_to_the_rows_in_their_order(
    ngrams: Callable[[tuple[str, ...]], Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "news").mkdir()
    order = np.random.default_rng(0).permutation(20_000)
    rows = pd.DataFrame({"number": order, "text": [TEXTS[i % 4] for i in order]})
    rows[:15_000].to_csv("news/a.csv", index=False)
    rows[15_000:].to_csv("news/b.csv", index=False)
    classify("news/*.csv", "OUT", model=ngrams(LABELS["mixed"]), network="none", root=".")
    expected = [LABELS["mixed"][i % 4] for i in order]
    joins = blocks("output.md", "python")["Joining labels to your rows"]
    assert len(joins) == 3
    for code in joins:
        names: dict[str, Any] = {}
        exec(code, names)
        table = as_arrow(names["labelled"])
        assert table.column("number").to_pylist() == order.tolist(), code
        assert table.column("label").to_pylist() == expected, code


def test_labels_in_memory_are_joined_to_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("output.md", "python")["Results in memory"]
    names: dict[str, Any] = {"frame": pd.DataFrame({"text": TEXTS, "body": TEXTS[::-1]}, index=[3, 1, 1, 0])}
    exec(code, names)
    assert names["frame"]["label"].tolist() == ["World", "Sports", "Business", "Sci/Tech"]
    assert names["frame"]["label_predicted"].tolist() == ["Sci/Tech", "Business", "Sports", "World"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heading", "made"),
    [
        ("Reading it", "OUT/_SUCCESS"),
        ("Choosing rows", "sports/_SUCCESS"),
        ("A file beside each input file", "corpus/attributes/quality/a/0.jsonl.gz"),
    ],
)
def test_the_commands_of_the_page_run(heading: str, made: str, tmp_path: Path) -> None:
    (command,) = blocks("output.md", "sh")[heading]
    rows = [{"text": text, "id": str(i), "code": "007", "note": None} for i, text in enumerate(TEXTS)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for folder in ("news", "corpus/documents/a"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "news" / "a.jsonl").write_text(lines)
    (tmp_path / "corpus" / "documents" / "a" / "0.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pd.DataFrame(rows).to_csv(tmp_path / "news.csv", index=False)
    env = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-ec", command], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / made).exists()
