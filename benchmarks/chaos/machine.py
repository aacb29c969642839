"""What can happen to a job on one machine: to its processes, its disk, its input, its output and its clock.

Each kind is a function that runs a `Trial` and returns a `Verdict`; its docstring is its name in the table.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.chaos.jobs import contents
from benchmarks.chaos.trial import Kind, Run, Trial, Verdict, Wrong
from benchmarks.processes import environment

KILL_PRELOAD = str(Path(__file__).with_name("kill_preload.py"))
_STEPS = ("in-infer", "before-write", "after-temporary", "after-rename", "before-entry")
_CLOCK = Path(__file__).with_name("shifted_clock.c")
_DISK_BYTES = 40 << 10

_POISON = """
import os, signal
from pipeline.worker import STATE
kept = vars(STATE).setdefault("kept_read", STATE.read)  # Dask runs a preload more than once
def read(unit, *more):
    if unit.name.endswith({chunk!r}):
        os.kill(os.getpid(), signal.SIGKILL)
    return kept(unit, *more)
STATE.read = read
"""


# Its processes


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
    elif whom == "the command":
        run.process.send_signal(signal.SIGSTOP)
        trial.pause(0.5, 8)
        run.process.send_signal(signal.SIGCONT)
    else:
        run.signal(signal.SIGSTOP)
        trial.pause(0.5, 8)
        run.signal(signal.SIGCONT)
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


# Limits and the disk


def fill_the_disk(trial: Trial) -> Verdict:
    """the disk full, and enlarged later"""
    with _small_disk(trial) as resize:
        run = trial.start()
        trial.code(run)
        resize()
        return trial.settle(run)


def make_the_disk_read_only(trial: Trial) -> Verdict:
    """the disk read-only in the middle, and writable later"""
    with _small_disk(trial) as resize:
        resize()
        run = trial.start()
        if trial.wait_for_a_moment(run):
            subprocess.run(["mount", "-o", "remount,ro", trial.out.parent], check=False, capture_output=True)
        trial.code(run)
        subprocess.run(["mount", "-o", "remount,rw", trial.out.parent], check=True)
        return trial.settle(run)


def limit_file_size(trial: Trial) -> Verdict:
    """files limited in size (RLIMIT_FSIZE)"""
    size = trial.random.choice([200, 1_000, 3_000, 6_000])
    trial.note(f"{size} bytes")
    return trial.settle(trial.start(limit=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))))


def limit_descriptors(trial: Trial) -> Verdict:
    """open files limited (RLIMIT_NOFILE)"""
    count = trial.random.choice([16, 24, 32, 48, 64, 96, 128, 256])
    trial.note(f"{count} descriptors")
    return trial.settle(trial.start(limit=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))))


# Its input


def change_the_input(trial: Trial) -> Verdict:
    """an input file replaced, extended, cut, touched or deleted in the middle"""
    run = trial.start()
    if not trial.wait_for_a_moment(run):
        return trial.settle(run)
    file = trial.random.choice(sorted((trial.folder / "in").iterdir()))
    how = trial.random.choice([_replace, _extend, _cut, os.utime, os.unlink])
    trial.note(f"{file.name}: {how.__name__.strip('_')}")
    how(file)
    if trial.code(run) == 0:
        return _settle_before_or_after(trial, run)
    if trial.random.random() < 0.5:
        return trial.told(run)
    shutil.rmtree(trial.folder / "in")
    trial.job.copy_input(trial.folder)
    trial.note("restored")
    return _settle_or_start_again(trial, trial.start("--resume"))


def _settle_before_or_after(trial: Trial, run: Run) -> Verdict:
    """The job's last look at its input was before the change, or its first one after it: then it is another job."""
    try:
        return trial.settle(run)
    except Wrong:
        first, trial.out = trial.out, trial.folder / "again"
        if trial.code(trial.start()):
            raise
        trial.check_identical(trial.out, first)
        trial.note("changed before the job looked at it")
        return Verdict.IDENTICAL


def _replace(file: Path) -> None:
    """By as many bytes, other letters."""
    other = file.with_name(".other")
    other.write_bytes(file.read_bytes().replace(b"the", b"THE"))
    os.replace(other, file)


def _extend(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b'9999,"one more row"\n')


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size * 2 // 3)


# Its output


def lose_output(trial: Trial) -> Verdict:
    """parts or entries deleted in the middle"""
    run = trial.start()
    if trial.wait_for_a_moment(run):
        folder = trial.random.choice(["parts", "_entries", "_quarantine"])
        found = sorted((trial.out / folder).glob("part-*"))
        for file in trial.random.sample(found, min(len(found), trial.random.randint(1, 3))):
            trial.note(f"deleted {folder}/{file.name}")
            file.unlink(missing_ok=True)
    return _settle_or_start_again(trial, run)


