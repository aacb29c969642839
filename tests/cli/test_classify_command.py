"""The main job as a command: the output that other tools read, the summary, the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import dask
import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import pytest
from conftest import AG_NEWS, Command, CommandHere
from texts import TEXTS, scores_of

from broadsheet import pipeline
from broadsheet.pipeline import classify
from broadsheet.pipeline.cli.models import to_params
from broadsheet.pipeline.model.charcnn import Model


@pytest.mark.slow
def test_the_command_on_many_files_with_bad_rows(
    broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path
) -> None:
    """One run tests everything: pandas, DuckDB and Dask read the output, and verify finds any damage."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a.csv").write_text("id,text,truth\n" + "".join(f'{i},"{t}",1\n' for i, t in enumerate(TEXTS)))
    (folder / "b.csv").write_bytes(b"id,text,truth\n100,caf\xe9,1\n101,fine,class 2\n102\n")
    (folder / "c.csv").write_bytes(b"\n")
    arguments = [folder, "-o", out, "--model", small_model_file, "--id-column", "id", "--chunk-size", 40, "--scores"]
    arguments += ["--label-column", "truth", "--label-numbers-from", 1]  # one file has names, the other numbers
    run = broadsheet_in_process("classify", *arguments, "--json")
    assert run.returncode == 3, run.stderr
    summary = json.loads(run.stdout)
    assert summary["rows_read"] == 93
    assert (summary["rows_written"], summary["rows_quarantined"]) == (91, 2)
    assert summary["problems"] == [[str(folder / "c.csv"), f"{folder}/c.csv: the file holds no record"]]
    assert summary["truth"]["rows"] == 91
    assert (out / "_SUCCESS").is_file()

    frame = pd.read_parquet(out)  # the folder itself is the dataset
    assert len(frame) == 91
    assert frame["id"].tolist() == [*map(str, range(90)), "101"]
    assert duckdb.sql(f"select count(*), max(row) from '{out}/**/*.parquet'").fetchall() == [(91, 89)]
    assert len(dd.read_parquet(out)) == 91
    quarantine = pd.concat(pd.read_json(file, lines=True) for file in sorted((out / "_quarantine").iterdir()))
    assert duckdb.sql(f"select count(*) from '{out}/_quarantine/*.jsonl'").fetchall() == [(2,)]
    assert quarantine["head"].tolist() == [r"100,caf\xe9,1", "102"]
    assert quarantine["reason"].tolist() == [
        "column 'text' is not UTF-8: byte 3 of it is 0xe9",
        "expected 3 fields, found 1",
    ]
    assert quarantine["byte_offset"].tolist() == [14, 42]

    assert broadsheet_in_process("verify", out).returncode == 0
    again = broadsheet_in_process("classify", *arguments)
    assert again.returncode == 2
    assert "give --resume, --update or --overwrite" in again.stderr
    strict = broadsheet_in_process("classify", folder / "b.csv", *arguments[1:], "--overwrite", "--strict")
    assert strict.returncode == 3
    assert "row 0: column 'text' is not UTF-8" in strict.stderr
    assert broadsheet_in_process("verify", out).returncode == 1


@pytest.mark.slow
def test_the_summary_fits_a_terminal(
    broadsheet: Command, broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "in.csv"
    path.write_text("text,truth\n" + "".join(f"{t.replace(',', '')},class {i % 4}\n" for i, t in enumerate(TEXTS)))
    arguments = ["classify", "in.csv", "-o", "out", "--model", small_model_file, "--label-column", "truth"]
    run = broadsheet_in_process(*arguments, env={"COLUMNS": "80"}, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "90 read = 90 labelled + 0 quarantined" in run.stdout
    assert "accuracy" in run.stdout
    assert "true \\ labelled" in run.stdout
    paths = (str(tmp_path), str(small_model_file))
    assert max(len(line) for line in run.stdout.splitlines() if not any(p in line for p in paths)) <= 80
    (tmp_path / "notes.json").write_text("{}")
    quiet = broadsheet(*arguments[:1], ".", *arguments[2:], "--overwrite", "--quiet", cwd=tmp_path)
    assert (quiet.returncode, quiet.stdout) == (0, "")
    assert quiet.stderr.startswith(f"broadsheet: 1 file was skipped: {tmp_path}/notes.json (it is a JSON object")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv"], "no input at 'none.csv'"),
        (["inn.csv"], "or a folder or pattern without one; did you mean 'in.csv'?"),
        (["nothing"], "no such file, or a folder or pattern without one\n"),
        (["in.csv", "--columns", "a,b", "--delimiter", ";"], "expected 2 fields, found 1\n"),
        (["bare.csv"], "it has: Stocks fell, 1; if its first line is no header, --columns names them"),
        (["bare.csv", "--text-column", "Stocks fall"], "it has: Stocks fell, 1; did you mean 'Stocks fell'?"),
        (["in.csv", "--text-column", "body"], "in.csv: no column 'body'"),
        (["in.csv", "--columns", "a,b"], "2 columns are named; expected 2 fields, found 1"),
        (["in.csv", "--truth", "none.bin"], "an answer file goes with a one-hot file only"),
        (["in.csv", "--id-column", "text", "--id-column", "text"], "names 'text' twice"),
        (["in.csv", "--device", "cuda"], "--device"),
        (["in.csv", "--resume", "--overwrite"], "exclude each other"),
        (["in.csv", "--cluster", "tcp://127.0.0.1:1"], "no Dask scheduler answers"),
        (["in.csv", "--cluster", "tcp://127.0.0.1:1", "--workers", "2"], "were chosen when it was started"),
        (["in.csv", "--endpoint", "http://localhost:1"], "--endpoint is for URLs such as s3://bucket/key"),
        (["in.csv", "-o", "-", "--endpoint", "http://localhost:1"], "--endpoint is for URLs such as s3://bucket/key"),
        (["in.csv", "--chunk-size", "0"], "--chunk-size"),
        (["in.csv", "--no-such-option"], "No such option"),
    ],
)
def test_usage_errors(
    broadsheet_here: CommandHere,
    monkeypatch: pytest.MonkeyPatch,
    small_model_file: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "in.csv").write_text("text\nx\n")
    (tmp_path / "bare.csv").write_text("Stocks fell,1\nOil rose,2\n")
    (tmp_path / "nothing").mkdir()
    monkeypatch.chdir(tmp_path)
    with dask.config.set({"distributed.comm.timeouts.connect": "2s"}):  # for a scheduler that does not exist
        code, told = broadsheet_here("classify", "-o", "out", "--model", small_model_file, *arguments)
    assert message in told
    assert "Traceback" not in told
    assert code == 2
    assert not (tmp_path / "out").exists()


