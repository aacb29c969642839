"""Reviewing rows in a browser: each decision is in the file at once, and reading and deciding need the token."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import Command
from jobs import start

from broadsheet.pipeline.curation.review import Review
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.evaluation.decisions import LEAVE_OUT, key_of, read_decisions

TEXTS = ["Stocks fell on Monday as oil rose.", "The home team <b>won</b> the match.", "A new probe left for the moon."]
TRUTHS, LABELS = ["Sports", "Sports", "World"], ["Business", "World", "Sci/Tech"]


def rows_in(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.fixture
def suspects(tmp_path: Path) -> Path:
    file = tmp_path / "suspects.csv"
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["file", "row", "id", "truth", "truth_score", "label", "score", "decision", "text", "text_key"])
        for i, (text, truth, label) in enumerate(zip(TEXTS, TRUTHS, LABELS, strict=True)):
            writer.writerow(["rows.csv", i, f"a{i}", truth, 0.1, label, 0.8, "", text, key_of(text)])
    return file


class Page(NamedTuple):
    process: subprocess.Popen[str]
    url: str
    token: str

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", **headers}
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def end(self) -> str:
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=60)[0]


@pytest.fixture
def page(suspects: Path) -> Iterator[Page]:
    process = start("broadsheet", "review", suspects, "--model", "ag-news", "--device", "cpu")
    assert process.stdout is not None
    found = None
    while found is None:
        line = process.stdout.readline()
        assert line, process.communicate()
        found = re.match(r"open (http://127\.0\.0\.1:\d+/)#(\S+)", line)
    yield Page(process, *found.groups())
    process.kill()
    process.communicate()


def test_decisions_are_in_the_file_at_once_and_ctrl_c_loses_none(page: Page, suspects: Path) -> None:
    status, given = page.ask("rows")
    assert (status, given["labels"][:4]) == (200, ["World", "Sports", "Business", "Sci/Tech"])
    assert [row["text"] for row in given["rows"]] == TEXTS
    assert given["rows"][0]["more"] == {"id": "a0"}
    for number, (label, decided) in enumerate([("Business", 1), ("Sports", 2), (LEAVE_OUT, 3)]):
        assert page.ask(f"rows/{number}/decision", {"label": label}) == (200, {"decided": decided})
        assert rows_in(suspects)[number]["decision"] == label
    assert page.ask("rows/2/decision", {"label": ""}) == (200, {"decided": 2})
    assert page.ask("rows/2/decision", {"label": LEAVE_OUT})[0] == 200
    said = page.end()
    assert "3 decisions of 3: 1 with another label, 1 confirmed, 1 left out" in said
    assert [one.label for one in read_decisions(suspects)] == ["Business", "Sports", LEAVE_OUT]
    assert [row["text"] for row in rows_in(suspects)] == TEXTS
    assert page.process.returncode == 0


def test_only_who_shows_the_token_reads_and_decides(page: Page, suspects: Path) -> None:
    before = suspects.read_bytes()
    for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": ""}):
        for path, body in (("rows", None), ("rows/0/why", None), ("rows/0/decision", {"label": "Sports"})):
            assert page.ask(path, body, **headers)[0] == 401
    assert page.ask("rows", Host="evil.example")[0] == 403  # a hostile name that leads to this server
    with urllib.request.urlopen(page.url, timeout=60) as answer:
        body, policy = answer.read().decode(), answer.headers["content-security-policy"]
    assert page.token not in body
    assert not any(text in body for text in TEXTS)
    assert "default-src 'none'" in policy
    assert suspects.read_bytes() == before


def test_what_is_no_decision_is_refused(page: Page, suspects: Path) -> None:
    before = suspects.read_bytes()
    assert page.ask("rows/0/decision", {"label": "Sprots"})[0] == 409
    assert page.ask("rows/9/decision", {"label": "Sports"})[0] == 409
    assert page.ask("rows/0/decision", ["Sports"])[0] == 400
    assert page.ask("rows/9/why")[0] == 404
    assert suspects.read_bytes() == before
    status, found = page.ask("rows/0/why")
    assert (status, [why["label"] for why in found["why"]]) == (200, ["Business", "Sports"])


def test_decisions_of_several_files_gather_in_one_and_edits_meanwhile_stay(suspects: Path, tmp_path: Path) -> None:
    kept = tmp_path / "corrections.csv"
    kept.write_text("decision,text,note\nBusiness,An older text,mine\n")
    review = Review(suspects, kept)
    assert review.labels == ["Business", "Sci/Tech", "Sports", "World"]
    review.decide(0, "Business")
    edited = rows_in(kept)
    edited[0]["decision"] = "Sports"  # a spreadsheet saves the file
    with kept.open("w", newline="") as out:
        writer = csv.DictWriter(out, [*edited[0]])
        writer.writeheader()
        writer.writerows(edited)
    review.decide(1, LEAVE_OUT)
    rows = rows_in(kept)
    assert [row["decision"] for row in rows] == ["Sports", "Business", LEAVE_OUT]
    assert rows[0]["note"] == "mine"
    again = Review(suspects, kept)
    assert [row["decision"] for row in again.rows] == ["Business", LEAVE_OUT, ""]
    assert again.summary().decided == 2
    assert [one.label for one in read_decisions(kept)] == ["Sports", "Business", LEAVE_OUT]
    again.decide(0, "")
    assert [one.label for one in read_decisions(kept)] == ["Sports", LEAVE_OUT]


def test_a_file_without_rows_is_refused(tmp_path: Path, broadsheet_in_process: Command) -> None:
    (tmp_path / "empty.csv").write_text("decision,text\n")
    with pytest.raises(UsageError, match="no row with a text"):
        Review(tmp_path / "empty.csv", tmp_path / "empty.csv")
    made = broadsheet_in_process("review", str(tmp_path / "none.csv"))
    assert (made.returncode, "no decisions can be read from it" in made.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_takes_decisions_by_keyboard(page: Page, suspects: Path, chromium: Any, width: int) -> None:
    complaints: list[str] = []
    opened = chromium.new_context(viewport={"width": width, "height": 800}).new_page()
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(f"{page.url}#{page.token}")
    opened.locator("#text span").first.wait_for()  # waits for the explanation
    assert opened.locator("#text").text_content() == TEXTS[0]
    assert opened.locator(".side h2").all_inner_texts() == ["the model: Business 80.0 %", "the row: Sports 10.0 %"]
    opened.keyboard.press("Enter")
    opened.locator("#count", has_text="row 2 ").wait_for()
    assert opened.locator("#text").text_content() == TEXTS[1]  # shown as text, not run
    opened.keyboard.press("k")
    opened.locator("#count", has_text="row 3 ").wait_for()
    opened.keyboard.press("x")
    opened.locator("#count", has_text="3 decided").wait_for()
    assert [row["decision"] for row in rows_in(suspects)] == ["Business", "Sports", LEAVE_OUT]
    opened.keyboard.press("1")
    opened.locator("[aria-pressed=true]", has_text="World").wait_for()
    assert rows_in(suspects)[2]["decision"] == "World"
    opened.keyboard.press("ArrowLeft")
    opened.keyboard.press("u")
    opened.locator("#count", has_text="row 2 of 3, 2 decided").wait_for()
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    page.end()
    opened.keyboard.press("2")
    opened.locator("#error").wait_for()
    assert "no longer runs" in opened.inner_text("#error")
    assert complaints == []
