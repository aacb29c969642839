"""Runs a trial in one process: writes its files, reads them in all ways, and describes the outcome."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.fuzz_records.comparing import Difference
from benchmarks.fuzz_records.reading import BothWays, Counts
from benchmarks.fuzz_records.trials import Look, Trial, files_of
from broadsheet.pipeline.errors import SourceError, UsageError
from broadsheet.pipeline.source.plan.plan import Range


class Outcome(NamedTuple):
    """The outcome of a trial.

    Attributes
    ----------
    trial : Trial
        The trial.
    counts : Counts or None
        What was read; None if the time of the run was over before the trial began.
    lines : int
        The number of line ends in its files.
    differences : list of dict
        The differences, with their places.
    unread : list of str
        The messages of readings that could not begin.
    seconds : float
        How long the trial took.

    """

    trial: Trial
    counts: Counts | None
    lines: int
    differences: list[dict[str, Any]]
    unread: list[str]
    seconds: float


@cache
def _both_ways(device: str) -> BothWays:
    """Return the readers of this process."""
    return BothWays(device)


def tried(trial: Trial, seed: int, device: str, folder: Path, until: float) -> Outcome:
    """Write the files of a trial, and read them in all ways.

    Parameters
    ----------
    trial : Trial
        The trial.
    seed : int
        The seed of the run.
    device : str
        As in `BothWays`.
    folder : Path
        The folder for the files of trials with differences.
    until : float
        The time, in seconds since 1970, after which no trial begins.

    """
    began = time.time()
    if began >= until:
        return Outcome(trial, None, 0, [], [], 0.0)
    counts, differences, unread = Counts(), list[dict[str, Any]](), list[str]()
    with tempfile.TemporaryDirectory(prefix="fuzz-records-") as scratch:
        # Write the files, and read them.
        paths, looks = files_of(trial, random.Random(f"{seed} {trial.number}"), Path(scratch))
        lines = sum(path.read_bytes().count(b"\n") for path in paths)
        for look in looks:
            try:
                for range_, found in _both_ways(device).read(paths, look, counts):
                    differences.append(_placed(trial, look, range_, found))
            except (SourceError, UsageError) as error:
                unread.append(error.message)
        # Keep the files if anything differs.
        if differences:
            copy = folder / f"seed-{seed}-trial-{trial.number}"
            shutil.copytree(scratch, copy, dirs_exist_ok=True)
            (copy / "differences.txt").write_text("\n".join(map(str, differences)) + "\n")
    return Outcome(trial, counts, lines, differences, unread, time.time() - began)


def _placed(trial: Trial, look: Look, range_: Range, found: Difference) -> dict[str, Any]:
    """Return a difference as values for the record, with its place."""
    return {
        "trial": trial.number,
        "file": trial.suffix,
        "range": f"{range_.part_number} of {range_.parts}",
        "look": str(look),
        **found._asdict(),
    }