def damage_output(trial: Trial) -> Verdict:
    """killed, then a file of the output emptied, cut, changed or deleted, then resumed"""
    run = trial.start()
    if trial.wait_for_a_moment(run):
        run.signal(signal.SIGKILL)
    trial.code(run)
    files = sorted(contents(trial.out)) if trial.out.exists() else []
    if files:
        name = trial.random.choice(files)
        how = trial.random.choice([_empty, _halve, _flip, os.unlink])
        trial.note(f"{name}: {how.__name__.strip('_')}")
        how(trial.out / name)
    return _settle_or_start_again(trial, trial.start("--resume"))


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[len(data) // 2] ^= 4
    file.write_bytes(data)


def _settle_or_start_again(trial: Trial, run: Run) -> Verdict:
    """Where it cannot be resumed, a message must say so; `--overwrite` then gives the whole output."""
    for _ in range(3):
        code = trial.code(run)
        if code == 0:
            return trial.settle(run)
        trial.note(f"exit code {code}: {run.text.strip().splitlines()[-1][:160]}")
        run = trial.start("--resume")
    if trial.code(run) == 0:
        return trial.settle(run)
    trial.note("started again")
    trial.settle(trial.start("--overwrite"))
    return Verdict.TOLD


# Other jobs


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


# Its clock


def set_the_clock(trial: Trial) -> Verdict:
    """the clock set back or forth by minutes to a day (not the monotonic one)"""
    library, clock = _build_clock(trial.folder), trial.folder / "clock"
    run = trial.start(LD_PRELOAD=str(library), CLOCK_SHIFT=str(clock))
    if trial.wait_for_a_moment(run):
        seconds = trial.random.choice([-86_400, -3_600, -600, 600, 86_400])
        trial.note(f"by {seconds} s")
        clock.write_text(str(seconds))
    return trial.settle(run)


def _build_clock(folder: Path) -> Path:
    """A library that shifts the time of day of the processes that load it."""
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, _CLOCK], check=True)
    return library


KINDS: tuple[Kind, ...] = (
    kill_workers, kill_all, kill_client, kill_at_a_step, interrupt, stop_and_continue, kill_a_stopped_worker,
    poison_a_chunk, lose_the_scheduler, lose_a_node, fill_the_disk, make_the_disk_read_only, limit_file_size,
    limit_descriptors, change_the_input, lose_output, damage_output, resume_twice_at_once, start_twice_at_once,
    overwrite_while_it_runs, set_the_clock,
)  # fmt: skip


def missing(kind: Kind, cluster: str = "local") -> str | None:
    """The reason why a kind cannot be tried here, or None. cluster: that the job starts, "local" or "cuda"."""
    if cluster == "cuda" and kind in (lose_the_scheduler, lose_a_node):
        return "its cluster is of CPU workers"
    if kind in (fill_the_disk, make_the_disk_read_only) and not _can_mount():
        return "mounting a small disk needs root"
    if kind is set_the_clock and shutil.which("cc") is None:
        return "no C compiler to build the clock with"
    return None


def _can_mount() -> bool:
    return (
        os.geteuid() == 0
        and not subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False, capture_output=True
        ).returncode
    )


def _signal_a_worker(trial: Trial, run: Run, number: int) -> psutil.Process | None:
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
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in children:
        _send(child, signal.SIGKILL)
    process.wait()


@contextmanager
def _small_disk(trial: Trial) -> Iterator[Callable[[], None]]:
    """The output folder on a disk that is too small for the output; the function that it yields enlarges it."""
    disk = trial.folder / "disk"
    disk.mkdir()
    size = trial.random.randint(_DISK_BYTES // 4, _DISK_BYTES * 2) // 4096 * 4096
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    trial.out = disk / "out"
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@contextmanager
def _own_cluster(trial: Trial) -> Iterator[tuple[subprocess.Popen[bytes], list[subprocess.Popen[bytes]], str]]:
    """A scheduler and two workers as a user starts them; and the scheduler's file."""
    file = trial.folder / "scheduler.json"
    env = environment(**trial.environment)
    log = (trial.folder / "cluster.log").open("wb")

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        options = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
        command = [sys.executable, "-m", "dask", *map(str, arguments), *options]
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)

    scheduler = start("scheduler", "--port", 0)
    while not file.exists():
        time.sleep(0.05)
    nodes = [start("worker", "--nthreads", 4) for _ in range(2)]
    try:
        yield scheduler, nodes, str(file)
    finally:
        for process in [*nodes, scheduler]:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                _kill_tree(process)
        log.close()
