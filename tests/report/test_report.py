"""What a user is told at the end of a job: a summary, and what should not go unnoticed."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from conftest import ROOT
from distributed import Client
from msgspec import UNSET

import pipeline
from pipeline import verify
from pipeline.labelling.counts import THRESHOLDS
from pipeline.labelling.scored import OUTSIDE_SHARE
from pipeline.model.alphabet import PUBLISHED, Alphabet, encode
from pipeline.model.charcnn import Model
from pipeline.report.console import PlainConsole
from pipeline.report.facts import JobFacts, RunFacts
from pipeline.report.job import JobReport
from pipeline.report.results import Results, origin_of
from pipeline.report.tally import Reach, Tally
from pipeline.report.terminal import TerminalProgress, print_report
from pipeline.source.chunk import Selection

OTHER_SCRIPTS = [
    "Сборная России победила в финале чемпионата мира по хоккею",
    "Компания Apple представила iPhone 15 Pro и MacBook Air на M3, сообщает Bloomberg.",
    "Η εθνική ομάδα κέρδισε τον τελικό στη Λισαβόνα",
    "苹果公司周二发布iPhone 15",
    "한국은행은 목요일 기준금리를 3.5%로 동결했다고 밝혔다.",
    "भारतीय क्रिकेट टीम ने रविवार को विश्व कप जीता।",
]
ENGLISH = ["  Stocks fell on Monday as the price of oil rose again, and Zürich was quiet.", "a"]
EMPTY = ["", "   ", " \t "]
LINE = (
    "9 rows gave the model too little to go by: 6 mostly outside the model's alphabet, 3 empty; do not rely on "
    "their labels. '<b>' is for English news."
)


def test_text_that_the_model_cannot_judge_is_counted_and_said(
    client: Client, small_model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(
        small_model.alphabet, small_model.classes, small_model.length, small_model.tensors,
        {"meant for": "English news"}, "'<b>'",
    )  # fmt: skip
    caplog.handler.setLevel(logging.WARNING)  # Dask's embedded cluster has silenced it
    texts = [*OTHER_SCRIPTS, *ENGLISH, *EMPTY]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "in.jsonl").write_text(rows)
    page = tmp_path / "a page.html"
    report = pipeline.classify(
        tmp_path / "in.jsonl", tmp_path / "out", model=model, client=client, chunk_size=4, report=page
    )
    assert [record.getMessage() for record in caplog.records if record.name == "broadsheet"] == [
        LINE
    ]  # once, not once a chunk
    expected = {"empty": 3, "mostly outside the model's alphabet": 6}
    assert report.to_dict()["doubtful"] == pipeline.verify(tmp_path / "out").doubtful == expected

    lines = str(report).split("\n")
    assert all(len(line) <= 80 or str(tmp_path) in line for line in lines)
    assert " ".join(lines[-2:]) == LINE
    assert "11 read = 11 labelled + 0 quarantined" in str(report)
    assert repr(report) == f"<JobReport: 11 rows labelled by {model.name!r}, 0 quarantined in {report.job.output!r}>"
    html = report._repr_html_()
    assert f'<a href="{page.as_uri()}"' in html
    assert "&lt;b&gt;" in html
    assert "<b>" not in html

    shown = io.StringIO()
    with redirect_stdout(shown):
        print_report(report, PlainConsole())
    said = shown.getvalue()
    assert " ".join(said.split()).endswith(LINE)
    assert "seconds from start" not in said  # a job of a moment has no breakdown, and no verdict
    assert "bound by" not in said
    assert "GPU" not in said
    assert LINE.replace("'", "&#39;").replace("<b>", "&lt;b&gt;") in page.read_text()


def test_english_news_is_not_doubted(ag_news: Path) -> None:
    """Not even by an alphabet that lacks the space."""
    options = pa_csv.ReadOptions(column_names=["class", "title", "text"])
    column = pa_csv.read_csv(ag_news / "test.csv", read_options=options)["text"]
    texts = [text.encode() for text in column.to_pylist()]
    offsets = np.cumsum([0, *map(len, texts)])
    for symbols, most in ((PUBLISHED, OUTSIDE_SHARE), (PUBLISHED.replace("+-", "+ "), 0.03)):
        found = encode(np.frombuffer(b"".join(texts), np.uint8), offsets, Alphabet(symbols), 1014)
        assert (found.unknown_chars / np.minimum(found.n_chars, 1014)).max() < most


def test_a_script_without_the_main_guard_is_told_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import pipeline\npipeline.classify(['a'], workers=2)\n")
    env = {"PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=False, env=env)
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        f'{script}: put what starts workers under `if __name__ == "__main__":`, since each worker process imports the '
        "script (or leave out workers=)"
    ]


def test_the_link_of_the_dashboard_is_printed_once_and_only_by_a_job_that_goes_on() -> None:
    """A job of which the first chunks tell that it is over in a moment, and one of a million million rows."""
    told = []
    for rows in (10, 10**12):
        job = JobFacts("a model", ("a",), None, "cpu", "fp32", 10)
        run = RunFacts(reach=Reach(rows))
        report = JobReport(
            job, Tally(job.classes), run, Results(pa.schema([]), None, "", origin_of([], Selection(("text",))))
        )
        console = PlainConsole()
        console.file = io.StringIO()
        progress = TerminalProgress(console)
        progress.start(rows, "http://127.0.0.1:1/t/broadsheet")
        for chunk in ("part-000000-0000000", "part-000000-0000001"):
            run.reach.add(chunk, 5)
            progress.advance(report)
        progress.stop()
        told.append(console.file.getvalue())
    assert told == ["", "dashboard: http://127.0.0.1:1/t/broadsheet\n"]


def test_what_a_threshold_keeps_is_told_of_all_chunks_and_of_each_model(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    """As it is by counting the rows; and not at all where an earlier build, which did not count, wrote a chunk."""
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"{i} news"}) + "\n" for i in range(40)))
    source, options = tmp_path / "in.jsonl", {"client": client, "chunk_size": 7, "abstain": 0.3}
    models = [replace(small_model, name="one"), replace(small_model, name="two")]
    report = pipeline.classify(source, tmp_path / "out", model=models, **options)
    rows = report.to_pandas()
    for each in report.to_dict()["models"]:
        score = rows[f"{each['model']}_score"][rows[f"{each['model']}_label"].notna()]
        assert each["kept"] == {str(least): int((score >= np.float32(least)).sum()) for least in THRESHOLDS}
        assert sum(each["kept"].values()) < sum(each["labels"].values()) == len(score)
    for file in [*(tmp_path / "out" / "_entries").glob("part-*-0000002-*"), tmp_path / "out" / "_manifest.json"]:
        kept = json.loads(file.read_text())
        del (kept.get("totals") or kept)["scores"]
        file.write_text(json.dumps(kept))
    again = pipeline.classify(source, tmp_path / "out", model=models, resume=True, **options)
    assert [each["kept"] is None for each in again.to_dict()["models"]] == [True, False]
    assert verify(tmp_path / "out").scores is UNSET
