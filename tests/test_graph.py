"""The Dask graph on a real cluster: what overlaps, what is bounded, and what a chunk that kills workers costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pandas as pd
import psutil
import pytest
from conftest import ROOT, Command
from distributed import Client
from jobs import slowed, spans_of

from benchmarks.chaos.jobs import contents
from cluster import connect
from pipeline import classify
from pipeline.model.charcnn import Model


def write_csv(path: Path, rows: int, width: int = 100) -> Path:
    path.write_text("text\n" + "".join(f"{i} {'x' * width}\n" for i in range(rows)))
    return path


def test_reading_computing_and_writing_overlap(broadsheet: Command, small_model_file: Path, tmp_path: Path) -> None:
    """Each step made to take 0.2 s: one worker does 16 chunks in far less than the 9.6 s of one after the other."""
    preload = tmp_path / "slow.py"
    preload.write_text(
        slowed("read", 0.2) + slowed("commit", 0.2) + "opened = vars(STATE).setdefault('opened', STATE.open_engine)\n"
        "class Slow:\n"
        "    def __init__(self, *a):\n        self.engine = opened(*a)\n"
        "    def __getattr__(self, name):\n        return getattr(self.engine, name)\n"
        "    def classify(self, *a):\n        time.sleep(0.2)\n        return self.engine.classify(*a)\n"
        "STATE.open_engine = Slow\n"
    )
    path = write_csv(tmp_path / "in.csv", 48)
    arguments = ["classify", path, "-o", tmp_path / "out", "--model", small_model_file, "--chunk-size", 3]
    run = broadsheet(*arguments, "--workers", 1, env={"DASK_DISTRIBUTED__WORKER__PRELOAD": str(preload)})
    assert run.returncode == 0, run.stderr
    spans = [s for s in spans_of(tmp_path / "out") if s["name"] in ("read", "infer", "write")]
    by_name = {
        name: sorted((s for s in spans if s["name"] == name), key=lambda s: s["start"])
        for name in ("read", "infer", "write")
    }
    assert all(len(steps) == 16 for steps in by_name.values())
    compute = by_name["infer"]
    for one, after in pairwise(compute):
        assert one["start"] + one["seconds"] <= after["start"] + 0.01  # the executor has one thread
    first, last = compute[0]["start"], compute[-1]["start"]
    assert sum(first < s["start"] < last for s in by_name["read"]) >= 8
    assert sum(first < s["start"] < last for s in by_name["write"]) >= 8
    elapsed = max(s["start"] + s["seconds"] for s in spans) - min(s["start"] for s in spans)
    assert elapsed < 0.6 * sum(s["seconds"] for s in spans)


def test_a_chunk_that_kills_its_workers_is_set_aside_alone(
    broadsheet: Command, small_model_file: Path, tmp_path: Path
) -> None:
    preload = tmp_path / "poison.py"
    preload.write_text(
        "import os, signal\nfrom pipeline.worker import STATE\nkept = vars(STATE).setdefault('kept', STATE.read)\n"
        "def read(unit, *a):\n"
        "    if unit.fragments[0].first_row == 12:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return kept(unit, *a)\n"
        "STATE.read = read\n"
    )
    path = write_csv(tmp_path / "in.csv", 30)
    out = tmp_path / "out"
    arguments = ["classify", path, "-o", out, "--model", small_model_file, "--chunk-size", 3, "--workers", 2]
    run = broadsheet(*arguments, "--json", env={"DASK_DISTRIBUTED__WORKER__PRELOAD": str(preload)})
    assert run.returncode == 3, run.stderr
    summary = json.loads(run.stdout)
    assert [name for name, _ in summary["set_aside"]] == ["part-000000-0000004"]
    assert summary["rows_written"] == 27
    assert not (out / "_SUCCESS").exists()
    assert broadsheet(*arguments, "--resume").returncode == 0
    assert pd.read_parquet(out)["row"].tolist() == list(range(30))
    assert broadsheet("verify", out).returncode == 0


def test_a_file_that_vanishes_is_set_aside_and_the_rest_is_done(
    broadsheet: Command, small_model_file: Path, tmp_path: Path
) -> None:
    preload = tmp_path / "vanish.py"
    gone = tmp_path / "in" / "b.csv"
    preload.write_text(
        f"import os\nif os.path.exists({str(gone)!r}):\n    os.rename({str(gone)!r}, {str(gone)!r} + '.away')\n"
    )
    gone.parent.mkdir()
    for name in "abc":
        write_csv(tmp_path / "in" / f"{name}.csv", 5)
    out = tmp_path / "out"
    arguments = ["classify", tmp_path / "in", "-o", out, "--model", small_model_file, "--chunk-size", 5]
    run = broadsheet(*arguments, env={"DASK_DISTRIBUTED__WORKER__PRELOAD": str(preload)})
    assert run.returncode == 3
    assert "chunks set aside  part-000001-0000000" in run.stdout
    assert "b.csv: No such file or directory" in run.stdout
    os.rename(f"{gone}.away", gone)
    assert broadsheet(*arguments, "--resume").returncode == 0
    assert len(pd.read_parquet(out)) == 15


def test_nothing_listens_beyond_loopback_and_cores_are_not_oversubscribed(small_model: Model) -> None:
    with connect(workers=2) as client:
        classify(["x"] * 40, model=small_model, client=client)
        me = psutil.Process()
        processes = [me, *me.children(recursive=True)]
        addresses = {c.laddr.ip for p in processes for c in p.net_connections("tcp") if c.status == "LISTEN"}
        assert addresses <= {"127.0.0.1", "::1"}
        assert client.dashboard_link.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(client.dashboard_link, timeout=30) as page:
            assert b"Dask" in page.read()
        threads = client.run(lambda: (os.environ.get("OPENBLAS_NUM_THREADS"), _compute_threads()))
        assert all(blas == "1" and count <= max(1, (os.cpu_count() or 1) // 2) for blas, count in threads.values())


def _compute_threads() -> int:
    return sum(t.name.startswith("broadsheet-compute") for t in threading.enumerate())


def test_memory_is_bounded_by_chunks_in_flight(small_model_file: Path) -> None:
    """Eight times the input costs no process more memory, but for the plan and a little noise."""
    command = [sys.executable, "-m", "benchmarks.memory", "--model", str(small_model_file)]
    command += ["--megabytes", "40", "--megabytes", "320", "--chunk-size", "4096"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    small, large = json.loads(run.stdout)["runs"]
    assert large["rows"] > 7 * small["rows"]
    for role in ("client", "worker"):
        assert large["peak_bytes"][role] < 1 << 30
        assert large["peak_bytes"][role] < small["peak_bytes"][role] + (100 << 20)


@pytest.fixture
def scheduler_file(tmp_path: Path) -> Iterator[Path]:
    """A scheduler as a user starts it."""
    file = tmp_path / "scheduler.json"
    scheduler = dask("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file)
    yield file
    scheduler.terminate()
    scheduler.wait(30)


def dask(*arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).with_name("dask")), *map(str, arguments)]
    return subprocess.Popen(
        command, env={**os.environ, **(env or {})}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def test_a_scheduler_that_runs_and_workers_that_differ(
    broadsheet: Command, small_model_file: Path, scheduler_file: Path, tmp_path: Path
) -> None:
    """Workers of one kind give what the embedded cluster gives; another kind among them is refused unless asked for."""
    path = write_csv(tmp_path / "in.csv", 40)
    arguments = ["classify", path, "--model", small_model_file, "--chunk-size", 5]
    here = ["worker", "--scheduler-file", scheduler_file, "--host", "127.0.0.1", "--nthreads", 4, "--no-dashboard"]
    workers = [dask(*here)]
    try:
        there = broadsheet(*arguments, "-o", tmp_path / "there", "--scheduler-file", scheduler_file)
        assert there.returncode == 0, there.stderr
        assert broadsheet(*arguments, "-o", tmp_path / "here").returncode == 0
        assert contents(tmp_path / "there") == contents(tmp_path / "here")
        workers.append(dask(*here, env={"OPENBLAS_CORETYPE": "Prescott"}))
        with Client(scheduler_file=str(scheduler_file)) as client:
            client.wait_for_workers(2, timeout=60)
        mixed = [*arguments, "-o", tmp_path / "mixed", "--scheduler-file", scheduler_file]
        refused = broadsheet(*mixed)
        assert refused.returncode == 2
        assert "Use workers of one kind, or --allow-mixed" in refused.stderr
        allowed = broadsheet(*mixed, "--allow-mixed")
        assert allowed.returncode == 0, allowed.stderr
        assert broadsheet("verify", tmp_path / "mixed").returncode == 0
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(30)
