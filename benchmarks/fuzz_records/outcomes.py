"""What comes of a trial: its files are written, and read in every way by one process."""

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
    """What came of a trial.

    Attributes
    ----------
    trial : Trial
        The trial.
    counts : Counts or None
        What was read; None where time was up before it began.
    lines : int
        Line ends in its files.
    differences : list of dict
        What differs, and where.
    unread : list of str
        Why files could not be read at all in a way.
    seconds : float
        How long it took.

    """

    trial: Trial
    counts: Counts | None
    lines: int
    differences: list[dict[str, Any]]
    unread: list[str]
    seconds: float


@cache
def _both_ways(device: str) -> BothWays:
    """What reads, in this process."""
    return BothWays(device)


def tried(trial: Trial, seed: int, device: str, keep: Path, until: float) -> Outcome:
    """Read the files of a trial in every way.

    Parameters
    ----------
    trial : Trial
        The trial.
    seed : int
        Of the run.
    device : str
        As of `BothWays`.
    keep : Path
        The folder in which files are kept that are read differently.
    until : float
        The time, in seconds since 1970, from which on no trial begins.

    """
    began = time.time()
    if began >= until:
        return Outcome(trial, None, 0, [], [], 0.0)
    counts, differences, unread = Counts(), list[dict[str, Any]](), list[str]()
    with tempfile.TemporaryDirectory(prefix="fuzz-records-") as scratch:
        paths, looks = files_of(trial, random.Random(f"{seed} {trial.number}"), Path(scratch))
        lines = sum(path.read_bytes().count(b"\n") for path in paths)
        for look in looks:
            try:
                for part, found in _both_ways(device).read(paths, look, counts):
                    differences.append(_placed(trial, look, part, found))
            except (SourceError, UsageError) as error:
                unread.append(error.message)
        if differences:
            kept = keep / f"seed-{seed}-trial-{trial.number}"
            shutil.copytree(scratch, kept, dirs_exist_ok=True)
            (kept / "differences.txt").write_text("\n".join(map(str, differences)) + "\n")
    return Outcome(trial, counts, lines, differences, unread, time.time() - began)


def _placed(trial: Trial, look: Look, part: Range, found: Difference) -> dict[str, Any]:
    """A difference, and where it is."""
    return {
        "trial": trial.number,
        "file": trial.suffix,
        "range": f"{part.part} of {part.parts}",
        "look": str(look),
        **found._asdict(),
    }
