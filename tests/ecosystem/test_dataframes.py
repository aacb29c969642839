"""Labels land on their rows, whatever index a frame has and whichever rows are bad. Dask collections are labelled when
the user computes them.
"""

from __future__ import annotations

import datetime as dt
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.bag
import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from conftest import examples
from distributed import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages import blocks

from broadsheet import pipeline
from broadsheet.pipeline import SourceError, UsageError, classify, label, verify
from broadsheet.pipeline.ecosystem.resident import release
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.processes.threads import available_cores

TEXTS = [f"{'Stocks fell' if i % 3 else 'The striker scored'} on day {i}{'!' * i}" for i in range(12)]
LINES = "A text of\ntwo lines"


Pair = tuple[str | None, float | None]


@pytest.fixture(scope="module")
def alone(client: Client, small_model: Model) -> Callable[[Any], list[Pair]]:
    """A function that returns label and score of each text, classified alone, and None for a null."""
    found: dict[str, Pair] = {}
    for text in (*TEXTS, LINES):
        (row,) = classify([text], model=small_model, client=client).to_arrow().to_pylist()
        found[text] = row["label"], row["score"]
    assert len({label for label, _ in found.values()}) > 1
    assert len({score for _, score in found.values()}) == len(TEXTS) + 1
    return lambda texts: [(None, None) if pd.isna(text) else found[text] for text in texts]


def pairs(rows: Any) -> list[Pair]:
    """Return label and score of each row of a frame of any kind, or None where they are null."""
    table = rows if isinstance(rows, pa.Table) else pa.table({name: rows[name] for name in ("label", "score")})
    return list(zip(table["label"].to_pylist(), table["score"].to_pylist(), strict=True))


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    """Draw some of the texts, in any order, some of them null or repeated, with an index of any kind."""
    texts = draw(st.lists(st.sampled_from(TEXTS) | st.none(), max_size=9))
    keys = draw(st.lists(st.integers(0, 3), min_size=len(texts), max_size=len(texts)))
    letters = [draw(st.sampled_from("ab")) for _ in texts]
    kind = draw(st.sampled_from(["numbers", "strings", "times", "several"]))
    index = {
        "numbers": pd.Index(keys, name="key"),
        "strings": pd.Index(letters, dtype=object),
        "times": pd.to_datetime(keys, unit="D"),
        "several": pd.MultiIndex.from_arrays([keys, letters], names=["key", None]),
    }[kind]
    frame = pd.DataFrame({"text": pd.Series(texts, dtype=object).array, "id": range(len(texts))}, index=index)
    frame = frame.iloc[draw(st.permutations(range(len(texts))))]
    return frame[np.asarray([draw(st.booleans()) or draw(st.booleans()) for _ in texts], np.bool_)]


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(frame=frames(), chunk_size=st.sampled_from([1, 3, 512]))
def test_each_row_has_the_label_of_its_text(
    client: Client, small_model: Model, alone: Callable[[Any], list[Pair]], frame: pd.DataFrame, chunk_size: int
) -> None:
    expected = alone(frame["text"])
    report = classify(frame, model=small_model, client=client, chunk_size=chunk_size, keep="id")
    assert (report.rows_read, report.rows_written) == (len(frame), sum(label is not None for label, _ in expected))
    found = report.to_pandas()
    pd.testing.assert_index_equal(found.index, frame.index)
    assert pairs(found) == expected
    assert found["id"].tolist() == frame["id"].tolist()
    assert found["reason"].isna().tolist() == [label is not None for label, _ in expected]

    assert pairs(frame.assign(label=found["label"], score=found["score"])) == expected  # pandas aligns by the index
    joined = report.join(frame)
    pd.testing.assert_frame_equal(joined[frame.columns.tolist()], frame)
    assert pairs(joined) == expected
    for other in (pl.from_pandas(frame), pa.Table.from_pandas(frame, preserve_index=False)):
        same = report.join(other)
        assert type(same) is type(other)
        assert pairs(same) == expected


