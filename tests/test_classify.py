"""The main job as a user meets it: every source, every option, the output other tools read, the exit codes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest
from conftest import AG_NEWS, Command
from distributed import Client

import pipeline
from pipeline import UsageError, classify
from pipeline.model import Model, to_params

TEXTS = [f"Article number {i} of the day, about {'sport' if i % 2 else 'money'}" for i in range(90)]


def scores_of(report: pipeline.JobReport) -> list[float]:
    return report.to_arrow().column("score").to_pylist()


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
        assert scores_of(report) == scores_of(expected), name  # chunk size decides nothing
    assert expected.to_pandas().columns.tolist() == [
        "file", "row", "label", "score", "n_chars", "truncated", "unknown_chars"
    ]  # fmt: skip


def test_without_a_client_a_worker_runs_in_this_process(small_model: Model, client: Client) -> None:
    here = classify(TEXTS, model=small_model)
    assert scores_of(here) == scores_of(classify(TEXTS, model=small_model, client=client))
    assert "cpu" in here.backend


def test_bad_rows_in_memory_come_back_beside_the_good(client: Client, small_model: Model) -> None:
    report = classify(["good", None, "", "x" * 5000], model=small_model, client=client)
    assert (report.rows_read, report.rows_written, report.rows_quarantined) == (4, 3, 1)
    assert report.quarantine().to_pylist() == [
        {"file": "memory", "row": 1, "byte_offset": None, "reason": "the text is null", "head": b""}
    ]
    frame = report.to_pandas()
    assert frame["row"].tolist() == [0, 2, 3]
    assert frame["n_chars"].tolist() == [4, 0, 5000]
    assert frame["truncated"].tolist() == [False, False, True]
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
        report = classify(table, model=small_model, client=client, truth_column="truth", chunk_size=40)
        assert report.accuracy == pytest.approx(60 / 90)
        assert report.confusion is not None
        assert report.confusion.rows == 90
    table = pa.table({"text": TEXTS, "truth": ["class 0", "nonsense", None] * 30})
    report = classify(table, model=small_model, client=client, truth_column="truth")
    assert report.confusion is not None
    assert (report.confusion.rows, report.confusion.without_truth) == (30, 60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "body"}, "no column 'body'; there are: text, n"),
        ({"id_column": ["n", "m"]}, "no column 'm'"),
        ({"text_column": "n"}, "holds int64, not strings"),
        ({"top_k": 0}, "top_k is 0"),
        ({"chunk_size": 1.5}, "chunk_size is 1.5"),
        ({"text_column": "list"}, "no column 'list'"),
        ({"precision": "fp16"}, "fp32 only"),
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
    assert (again.rows_written, again.rows_this_run) == (90, 0)
    assert pipeline.verify(out)["chunks"] == 4


def test_rows_in_memory_are_known_by_their_content(client: Client, small_model: Model, tmp_path: Path) -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    others = pa.DictionaryArray.from_arrays(words.indices, pa.array(["a", "c"]))
    classify(pa.table({"text": words}), tmp_path / "out", model=small_model, client=client)
    same = pa.concat_tables([pa.table({"text": ["a"]}), pa.table({"text": ["b", "a"]})])
    assert classify(same, tmp_path / "out", model=small_model, client=client, resume=True).chunks_before == 1
    with pytest.raises(UsageError, match="input memory changed"):
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


def test_an_id_column_with_a_name_of_ours_is_refused(client: Client, small_model: Model) -> None:
    with pytest.raises(UsageError, match="cannot be called 'label'"):
        classify(pa.table({"text": ["x"], "label": ["y"]}), model=small_model, client=client, id_column="label")
    with pytest.raises(TypeError, match="unexpected keyword argument 'chunksize'"):
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
    assert pipeline.verify(out)["rows_written"] == 90


def test_the_command_on_many_files_with_bad_rows(broadsheet: Command, small_model_file: Path, tmp_path: Path) -> None:
    """One run through it all; the output is read by pandas, DuckDB and Dask, and verify finds any damage."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a.csv").write_text("id,text,truth\n" + "".join(f'{i},"{t}",1\n' for i, t in enumerate(TEXTS)))
    (folder / "b.csv").write_bytes(b"id,text,truth\n100,caf\xe9,1\n101,fine,class 2\n102\n")
    (folder / "c.csv").write_bytes(b"")
    arguments = [folder, "-o", out, "--model", small_model_file, "--id-column", "id", "--chunk-size", 40, "--scores"]
    arguments += ["--truth-column", "truth"]
    run = broadsheet("classify", *arguments, "--json")
    assert run.returncode == 3, run.stderr
    summary = json.loads(run.stdout)
    assert summary["rows_read"] == 93
    assert (summary["rows_written"], summary["rows_quarantined"]) == (91, 2)
    assert summary["problems"] == [[str(folder / "c.csv"), f"{folder}/c.csv: the file is empty"]]
    assert summary["truth"]["rows"] == 91
    assert "dashboard: http://127.0.0.1:" in run.stderr
    assert (out / "_SUCCESS").is_file()

    frame = pd.read_parquet(out / "parts")
    assert len(frame) == 91
    assert frame["id"].tolist() == [*map(str, range(90)), "101"]
    assert duckdb.sql(f"select count(*), max(row) from '{out}/parts/*.parquet'").fetchall() == [(91, 89)]
    assert len(dd.read_parquet(out / "parts")) == 91
    quarantine = pd.read_parquet(out / "quarantine")
    assert quarantine["reason"].tolist() == [
        "column 'text' is not UTF-8: byte 3 of it is 0xe9",
        "expected 3 fields, found 1",
    ]
    assert quarantine["byte_offset"].tolist() == [14, 42]

    assert broadsheet("verify", out).returncode == 0
    again = broadsheet("classify", *arguments)
    assert again.returncode == 2
    assert "give --resume or --overwrite" in again.stderr
    strict = broadsheet("classify", folder / "b.csv", *arguments[1:], "--overwrite", "--strict")
    assert strict.returncode == 3
    assert "row 0: column 'text' is not UTF-8" in strict.stderr
    assert broadsheet("verify", out).returncode == 1


