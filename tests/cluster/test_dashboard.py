"""The page "Broadsheet" of the Dask dashboard, in a real browser, while a job runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import Processes, held_after, wait_until

CHROMIUM = shutil.which("chromium")
ROWS, BAD = 384, 3  # in chunks of four, three times as many as the workers read at once

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path (apt-get install chromium)")

READ_CARDS = """name => Object.fromEntries(
    [...name.parentElement.parentElement.children].filter(card => card.tagName == "DIV")
    .map(card => [card.children[0].innerText, card.children[1].innerText]))"""


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    found.end()


def test_the_page_shows_a_running_job_until_it_ends(
    processes: Processes, small_model_file: Path, tmp_path: Path
) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    (tmp_path / "slow.py").write_text(held_after(8, tmp_path / "out", tmp_path / "go"))
    line = f'{{"text": "{"x" * 800}"}}\n'  # in all above 64 KiB, so that both workers have some
    (tmp_path / "in.jsonl").write_text('{"text": 3}\n' * BAD + line * (ROWS - BAD))
    job = processes.broadsheet(
        "classify", tmp_path / "in.jsonl", "-o", tmp_path / "out", "--model", small_model_file, "--chunk-size", 4,
        "--workers", 2, env={"DASK_DISTRIBUTED__WORKER__PRELOAD": str(tmp_path / "slow.py")},
    )  # fmt: skip
    assert job.stderr is not None
    first = job.stderr.readline()
    link = re.fullmatch(r"dashboard: (http://127\.0\.0\.1:\d+/t\w{32}/broadsheet)\n", first)
    assert link, first
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 640})
        page.goto(link[1])
        page.get_by_role("heading", name="Broadsheet").wait_for(timeout=240_000)

        def shown() -> dict[str, str]:
            """The figure under each name, all of one moment: the page changes while it is read."""
            found: dict[str, str] = page.get_by_text("chunks done", exact=True).evaluate(READ_CARDS)
            return found

        page.get_by_text("tasks in flight").wait_for(timeout=240_000)
        wait_until(lambda: "0" not in (shown()["chunks done"], shown()["quarantined rows"]))
        figures = shown()
        done, flying = int(figures["chunks done"]), int(figures["tasks in flight"])
        assert 0 < flying <= ROWS // 4
        assert figures["of the input"] == f"{4 * done / ROWS:.0%}"
        assert figures["articles done"] == f"{4 * done} of {ROWS}"
        assert figures["quarantined rows"] == str(BAD)
        assert re.fullmatch(r"0:0\d:\d\d", figures["time left"])
        heads, first, *_ = page.locator("tr").all_inner_texts()
        assert heads.split()[:4] == ["label", "rows", "≥", "0.5"]
        assert int(first.split()[-8]) <= 4 * int(shown()["chunks done"])  # rows of the most frequent label
        assert page.locator("a[href='individual-broadsheet']").inner_text() == "Broadsheet"  # in the menu
        assert page.locator("canvas").count() >= 2  # the chart and the strip
        picture = page.screenshot(path=tmp_path / "page.png")
        assert _colors_of(picture) >= {(0x2A, 0x9D, 0x5C), (0xE4, 0xE4, 0xE4)}  # the line, and workers that wait
        (tmp_path / "go").touch()
        wait_until(lambda: int(shown()["chunks done"]) > done)
        browser.close()
    assert job.wait(240) == 0


def _colors_of(picture: bytes) -> set[tuple[int, int, int]]:
    from io import BytesIO

    from PIL import Image

    image = Image.open(BytesIO(picture)).convert("RGB")
    return {color for _, color in image.getcolors(1 << 24) or []}