def test_overwrite_refuses_a_folder_that_is_not_ours(
    broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("text\nx\n")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    for option in ("--overwrite", "--resume"):
        run = broadsheet_in_process(
            "classify", "in.csv", "-o", "thesis", "--model", small_model_file, option, cwd=tmp_path
        )
        assert run.returncode == 2
        assert "is not an output folder of broadsheet" in run.stderr
    assert (tmp_path / "thesis" / "chapter1.txt").read_text() == "years of work"


@pytest.mark.slow
def test_the_parent_programs_own_job(broadsheet_in_process: Command, model: Model, tmp_path: Path) -> None:
    """The input is one-hot in fp32, the model is params.bin, and answers are checked. A row with two symbols in one
    column is quarantined.
    """
    texts = ["Stocks fell - then rose!", "", "x" * 1014, "a\tb"]
    ids = np.full((4, 1014), 255, np.uint8)
    for i, text in enumerate(texts):
        for position, character in enumerate(text.lower()):
            if character in model.alphabet.symbols:
                ids[i, position] = model.alphabet.symbols.index(character)
    one_hot = (ids[:, None, :] == np.arange(70)[None, :, None]).astype("<f4")
    one_hot[1, 3, 0] = one_hot[1, 4, 0] = 1  # article 1: two symbols in one column
    one_hot.tofile(tmp_path / "input.bin")
    (tmp_path / "params.bin").write_bytes(to_params(model))
    truth = classify([texts[0], texts[2], texts[3]], model=model)
    answers = [int(label[-1]) for label in truth.to_pandas()["label"]]
    np.array([answers[0], 0, answers[1], answers[2]], "<f4").tofile(tmp_path / "answer.bin")
    arguments = ["classify", "input.bin", "--model", "params.bin", "--truth", "answer.bin", "-o", "out"]
    arguments += ["--max-quarantined", "1"]
    run = broadsheet_in_process(*arguments, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "validation: all 3 labels are those of answer.bin" in run.stdout
    frame = pd.read_parquet(tmp_path / "out" / "parts")
    assert frame["label"].tolist() == [str(a) for a in answers]
    assert frame["score"].tolist() == scores_of(truth)
    assert frame["n_chars"].tolist() == [24, 1014, 3]
    assert frame["unknown_chars"].tolist() == truth.to_pandas()["unknown_chars"].tolist()
    (bad,) = pd.read_json(next((tmp_path / "out" / "_quarantine").iterdir()), lines=True).to_dict("records")
    assert (bad["row"], bad["byte_offset"], bad["reason"]) == (1, 4 * 70 * 1014, "column 0 is neither one-hot nor zero")
    np.array([answers[0], 0, (answers[1] + 1) % 4, answers[2]], "<f4").tofile(tmp_path / "answer.bin")
    run = broadsheet_in_process(*arguments, "--overwrite", cwd=tmp_path)
    assert "validation: 1 of 3 labels differs from answer.bin" in run.stdout
    np.zeros(5, "<f4").tofile(tmp_path / "answer.bin")
    run = broadsheet_in_process(*arguments, "--overwrite", cwd=tmp_path)
    assert run.returncode == 2
    assert "answer.bin holds 20 bytes, 4 answers take 16" in run.stderr


@pytest.mark.slow
def test_ag_news_with_the_shipped_model(broadsheet: Command, ag_news: Path, tmp_path: Path) -> None:
    """The command labels all 7,600 real rows, and its accuracy is the one on the model's card."""
    out = tmp_path / "out"
    run = broadsheet("classify", ag_news / "test.csv", "-o", out, *AG_NEWS, "--label-column", "class", "--json")
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert (summary["rows_read"], summary["rows_written"], summary["truth"]["rows"]) == (7600, 7600, 7600)
    assert np.array(summary["truth"]["confusion"]).sum(axis=1).tolist() == [1900] * 4
    assert abs(summary["truth"]["accuracy"] - pipeline.load_model().card["test"]["accuracy"]) <= 0.0005
    assert pipeline.verify(out).rows_written == 7600
    frame = pd.read_parquet(out / "parts")
    assert (frame["row"] == np.arange(7600)).all()
    assert not frame["truncated"].any()
