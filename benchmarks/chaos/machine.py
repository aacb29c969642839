"""All kinds of disturbances on one machine: of a job's processes, files and clock, and of servers.

Each kind is a function that runs a `Trial` and returns a `Verdict`. Its docstring is its name in the table of results.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from benchmarks.chaos import files, processes, servers
from benchmarks.chaos.jobs import BLOCKS
from benchmarks.chaos.trial import Kind, Trial, Verdict

_CLOCK = Path(__file__).with_name("shifted_clock.c")


def set_the_clock(trial: Trial) -> Verdict:
    """the clock set back or forth by minutes to a day (not the monotonic one)"""
    library, clock = build_clock(trial.folder), trial.folder / "clock"
    run = trial.start(LD_PRELOAD=str(library), CLOCK_SHIFT=str(clock))
    if trial.wait_for_a_moment(run):
        seconds = trial.random.choice([-86_400, -3_600, -600, 600, 86_400])
        trial.note(f"by {seconds} s")
        clock.write_text(str(seconds))
    return trial.settle(run)


def build_clock(folder: Path) -> Path:
    """Compile the library that shifts the time of day of processes that load it, and return its path."""
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, _CLOCK], check=True)
    return library


KINDS: tuple[Kind, ...] = (
    processes.kill_workers, processes.kill_all, processes.kill_client, processes.kill_at_a_step,
    processes.interrupt, processes.stop_and_continue, processes.kill_a_stopped_worker, processes.poison_a_chunk,
    processes.kill_in_a_block,
    processes.lose_the_scheduler, processes.lose_a_node, files.fill_the_disk, files.make_the_disk_read_only,
    files.limit_file_size, files.limit_descriptors, files.change_the_input, files.lose_output, files.damage_output,
    processes.kill_shares_and_their_merge, processes.kill_a_choice, processes.resume_twice_at_once,
    processes.start_twice_at_once, processes.overwrite_while_it_runs, set_the_clock,
    servers.reload_models, servers.lose_an_engine, servers.lose_an_http_process, servers.kill_a_server,
    servers.end_a_server,
)  # fmt: skip


JOB_OF = {processes.kill_in_a_block: BLOCKS}
"""The name of the job that a kind disturbs. Kinds that are not listed disturb any job."""


def missing(kind: Kind, cluster: str = "local") -> str | None:
    """Return the reason why a kind cannot be tried here, or None if it can.

    cluster: the kind of cluster that the job starts, "local" or "cuda".
    """
    if cluster == "cuda" and kind in (processes.lose_the_scheduler, processes.lose_a_node):
        return "the cluster that it starts has only CPU workers"
    if cluster != "cuda" and kind is processes.kill_in_a_block:
        return "it needs a GPU that finds the records: --cluster cuda"
    if kind in (files.fill_the_disk, files.make_the_disk_read_only) and not _can_mount():
        return "mounting a small disk needs root"
    if kind is set_the_clock and shutil.which("cc") is None:
        return "no C compiler to build the clock with"
    if kind is processes.kill_a_choice and find_spec("duckdb") is None:
        return "`select` needs DuckDB, which is not installed"
    return None


def _can_mount() -> bool:
    return (
        os.geteuid() == 0
        and not subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False, capture_output=True
        ).returncode
    )