def test_the_summary_fits_a_terminal(broadsheet: Command, small_model_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("text,truth\n" + "".join(f"{t.replace(',', '')},class {i % 4}\n" for i, t in enumerate(TEXTS)))
    arguments = ["classify", "in.csv", "-o", "out", "--model", small_model_file, "--truth-column", "truth"]
    run = broadsheet(*arguments, env={"COLUMNS": "80"}, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "90 read = 90 labelled + 0 quarantined" in run.stdout
    assert "accuracy" in run.stdout
    assert "true \\ labelled" in run.stdout
    paths = (str(tmp_path), str(small_model_file))
    assert max(len(line) for line in run.stdout.splitlines() if not any(p in line for p in paths)) <= 80
    quiet = broadsheet(*arguments, "--overwrite", "--quiet", cwd=tmp_path)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv"], "no input at 'none.csv'"),
        (["in.csv", "--text-column", "body"], "in.csv: no column 'body'"),
        (["in.csv", "--columns", "a,b"], "--columns names 2 columns; expected 2 fields, found 1"),
        (["in.csv", "--truth", "none.bin"], "an answer file goes with a one-hot file only"),
        (["in.csv", "--id-column", "text", "--id-column", "text"], "names 'text' twice"),
        (["in.csv", "--device", "cuda"], "--device"),
        (["in.csv", "--resume", "--overwrite"], "exclude each other"),
        (["in.csv", "--cluster", "tcp://127.0.0.1:1"], "no Dask scheduler answers"),
        (["in.csv", "--chunk-size", "0"], "--chunk-size"),
        (["in.csv", "--no-such-option"], "No such option"),
    ],
)
def test_usage_errors(broadsheet: Command, small_model_file: Path, tmp_path: Path, arguments, message: str) -> None:
    (tmp_path / "in.csv").write_text("text\nx\n")
    run = broadsheet("classify", *arguments, "-o", "out", "--model", small_model_file, cwd=tmp_path)
    assert message in run.stderr, run.stderr
    assert "Traceback" not in run.stderr
    assert run.returncode == 2
    assert not (tmp_path / "out").exists()


