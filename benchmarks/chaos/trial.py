"""One trial: a job that is disturbed, and the verdict on its output.

A trial has these steps: `start` runs the job's command, `wait_for_a_moment` waits, the kind disturbs the job, `settle`
resumes it until it has finished and compares its output, and `clean` ends what is still running.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos.jobs import CHUNKS, Job, contents
from benchmarks.chaos.slow import slowed
from benchmarks.processes import environment
from broadsheet.pipeline import BroadsheetError, verify

SECONDS = 150
"""A command that has not ended within these seconds after the last disturbance counts as hung."""

_SECONDS_TO_LEAVE = 60
_COMMANDS = 4
_EXIT_CODES = (1, 2, 3)
_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
"""The signals that trials send."""


class Verdict(StrEnum):
    """The verdict on a trial.

    Attributes
    ----------
    IDENTICAL
        The job has finished, if need be with `--resume`, and every byte of its output is as without a disturbance.
    TOLD
        The job has not finished, and a message says why.
    WRONG
        Anything else.
    HUNG
        A command or one of its processes did not end.

    """

    IDENTICAL = "identical"
    TOLD = "told"
    WRONG = "wrong"
    HUNG = "hung"


BAD = (Verdict.WRONG, Verdict.HUNG)


class Wrong(Exception):
    """Raised for the verdict `WRONG`; the message says why."""

    verdict = Verdict.WRONG


class Hung(Exception):
    """Raised for the verdict `HUNG`; the message says what did not end."""

    verdict = Verdict.HUNG


@dataclass
class Run:
    """A command that was started as the leader of its own process group, and the file of its output."""

    process: subprocess.Popen[str]
    output: Path

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes of the command, including those that Dask has started again."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [child for child in children if _is_worker(child)]

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the command, as a terminal does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    @property
    def text(self) -> str:
        """What the command has printed so far."""
        return self.output.read_text(errors="replace")


@dataclass
class Trial:
    """A folder with a job's input, and the choices of this trial.

    Attributes
    ----------
    job : Job
        The job.
    folder : Path
        The trial's folder.
    out : Path
        The output folder.
    random : random.Random
        The source of every random choice.
    workers : int
        The number of workers of a job on this machine.
    environment : dict of str to str
        Environment variables of the commands.
    notes : list of str
        What happened so far, for the record.
    commands : list of Run
        The commands that were started so far.

    """

    job: Job
    folder: Path
    out: Path
    random: random.Random
    workers: int
    environment: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    commands: list[Run] = field(default_factory=list)

    def slow(self, seconds: float) -> None:
        """Delay every chunk of the following runs, so that the trial can disturb a job in the middle."""
        file = self.folder / "slow.py"
        file.write_text(slowed("read", seconds))
        self.environment["DASK_DISTRIBUTED__WORKER__PRELOAD"] = str(file)

    def start(self, *options: str, limit: Callable[[], None] | None = None, **env: str) -> Run:
        """Start the job on this machine. The new process calls `limit`, to limit its resources."""
        workers = () if "--scheduler-file" in options else ("--workers", str(self.workers))
        return self.launch([*self.job.command, "-o", str(self.out), *workers, *options], limit, **env)

    def launch(self, command: list[str], limit: Callable[[], None] | None = None, **env: str) -> Run:
        """Start any command, in the trial's folder and environment."""
        path = self.folder / f"command-{len(self.commands)}.log"
        with path.open("w") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment(**self.environment | env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                preexec_fn=limit,
            )
        run = Run(process, path)
        self.commands.append(run)
        return run

    def note(self, text: str) -> None:
        self.notes.append(text)

    def committed(self) -> int:
        """Return how many chunks are committed."""
        return len(list((self.out / "_entries").glob("[!.]*.json")))

    def wait_for_a_moment(self, run: Run) -> bool:
        """Wait for a random moment. Returns False if the run ends first.

        For 60 % of the moments it waits until a random number of chunks is committed, and for the others until a random
        time has passed. With times, the moments also fall into the start, the planning and the end of a run.
        """
        if self.random.random() < 0.6:
            commits = self.random.randrange(CHUNKS)
            self.note(f"after {commits} commits")
            return self.wait_until(run, lambda: self.committed() >= commits and self.out.exists())
        end = time.monotonic() + self.random.uniform(0, 1.2) * self.job.seconds
        self.note(f"{end - time.monotonic():.1f} s after its start")
        return self.wait_until(run, lambda: time.monotonic() >= end)

    def wait_until(self, run: Run, true: Callable[[], bool]) -> bool:
        """Wait until `true` returns True. Returns False if the run ends first. Raises Hung."""
        deadline = time.monotonic() + SECONDS
        while not true():
            if run.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise Hung(f"the moment of the disturbance did not come within {SECONDS} s")
            time.sleep(0.01)
        return True

    def pause(self, low: float, high: float) -> None:
        time.sleep(self.random.uniform(low, high))

    def code(self, run: Run) -> int:
        """Wait until a run and all its processes have ended, and return the exit code.

        Raises Hung if they do not end, and Wrong for a traceback, an unknown exit code, or one without a message.
        """
        try:
            code = run.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise Hung(f"running {SECONDS} s after it was disturbed: {run.text[-400:]!r}") from None
        if code >= 0:  # workers of a killed client may live, and write, a moment longer
            self.wait_for_its_processes(run)
        if "Traceback" in run.text:
            raise Wrong(f"a traceback: {run.text[-1500:]!r}")
        if code < 0 and -code not in _SIGNALS:
            raise Wrong(f"it died of {signal.Signals(-code).name}")
        if code > 0 and (code not in _EXIT_CODES or not _says_why(run.text)):
            raise Wrong(f"exit code {code} without a message: {run.text[-400:]!r}")
        return code

    def wait_for_its_processes(self, run: Run) -> None:
        """Wait until all processes of a command that has ended are gone. Raises Hung."""
        deadline = time.monotonic() + _SECONDS_TO_LEAVE
        while left := _group(run.process.pid):
            if time.monotonic() > deadline:
                raise Hung(f"it has ended, and left processes: {left}")
            time.sleep(0.02)

    def settle(self, run: Run) -> Verdict:
        """Resume the job until it has finished, and compare its output with the undisturbed one. Raises Hung, Wrong."""
        self.finish(run, lambda: self.start("--resume"))
        self.check_identical(self.job.folder / "out", self.out)
        return Verdict.IDENTICAL

    def finish(self, run: Run, again: Callable[[], Run]) -> None:
        """Start a command again until it ends with exit code 0. Raises Hung, Wrong."""
        code = self.code(run)
        resumed = 0
        while code != 0:
            if resumed == _COMMANDS:
                raise Wrong(f"not finished after {resumed} more commands: {run.text[-600:]!r}")
            self.note(f"exit code {code}, started again")
            run = again()
            code = self.code(run)
            resumed += 1

    def finish_killed(self, command: list[str], again: str) -> None:
        """Run a command, kill it within two seconds, and run it with an option until it finishes. Raises Hung, Wrong.

        again: the option of the runs after the first.
        """
        run = self.launch(command)
        end = time.monotonic() + self.random.uniform(0, 2)
        if self.wait_until(run, lambda: time.monotonic() >= end):
            run.signal(signal.SIGKILL)
        self.finish(run, lambda: self.launch([*command, again]))

    def check_identical(self, expected: Path, out: Path) -> None:
        """Compare two outputs, and verify the second. Raises Wrong if they differ or `verify` fails."""
        here, there = contents(out), contents(expected)
        unlike = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        if unlike:
            raise Wrong(f"other files than undisturbed, or other bytes in them: {', '.join(unlike[:5])}")
        try:
            verify(out)
        except BroadsheetError as error:
            raise Wrong(f"verify: {error}") from error

    def told(self, run: Run) -> Verdict:
        """Return the verdict on a run that must end with a message instead of finishing. Raises Hung, Wrong."""
        code = self.code(run)
        if code <= 0:
            raise Wrong(f"exit code {code}, although it could not be finished: {run.text[-400:]!r}")
        self.note(run.text.strip().splitlines()[-1][:200])
        return Verdict.TOLD

    def clean(self, remove: bool) -> None:
        """Kill all processes that still run, and remove the folder if `remove` is true."""
        for run in self.commands:
            run.signal(signal.SIGCONT)
            run.signal(signal.SIGKILL)
            run.process.wait()
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)


