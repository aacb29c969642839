"""The page of a job as a person sees it: rendered in headless Chromium on a desktop and on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from pipeline import classify
from pipeline.model.charcnn import Model

TEXTS = [f"Article {i} of the day, about {'sport' if i % 2 else 'money'}" for i in range(38)]
LONG = "a class whose name is a whole sentence, which goes on and on, and takes more than a line"
HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page_file(client: Client, small_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty-one rows: one hostile and the first of its file, two bad; in a third file, nothing. The model and one of
    its classes have long names. A column that is not read makes each file too large to share a group, so that each of
    two workers gets one.
    """
    folder = tmp_path_factory.mktemp("page")
    small_model_file = folder / f"{'a_model_with_a_long_name_' * 3}.safetensors"
    replace(small_model, classes=("class 0", "class 1", LONG, "c" * 70)).save(small_model_file)
    rows = [f'"{text}",class 1,{"a note " * 300}\n'.encode() for text in [HOSTILE, *TEXTS]]
    rows += [b"caf\xe9,class 1,a note\n", b"far,too,many,fields\n"]
    (folder / "in.csv").write_bytes(b"text,truth,note\n" + b"".join(rows[:20]))
    (folder / "more.csv").write_bytes(b"text,truth,note\n" + b"".join(rows[20:]))
    (folder / "none.csv").write_bytes(b"")
    options = {"truth_column": "truth", "chunk_size": 5, "profile": True, "report": folder / "page.html"}
    inputs = [folder / name for name in ("in.csv", "more.csv", "none.csv")]
    report = classify(inputs, folder / "out", model=small_model_file, client=client, **options)
    assert report.exit_code == 3  # a file was empty
    return folder / "page.html"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on the PATH (on Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


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
    assert set(asked) <= {"file", "data"}  # it needs no network

    seen = page.inner_text("body")
    for text in (
        "39 articles labelled by",
        "rows quarantined of 41 read",
        "articles a second",
        "accuracy, ",
        "none.csv: the file is empty",
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
