"""Disturbances of the files of a job: of the disk and its limits, of the input, and of the output."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.chaos.jobs import contents
from benchmarks.chaos.trial import Run, Trial, Verdict, Wrong
from broadsheet.pipeline.output.layout import SUCCESS

_DISK_BYTES = 40 << 10
_END_SECONDS = 0.5
"""The longest time between a job's check of its files and its `_SUCCESS`. Only `verify` finds a later deletion."""


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
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    run = trial.start(limit=limit, PYTHONDONTWRITEBYTECODE="1")  # Python ignores a partial write of a .pyc
    return trial.settle(run)


def limit_descriptors(trial: Trial) -> Verdict:
    """open files limited (RLIMIT_NOFILE)"""
    count = trial.random.choice([16, 24, 32, 48, 64, 96, 128, 256])
    trial.note(f"{count} descriptors")
    return trial.settle(trial.start(limit=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))))


def change_the_input(trial: Trial) -> Verdict:
    """an input file replaced, extended, cut, touched or deleted in the middle"""
    run = trial.start()
    if not trial.wait_for_a_moment(run):
        return trial.settle(run)
    file = trial.random.choice(sorted((trial.folder / "in").iterdir()))
    change = trial.random.choice([_replace, _extend, _cut, os.utime, os.unlink])
    trial.note(f"{file.name}: {change.__name__.strip('_')}")
    change(file)
    if trial.code(run) == 0:
        return _settle_before_or_after(trial, run)
    if trial.random.random() < 0.5:
        return trial.told(run)
    shutil.rmtree(trial.folder / "in")
    trial.job.copy_input(trial.folder)
    trial.note("restored")
    return _settle_or_start_again(trial, trial.start("--resume"))


def _settle_before_or_after(trial: Trial, run: Run) -> Verdict:
    """Compare the output with that of the old input or of the new one.

    A job that finishes has read the old input if it checked its input for the last time before the change, or the new
    input if it checked for the first time after the change. In the second case, the expected output is that of another
    job, which is run here.
    """
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
    """Replace a file by one with other letters and the same size."""
    other = file.with_name(".other")
    other.write_bytes(file.read_bytes().replace(b"the", b"THE"))
    os.replace(other, file)


def _extend(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b'9999,"one more row"\n')


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size * 2 // 3)


def lose_output(trial: Trial) -> Verdict:
    """parts or entries deleted in the middle"""
    run = trial.start()
    if trial.wait_for_a_moment(run):
        folder = trial.random.choice(["parts", "_entries", "_quarantine"])
        files = sorted((trial.out / folder).glob("part-*"))
        files = trial.random.sample(files, min(len(files), trial.random.randint(1, 3)))
        trial.note(f"deleted of {folder}: {', '.join(file.name for file in files)}")
        for file in files:
            file.unlink(missing_ok=True)
        deleted = time.time()
        if files and trial.code(run) == 0 and (trial.out / SUCCESS).stat().st_mtime < deleted + _END_SECONDS:
            return trial.told(trial.launch([sys.executable, "-m", "broadsheet", "verify", str(trial.out)]))
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
        damage = trial.random.choice([_empty, _halve, _flip, os.unlink])
        trial.note(f"{name}: {damage.__name__.strip('_')}")
        damage(trial.out / name)
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
    """Resume a job until it finishes, or start it again with `--overwrite` if it cannot be resumed.

    `trial.code` checks that a message says why it cannot. The output must be whole in both cases.
    """
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


@contextmanager
def _small_disk(trial: Trial) -> Iterator[Callable[[], None]]:
    """Put the output folder on a disk that is too small for the output. Yields the function that enlarges the disk."""
    disk = trial.folder / "disk"
    disk.mkdir()
    size = trial.random.randint(_DISK_BYTES // 4, _DISK_BYTES * 2) // 4096 * 4096
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    trial.out = disk / "out"
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