Kind = Callable[[Trial], Verdict]
"""A disturbance of a job. Its docstring, which is part of the results, says what happens."""


def run_trial(
    kind: Kind, number: int, seed: int, jobs: Sequence[Job], folder: Path, most_workers: int = 3
) -> dict[str, Any]:
    """Run a trial in a folder of its own. Returns its record: the verdict, what happened, and the seconds.

    `seed` and `number` determine all choices. The folder remains if the verdict is wrong or hung.

    Parameters
    ----------
    kind : callable
        The disturbance.
    number : int
        The number of the trial.
    seed : int
        The seed of all trials.
    jobs : sequence of Job
        The jobs of which the trial chooses one.
    folder : Path
        The folder in which the trial's folder is made.
    most_workers : int
        The largest number of workers.

    """
    # Choose the job, the number of workers and the delay of each chunk.
    draw = random.Random(f"{seed} {number}")
    place = folder / f"trial-{number}"
    place.mkdir()
    trial = Trial(draw.choice(jobs), place, place / "out", draw, workers=draw.randint(1, most_workers))
    trial.job.copy_input(place)
    trial.slow(draw.choice([0, 0.05, 0.3]))
    # Run the trial, and describe it.
    began, why = time.perf_counter(), ""
    try:
        verdict = kind(trial)
    except (Wrong, Hung) as error:
        verdict, why = error.verdict, str(error)
    seconds = round(time.perf_counter() - began, 2)
    trial.clean(remove=verdict not in BAD)
    return {
        "number": number,
        "kind": kind.__name__,
        "what": kind.__doc__,
        "job": trial.job.name,
        "workers": trial.workers,
        "verdict": verdict,
        "seconds": seconds,
        "notes": trial.notes,
        **({"why": why} if why else {}),
    }


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any("spawn_main" in word for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _group(number: int) -> list[str]:
    """Return the names of the processes of a process group that are still alive."""
    names = []
    for process in psutil.process_iter(["name", "status"]):
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == number and process.info["status"] != psutil.STATUS_ZOMBIE:
                names.append(process.info["name"])
    return names


def _says_why(text: str) -> bool:
    """Whether the output of a command says why it has not finished."""
    return re.search(r"^(broadsheet: |chunks set aside |files  )", text, re.MULTILINE) is not None
