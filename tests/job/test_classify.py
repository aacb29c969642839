"""`classify` from Python: every source and option, only the first rows (--limit), and refused arguments."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest
from distributed import Client
from texts import TEXTS, scores_of

from broadsheet import pipeline
from broadsheet.pipeline import Paths, UsageError, classify, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.report.job import Progress


def test_every_source_in_memory_gives_the_same_rows(client: Client, small_model: Model) -> None:
    expected = classify(TEXTS, model=small_model, client=client)
    table = pa.table({"text": TEXTS, "n": range(90)})
    frame = pd.DataFrame({"text": TEXTS, "n": range(90)})
    sources = {
        "array": pa.array(TEXTS),
        "table": table,
        "dataset": pa_dataset.dataset(table),
        "series": pd.Series(TEXTS),
        "frame": frame,
        "dask": dd.from_pandas(frame, npartitions=4),
    }
    for name, source in sources.items():
        report = classify(source, model=small_model, client=client, chunk_size=40)
        assert report.rows_written == 90, name
        assert scores_of(report) == scores_of(expected), name  # the chunk size changes no score
    assert expected.to_pandas().columns.tolist() == [
        "file", "row", "label", "score", "n_chars", "truncated", "unknown_chars", "reason"
    ]  # fmt: skip


def test_without_a_client_a_worker_runs_in_this_process(small_model: Model, client: Client) -> None:
    here = classify(TEXTS, model=small_model)
    assert scores_of(here) == scores_of(classify(TEXTS, model=small_model, client=client))
    assert "cpu" in here.backend


def test_bad_rows_in_memory_come_back_among_the_good(client: Client, small_model: Model) -> None:
    report = classify(["good", None, "", "x" * 5000], model=small_model, client=client)
    assert (report.rows_read, report.rows_written, report.rows_quarantined) == (4, 3, 1)
    assert report.quarantine().to_pylist() == [
        {"file": "memory", "row": 1, "byte_offset": None, "reason": "the text is null", "head": b""}
    ]
    frame = report.to_pandas()
    assert frame["row"].tolist() == [0, 1, 2, 3]
    assert frame["n_chars"].tolist() == [4, pd.NA, 0, 5000]
    assert frame["truncated"].tolist() == [False, pd.NA, False, True]
    assert frame["reason"].dropna().to_dict() == {1: "the text is null"}
    assert report.exit_code == 0


def test_no_rows_at_all_give_an_empty_table_with_the_schema(client: Client, small_model: Model) -> None:
    report = classify([], model=small_model, client=client, scores=True)
    assert len(report.to_arrow()) == 0
    assert "score_class 3" in report.to_arrow().column_names


def test_scores_and_top_k(client: Client, small_model: Model) -> None:
    report = classify(TEXTS, model=small_model, client=client, scores=True, top_k=3)
    frame = report.to_pandas()
    every = frame[[f"score_class {i}" for i in range(4)]].to_numpy()
    assert np.allclose(every.sum(axis=1), 1, atol=1e-6)
    best = np.argsort(-every, axis=1, kind="stable")
    assert frame["label"].tolist() == [f"class {i}" for i in best[:, 0]]
    for labels, scores, order, row in zip(frame["top_labels"], frame["top_scores"], best, every, strict=True):
        assert list(labels) == [f"class {i}" for i in order[:3]]
        assert list(scores) == [row[i] for i in order[:3]]


def test_truth_by_name_and_by_number(client: Client, small_model: Model) -> None:
    plain = classify(TEXTS, model=small_model, client=client).to_pandas()["label"]
    right = [label if i % 3 else f"class {(int(label[-1]) + 1) % 4}" for i, label in enumerate(plain)]
    numbers = [int(label[-1]) + 1 for label in right]
    for truth in (right, numbers, [str(n) for n in numbers]):
        table = pa.table({"text": TEXTS, "truth": truth})
        report = classify(table, model=small_model, client=client, label_column="truth", chunk_size=40)
        assert report.accuracy == pytest.approx(60 / 90)
        assert report.confusion is not None
        assert report.confusion.rows == 90
    table = pa.table({"text": TEXTS, "truth": ["class 0", "nonsense", None] * 30})
    report = classify(table, model=small_model, client=client, label_column="truth")
    assert report.confusion is not None
    assert (report.confusion.rows, report.confusion.without_truth) == (30, 60)
    with pytest.raises(UsageError, match="'text' holds no class of the model in any of 90 rows"):
        classify(table, model=small_model, client=client, label_column="text")


def test_labels_that_name_no_class_are_counted_once(client: Client, small_model: Model, tmp_path: Path) -> None:
    """They are counted once too where a block of CSV, parsed as a whole, is cut into chunks."""
    rows = [f"an article,{'class 1' if i % 3 else 'nonsense'}" for i in range(300)]
    (tmp_path / "in.csv").write_text("\n".join(["text,truth", *rows]) + "\n")
    report = classify(
        tmp_path / "in.csv", model=small_model, client=client, label_column="truth", chunk_size=7, text_column="text"
    )
    assert report.tally.unknown_labels == {"nonsense": 100}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "body"}, "no column 'body'; there are: text, n"),
        ({"id_column": ["n", "m"]}, "no column 'm'"),
        ({"text_column": "n"}, "holds int64, not strings"),
        ({"top_k": 0}, "top_k is 0"),
        ({"chunk_size": 1.5}, "chunk_size is 1.5"),
        ({"text_column": "list"}, "no column 'list'"),
        ({"precision": "fp16"}, "computes in fp32"),
        ({"device": "tpu"}, "choose one of auto, cpu, cuda"),
        ({"resume": True}, "nothing to resume"),
        ({"model": "no-such-model"}, "no model 'no-such-model'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(client: Client, small_model: Model, options, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        classify(pa.table({"text": TEXTS, "n": range(90)}), client=client, **{"model": small_model, **options})


def test_a_dask_dataframe_is_resumed_by_its_partitions(client: Client, small_model: Model, tmp_path: Path) -> None:
    frame = dd.from_pandas(pd.DataFrame({"text": TEXTS}), npartitions=4)
    out = tmp_path / "out"
    assert classify(frame, out, model=small_model, client=client).rows_written == 90
    (out / "_SUCCESS").unlink()
    again = classify(frame, out, model=small_model, client=client, resume=True)
    assert (again.rows_written, again.run.rows) == (90, 0)
    assert pipeline.verify(out).chunks == 4


def test_rows_in_memory_are_known_by_their_content(client: Client, small_model: Model, tmp_path: Path) -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    others = pa.DictionaryArray.from_arrays(words.indices, pa.array(["a", "c"]))
    classify(pa.table({"text": words}), tmp_path / "out", model=small_model, client=client)
    same = pa.concat_tables([pa.table({"text": ["a"]}), pa.table({"text": ["b", "a"]})])
    assert classify(same, tmp_path / "out", model=small_model, client=client, resume=True).run.chunks_before == 1
    with pytest.raises(UsageError, match="the input changed"):
        classify(pa.table({"text": others}), tmp_path / "out", model=small_model, client=client, resume=True)


@pytest.mark.parametrize(
    "source",
    [
        pd.DataFrame({"text": []}),
        pd.DataFrame({"text": [None, None]}),
        pa.table({"text": pa.array([b"caf\xe9", b"x"], pa.binary()).view(pa.string())}),
        pa.table({"text": pa.array([None], pa.null())}),
    ],
)
def test_odd_columns_in_memory_are_read_or_set_aside(client: Client, small_model: Model, source) -> None:
    report = classify(source, model=small_model, client=client)
    assert report.rows_read == len(source)
    assert report.rows_written + report.rows_quarantined == len(source)


def test_two_threads_may_classify_at_once(small_model: Model, model: Model) -> None:
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(classify, TEXTS[:8], model=m) for m in (small_model, model, small_model)]
        assert [job.result().rows_written for job in jobs] == [8, 8, 8]


def test_a_job_may_begin_while_another_of_the_same_model_runs_in_this_process(small_model: Model) -> None:
    def late() -> pipeline.JobReport:
        return classify(TEXTS, model=small_model)

    class Begin(Progress):
        def advance(self, report: pipeline.JobReport) -> None:
            if not others:
                others.append(pool.submit(late).result(60).rows_written)

    others: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        assert classify(TEXTS, model=small_model, chunk_size=9, progress=Begin()).rows_written == 90
    assert others == [90]


def test_an_id_column_with_a_name_of_ours_is_refused(client: Client, small_model: Model) -> None:
    table = pa.table({"text": ["x"], "label": ["y"], "reason": ["z"]})
    for option in ({"id_column": "label"}, {"keep": ["text", "reason"]}):
        with pytest.raises(UsageError, match=r"'(label|reason)' cannot be copied: .+ Rename it, or leave it out"):
            classify(table, model=small_model, client=client, **option)
    with pytest.raises(TypeError, match=r"classify\(\) has no argument 'chunksize'; did you mean 'chunk_size'"):
        classify(["x"], model=small_model, client=client, chunksize=3)
    with pytest.raises(UsageError, match="cannot classify a dict"):
        classify({"text": "x"}, model=small_model, client=client)


def test_parquet_ids_keep_their_types(client: Client, small_model: Model, tmp_path: Path) -> None:
    when = pd.Timestamp("2026-01-02")
    pq.write_table(pa.table({"text": TEXTS, "n": range(90), "when": [when] * 90}), tmp_path / "in.parquet")
    out = tmp_path / "out"
    report = classify(tmp_path / "in.parquet", out, model=small_model, client=client, id_column=["n", "when"])
    table = report.to_arrow()
    assert table.column("n").type == pa.int64()
    assert table.column("when")[0].as_py() == when
    assert pipeline.verify(out).rows_written == 90


# --limit labels the first rows in input order, for every kind of source, and nothing after them.


def rows_of(report) -> list[tuple[str, int]]:
    return [(Path(row["file"]).name, row["row"]) for row in report.to_arrow().to_pylist()]


@pytest.fixture
def files(tmp_path: Path) -> Paths:
    """40 rows in each of six files, where row 3 of two files is bad. The last file cannot be read at all."""
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [f'"number\n{i}"' if i != 3 else "caf\xe9" for i in range(40)]  # each record takes several lines
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
    """The limit may fall within a file of records, a row group or a compressed file, or at the end of a file."""
    order = [(name, row) for name in ("a.csv", "b.parquet", "c.jsonl.gz", "d.txt", "e.jsonl") for row in range(40)]
    for limit in (4, 50, 80, 100, 131):
        report = classify(files, model=small_model, client=client, chunk_size=24, limit=limit)
        assert (report.rows_read, rows_of(report)) == (limit, order[:limit])
        assert report.exit_code == 0  # the job did not open the last file
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


@pytest.mark.parametrize(
    ("case", "exit_code", "is_done"),
    [
        ("all is labelled", 0, True),
        ("a file is cut off", 3, True),
        ("too many rows cannot be read", 3, True),
        ("a file changes meanwhile", 3, False),
        ("it is stopped", 4, False),
    ],
)
def test_success_says_whether_another_run_could_do_more(
    client: Client, small_model: Model, tmp_path: Path, case: str, exit_code: int, is_done: bool
) -> None:
    """The cases are those in the documentation's table of exit codes."""
    source = tmp_path / "in"
    source.mkdir()
    rows = "text\n" + "".join(f"some words {i}\n" for i in range(20))
    (source / "a.csv").write_text(rows)
    options: dict[str, Any] = {}
    if case == "a file is cut off":
        (source / "b.csv.gz").write_bytes(gzip.compress(rows.encode())[:-12])
    elif case == "too many rows cannot be read":
        (source / "b.csv").write_bytes(b"text\n\xff\n")
        options["max_quarantined"] = 0
    elif case == "a file changes meanwhile":
        options["stop"] = lambda: (source / "a.csv").write_text(f"{rows}more\n") == 0
    elif case == "it is stopped":
        options["stop"] = lambda: True
    report = classify(source, tmp_path / "out", model=small_model, client=client, chunk_size=5, **options)
    assert (report.exit_code, (tmp_path / "out" / "_SUCCESS").exists()) == (exit_code, is_done)