SOURCES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "list": lambda frame: [None if pd.isna(text) else text for text in frame["text"]],
    "series": lambda frame: frame["text"],
    "frame": lambda frame: frame,
    "array": lambda frame: pa.array(frame["text"]),
    "table": lambda frame: pa.Table.from_pandas(frame),
    "dask": lambda frame: dd.from_pandas(frame, npartitions=3, sort=False),
}
BAD = pd.DataFrame({"text": [TEXTS[0], None, *TEXTS[1:5], None, None], "id": range(8)}, index=[7, 7, 3, 1, 3, 9, 9, 0])


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_in_memory_has_all_its_rows(
    client: Client, small_model: Model, alone: Callable[[Any], list[Pair]], kind: str
) -> None:
    report = classify(SOURCES[kind](BAD), model=small_model, client=client, chunk_size=3)
    assert (report.rows_written, report.rows_quarantined) == (5, 3)
    rows = report.to_pandas()
    assert pairs(rows) == alone(BAD["text"])
    assert rows["reason"].dropna().tolist() == ["the text is null"] * 3
    indexed = kind in ("series", "frame", "dask")
    assert rows.index.tolist() == (BAD.index.tolist() if indexed else list(range(8)))
    assert [str(rows[name].dtype) for name in ("row", "n_chars", "truncated")] == ["int64", "Int64", "boolean"]
    if kind != "dask":
        assert rows["row"].tolist() == list(range(8))
    assert pairs(report.join(BAD)) == alone(BAD["text"])


def test_files_in_memory_have_all_their_rows_with_the_ids_that_could_be_read(
    client: Client, small_model: Model, alone: Callable[[Any], list[Pair]], tmp_path: Path
) -> None:
    (tmp_path / "b.csv").write_bytes(f"id,text\n1,{TEXTS[0]}\n2\n3,caf\xe9\n4,{TEXTS[1]}\n".encode("latin-1"))
    (tmp_path / "a.csv").write_text(f"id,text\n5,{TEXTS[2]}\n6,x,y\n")
    source = pipeline.Paths([str(tmp_path / "b.csv"), str(tmp_path / "a.csv")])
    for chunk_size in (1, 3, 512):  # small files share a chunk
        report = classify(source, model=small_model, client=client, id_column="id", chunk_size=chunk_size)
        rows = report.to_pandas()
        assert [Path(file).name for file in rows["file"]] == ["b.csv"] * 4 + ["a.csv"] * 2
        assert rows["row"].tolist() == [0, 1, 2, 3, 0, 1]
        assert [None if pd.isna(id_) else id_ for id_ in rows["id"]] == ["1", None, "3", "4", "5", None]
        assert pairs(rows) == alone([TEXTS[0], None, None, TEXTS[1], TEXTS[2], None])
        reasons = [None if pd.isna(reason) else reason for reason in rows["reason"]]
        assert reasons[2] == "column 'text' is not UTF-8: byte 3 of it is 0xe9"
        assert [reason is not None for reason in reasons] == [False, True, True, False, False, True]
        assert (report.rows_written, report.rows_quarantined) == (3, 3)


