"""What Prometheus finds at `/metrics` of a user's own scheduler and worker, and at that of a cluster started here."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from distributed import Client
from jobs import Processes, wait_until

from pipeline import classify
from pipeline.model.charcnn import Model

TEXTS = [*(f"Article {i} of the day" for i in range(40)), None]


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    found.end()


def figures(url: str) -> dict[str, float]:
    """Values by name and labels."""
    with urllib.request.urlopen(url, timeout=240) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(broadsheet_\S+) (\S+)$", text, re.MULTILINE)}


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


def test_a_cluster_of_ours_tells_them_behind_its_link(client: Client, small_model: Model) -> None:
    classify(TEXTS, model=small_model, client=client)
    found = figures(client.dashboard_link.replace("/status", "/metrics"))
    assert found["broadsheet_scheduler_job_running"] == 0
