"""What a job reports at its end: a summary, warnings, and the page as a person sees it, in headless Chromium."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from conftest import ROOT
from distributed import Client
from msgspec import UNSET

from broadsheet import pipeline
from broadsheet.pipeline import classify, verify
from broadsheet.pipeline.labelling.counts import THRESHOLDS
from broadsheet.pipeline.labelling.scored import OUTSIDE_SHARE
from broadsheet.pipeline.model.alphabet import PUBLISHED, Alphabet, encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.look import look
from broadsheet.pipeline.report.console import PlainConsole
from broadsheet.pipeline.report.facts import JobFacts, RunFacts
from broadsheet.pipeline.report.job import JobReport
from broadsheet.pipeline.report.page import save_looked
from broadsheet.pipeline.report.results import Results
from broadsheet.pipeline.report.tally import Reach, Tally
from broadsheet.pipeline.report.terminal import TerminalProgress, print_report
from broadsheet.pipeline.report.timeline import Timeline
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.telemetry.spans import Clock, Place, Span

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
    ]  # once, not for each chunk
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
    assert "GPU" not in said
    assert LINE.replace("'", "&#39;").replace("<b>", "&lt;b&gt;") in page.read_text()


def test_english_news_is_not_doubted(ag_news: Path) -> None:
    """The warning does not appear even for an alphabet that lacks the space."""
    options = pa_csv.ReadOptions(column_names=["class", "title", "text"])
    column = pa_csv.read_csv(ag_news / "test.csv", read_options=options)["text"]
    texts = [text.encode() for text in column.to_pylist()]
    offsets = np.cumsum([0, *map(len, texts)])
    for symbols, most in ((PUBLISHED, OUTSIDE_SHARE), (PUBLISHED.replace("+-", "+ "), 0.03)):
        encoded = encode(np.frombuffer(b"".join(texts), np.uint8), offsets, Alphabet(symbols), 1014)
        assert (encoded.unknown_chars / np.minimum(encoded.n_chars, 1014)).max() < most


@pytest.mark.slow
def test_a_script_without_the_main_guard_is_told_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from broadsheet import pipeline\npipeline.classify(['a'], workers=2)\n")
    env = {"PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=False, env=env)
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        f'{script}: put what starts workers under `if __name__ == "__main__":`, since each worker process imports the '
        "script (or leave out workers=)"
    ]


# A job that is over at once, a job whose start takes most of the time, and a job whose chunks take most of it. The
# times are written in a timeline, so the speed of this machine does not matter.
@pytest.mark.parametrize(
    ("seconds", "work", "has_verdict", "has_table"),
    [(2.9, 2.0, False, False), (11.0, 2.0, True, False), (11.0, 10.0, True, True)],
)
def test_a_job_says_where_its_time_went_once_that_is_worth_reading(
    seconds: float, work: float, has_verdict: bool, has_table: bool
) -> None:
    place = Place("node-a:1", "cuda:0", 100.1, 100.2, 100.3, Clock(0.0, 0.001))
    timeline = Timeline(began=100.0, ended=100.0 + seconds)
    steps = [Span(lane, 100.5, work, place.where, lane, place.device) for lane in ("read", "compute", "write")]
    timeline.add("part-0", 10, steps, place)
    job = JobFacts("a model", ("a",), None, "cuda", "fp16", 10)
    results = Results(pa.schema([]), None, "", [], Selection(("text",)))
    report = JobReport(job, Tally(classes=job.classes), RunFacts(timeline=timeline), results)
    shown = io.StringIO()
    with redirect_stdout(shown):
        print_report(report, PlainConsole())
    assert ("bound by the " in shown.getvalue()) == has_verdict
    assert ("seconds from start" in shown.getvalue()) == has_table


def test_the_link_of_the_dashboard_is_printed_once_and_only_by_a_job_that_goes_on() -> None:
    """One job's first chunks show that it is nearly over. The other has a million million rows."""
    told = []
    for rows in (10, 10**12):
        job = JobFacts("a model", ("a",), None, "cpu", "fp32", 10)
        run = RunFacts(reach=Reach(rows))
        report = JobReport(
            job, Tally(classes=job.classes), run, Results(pa.schema([]), None, "", [], Selection(("text",)))
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
    """The counts equal those from counting the rows, and the right ones are those with a known label. There are no
    counts if an earlier build, which did not count, wrote a chunk.
    """
    texts = [f"{chr(97 + i % 26) * i} news of {i}" for i in range(40)]
    known = [None if i % 5 == 0 else small_model.classes[i % len(small_model.classes)] for i in range(40)]
    rows = [json.dumps({"text": text, "known": name}) + "\n" for text, name in zip(texts, known, strict=True)]
    (tmp_path / "in.jsonl").write_text("".join(rows))
    source = tmp_path / "in.jsonl"
    options = {"client": client, "chunk_size": 7, "abstain": 0.4, "label_column": "known"}
    models = [replace(small_model, name=name, temperature=0.2) for name in ("one", "two")]  # scores of 0.25 to 1
    report = pipeline.classify(source, tmp_path / "out", model=models, **options)
    rows = report.to_pandas()
    for model in report.to_dict()["models"]:
        score = rows[f"{model['model']}_score"][rows[f"{model['model']}_label"].notna()]
        assert model["kept"] == {str(least): int((score >= np.float32(least)).sum()) for least in THRESHOLDS}
        assert 0 < model["kept"]["0.9"] < model["kept"]["0.5"] < sum(model["labels"].values()) == len(score)
        label, truth = rows[f"{model['model']}_label"][score.index], rows["truth"][score.index]
        is_right = (label == truth)[truth.notna()]
        for least, accuracy in model["accuracy_kept"].items():
            reach = is_right[score[is_right.index] >= np.float32(float(least))]
            assert accuracy == (reach.mean() if len(reach) else None)
    for file in [*(tmp_path / "out" / "_entries").glob("part-*-0000002-*"), tmp_path / "out" / "_manifest.json"]:
        kept = json.loads(file.read_text())
        del (kept.get("totals") or kept)["scores"], (kept.get("totals") or kept)["right"]
        file.write_text(json.dumps(kept))
    again = pipeline.classify(source, tmp_path / "out", model=models, resume=True, **options)
    assert [model["kept"] is None for model in again.to_dict()["models"]] == [True, False]
    assert [model["accuracy_kept"] is None for model in again.to_dict()["models"]] == [True, False]
    assert verify(tmp_path / "out").scores is UNSET


# The page of a job as a person sees it: rendered in headless Chromium on a desktop and on a phone.


TEXTS = [f"Article {i} of the day, about {'sport' if i % 2 else 'money'}" for i in range(38)]
LONG = "a class whose name is a whole sentence, which goes on and on, and takes more than a line"
HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page_file(client: Client, small_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job over forty-one rows. The first row of a file is hostile, two rows are bad, and the third file is empty.

    The model and one of its classes have long names. A column that is not read makes each file too large to share a
    group, so that each of two workers gets one.
    """
    folder = tmp_path_factory.mktemp("page")
    small_model_file = folder / f"{'a_model_with_a_long_name_' * 3}.safetensors"
    replace(small_model, classes=("class 0", "class 1", LONG, "c" * 70)).save(small_model_file)
    rows = [f'"{text}",class 1,{"a note " * 300}\n'.encode() for text in [HOSTILE, *TEXTS]]
    rows += [b"caf\xe9,class 1,a note\n", b"far,too,many,fields\n"]
    (folder / "in.csv").write_bytes(b"text,truth,note\n" + b"".join(rows[:20]))
    (folder / "more.csv").write_bytes(b"text,truth,note\n" + b"".join(rows[20:]))
    (folder / "none.csv").write_bytes(b"\n")
    options = {"label_column": "truth", "chunk_size": 5, "profile": True, "report": folder / "page.html"}
    inputs = [folder / name for name in ("in.csv", "more.csv", "none.csv")]
    report = classify(inputs, folder / "out", model=small_model_file, client=client, **options)
    assert report.exit_code == 3  # a file was empty
    rate = f"{report.articles_per_second:,.0f}"
    assert f"<b>{rate}</b><span>articles a second" in (folder / "page.html").read_text()
    assert f"{rate} articles a second" in str(report)
    for _ in range(2):  # the second page replaces the first
        save_looked(f"{folder / 'out'}", look(f"{folder / 'out'}", ["file", "truth"]), f"{folder / 'page.html'}")
    return folder / "page.html"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "picture"), [(1280, "wide"), (390, "narrow")])
def test_the_page_tells_the_whole_job(chromium: Any, page_file: Path, width: int, picture: str) -> None:
    complaints: list[str] = []
    asked: list[str] = []
    page = chromium.new_page(viewport={"width": width, "height": 900})
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url.partition(":")[0]))
    page.goto(page_file.as_uri())
    assert complaints == []
    assert set(asked) <= {"file", "data"}  # the page needs no network

    seen = page.inner_text("body")
    for text in (
        "39 articles labelled by",
        "rows quarantined of 41 read",
        "articles a second",
        "accuracy, ",
        "none.csv: the file holds no record",
        "column 'text' is not UTF-8: byte 3 of it is 0xe9",
        "expected 3 fields, found 4",
        "characters on average",
        "1 to 49",
        "output gathered",
        "Ceilings measured in the same run",
        "loading the model on each worker",
        HOSTILE,
    ):
        assert text in seen, text
    assert page.title().startswith("Broadsheet: 39 articles")
    assert "bound by the " in page.locator("#verdict").text_content()
    assert "GPU" not in page.locator("body").text_content()
    assert page.locator("#confusion tr").count() == 5
    assert "before" in page.locator("#meaning").text_content()
    page.locator("#meaning summary").click()
    assert page.locator("#meaning dt", has_text="hand-over").is_visible()
    assert page.locator("#breakdown .stack").count() == 2  # a bar for each worker
    bins = page.locator("#scores .bars .number:not(.soft)").all_inner_texts()
    assert sum(map(int, bins)) == 39
    kept = page.locator("#scores tr td:nth-child(2)").all_inner_texts()
    assert len(kept) == 7
    assert kept == sorted(kept, key=int, reverse=True)
    assert "of class 1" in page.locator("#scores table").inner_text()
    assert page.locator("#closest .example").count() == 10
    order = page.locator("section").evaluate_all("all => all.map(one => one.id)")
    # First the results, then how the job ran.
    assert order.index("labels") < order.index("samples") < order.index("verdict")
    names = page.locator("#labels .bars .name").all_inner_texts()
    assert sorted(page.locator("#samples .pill").all_inner_texts()) == sorted(names)
    assert page.locator("#samples .example").count() <= 3 * len(names)
    widths = [name.split(" to ") for name in page.locator("#scores .bars .name").all_inner_texts()]
    assert {round(float(high) - float(low), 2) for low, high in widths} == {0.05}
    assert page.locator("#by-1 tr").count() == 4  # the heads, all rows, and two files
    assert LONG in page.locator("#by-2").inner_text()
    assert page.locator("#labels .bars .fill").first.bounding_box()["width"] > width / 5
    assert {"conv1", "conv6", "fc3", "head"} <= set(page.locator("#roofline td:first-child").all_inner_texts())

    for name in ("timeline", "throughput", "roofline"):
        image = page.locator(f"#{name} img")
        shown = image.bounding_box()
        assert width / 2 < shown["width"] < width
        assert shown["height"] > 100
        assert image.evaluate("i => i.complete && i.naturalWidth > 0")
        inches = image.evaluate("i => i.naturalWidth") / 96  # SVG points to CSS pixels
        assert (inches > 8) == (picture == "wide"), inches
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # only tables scroll, within their boxes
    cut = page.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll table') && "
        "e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.textContent)"
    )
    assert cut == []
    small = page.evaluate(
        "[...document.querySelectorAll('td, p, span')].filter(e => e.textContent.trim() "
        "&& parseFloat(getComputedStyle(e).fontSize) < 13).length"
    )
    assert small == 0  # legible without zooming
    page.close()
