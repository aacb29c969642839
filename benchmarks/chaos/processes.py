"""Disturbances of a job's processes: they are killed, stopped or interrupted, or other jobs use the same folder."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.chaos.trial import Run, Trial, Verdict, Wrong
from benchmarks.processes import environment
from broadsheet.pipeline import verify

KILL_PRELOAD = str(Path(__file__).with_name("kill_preload.py"))
_STEPS = ("in-infer", "before-write", "after-temporary", "after-rename", "before-entry")

_KILL_IN_A_BLOCK = """
import os, signal
import psutil
from broadsheet.pipeline.ingest.record_blocks import RecordBlocks
kept = vars(RecordBlocks).get("kept_chunk") or RecordBlocks._chunk  # Dask runs a preload more than once
RecordBlocks.kept_chunk = kept
def chunk(self, *arguments):
    found = kept(self, *arguments)
    try:
        open({flag!r}, "x").close()
    except FileExistsError:
        return found
    victims = [os.getpid()]
    if {whom!r} == "readers":
        children = psutil.Process().children(recursive=True)
        victims = [child.pid for child in children if "reader_process" in " ".join(child.cmdline())]
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    return found
RecordBlocks._chunk = chunk
"""

_POISON = """
import os, signal
from broadsheet.pipeline.job.worker import STATE
kept = vars(STATE).setdefault("kept_read", STATE.read_range)  # Dask runs a preload more than once
def read_range(*arguments):
    for found in kept(*arguments):
        if getattr(found, "name", "").endswith({chunk!r}):
            os.kill(os.getpid(), signal.SIGKILL)
        yield found
