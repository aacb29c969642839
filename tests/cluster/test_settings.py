"""Dask's configuration: the same on every kind of cluster, except for what the user has set."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import urlopen

import dask
import pytest
from distributed import Client
from jobs import settings_of, variable, wait_until

from broadsheet.cluster import connect
from broadsheet.cluster.settings import SETTINGS, THREADS_PER_WORKER
from broadsheet.cluster.slurm.site import load_site
from broadsheet.cluster.slurm.submit import job_script

# Stand-ins that start the programs given to them, as nsys does, and Slurm on a node of its own.
PROGRAMS = {
    "nsys": 'while [ "$1" = profile ] || [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n',
    "srun": 'while [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n',
    "sbatch": 'setsid bash -c "$(cat "$1")" > /dev/null 2>&1 &\necho "Submitted batch job $!"\n',
    "scancel": 'kill -- "-$1"\n',
}
CHANGED = {  # set by environment variables; the time-to-live is set to Dask's own default
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "0.7",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "5 minutes",
    "MALLOC_ARENA_MAX": "2",
}


@contextmanager
def batch_script(folder: Path) -> Iterator[Client]:
    """Run the script of `broadsheet submit --interactive`."""
    site = load_site()
    env = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
    script = subprocess.Popen(["bash", "-c", job_script(site, 1, None)], env=env)
    try:
        file = site.shared_folder / "7" / "scheduler.json"
        wait_until(file.exists)  # `connect` waits for ten seconds only
        with connect(scheduler_file=file) as client:
            yield client
    finally:
        script.terminate()
        script.wait(240)


KINDS: dict[str, Callable[[Path], AbstractContextManager[Client]]] = {
    "local": lambda folder: connect(workers=1),
    "nsys": lambda folder: connect(workers=1, nsys=folder / "nsys"),
    "batch script": batch_script,
    "jobs on demand": lambda folder: connect("slurm", workers=1),
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the stand-ins on the path. The process has none of our settings, which other tests' clusters have
    set.
    """
    (tmp_path / "bin").mkdir()
    for name, lines in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{lines}")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "site.yaml").write_text(f"interface: lo\nfolder: {tmp_path / 'shared'}\n")
    monkeypatch.setenv("BROADSHEET_SITE", str(tmp_path / "site.yaml"))
    for key in SETTINGS:
        monkeypatch.delenv(variable(key), raising=False)
    with dask.config.set(dask.config.merge(*dask.config.defaults)):
        yield tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_cluster_has_our_settings_and_the_users(
    kind: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CHANGED.items():
        monkeypatch.setenv(name, value)
    expected = {key: CHANGED.get(variable(key), str(value)) for key, value in SETTINGS.items()}

    def of_scheduler(dask_scheduler: Any) -> tuple[object, ...]:
        steals = "stealing" in dask_scheduler.periodic_callbacks
        return dask_scheduler.worker_ttl, dask_scheduler.no_workers_timeout, steals

    def of_worker(dask_worker: Any) -> tuple[object, ...]:
        memory = dask_worker.memory_manager
        return memory.memory_target_fraction, memory.memory_spill_fraction, memory.memory_pause_fraction

    with KINDS[kind](machine) as client:
        assert settings_of(client) == [expected]
        assert client.run_on_scheduler(of_scheduler) == (300, 60, False)
        assert list(client.run(of_worker).values()) == [(False, False, 0.7)]
        assert list(client.nthreads().values()) == [THREADS_PER_WORKER]
        # No other user reaches the traffic, the dashboard or the temporary files.
        assert client.scheduler.address.startswith("tls://")
        assert client.dashboard_link.startswith("http://127.0.0.1:")
        assert urlopen(client.dashboard_link.replace("/status", "/info/main/workers.html")).status == 200
        with pytest.raises(HTTPError, match="404"):
            urlopen(urljoin(client.dashboard_link, "/status"))
        (folder,) = client.run(lambda dask_worker: dask_worker.local_directory).values()
        scratch = Path(folder).parents[1]
        assert scratch.name.startswith("broadsheet-")
        assert scratch.stat().st_mode & 0o777 == 0o700
        private = [machine / "shared", *(machine / "shared").glob("*"), *(machine / "shared").glob("*/tls")]
        assert {path.stat().st_mode & 0o777 for path in private if path.is_dir()} <= {0o700}
    wait_until(lambda: not scratch.exists())


def test_what_is_set_in_python_or_in_a_file_wins_too(machine: Path) -> None:
    """The user's settings win over ours wherever the workers are. `null` counts too, but no job waits for workers for
    ever.
    """
    (machine / "dask.yaml").write_text("distributed: {scheduler: {worker-ttl: null, no-workers-timeout: null}}\n")
    script = (
        "import dask, json; from broadsheet.cluster.settings import *\n"
        "with dask.config.set({'distributed.worker.memory.pause': 0.6}): found = environment()\n"
        "print(json.dumps([found, environment(), no_workers_seconds()]))"
    )
    env = {**os.environ, "DASK_CONFIG": str(machine / "dask.yaml")}
    run = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    inside, after, seconds = json.loads(run.stdout)
    expected = {variable(key): str(value) for key, value in SETTINGS.items()}
    expected["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] = "None"
    expected["DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT"] = "None"
    assert after == expected
    assert inside == {**expected, "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "0.6"}
    assert seconds == 60


def test_clusters_that_overlap_leave_this_process_as_it_was(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever ends first, Dask's settings and log are restored. No temporary folder lies within another's."""
    monkeypatch.setattr(tempfile, "tempdir", str(machine))

    def state() -> object:
        levels = [handler.level for name in ("distributed", "bokeh") for handler in logging.getLogger(name).handlers]
        return dict(dask.config.config), levels, list(machine.glob("broadsheet-*"))

    before = state()
    for first, second in ((0, 1), (1, 0)):
        jobs = [(copy_context(), connect(processes=False)), (copy_context(), connect(workers=1))]
        for thread, cluster in jobs:  # each thread has a context of its own
            assert thread.run(cluster.__enter__).status == "running"
        assert len(list(machine.glob("broadsheet-*"))) == 2
        jobs[first][0].run(jobs[first][1].__exit__, None, None, None)
        assert dask.config.get("distributed.scheduler.worker-ttl") == SETTINGS["distributed.scheduler.worker-ttl"]
        jobs[second][0].run(jobs[second][1].__exit__, None, None, None)
        assert state() == before