def test_overwrite_refuses_a_folder_that_is_not_ours(
    broadsheet: Command, small_model_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("text\nx\n")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    for option in ("--overwrite", "--resume"):
        run = broadsheet("classify", "in.csv", "-o", "thesis", "--model", small_model_file, option, cwd=tmp_path)
        assert run.returncode == 2
        assert "is not an output folder of broadsheet" in run.stderr
    assert (tmp_path / "thesis" / "chapter1.txt").read_text() == "years of work"


def test_the_parent_programs_own_job(broadsheet: Command, model: Model, tmp_path: Path) -> None:
    """One-hot fp32 in, params.bin as the model, its answers checked; a column that is not one-hot is quarantined."""
    texts = ["Stocks fell - then rose!", "", "x" * 1014, "a\tb"]
    ids = np.full((4, 1014), 255, np.uint8)
    for i, text in enumerate(texts):
        for position, character in enumerate(text.lower()):
            if character in model.alphabet.symbols:
                ids[i, position] = model.alphabet.symbols.index(character)
    one_hot = (ids[:, None, :] == np.arange(70)[None, :, None]).astype("<f4")
    one_hot[1, 3, 0] = one_hot[1, 4, 0] = 1  # article 1: two symbols at once
    one_hot.tofile(tmp_path / "input.bin")
    (tmp_path / "params.bin").write_bytes(to_params(model))
    truth = classify([texts[0], texts[2], texts[3]], model=model)
    answers = [int(label[-1]) for label in truth.to_pandas()["label"]]
    np.array([answers[0], 0, answers[1], answers[2]], "<f4").tofile(tmp_path / "answer.bin")
    arguments = ["classify", "input.bin", "--model", "params.bin", "--truth", "answer.bin", "-o", "out"]
    run = broadsheet(*arguments, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "validation: all 3 labels are those of answer.bin" in run.stdout
    frame = pd.read_parquet(tmp_path / "out" / "parts")
    assert frame["label"].tolist() == [str(a) for a in answers]
    assert frame["score"].tolist() == scores_of(truth)
    assert frame["n_chars"].tolist() == [24, 1014, 3]
    assert frame["unknown_chars"].tolist() == truth.to_pandas()["unknown_chars"].tolist()
    (bad,) = pd.read_parquet(tmp_path / "out" / "quarantine").to_dict("records")
    assert (bad["row"], bad["byte_offset"], bad["reason"]) == (1, 4 * 70 * 1014, "column 0 is neither one-hot nor zero")
    np.array([answers[0], 0, (answers[1] + 1) % 4, answers[2]], "<f4").tofile(tmp_path / "answer.bin")
    run = broadsheet(*arguments, "--overwrite", cwd=tmp_path)
    assert "validation: 1 of 3 labels differs from answer.bin" in run.stdout
    np.zeros(5, "<f4").tofile(tmp_path / "answer.bin")
    run = broadsheet(*arguments, "--overwrite", cwd=tmp_path)
    assert run.returncode == 2
    assert "answer.bin holds 20 bytes, 4 answers take 16" in run.stderr


@pytest.mark.slow
def test_ag_news_with_the_shipped_model(broadsheet: Command, ag_news: Path, tmp_path: Path) -> None:
    """Real rows, all 7,600, through the command: the accuracy is the one that the model's card says."""
    out = tmp_path / "out"
    run = broadsheet("classify", ag_news / "test.csv", "-o", out, *AG_NEWS, "--truth-column", "class", "--json")
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert (summary["rows_read"], summary["rows_written"], summary["truth"]["rows"]) == (7600, 7600, 7600)
    assert np.array(summary["truth"]["confusion"]).sum(axis=1).tolist() == [1900] * 4
    assert abs(summary["truth"]["accuracy"] - pipeline.load_model().card["test"]["accuracy"]) <= 0.0005
    assert broadsheet("verify", out).returncode == 0
    frame = pd.read_parquet(out / "parts")
    assert (frame["row"] == np.arange(7600)).all()
    assert not frame["truncated"].any()
