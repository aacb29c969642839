"""Trials of benchmarks.chaos with fixed seeds: whatever happens to a job, its output is whole or its user is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos import files, machine, processes
from benchmarks.chaos.jobs import Job, contents, run_undisturbed
from benchmarks.chaos.trial import BAD, Kind, run_trial

# By which each job is small, and disturbed in its middle.
SEEDS = {
    processes.kill_workers: 49,
    processes.kill_client: 2,
    processes.kill_at_a_step: 3,
    processes.stop_and_continue: 4,
    processes.kill_a_stopped_worker: 49,
    processes.lose_the_scheduler: 68,
    files.change_the_input: 8,
    files.lose_output: 9,
    files.damage_output: 10,
    processes.resume_twice_at_once: 66,
    processes.overwrite_while_it_runs: 54,
    machine.set_the_clock: 68,
}


@pytest.fixture(scope="module")
def jobs(small_model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    folder = tmp_path_factory.mktemp("jobs")
    return [run_undisturbed(name, folder, ("--model", str(small_model_file))) for name in ("parquet", "csv.gz")]


ALWAYS = (processes.kill_workers, processes.kill_client, files.damage_output, processes.resume_twice_at_once)
"""One of a kind: a worker, the command, what it wrote, and another job. `make test-all` has the others, too."""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in ALWAYS else pytest.mark.slow, id=kind.__name__) for kind in SEEDS],
)
def test_a_disturbed_job_is_whole_or_its_user_is_told(kind: Kind, jobs: list[Job], tmp_path: Path) -> None:
    if reason := machine.missing(kind):
        pytest.skip(reason)
    found = run_trial(kind, 0, SEEDS[kind], jobs, tmp_path)
    if found["verdict"] in BAD:
        (job,) = (job for job in jobs if job.name == found["job"])
        pytest.fail(record_of(found, tmp_path / "trial-0", job), pytrace=False)


def record_of(found: dict[str, Any], folder: Path, job: Job) -> str:
    """All that a trial left, in full: nobody can look into the folder of a run in CI."""
    here, there = contents(folder / "out"), contents(job.folder / "out")
    unlike = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    sizes = [f"{name}: {len(here.get(name, b''))} bytes, undisturbed {len(there.get(name, b''))}" for name in unlike]
    logs = [f"{log.name}: …{log.read_text(errors='replace')[-2000:]}" for log in sorted(folder.glob("command-*.log"))]
    return "\n".join([json.dumps(found, indent=1, default=str), *logs, "files that differ:", *sizes])
