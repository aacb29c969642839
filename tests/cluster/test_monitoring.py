"""What a cluster shows: metrics for Prometheus on its scheduler and workers, and the page "Broadsheet" of Dask's
dashboard.
"""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from distributed import Client
from jobs import Processes, wait_until

from benchmarks.chaos.slow import slowed
from broadsheet.cluster import connect
from broadsheet.pipeline import classify
from broadsheet.pipeline.model.charcnn import Model

TEXTS = [*(f"Article {i} of the day" for i in range(40)), None]


def figures(url: str) -> dict[str, float]:
    """Return the values by name and labels."""
    with urllib.request.urlopen(url, timeout=240) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(broadsheet_\S+) (\S+)$", text, re.MULTILINE)}


@pytest.mark.slow
def test_a_scheduler_and_a_worker_tell_what_the_job_has_done(
    processes: Processes, small_model: Model, tmp_path: Path
) -> None:
    file, at = tmp_path / "scheduler.json", ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    processes.dask("scheduler", *at, "--port", 0, "--scheduler-file", file)
    wait_until(file.exists)
    processes.dask("worker", *at, "--scheduler-file", file, "--nthreads", 2, "--no-nanny")
    with Client(scheduler_file=str(file), set_as_default=False) as client:
        client.wait_for_workers(1, 240)
        classify(TEXTS, tmp_path / "out", model=small_model, client=client, chunk_size=7)
        about = client.scheduler_info(n_workers=-1)
        ((address, worker),) = about["workers"].items()
        of_worker = figures(f"http://127.0.0.1:{worker['services']['dashboard']}/metrics")
        link = f"http://127.0.0.1:{about['services']['dashboard']}/metrics"
        computing = f'broadsheet_scheduler_activity_seconds_total{{activity="computing",worker="{address}"}}'
        chunks = f'broadsheet_scheduler_chunks_total{{worker="{address}"}}'
        wait_until(lambda: figures(link).get(chunks) == 6 and computing in figures(link))
        of_scheduler = figures(link)
    files = (path for name in ("parts", "_quarantine") for path in (tmp_path / "out" / name).iterdir())
    expected = {
        "rows_read": 41,
        "rows_written": 40,
        "rows_filtered": 0,
        "rows_quarantined": 1,
        "chunks": 6,
        "text_bytes": sum(len(text) for text in TEXTS if text),
        "written_bytes": sum(path.stat().st_size for path in files),
        "engines_loaded": 1,
        "engines_evicted": 0,
    }
    for name, value in expected.items():
        assert of_worker[f"broadsheet_worker_{name}_total"] == value, name
        assert of_scheduler[f'broadsheet_scheduler_{name}_total{{worker="{address}"}}'] == value, name
    assert of_worker["broadsheet_worker_engines"] == 1
    assert of_scheduler[computing] > 0
    assert of_scheduler["broadsheet_scheduler_job_rows"] == 41
    assert of_scheduler["broadsheet_scheduler_job_running"] == 0
    board = (ROOT / "examples" / "grafana.json").read_text()
    known = {name.partition("{")[0] for name in {**of_worker, **of_scheduler}}
    asked = {expression for panel in json.loads(board)["panels"] for expression in _names(panel)}
    assert asked
    assert asked <= known


def _names(panel: dict) -> list[str]:
    return [name for target in panel["targets"] for name in re.findall(r"broadsheet_\w+", target["expr"])]


def test_a_cluster_of_ours_tells_them_behind_its_link(small_model: Model) -> None:
    """Where a process has several clusters, the last one shows the metrics."""
    with connect(processes=False) as client:
        classify(TEXTS, model=small_model, client=client)
        found = figures(client.dashboard_link.replace("/status", "/metrics"))
    assert found["broadsheet_scheduler_job_running"] == 0


# The page "Broadsheet" of the Dask dashboard, in a real browser, while a job runs.


ROWS, BAD = 384, 3  # in chunks of four, three times as many as the workers read at once


READ_CARDS = """name => Object.fromEntries(
    [...name.parentElement.parentElement.children].filter(card => card.tagName == "DIV")
    .map(card => [card.children[0].innerText, card.children[1].innerText]))"""


@pytest.mark.slow
def test_the_page_shows_a_running_job_until_it_ends(
    processes: Processes, small_model_file: Path, tmp_path: Path, chromium: Any
) -> None:
    # Quarantined rows are known once a range has ended. The second range goes on once the test has read the page, then
    # the rest.
    go, end = (f"os.path.exists({str(tmp_path / name)!r})" for name in ("go", "end"))
    held = f"0.05 if arguments[0].part_number < 1 + {go} or {end} else 5"
    (tmp_path / "slow.py").write_text(slowed("read", held))
    line = f'{{"text": "{"x" * 800}"}}\n'  # more than 64 KiB in all, so that both workers have some
    bad = f'{{"text": 3{" " * 801}}}\n'  # of equal length, because the page shows the share of bytes
    (tmp_path / "in.jsonl").write_text(bad * BAD + line * (ROWS - BAD))
    job = processes.broadsheet(
        "classify", tmp_path / "in.jsonl", "-o", tmp_path / "out", "--model", small_model_file, "--chunk-size", 4,
        "--workers", 2, env={"DASK_DISTRIBUTED__WORKER__PRELOAD": str(tmp_path / "slow.py")},
    )  # fmt: skip
    assert job.stderr is not None
    first = next(line for line in job.stderr if line.startswith("dashboard"))  # lines for earlier phases come before it
    link = re.fullmatch(r"dashboard: (http://127\.0\.0\.1:\d+/t\w{32}/broadsheet)\n", first)
    assert link, first
    page = chromium.new_page(viewport={"width": 1100, "height": 640})
    page.goto(link[1])
    page.get_by_role("heading", name="Broadsheet").wait_for(timeout=240_000)

    def shown() -> dict[str, str]:
        """Return the figure under each name, all read at once, because the page changes meanwhile."""
        found: dict[str, str] = page.get_by_text("chunks done", exact=True).evaluate(READ_CARDS)
        return found

    page.get_by_text("tasks in flight").wait_for(timeout=240_000)
    wait_until(lambda: "0" not in (shown()["chunks done"], shown()["quarantined rows"]))
    figures = shown()
    done, flying = int(figures["chunks done"]), int(figures["tasks in flight"])
    assert 0 < flying <= ROWS // 4
    articles = int(figures["articles done"])  # the page shows no total, because a plain file is not counted
    assert 4 * (done - 1) < articles <= 4 * done  # the last chunk of a range has fewer rows
    assert figures["of the input"] == f"{articles / ROWS:.0%}"
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
    (tmp_path / "end").touch()  # the page goes with the job
    assert job.wait(240) == 0


def _colors_of(picture: bytes) -> set[tuple[int, int, int]]:
    from io import BytesIO

    from PIL import Image

    image = Image.open(BytesIO(picture)).convert("RGB")
    return {color for _, color in image.getcolors(1 << 24) or []}
