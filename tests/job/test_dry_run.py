"""--dry-run: predicts what a job would take without writing anything."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import CommandHere
from distributed import Client
from texts import TEXTS

from broadsheet.pipeline import Paths, UsageError, classify, dry_run
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.inputs import identify
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.source.sample import sample_input

SELECTION = Selection(("title", "description"), truth="class", header=("class", "title", "description"))


@pytest.mark.slow
def test_the_estimate_is_close_to_the_job(client: Client, small_model: Model, ag_news: Path, tmp_path: Path) -> None:
    with open(ag_news / "test.csv", "rb") as file:
        (tmp_path / "in.csv").write_bytes(b"".join(islice(file, 1100)))
    options = {
        "model": small_model,
        "columns": SELECTION.header,
        "text_column": SELECTION.text,
        "label_column": "class",
    }
    report = classify(tmp_path / "in.csv", tmp_path / "out", client=client, **options)
    estimate = dry_run(tmp_path / "in.csv", tmp_path / "out", **options)
    assert (estimate.rows, estimate.counted, sum(estimate.labels.values())) == (1100, True, estimate.sample_rows)
    assert estimate.sample_rows == pytest.approx(1000, abs=50)
    written = sum(f.stat().st_size for name in ("parts", "_entries") for f in (tmp_path / "out" / name).iterdir())
    assert estimate.output_bytes == pytest.approx(written, rel=0.15)
    for label, rows in report.tally.labels.items():
        assert estimate.labels.get(label, 0) / estimate.sample_rows == pytest.approx(rows / 1100, abs=0.06)
    assert any("give --resume, --update or --overwrite" in warning for warning in estimate.warnings)


def test_rows_of_a_large_input_are_estimated_from_little_of_it(ag_news: Path, tmp_path: Path) -> None:
    train = (ag_news / "train.csv").read_bytes()
    for number in range(6):
        (tmp_path / f"{number}.csv").write_bytes(train)
    with gzip.open(tmp_path / "9.csv.gz", "wb", 1) as file:
        file.write(train)
    (tmp_path / "other.csv").write_bytes(b"1")
    given = identify(Paths([str(tmp_path)]), 70, 1014, whole_hash=False, by_content=False)
    sample = sample_input(given, SELECTION, 1000, None)
    assert not sample.counted
    assert sample.rows == pytest.approx(7 * 48_800, rel=0.03)
    assert sample.chunk.rows_read == pytest.approx(1000, rel=0.2)
    assert not len(sample.chunk.quarantine)
    # Only the compressed file counts. All cores read the other files while the model labels.
    assert sample.reading_seconds > 0
    plain = Paths([str(tmp_path / f"{number}.csv") for number in range(6)])
    given = identify(plain, 70, 1014, whole_hash=False, by_content=False)
    assert sample_input(given, SELECTION, 1000, None).reading_seconds == 0
    assert sample.problems == [f"{tmp_path}/other.csv: 3 columns are named; expected 3 fields, found 1"]


@pytest.mark.slow
def test_time_is_a_range_and_has_a_price(broadsheet_here: CommandHere, small_model_file: Path, tmp_path: Path) -> None:
    """The slowest part of the sample has long texts."""
    for name, length in (("a", 1), ("b", 400)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{'word ' * length}{row}\n" for row in range(500)))
    job = ("classify", tmp_path, "-o", tmp_path / "out", "--model", small_model_file)
    code, told = broadsheet_here(*job, "--dry-run", "--json")
    assert code == 0, told
    found = json.loads(told.splitlines()[0])
    assert found["slowest"] < found["rate"] < found["fastest"]
    least, most = found["seconds_range"]
    assert least < found["seconds"] < most
    code, told = broadsheet_here(*job, "--dry-run", "--price", 3600)
    assert code == 0, told
    assert re.search(r"time +\S+( s)? to \S+( s)? on this machine; [\d.]+ core-hours", told)
    assert re.search(r"cost +about [\d.]+ at 3600 an hour of this machine: [\d.]+ hours", told)
    code, told = broadsheet_here(*job, "--gpus", 8)
    assert (code, "--gpus and --price are for an estimate: add --dry-run" in told) == (2, True)
    code, told = broadsheet_here(*job, "--dry-run", "--device", "cpu", "--gpus", 8)
    assert (code, "the sample was labelled on a CPU" in told) == (2, True)


def test_files_of_many_kinds_are_estimated_kind_by_kind(tmp_path: Path) -> None:
    """Most files hold few rows for their bytes. Most rows are in a few files of another kind."""
    rng = random.Random(4)
    rows = 0
    for number in range(60):
        lines = [json.dumps({"text": rng.randbytes(2000).hex()}) + "\n" for _ in range(300)]
        (tmp_path / f"{number:02}.jsonl").write_text("".join(lines))
        rows += len(lines)
    for number in range(3):
        lines = [json.dumps({"text": f"short text {rng.randrange(10**9)}"}) + "\n" for _ in range(120_000)]
        (tmp_path / f"packed-{number}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode(), 1))
        rows += len(lines)
    table = pa.table({"text": [f"row {i % 7}" for i in range(200_000)]})
    pq.write_table(table, tmp_path / "table.parquet")
    rows += len(table)
    given = identify(Paths([str(tmp_path)]), 70, 1014, whole_hash=False, by_content=False)
    sample = sample_input(given, Selection(("text",)), 100, None)
    assert not sample.counted
    assert sample.rows == pytest.approx(rows, rel=0.03)


def test_the_command_warns_and_fits_a_terminal(
    broadsheet_here: CommandHere, monkeypatch: pytest.MonkeyPatch, small_model_file: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    os.mkdir("in")
    pq.write_table(pa.table({"text": ["Стоимость нефти " * 100] * 60 + [None] * 20 + TEXTS[:20]}), "in/a.parquet")
    (tmp_path / "in" / "b.csv").write_bytes(b"\n")
    (tmp_path / "in" / "notes.md").write_text("x")
    arguments = ("classify", "in", "-o", "out", "--model", small_model_file, "--dry-run")
    code, told = broadsheet_here(*arguments)
    assert code == 0
    assert max(map(len, told.splitlines())) <= 80 + len(str(tmp_path))
    for part in (
        "files  2", "rows  100", "20 without a label", "about", "core-hours", "B free)",
        "of the command", "for the model",
        "outside the model's alphabet", "longer than the 123 characters", "20% of the rows cannot be labelled",
        "the text is null", f"skipped  {tmp_path}/in/notes.md", "in/b.csv: the file holds no record",
        "Nothing was written",
    ):  # fmt: skip
        assert part in told, part
    assert os.listdir() == ["in"]
    summary = json.loads(broadsheet_here(*arguments, "--limit", 70, "--json")[1])
    assert (summary["rows"], summary["counted"], summary["reasons"]) == (70, True, {"the text is null": 10})
    assert summary["seconds"] > 0
    assert broadsheet_here("classify", "-", "--dry-run")[0] == 2


def test_a_dry_run_of_rows_in_memory(small_model: Model) -> None:
    estimate = dry_run(TEXTS, model=small_model, where="score >= 2")
    assert (estimate.rows, estimate.sample_rows, sum(estimate.labels.values())) == (90, 90, 90)
    with pytest.raises(UsageError, match=r"no column 'Txt'; there are: text; did you mean 'text'\?"):
        dry_run(pa.table({"text": TEXTS}), model=small_model, text_column="Txt")
    told = dry_run(pa.table({"text": TEXTS}), model=small_model, label_column="text").warnings
    assert "column 'text' holds no class of the model in any row of the sample" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "about", "format": "csv"}, "the column 'about' cannot be written: csv cannot hold map"),
        ({"encoding": "latin-1"}, "text files take encoding=, and there is none"),
        ({"delimiter": ";"}, "delimiter= is for CSV"),
        ({"output": "https://host/labels"}, "https://host/labels: labels are written into a folder"),
    ],
)
def test_what_the_job_refuses_is_refused(
    client: Client, small_model: Model, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    about = pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"text": ["one", "two"], "about": about}), tmp_path / "in.parquet")
    arguments = {"output": tmp_path / "out", "model": small_model, **options}
    for call in (dry_run, partial(classify, client=client)):
        with pytest.raises(UsageError, match=message):
            call(tmp_path / "in.parquet", **arguments)


def test_options_of_files_do_not_go_with_rows_in_memory(small_model: Model) -> None:
    with pytest.raises(UsageError, match="goes with files only"):
        dry_run(["one"], model=small_model, encoding="latin-1")
    with pytest.raises(UsageError, match="columns= is for a CSV or TSV without a header: these rows are in memory"):
        dry_run(["one"], model=small_model, columns=["text"])