STATE.read_range = read_range
"""


def kill_workers(trial: Trial) -> Verdict:
    """workers killed (SIGKILL), one to three times"""
    run = trial.start()
    if trial.wait_for_a_moment(run):
        for _ in range(trial.random.randint(1, 3)):
            _signal_a_worker(trial, run, signal.SIGKILL)
            trial.pause(0.1, 3)
    return trial.settle(run)


def kill_all(trial: Trial) -> Verdict:
    """everything killed (SIGKILL), one to three times"""
    for _ in range(trial.random.randint(1, 3)):
        run = trial.start("--resume")
        if not trial.wait_for_a_moment(run):
            break
        run.signal(signal.SIGKILL)
    return trial.settle(run)


def kill_client(trial: Trial) -> Verdict:
    """the command alone killed (SIGKILL)"""
    run = trial.start()
    if trial.wait_for_a_moment(run):
        run.process.kill()
    return trial.settle(run)


def kill_at_a_step(trial: Trial) -> Verdict:
    """killed between two steps of a commit"""
    step, whom = trial.random.choice(_STEPS), trial.random.choice(["worker", "all"])
    trial.note(f"{step}, {whom}")
    what = f"{step} {whom} {trial.folder / 'killed'}"
    return trial.settle(trial.start(BROADSHEET_KILL=what, DASK_DISTRIBUTED__WORKER__PRELOAD=KILL_PRELOAD))


def interrupt(trial: Trial) -> Verdict:
    """interrupted by SIGINT or SIGTERM, to all or to the command"""
    run = trial.start()
    if trial.wait_for_a_moment(run):
        number = trial.random.choice([signal.SIGINT, signal.SIGTERM])
        trial.note(number.name)
        send = trial.random.choice([run.signal, run.process.send_signal])
        send(number)
    return trial.settle(run)


def stop_and_continue(trial: Trial) -> Verdict:
    """a worker, the command or all stopped for seconds (SIGSTOP), then continued"""
    run = trial.start()
    if not trial.wait_for_a_moment(run):
        return trial.settle(run)
    whom = trial.random.choice(["a worker", "the command", "all"])
    trial.note(whom)
    if whom == "a worker":
        worker = _signal_a_worker(trial, run, signal.SIGSTOP)
        trial.pause(0.5, 8)
        if worker is not None:
            _send(worker, signal.SIGCONT)
        return trial.settle(run)
    send = run.signal if whom == "all" else run.process.send_signal
    send(signal.SIGSTOP)
    trial.pause(0.5, 8)
    send(signal.SIGCONT)
    return trial.settle(run)


def kill_a_stopped_worker(trial: Trial) -> Verdict:
    """a worker stopped (SIGSTOP), and later killed"""
    run = trial.start()
    if trial.wait_for_a_moment(run):
        worker = _signal_a_worker(trial, run, signal.SIGSTOP)
        trial.pause(0.5, 8)
        if worker is not None:
            _send(worker, signal.SIGKILL)
    return trial.settle(run)


def poison_a_chunk(trial: Trial) -> Verdict:
    """a chunk that kills every worker that reads it"""
    preload = trial.folder / "poison.py"
    preload.write_text(_POISON.format(chunk=f"-{trial.random.randrange(3):07d}"))
    run = trial.start(DASK_DISTRIBUTED__WORKER__PRELOAD=str(preload))
    if trial.code(run) == 3 and "set aside" not in run.text:
        raise Wrong(f"the chunk is not named: {run.text[-400:]!r}")
    return trial.settle(run)


def kill_in_a_block(trial: Trial) -> Verdict:
    """a worker, or the processes that read for it, killed while a GPU finds the records of a block"""
    whom, flag = trial.random.choice(["worker", "readers"]), trial.folder / "killed"
    trial.note(whom)
    preload = trial.folder / "kill.py"
    preload.write_text(_KILL_IN_A_BLOCK.format(flag=str(flag), whom=whom))
    verdict = trial.settle(trial.start(DASK_DISTRIBUTED__WORKER__PRELOAD=str(preload)))
    if not flag.exists():
        raise Wrong("no block was read on a GPU")
    return verdict


def lose_the_scheduler(trial: Trial) -> Verdict:
    """a scheduler of its own killed, or stopped for seconds"""
    with _own_cluster(trial) as (scheduler, _, file):
        run = trial.start("--scheduler-file", file)
        if trial.wait_for_a_moment(run):
            if trial.random.random() < 0.5:
                trial.note("killed")
                scheduler.kill()
            else:
                trial.note("stopped")
                scheduler.send_signal(signal.SIGSTOP)
                trial.pause(0.5, 8)
                scheduler.send_signal(signal.SIGCONT)
        trial.code(run)
    return trial.settle(run)


def lose_a_node(trial: Trial) -> Verdict:
    """a worker of a cluster of its own killed for good, with its nanny"""
    with _own_cluster(trial) as (_, nodes, file):
        run = trial.start("--scheduler-file", file)
        if trial.wait_for_a_moment(run):
            _kill_tree(trial.random.choice(nodes))
        trial.code(run)
    return trial.settle(run)


def kill_shares_and_their_merge(trial: Trial) -> Verdict:
    """each of two shares killed and resumed, and then their merge"""
    merged, shares = trial.out, [trial.folder / f"share-{number}" for number in (1, 2)]
    for number, share in enumerate(shares, 1):
        trial.out, share_of = share, ("--shard", f"{number}/2")
        run = trial.start(*share_of)
        if trial.wait_for_a_moment(run):
            run.signal(signal.SIGKILL)
        trial.finish(run, lambda share_of=share_of: trial.start(*share_of, "--resume"))
    trial.out = merged
    command = [sys.executable, "-m", "broadsheet", "merge", *map(str, shares), "-o"]
    trial.code(trial.launch([*command, str(trial.folder / "undisturbed")]))
    trial.finish_killed([*command, str(merged)], "--resume")
    trial.check_identical(trial.folder / "undisturbed", merged)
    rows, expected = (verify(out).rows_read for out in (merged, trial.job.folder / "out"))
    if rows != expected:
        raise Wrong(f"{rows} rows in the shares, {expected} in the job")
    return Verdict.IDENTICAL


def kill_a_choice(trial: Trial) -> Verdict:
    """the best rows chosen by `select`, which is killed and run again"""
    command = [sys.executable, "-m", "broadsheet", "select", str(trial.job.folder / "out"), "--top", "30%", "-o"]
    trial.code(trial.launch([*command, str(trial.folder / "undisturbed")]))
    trial.finish_killed([*command, str(trial.out)], "--overwrite")
    trial.check_identical(trial.folder / "undisturbed", trial.out)
    return Verdict.IDENTICAL


def resume_twice_at_once(trial: Trial) -> Verdict:
    """killed, then resumed by two commands at once"""
    run = trial.start()
    if trial.wait_for_a_moment(run):
        run.signal(signal.SIGKILL)
    trial.code(run)
    one = trial.start("--resume")
    trial.pause(0, 2)
    other = trial.start("--resume")
    codes = trial.code(one), trial.code(other)
    if any(codes):
        raise Wrong(f"exit codes {codes} of two that resume: {one.text[-400:]!r} {other.text[-400:]!r}")
    return trial.settle(one)


def start_twice_at_once(trial: Trial) -> Verdict:
    """the same job started twice at once in one folder"""
    one = trial.start()
    trial.pause(0, 0.5)
    other = trial.start()
    codes = sorted([trial.code(one), trial.code(other)])
    if codes not in ([0, 1], [0, 2], [0, 0]):
        raise Wrong(f"exit codes {codes} of two that start: {one.text[-400:]!r} {other.text[-400:]!r}")
    trial.check_identical(trial.job.folder / "out", trial.out)
    return Verdict.IDENTICAL


def overwrite_while_it_runs(trial: Trial) -> Verdict:
    """overwritten by another job while it runs"""
    first = trial.start("--hash", "full")
    trial.wait_for_a_moment(first)
    second = trial.start("--overwrite")
    if trial.code(second):
        raise Wrong(f"the job that overwrites: {second.text[-600:]!r}")
    trial.note(f"the first ended with exit code {trial.code(first)}")
    return trial.settle(second)


def _signal_a_worker(trial: Trial, run: Run, number: int) -> psutil.Process | None:
    """Send a signal to a random worker, and return the worker, or None if there is none."""
    workers = run.workers()
    if not workers:
        trial.note("no worker then")
        return None
    worker = trial.random.choice(workers)
    _send(worker, number)
    return worker


def _send(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all of its children."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in children:
        _send(child, signal.SIGKILL)
    process.wait()


@contextmanager
def _own_cluster(trial: Trial) -> Iterator[tuple[subprocess.Popen[bytes], list[subprocess.Popen[bytes]], str]]:
    """Start a scheduler and two workers as a user does. Yields the scheduler, the workers and the scheduler file."""
    file = trial.folder / "scheduler.json"
    env = environment(**trial.environment)
    log = (trial.folder / "cluster.log").open("wb")

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        options = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
        command = [sys.executable, "-m", "dask", *map(str, arguments), *options]
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)

    # Start the processes.
    scheduler = start("scheduler", "--port", 0)
    while not file.exists():
        time.sleep(0.05)
    nodes = [start("worker", "--nthreads", 4) for _ in range(2)]
    try:
        yield scheduler, nodes, str(file)
    finally:
        # End them, also those that the trial has stopped.
        for process in [*nodes, scheduler]:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                _kill_tree(process)
        log.close()
