"""Compares the memory that a dry run predicts with the memory that the job takes."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from commands import start
from conftest import ROOT

from broadsheet.pipeline.job.memory import memory_of
from broadsheet.pipeline.model.loading import load_model

LEAST, MOST = 0.65, 1.6
"""Bounds for the estimate as a share of a job's peak. The peak varies with the work that happens at the same time."""

WORDS = [
    "stocks",
    "sports",
    "oil",
    "game",
    "team",
    "market",
    "science",
    "win",
    "president",
    "election",
    "software",
    "space",
    "club",
    "profit",
]
NGRAMS = ("--network", "none")


def peak_of(*arguments: object) -> int:
    """Return the peak of the physical memory that the command and all its processes hold together, in bytes.

    Linux divides shared pages among the processes that share them.
    """
    process, peak = start("broadsheet", *arguments), 0
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            every = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
            peak = max(peak, sum(map(proportional_bytes, every)))
        time.sleep(0.02)
    assert process.returncode == 0, process.communicate()[1]
    return peak


def proportional_bytes(pid: int) -> int:
    with suppress(OSError):  # the process has ended
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return 0


def write(path: Path, rows: int, words: int) -> Path:
    choose = random.Random(1).choices
    path.write_text("text\n" + "".join(f"{' '.join(choose(WORDS, k=words))}\n" for _ in range(rows)))
    return path


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux tells how processes share memory")
@pytest.mark.parametrize(
    ("rows", "words", "flags"),
    [  # few rows in the command's own process, many short rows, long rows, two workers, the network's memory
        (100, 5, ()),
        pytest.param(400_000, 5, NGRAMS, marks=pytest.mark.slow),
        pytest.param(30_000, 800, NGRAMS, marks=pytest.mark.slow),
        pytest.param(400_000, 5, (*NGRAMS, "--workers", "2"), marks=pytest.mark.slow),
        pytest.param(2_000, 40, ("--network", "all", "--workers", "2"), marks=pytest.mark.slow),
    ],
)
def test_a_job_takes_about_what_a_dry_run_says(rows: int, words: int, flags: tuple[str, ...], tmp_path: Path) -> None:
    job = ("classify", write(tmp_path / "in.csv", rows, words), "-o", tmp_path / "out", "--device", "cpu", *flags)
    asked = start("broadsheet", *job, "--dry-run", "--json")
    told = json.loads(asked.communicate()[0])["memory"]
    assert told["workers"] == (0 if rows == 100 else 2 if "--workers" in flags else 1)
    assert told["whole"] == told["command"] + told["workers"] * told["worker"]
    peak = peak_of(*job, "--quiet")
    assert LEAST * peak < told["whole"] < MOST * peak, (told, peak)


def test_each_part_grows_with_what_it_is_for() -> None:
    model = load_model(ROOT / "broadsheet_weights" / "ag_news.safetensors")
    small = memory_of([model], 1000, 0, 100.0, 512, 1, on_gpu=False)
    assert small.readers == 0
    two = memory_of([model, model], 1000, 0, 100.0, 512, 2, on_gpu=False)
    assert (two.workers, two.model) == (2, 2 * small.model)
    assert two.whole > small.whole + two.worker
    long = memory_of([model], 10**9, 0, 10_000.0, 32_768, 1, on_gpu=False)
    assert long.in_flight == memory_of([model], None, 0, 10_000.0, 32_768, 1, on_gpu=False).in_flight
    assert 512 << 20 <= long.in_flight < 600 << 20  # the most that the budget for chunks in flight allows
    gpu = memory_of([model], 10**6, 0, 100.0, 131_072, 1, on_gpu=True)
    assert gpu.readers >= 1
    assert gpu.whole == gpu.command + gpu.worker + gpu.readers * gpu.reader
