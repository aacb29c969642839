"""Anything that holds text is accepted: tables of other libraries, iterators, dicts, arrays. Anything else is
refused.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from distributed import Client

from broadsheet import pipeline
from broadsheet.pipeline import BroadsheetError, JobReport, UsageError, classify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.report.job import Progress
from broadsheet.pipeline.source.inputs import NothingBefore, identify, open_input
from broadsheet.pipeline.source.memory.items import as_items
from broadsheet.pipeline.source.memory.tables import as_tables
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.source.rows.limits import Limits

datasets = pytest.importorskip("datasets")

TEXTS = [None if i % 9 == 5 else f"Article number {i} of the day" for i in range(40)]
TABLE = pa.table({"text": TEXTS, "id": range(40)})


@pytest.fixture(scope="module")
def run(client: Client, small_model: Model) -> Callable[..., JobReport]:
    def call(source: Any, output: Path | None = None, **options: Any) -> JobReport:
        return classify(source, output, model=small_model, client=client, **options)

    return call


def rows_of(report: JobReport, *columns: str) -> dict[str, list]:
    return report.to_arrow().select(["row", "label", "score", *columns]).to_pydict()


def test_tables_of_every_library_give_the_same_rows(run) -> None:
    """Nulls go to the quarantine, and ids keep their types. Chunks end by their own limit, not where a batch ends."""
    shuffled = [*range(20, 40), *range(20)]
    dataset = datasets.Dataset.from_dict({"text": [TEXTS[i] for i in shuffled], "id": shuffled}).select(shuffled)
    frame = pl.DataFrame({"text": TEXTS, "id": range(40)})
    connection = duckdb.connect()
    connection.register("news", TABLE)
    sources = {
        "Polars": frame,
        "Polars, categories": frame.with_columns(pl.col("text").cast(pl.Categorical)),
        "DuckDB": connection.sql("select id, text from news order by id"),
        "reader": pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=7)),
        "batch": pa.record_batch(TABLE.to_pydict()),
        "Hugging Face": dataset,
        "Hugging Face, streamed": dataset.to_iterable_dataset(),
        "pandas": pd.DataFrame({"text": TEXTS, "id": range(40)}, index=range(100, 140)),
    }
    expected = run(TABLE, id_column="id")
    assert (expected.rows_written, expected.rows_quarantined) == (36, 4)
    for name, source in sources.items():
        report = run(source, id_column="id", chunk_size=17)
        assert rows_of(report, "id") == rows_of(expected, "id"), name
        assert report.quarantine() == expected.quarantine(), name
        assert (report.to_arrow().schema, report.tally.chunks) == (expected.to_arrow().schema, 3), name


def test_strings_without_columns_are_the_text(run) -> None:
    expected = rows_of(run(TEXTS))
    sources = {
        "Polars": pl.Series("headline", TEXTS),
        "pandas Index": pd.Index(TEXTS),
        "pandas array": pd.array(TEXTS),
        "Dask": dd.from_pandas(pd.Series(TEXTS, name="headline"), npartitions=1),
        "NumPy objects": np.array(TEXTS, object),
        "NumPy strings": np.array(TEXTS, np.dtypes.StringDType(na_object=None)),
        "generator": (text for text in TEXTS),
        "values": dict(enumerate(TEXTS)).values(),
        "map": map({text: text and np.str_(text) for text in TEXTS}.get, TEXTS),
        "bytes": [text and text.encode() for text in TEXTS],
    }
    for name, source in sources.items():
        assert rows_of(run(source, chunk_size=17)) == expected, name
    whole = run([text or "" for text in TEXTS])
    for array in (np.array([text or "" for text in TEXTS]), np.array([(text or "").encode() for text in TEXTS])):
        assert rows_of(run(array)) == rows_of(whole)
    lines = "".join(f"{text or ''}\n" for text in TEXTS)
    assert rows_of(run(io.StringIO(lines))) == rows_of(whole) == rows_of(run(io.BytesIO(lines.encode())))


def test_dicts_have_columns_and_bad_ones_are_set_aside_with_the_reason(run) -> None:
    rows = [
        {"title": "Stocks fell", "body": "Oil rose", "id": 7, "class": 1},
        {"title": None, "body": "Only a body", "id": 8, "class": 2},
        {"title": "no body", "id": 9, "class": 2},
        {"title": 5, "body": "x", "id": 10, "class": 2},
        "a string",
        None,
        {"title": "\ud800", "body": "x", "id": 11, "class": 2},
        {"title": None, "body": float("nan"), "id": 12, "class": 2},
    ]
    options = {"text_column": ["title", "body"], "id_column": "id", "label_column": "class", "label_numbers_from": 1}
    held, once = run(rows, **options), run(iter(rows), **options)
    table = run(pa.table({"text": ["Stocks fell Oil rose", "Only a body"]}))
    assert rows_of(held) == rows_of(once)
    assert {name: values[:2] for name, values in rows_of(held).items()} == rows_of(table)
    assert held.to_arrow()["label"].to_pylist()[2:] == [None] * 6
    assert held.to_arrow()["id"].to_pylist()[:2] == [7, 8]
    assert once.to_arrow()["id"].to_pylist()[:2] == ["7", "8"]  # types that are not known beforehand become strings
    assert held.confusion.rows == once.confusion.rows == 2
    assert held.quarantine() == once.quarantine()
    assert [(bad["row"], bad["reason"]) for bad in held.quarantine().to_pylist()] == [
        (2, "no key 'body'"),
        (3, "the text 'title' is of type int, not a string"),
        (4, "the item is of type str, not a dict"),
        (5, "the item is of type NoneType, not a dict"),
        (6, "'title' holds half of a surrogate pair"),
        (7, "the text is null"),
    ]
    assert b"'id': 9" in held.quarantine()["head"][0].as_py()
    read = csv.DictReader(io.StringIO("title,body,id,class\nStocks fell,Oil rose,7,1\n"))
    assert rows_of(run(read, **options), "id")["id"] == ["7"]


def test_items_that_are_no_strings_cost_their_row_and_no_other(run) -> None:
    items = ["good", 5, ["x"], float("nan"), pd.NA, "\ud800", b"\xff", "also good"]
    expected = [
        (1, "the item is of type int, not a string", b"5"),
        (2, "the item is of type list, not a string", b"['x']"),
        (3, "the text is null", b""),
        (4, "the text is null", b""),
        (5, "the item holds half of a surrogate pair", b"\\ud800"),
        (6, "column 'text' is not UTF-8: byte 0 of it is 0xff", b"\xff"),
    ]
    for source in (items, iter(items), pd.Series(items, dtype=object)):
        report = run(source, chunk_size=3)
        labels = report.to_arrow()["label"]
        assert [row for row, label in enumerate(labels.to_pylist()) if label] == [0, 7]
        assert [(b["row"], b["reason"], b["head"]) for b in report.quarantine().to_pylist()] == expected
    mixed = pd.DataFrame({"text": ["a", "b", None], "id": [1, "x", 2.5], "other": [{1}, {2}, {3}]}, index=[7, 8, 9])
    report = run(mixed, id_column="id", keep="text")
    assert report.to_arrow().select(["row", "id", "text"]).to_pydict() == {
        "row": [0, 1, 2],
        "id": ["1", "x", "2.5"],
        "text": ["a", "b", None],
    }


def test_a_streamed_dataset_of_unknown_types_is_read_whatever_comes_late(run) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for i in range(1_100):
            yield {"text": "Oil rose", "n": i if i < 1_000 else i + 0.5, "unused": None if i < 1_050 else "x"}

    report = run(datasets.IterableDataset.from_generator(rows), keep="n", chunk_size=300)
    assert report.rows_written == 1_100
    assert report.to_arrow()["n"].to_pylist()[998:1_002] == ["998", "999", "1000.5", "1001.5"]


def test_names_of_classes_in_a_hugging_face_dataset_are_its_truth(run, small_model: Model) -> None:
    """The dataset numbers classes from 0, and this project from 1."""
    texts = [text for text in TEXTS if text]
    labels = rows_of(run(texts))["label"]
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=[*small_model.classes]))
    dataset = datasets.Dataset.from_dict({"text": texts, "label": [*labels[:-1], -1]}, features=features)
    for source in (dataset, dataset.to_iterable_dataset()):
        report = run(source, label_column="label")
        assert (report.accuracy, report.confusion.rows, report.confusion.without_truth) == (1.0, 35, 1)


def test_nothing_gives_no_rows(run) -> None:
    none = [[], (), iter(()), {}.values(), np.array([], str), pl.DataFrame({"text": []}), pd.Series([], dtype=object)]
    none += [pa.RecordBatchReader.from_batches(TABLE.schema, []), datasets.Dataset.from_dict({"text": []})]
    for source in none:
        report = run(source)
        assert (report.rows_read, len(report.to_arrow())) == (0, 0)
    assert run([], text_column="body", id_column="id").to_arrow().column_names[:3] == ["file", "row", "id"]


@pytest.mark.slow
def test_what_is_streamed_is_drawn_as_chunks_are_done(run, tmp_path: Path) -> None:
    """Readers are drawn from batch by batch. A source that can be drawn from only once cannot be resumed, and is
    refused.
    """
    drawn, ahead = 0, 0
    rows = 800

    def texts() -> Iterator[str]:
        nonlocal drawn
        for i in range(rows):
            drawn += 1
            yield f"short {i}"

    def batches() -> Iterator[pa.RecordBatch]:
        all_texts = texts()
        while batch := list(itertools.islice(all_texts, 100)):
            yield pa.record_batch({"text": batch})

    class Watch(Progress):
        def advance(self, report: JobReport) -> None:
            nonlocal ahead
            ahead = max(ahead, drawn - report.rows_read)

    schema = pa.schema([("text", pa.string())])
    reports = []
    for source, out in ((texts(), tmp_path / "out"), (pa.RecordBatchReader.from_batches(schema, batches()), None)):
        drawn = ahead = 0
        reports.append(run(source, out, chunk_size=20, progress=Watch()))
        assert drawn == rows
        assert ahead <= 24 * 20  # of 40 chunks, 16 are in flight: 8 for each worker
    assert rows_of(reports[0]) == rows_of(reports[1])
    assert pipeline.verify(tmp_path / "out").rows_written == rows
    drawn = 0
    message = r"cannot resume .+out: a generator is read once.+Start again with overwrite=True"
    with pytest.raises(UsageError, match=message):
        run(texts(), tmp_path / "out", resume=True, chunk_size=20)
    with pytest.raises(UsageError, match="the input changed"):
        run([f"short {i}" for i in range(rows)], tmp_path / "out", resume=True, chunk_size=20)
    assert drawn == 0


def test_rows_that_stay_in_memory_are_resumed(run, tmp_path: Path) -> None:
    rows = [{"text": text, "id": i, "odd": {i}} for i, text in enumerate(TEXTS)]
    sources = {"dicts": (rows, rows[::-1]), "polars": (pl.from_arrow(TABLE), pl.from_arrow(TABLE[::-1]))}
    for name, (source, other) in sources.items():
        run(source, tmp_path / name, chunk_size=10)
        (tmp_path / name / "_SUCCESS").unlink()
        next((tmp_path / name / "_entries").glob("part-*")).unlink()
        again = run(source, tmp_path / name, chunk_size=10, resume=True)
        assert (again.run.chunks_before, again.rows_read) == (3, 40)
        with pytest.raises(UsageError, match="the input changed"):
            run(other, tmp_path / name, chunk_size=10, resume=True)


def test_an_error_of_the_source_ends_the_job(run, tmp_path: Path) -> None:
    def failing() -> Iterator[str]:
        yield from ["a", "b", "c"]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(failing(), tmp_path / "out", chunk_size=1)
    query = "select case when i = 400000 then error('no such town') else 'x' end as text from range(500000) t(i)"
    with pytest.raises(BroadsheetError, match=r"the DuckDBPyRelation failed after \d[\d,]* rows: .*no such town"):
        list(open_input(identify(duckdb.sql(query), 1, 1, whole_hash=False, by_content=False), Selection(), 1 << 17)
             .ranges(NothingBefore()))  # fmt: skip


@pytest.mark.parametrize("source", ["table", "items"])
def test_long_texts_make_smaller_chunks_wherever_batches_begin(source: str) -> None:
    texts = ["x" * 10, "y" * 95, "z" * 300, *["w" * 30] * 9, *["", None] * 5]
    limits, sizes = Limits(chunk_bytes=100), []
    for batch in (1, 4, 22):
        pieces = [pa.array(texts[i : i + batch], pa.string()) for i in range(0, len(texts), batch)]
        table = pa.table({"text": pa.chunked_array(pieces)})
        held = as_tables(table) if source == "table" else as_items(iter(texts))
        held.resolve(Selection())
        chunks = list(held.chunks(Selection(), 5, limits))
        assert [n for c in chunks for n in sorted(c.rows["row"].to_pylist() + c.quarantine["row"].to_pylist())] == [
            *range(len(texts))
        ]
        sizes.append([c.rows_read for c in chunks])
    assert sizes[0] == sizes[1] == sizes[2]
    assert sizes[0] == ([1, 1, 1, 3, 3, 5, 5, 3] if source == "table" else [2, 1, 4, 4, 5, 5, 1])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda here: [str(here / "a.txt")], r"the list holds paths, for example '.+a.txt': .+ broadsheet.Paths"),
        (lambda here: (str(file) for file in here.iterdir()), r"the generator holds paths"),
        # Neither item names an existing file.
        (lambda here: ["here.jsonl", "*.csv.gz"], r"the list holds paths, for example 'here.jsonl'"),
        (lambda here: here.glob("*.txt"), r"item 0 of the \w+ is of type PosixPath: give broadsheet.Paths of it"),
        (lambda here: "Did stocks fall?", r"no input at 'Did stocks fall\?': .+ To label a text, give a list of texts"),
        (lambda here: "x" * 5000, r"no input at 'x{60}…'"),
        (lambda here: [None, 1, "a"], r"item 1 of the list is of type int: give strings, or dicts by column"),
        (lambda here: np.array([["a"]]), r"the array has 2 dimensions"),
        (lambda here: pl.LazyFrame({"text": ["a"]}), r"a LazyFrame: it is a query: give .collect\(\) of it"),
        (lambda here: datasets.DatasetDict(train=None), r"a DatasetDict: give one of its splits"),
        (lambda here: b"a text", r"cannot classify a bytes"),
        (lambda here: pd.DataFrame({"headline": ["a"]}), r"no column 'text' \(text_column= names another\); th"),
        (lambda here: iter([{"body": "a"}]), r"no column 'text' \(text_column= names another\); there are: body"),
        (lambda here: [{"text": 5}], r"the text column 'text' holds int64, not strings"),
        (lambda here: pd.DataFrame([["a", "b"]], columns=["text", "text"]), r"two columns of the DataFrame have the"),
        (lambda here: (here / "b.csv").open(), r"an open file is read as a text a line, and this is csv"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_refused_with_the_remedy(small_model: Model, tmp_path: Path, source, message: str) -> None:
    (tmp_path / "a.txt").write_text("a text\n")
    (tmp_path / "b.csv").write_text("text\nhello\n")
    with pytest.raises(UsageError, match=message):
        classify(source(tmp_path), model=small_model)


def test_paths_are_found_out_at_the_first_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The search for files in a list ends at its first text, even if the list begins with a file's name."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("news")
    assert as_items(["news", "Stocks fell", *["news"] * 100_000]).rows == 100_002
    assert len(pipeline.Paths(tmp_path.iterdir())) == 1