def test_a_frame_that_was_not_classified_is_refused(client: Client, small_model: Model, tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": TEXTS, "score": range(12)}, index=[0] * 12)
    report = classify(frame, model=small_model, client=client)
    with pytest.raises(UsageError, match=r"has a column 'score' already: rename it, or pass suffix='_predicted'"):
        report.join(frame)
    added = ["label", "score_new", "n_chars", "truncated", "unknown_chars", "reason"]
    assert report.join(frame, suffix="_new").columns.tolist() == ["text", "score", *added]
    frame = frame[["text"]]
    for other, message in (
        (frame[:5], r"the frame has 5 rows, the job's results have 12\. Give the frame that was classified"),
        (frame.set_axis(range(12)), "another index than the rows that were classified"),
        (frame[::-1], "rows 0 to 11 of the frame have other texts"),  # the index is the same
        (frame.astype(object).replace(TEXTS[0], 1), "rows 0 to 11 of the frame have other texts"),
        (frame["text"], "cannot be added to a pandas Series: give a pandas DataFrame, a Polars"),
        (dd.from_pandas(frame, npartitions=1), "cannot be added to a dask"),
    ):
        with pytest.raises(UsageError, match=message):
            report.join(other)
    polars = pl.DataFrame({"a": TEXTS, "b": ["x"] * 12})
    report = classify(polars.to_arrow(), model=small_model, client=client, text_column=["a", "b"])
    with pytest.raises(UsageError, match="rows 0 to 11 of the frame have other texts"):
        report.join(pa.table({"a": [*TEXTS[:2], None, *TEXTS[3:]], "b": ["x"] * 12}))
    assert report.join(polars).columns[:3] == ["a", "b", "label"]
    alike = pl.DataFrame({"text": ["two texts of one length", "oil rose, stocks fell.."]})
    with pytest.raises(UsageError, match="rows 0 to 1 of the frame have other texts"):
        classify(alike, model=small_model, client=client).join(alike.reverse())
    mixed = pd.DataFrame({"text": pd.Series(["a text", 3.5, dt.date(2024, 1, 1), "\ud800", None], dtype=object)})
    joined = label(mixed, model=small_model, client=client)
    assert joined["label"].notna().tolist() == [True, False, False, False, False]
    report = classify(frame, tmp_path / "out", model=small_model, client=client)
    assert report.to_pandas().index.equals(frame.index)
    with pytest.raises(
        UsageError, match=r"the rows of this job are in .+/out, not in memory: join them by file and row"
    ):
        report.join(frame)


def test_a_frame_that_was_changed_in_place_or_is_in_another_order_is_refused(
    client: Client, small_model: Model, alone: Callable[[Any], list[Pair]]
) -> None:
    """The check compares texts, whatever was classified: the same object, its column, or a list without names."""
    frame = pd.DataFrame({"id": range(12), "body": TEXTS})
    for source, options in (
        (frame, {"text_column": "body"}),
        (frame["body"], {}),
        (frame["body"].tolist(), {}),
        ([*map(dict, frame.to_dict("records"))], {"text_column": "body"}),
    ):
        report = classify(source, model=small_model, client=client, chunk_size=5, **options)
        assert pairs(report.join(frame)) == alone(frame["body"])
        other = frame.sort_values("body", ignore_index=True)
        with pytest.raises(UsageError, match=r"rows 0 to 4 of the frame have other texts .+ or in another order"):
            report.join(other)
        late = frame.assign(body=[*TEXTS[:10], TEXTS[11], TEXTS[10]])
        with pytest.raises(UsageError, match="rows 10 to 11 of the frame have other texts"):
            report.join(late)
        moved = frame.assign(body=[None, *TEXTS[:11]])
        with pytest.raises(UsageError, match="rows 0 to 4 of the frame have other texts"):
            report.join(moved)
    report = classify(frame, model=small_model, client=client, text_column="body")
    frame.sort_values("body", inplace=True, ignore_index=True)
    with pytest.raises(UsageError, match="rows 0 to 11 of the frame have other texts"):
        report.join(frame)
    with pytest.raises(UsageError, match="the frame has no column with the texts"):
        classify(TEXTS, model=small_model, client=client).join(pd.DataFrame({"n": range(12)}))


def test_label_gives_the_frame_back(client: Client, small_model: Model, alone: Callable[[Any], list[Pair]]) -> None:
    frame = pd.DataFrame({"body": [TEXTS[0], None, TEXTS[1]], 5: [1, 2, 3]}, index=list("xxy"))
    options: dict[str, Any] = {"model": small_model, "client": client, "text_column": "body"}
    labelled = label(frame, **options)
    pd.testing.assert_frame_equal(labelled[["body", 5]], frame)
    assert pairs(labelled) == alone(frame["body"])
    assert labelled["reason"].tolist()[1] == "the text is null"
    assert "label" not in frame
    frame = frame.rename(columns={5: "label"})
    for given_frame in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame, preserve_index=False)):
        with pytest.raises(UsageError, match="has a column 'label' already"):
            label(given_frame, **options)
        of_truth = {"label_column": "label", "label_numbers_from": 1}
        found = label(given_frame, suffix="_new", scores=True, top_k=2, **of_truth, **options)
        assert type(found) is type(given_frame)
        names = found.column_names if isinstance(found, pa.Table) else list(found.columns)
        assert names == [
            "body", "label", "label_new", "score", "truth", *(f"score_class {i}" for i in range(4)),
            "top_labels", "top_scores", "n_chars", "truncated", "unknown_chars", "reason",
        ]  # fmt: skip
    with pytest.raises(UsageError, match="cannot be added to a builtins list: give a pandas DataFrame"):
        label(TEXTS, **options)


def test_a_column_is_named_by_text(small_model: Model) -> None:
    frame = pd.DataFrame({0: ["some words"], 1: ["World"]})
    for wrong in ({"text_column": 0}, {"text_column": [np.int64(0)]}, {"label_column": 1}, {"text_column": None}):
        with pytest.raises(UsageError, match=r"_column is .*: give names of columns as text, '0' for a column that"):
            label(frame, model=small_model, device="cpu", **wrong)
    assert label(frame, model=small_model, device="cpu", text_column="0")["label"].notna().all()
    pipeline.close()


