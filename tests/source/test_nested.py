"""Columns within others, by names with dots (`doc.body`), in files and in memory; and names that hold dots."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import block_of, same

from pipeline import UsageError, classify, label
from pipeline.model.charcnn import Model
from pipeline.source.chunk import Selection
from pipeline.source.formats.jsonl import Jsonl, parse_one_by_one

ROWS = [
    {
        "id": i,
        "doc": {"body": f"text {i} é", "meta": {"lang": "de" if i % 2 else "en", "n": i}, "x.y": "dots"},
        "a.b": "own",
    }
    for i in range(40)
] + [{"id": 40, "doc": None, "a.b": "own"}, {"id": 41, "doc": {"body": None, "meta": None, "x.y": None}, "a.b": None}]
FLAT = [row["doc"]["body"] if row["doc"] else None for row in ROWS]
TABLE = pa.Table.from_pylist(ROWS)
ASKED = {"text_column": "doc.body", "id_column": "id", "keep": ["doc.meta.lang", "doc.meta.n", "a.b"], "chunk_size": 9}


def as_files(folder: Path) -> dict[str, object]:
    (folder / "in.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS))
    pq.write_table(TABLE, folder / "in.parquet", row_group_size=20)
    feather.write_feather(TABLE, folder / "in.arrow", compression="lz4", chunksize=15)
    return {name: folder / name for name in ("in.jsonl", "in.parquet", "in.arrow")}


def test_what_is_within_columns_is_read_kept_and_filtered_everywhere(small_model: Model, tmp_path: Path) -> None:
    sources = as_files(tmp_path) | {
        "table": TABLE,
        "batches": pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=7)),
        "polars": pl.from_arrow(TABLE),
        "pandas": pd.DataFrame(ROWS),
        "dicts": ROWS,
        "iterator": iter(ROWS),
    }
    expected = classify(FLAT, model=small_model, scores=True).to_arrow()
    lang = [row["doc"]["meta"]["lang"] for row in ROWS[:40]]
    for name, source in sources.items():
        report = classify(source, model=small_model, scores=True, **ASKED)
        found = report.to_arrow()
        assert (report.rows_written, report.rows_quarantined) == (40, 2), name
        for column in ("label", "score"):
            assert found[column].equals(expected[column]), name
        found = found.slice(0, 40)
        assert found["doc.meta.lang"].to_pylist() == lang, name
        assert [int(n) for n in found["doc.meta.n"].to_pylist()] == [*range(40)], name
        assert {*found["a.b"].to_pylist()} == {"own"}, name
    german = classify(tmp_path / "in.parquet", model=small_model, where='doc.meta.lang == "de"', **ASKED).to_arrow()
    assert {*german["doc.meta.lang"].to_pylist()} == {"de", None}  # quarantined rows stay
    assert german.filter(german["reason"].is_null()).num_rows == 20


def test_a_truth_within_a_column_is_compared(small_model: Model, tmp_path: Path) -> None:
    rows = [{"doc": {"body": text}, "gold": {"topic": f"class {i % 4}"}} for i, text in enumerate(FLAT[:40])]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source in (tmp_path / "in.jsonl", pa.Table.from_pylist(rows), rows):
        report = classify(source, model=small_model, text_column="doc.body", truth_column="gold.topic")
        assert report.to_arrow()["truth"].to_pylist() == [f"class {i % 4}" for i in range(40)]


def test_a_name_that_has_the_dots_itself_wins(small_model: Model, tmp_path: Path) -> None:
    rows = [{"doc": {"body": "within"}, "doc.body": "own"}, {"doc": {"body": "within"}, "doc.body": "own"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    feather.write_feather(pa.Table.from_pylist(rows), tmp_path / "in.arrow")
    for source in (
        *(tmp_path / f"in.{kind}" for kind in ("jsonl", "parquet", "arrow")),
        rows,
        pa.Table.from_pylist(rows),
    ):
        found = classify(source, model=small_model, text_column="doc.body", keep="doc.body").to_arrow()
        assert found["doc.body"].to_pylist() == ["own", "own"]
        assert found["n_chars"].to_pylist() == [3, 3]


def test_a_wrong_name_is_told_with_the_one_that_was_meant(small_model: Model, tmp_path: Path) -> None:
    for name, source in (as_files(tmp_path) | {"table": TABLE, "dicts": ROWS}).items():
        with pytest.raises(UsageError, match=r"no column 'body'.*doc\.body.*did you mean 'doc\.body'"):
            classify(source, model=small_model, text_column="body")
        with pytest.raises(UsageError, match=r"no column 'doc\.bdy'.*did you mean 'doc\.body'"):
            classify(source, model=small_model, text_column="doc.bdy")
        if name not in ("in.jsonl",):
            with pytest.raises(UsageError, match=r"the text column 'doc(\.meta)?' holds struct"):
                classify(source, model=small_model, text_column="doc.meta" if name != "dicts" else "doc")


def test_labels_are_added_to_a_frame_by_such_a_name(small_model: Model) -> None:
    frame = pd.DataFrame(ROWS[:40])
    added = label(frame, model=small_model, text_column="doc.body")
    assert added["label"].tolist() == classify(FLAT[:40], model=small_model).to_arrow()["label"].to_pylist()


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=4)),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "a.b", ""]), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(60), deadline=None)
@given(
    lines=st.lists(
        st.dictionaries(st.sampled_from(["a", "b", "a.b", "id"]), VALUES, max_size=4), min_size=1, max_size=9
    )
)
def test_a_json_line_is_read_the_same_alone_and_among_others(lines: list[dict]) -> None:
    """By Arrow's parser and by Python's."""
    block = block_of([json.dumps(line).encode() for line in [{"id": "1", "a": {"b": "x", "c": "y"}}, *lines]])
    for selection in (
        Selection(("a.b",)), Selection(("a.b",), ("id", "a.c"), reads=2), Selection(("a.b",), ("a",)),
        Selection(("id",), ("a.b", "b.a.b")),
    ):  # fmt: skip
        assert same(Jsonl().parse(block, "f", 3, selection), parse_one_by_one(block, "f", 3, selection))
