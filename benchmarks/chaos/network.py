"""Disturbances of a job in Slurm: of its network and its nodes, and by Slurm itself.

The Slurm cluster is real, but its nodes are network namespaces of this machine. `tc tbf` limits the rate of their
links, and netfilter drops their packets.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, update_wrapper
from pathlib import Path

import psutil

from benchmarks.chaos.slurm_nodes import NODES, SlurmNodes, missing
from benchmarks.chaos.trial import Hung, Trial, Verdict, Wrong
from benchmarks.processes import environment

_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
_SECONDS = 300
_MOST_SUBMISSIONS = 4
_SETTINGS = {
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s",  # the default, 120 s, would make each lost node cost minutes
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s",
}

Happening = Callable[[SlurmNodes, Trial, str], None]


@contextmanager
def slurm(folder: Path) -> Iterator[list[Callable[[Trial], Verdict]]]:
    """Run Slurm within the block, and yield its kinds of disturbances. Raises SystemExit if it cannot run here."""
    if reason := missing():
        raise SystemExit(f"no Slurm here: {reason}")
    nodes = SlurmNodes(folder)
    try:
        nodes.start()
        yield [update_wrapper(partial(_try, nodes, happens), happens) for happens in HAPPENINGS]
    finally:
        nodes.stop()


def lose_packets(nodes: SlurmNodes, trial: Trial, number: str) -> None:
    """1 to 15 % of the packets to some nodes lost"""
    share = trial.random.randint(1, 15) / 100
    for name in _some_nodes(trial, f"{share:.0%}"):
        lose = ["-m", "statistic", "--mode", "random", "--probability", share, "-j", "DROP"]
        nodes.run("ip", "netns", "exec", name, "iptables", "-A", "INPUT", *lose)


def narrow_links(nodes: SlurmNodes, trial: Trial, number: str) -> None:
    """the links of some nodes narrowed to 0.1 to 5 Mbit/s, with queues of up to 400 ms"""
    rate = round(trial.random.uniform(0.1, 5), 1)
    for name in _some_nodes(trial, f"{rate} Mbit/s"):
        _shape(nodes, name, "tbf", "rate", f"{rate}mbit", "burst", "8kbit", "latency", "400ms")


def cut_a_node(nodes: SlurmNodes, trial: Trial, number: str) -> None:
    """a node without network for 1 to 20 seconds"""
    name = trial.random.choice(NODES)
    seconds = trial.random.uniform(1, 20)
    trial.note(f"{name} cut off for {seconds:.0f} s")
    nodes.cut(name)
    try:
        time.sleep(seconds)
    finally:
        nodes.mend(name)


def kill_on_a_node(nodes: SlurmNodes, trial: Trial, number: str) -> None:
    """every process of the job on a node killed (SIGKILL)"""
    name = trial.random.choice(NODES)
    trial.note(name)
    for pid in nodes.run("ip", "netns", "pids", name).split():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if process.name() not in ("slurmd", "slurmstepd"):
                process.kill()


def cancel(nodes: SlurmNodes, trial: Trial, number: str) -> None:
    """the job cancelled, then submitted again"""
    nodes.run("scancel", number)


def requeue(nodes: SlurmNodes, trial: Trial, number: str) -> None:
    """the job requeued by an administrator"""
    nodes.run("scontrol", "requeue", number, check=False)


def preempt(nodes: SlurmNodes, trial: Trial, number: str) -> None:
    """the signal that comes before the time limit"""
    nodes.run("scancel", "--batch", "--signal=USR1", number)


HAPPENINGS: tuple[Happening, ...] = (
    lose_packets, narrow_links, cut_a_node, kill_on_a_node, cancel, requeue, preempt
)  # fmt: skip


def _some_nodes(trial: Trial, what: str) -> list[str]:
    """Choose one or more nodes at random, and note them with what happens to them."""
    chosen = trial.random.sample(NODES, trial.random.randint(1, len(NODES)))
    trial.note(f"{what} on {', '.join(chosen)}")
    return chosen


def _shape(nodes: SlurmNodes, name: str, *rule: str) -> None:
    """Apply a `tc` rule to the packets that a node sends. `_restore` removes it."""
    nodes.run("tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", *rule)


def _restore(nodes: SlurmNodes) -> None:
    """Remove all rules from the network of the nodes."""
    for name in NODES:
        nodes.run("tc", "-n", name, "qdisc", "del", "dev", "eth0", "root", check=False)
        nodes.run("ip", "netns", "exec", name, "iptables", "-F", check=False)


def _try(nodes: SlurmNodes, happens: Happening, trial: Trial) -> Verdict:
    """Submit the job, disturb it at a random moment, and submit it again until it has finished."""
    # Write the site's settings, and choose the moment.
    (trial.folder / "site.yaml").write_text(f"interface: eth0\nfolder: {trial.folder / 'shared'}\nstop_before: 20\n")
    commits = trial.random.randrange(10)
    trial.note(f"after {commits} commits")
    try:
        # Submit and disturb the job.
        number = _submit(nodes, trial)
        if _wait(nodes, trial, number, lambda: trial.committed() >= commits):
            happens(nodes, trial, number)
        # Wait for its end, and submit it again until it has completed.
        for _ in range(_MOST_SUBMISSIONS):
            _wait(nodes, trial, number, lambda: False)
            log = (trial.folder / f"broadsheet-{number}.log").read_text(errors="replace")
            state = nodes.job(number)["JobState"]
            if "Traceback" in log and "broadsheet: " not in log and state == "FAILED":
                raise Wrong(f"a traceback: {log[-1500:]!r}")
            if state == "COMPLETED":
                trial.check_identical(trial.job.folder / "out", trial.out)
                return Verdict.IDENTICAL
            trial.note(f"{state}, submitted again")
            number = _submit(nodes, trial)
        raise Wrong(f"not finished after {_MOST_SUBMISSIONS} submissions: {log[-600:]!r}")
    finally:
        _restore(nodes)
        nodes.run("scancel", "--user=root", check=False)


def _submit(nodes: SlurmNodes, trial: Trial) -> str:
    """Submit the job, and return its number in Slurm. Raises Wrong if it cannot be submitted."""
    python, _, _, _, *arguments = trial.job.command
    options = ["--nodes", str(trial.workers + 1), "--protocol", "tcp", "--site", "site.yaml", "-o", str(trial.out)]
    submitted = subprocess.run(
        [python, "-m", "broadsheet", "submit", *arguments, *options],
        cwd=trial.folder,
        env=environment(**nodes.environment, **_SETTINGS, **trial.environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if submitted.returncode:
        raise Wrong(f"it cannot be submitted: {submitted.stderr[-400:]!r}")
    return re.findall(r"job (\d+) is submitted", submitted.stdout)[0]


def _wait(nodes: SlurmNodes, trial: Trial, number: str, true: Callable[[], bool]) -> bool:
    """Wait until `true` returns True. Returns False if the job ends first. Raises Hung after 300 s."""
    deadline = time.monotonic() + _SECONDS
    while not true():
        job = nodes.job(number)
        if job["JobState"] in _ENDED:
            return False
        if job["JobState"] == "PENDING" and job.get("Restarts", "0") != "0":  # by itself, Slurm waits two minutes
            nodes.run("scontrol", "update", f"JobId={number}", "StartTime=now", check=False)
        if time.monotonic() > deadline:
            raise Hung(f"in state {job['JobState']} {_SECONDS} s after it was disturbed")
        time.sleep(0.2)
    return True