def test_kept_columns_keep_their_types_and_the_truth_is_written(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    table = pa.table(
        {
            "text": pa.array([TEXTS[0], None, TEXTS[1]], pa.large_string()),
            "when": pa.array([1, 2, None], pa.timestamp("us", "UTC")),
            "tags": [["a"], [], None],
            "big": pa.array([(1 << 60) + 1, (1 << 60) + 3, None], pa.int64()),
            "true": ["class 2", "class 1", "nonsense"],
            "number": [4, 2, None],
        }
    )
    options: dict[str, Any] = {"model": small_model, "client": client}
    found = classify(table, keep_all=True, id_column="big", label_column="number", **options)
    rows = found.to_arrow()
    kept = ["big", "text", "when", "tags", "true", "number"]
    assert rows.column_names[2:11] == [*kept, "label", "score", "truth"]
    assert rows.select(kept).equals(table.select(kept).cast(rows.select(kept).schema))
    assert [rows.schema.field(name).type for name in kept[1:]] == [
        pa.string(),
        *table.schema.types[1:3],
        *table.schema.types[4:],
    ]
    assert rows["truth"].to_pylist() == ["class 3", None, None]
    assert found.to_pandas()["big"].tolist()[:2] == [(1 << 60) + 1, (1 << 60) + 3]

    written = classify(table, tmp_path / "out", keep=["when", "text"], label_column="true", **options).to_arrow()
    assert written.column_names[:7] == ["file", "row", "when", "text", "label", "score", "truth"]
    assert written["truth"].to_pylist() == ["class 2", None]
    assert written["text"].to_pylist() == TEXTS[:2]
    assert verify(tmp_path / "out").rows_written == 2


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_kept_bytes_stay_bytes_in_every_layout(client: Client, small_model: Model, kind: pa.DataType) -> None:
    """Polars has them as views."""
    table = pa.table({"text": TEXTS[:2], "photo": pa.array([b"\xff\x00", None], kind)})
    rows = classify(table, keep="photo", model=small_model, client=client).to_arrow()
    assert rows["photo"].to_pylist() == [b"\xff\x00", None]
    assert (rows.schema.field("photo").type, rows["reason"].null_count) == (pa.binary(), 2)


def test_the_truth_of_encoded_articles_is_written(client: Client, small_model: Model, tmp_path: Path) -> None:
    np.zeros((3, len(small_model.alphabet), small_model.length), "<f4").tofile(tmp_path / "in.bin")
    np.array([2, 9, 0], "<f4").tofile(tmp_path / "answers.bin")
    report = classify(tmp_path / "in.bin", model=small_model, client=client, truth=tmp_path / "answers.bin")
    assert report.to_arrow()["truth"].to_pylist() == ["class 2", None, "class 0"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_documented_joins_put_labels_on_their_rows(
    client: Client,
    small_model: Model,
    alone: Callable[[Any], list[Pair]],
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The code is that of docs/output.md, with the calls for Parquet too. Quarantined rows have a number as well."""
    monkeypatch.chdir(tmp_path)
    news = tmp_path / "news"
    news.mkdir()
    sources = {"b": TEXTS[:5], "a": [TEXTS[5], LINES, *TEXTS[6:]]}
    if kind == "parquet":
        sources["b"] = [None, *sources["b"][:2], None, *sources["b"][2:]]
    for name, texts in sources.items():
        frame = pd.DataFrame({"text": texts, "n": range(len(texts)), "source": name})
        getattr(frame, f"to_{kind}")(news / f"{name}.{kind}", index=False)
    report = classify("news", "OUT", model=small_model, client=client, chunk_size=2, root=".")
    assert report.rows_quarantined == (2 if kind == "parquet" else 0)
    examples = blocks("output.md", "python")["Joining labels to your rows"]
    assert len(examples) == 3
    for example in examples:
        code = (
            example.replace("read_csv", f"read_{kind}")
            .replace("scan_csv", f"scan_{kind}")
            .replace("*.csv", f"*.{kind}")
        )
        names: dict[str, Any] = {}
        exec(code, names)
        labelled = names["labelled"]
        found = labelled.df() if isinstance(labelled, duckdb.DuckDBPyRelation) else labelled
        found = found.to_pandas() if isinstance(found, pl.DataFrame) else found
        assert found["source"].is_monotonic_increasing  # in the order of the files
        for name, texts in sources.items():
            rows = found[found["source"] == name]
            assert rows["n"].tolist() == list(range(len(texts)))
            assert pairs(rows) == alone(texts)


# Dask collections with their labels, computed when the user computes them.


LAZY_TEXTS = [f"{word} number {i}" for i in range(20) for word in ("stocks", "goal", "vote")]
LAZY_TEXTS[7] = None


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame({"body": LAZY_TEXTS, "year": [2020 + i % 3 for i in range(len(LAZY_TEXTS))]})


@pytest.mark.slow
def test_labels_of_a_dask_frame_are_those_of_classify(
    client: Client, frame: pd.DataFrame, small_model_file: Path, tmp_path: Path
) -> None:
    """The test reads and writes Parquet on a cluster, and filters before and after. A null text keeps its row."""
    client.run(release)
    dd.from_pandas(frame, npartitions=4).to_parquet(tmp_path / "in")
    read = dd.read_parquet(tmp_path / "in", calculate_divisions=True)
    chosen = read[read.year > 2020]
    labelled = pipeline.label(chosen, text_column="body", model=small_model_file, top_k=2, scores=True, device="cpu")
    assert labelled.divisions == chosen.divisions
    graph = pickle.dumps(labelled.__dask_graph__())
    assert len(graph) < 100_000  # the graph does not contain a model of megabytes
    expected = frame[frame.year > 2020]
    wanted = pipeline.label(expected, text_column="body", model=small_model_file, top_k=2, scores=True, device="cpu")
    labelled.to_parquet(tmp_path / "out")
    found = pd.read_parquet(tmp_path / "out", dtype_backend="pyarrow")
    for name in wanted.columns.drop(["top_labels", "top_scores"]):
        values = [[None if pd.isna(value) else value for value in each[name]] for each in (found, wanted)]
        assert values[0] == values[1], name
    assert [*map(list, found.top_labels.dropna())] == [*map(list, wanted.top_labels.dropna())]
    assert [*found.columns] == [*wanted.columns]
    assert found.reason.notna().sum() == expected.body.isna().sum() == 1
    computed = labelled[labelled.label == wanted.label.iloc[0]].compute()
    assert (computed.dtypes == labelled.dtypes).all()
    assert (computed.label == wanted.label.iloc[0]).all()
    assert len(computed) == (wanted.label == wanted.label.iloc[0]).sum()
    engines = client.run(_engines).values()  # a worker without a partition has no engine
    assert max(ours for ours, _, _ in engines) == 1
    most = max(1, available_cores() // len(engines))  # threads of one engine
    assert all(threads <= most * every for _, every, threads in engines)


def _engines() -> tuple[int, int, int]:
    """Return a worker's number of engines for such labels, of all engines, and of threads that compute."""
    from broadsheet.pipeline.labelling.engines import ENGINES

    threads = [thread for thread in threading.enumerate() if thread.name.startswith("broadsheet-compute")]
    engines = ENGINES.engines
    return sum(key.startswith("resident") for key in engines), len(engines), len(threads)


def test_a_model_in_memory_reaches_workers_without_the_graph(client: Client, small_model: Model) -> None:
    texts = [text for text in LAZY_TEXTS if text]
    given = dask.bag.from_sequence([*texts, None, 7], npartitions=3)
    labelled = pipeline.label(given, model=small_model, device="cpu")
    assert len(pickle.dumps(labelled.__dask_graph__())) < 100_000
    rows = labelled.compute()
    with pipeline.load(small_model, device="cpu") as classifier:
        assert [row["label"] for row in rows[:-2]] == classifier.predict(texts)
    assert [row["text"] for row in rows] == [*texts, None, 7]
    assert [row["reason"] for row in rows[-2:]] == ["the text is null", "the item is of type int, not a string"]


def test_what_does_not_fit_is_told_before_anything_is_computed(small_model_file: Path, frame: pd.DataFrame) -> None:
    lazy = dd.from_pandas(frame, npartitions=2)
    with pytest.raises(UsageError, match="no column 'title'"):
        pipeline.label(lazy, text_column="title", model=small_model_file)
    with pytest.raises(UsageError, match="workers is for frames in memory"):
        pipeline.label(lazy, text_column="body", model=small_model_file, workers=2)
    with pytest.raises(UsageError, match="already"):
        pipeline.label(lazy.assign(label="mine"), text_column="body", model=small_model_file)
    strict = pipeline.label(lazy, text_column="body", model=small_model_file, strict=True, device="cpu")
    with pytest.raises(SourceError, match="row 7: the text is null"):
        strict.compute(scheduler="sync")
    pipeline.close()
