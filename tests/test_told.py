"""What a user is told at the end of a job: a summary, and what should not go unnoticed."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pytest
from conftest import ROOT
from distributed import Client

import pipeline
from pipeline.labelling.scored import OUTSIDE_SHARE
from pipeline.model.alphabet import PUBLISHED, Alphabet, encode
from pipeline.model.charcnn import Model
from pipeline.report.console import PlainConsole
from pipeline.report.terminal import print_report

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
    "9 rows are hardly judged: 6 mostly outside the model's alphabet, 3 empty; their labels mean little. "
    "'<b>' is for English news."
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
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False, env=env)
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        f'{script}: put what starts workers under `if __name__ == "__main__":`, since each worker process imports the '
        "script (or leave out workers=)"
    ]
