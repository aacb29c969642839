"""What went wrong with the input of a job, by file and reason, for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from .summary import without_numbers

if TYPE_CHECKING:
    from .job import JobReport

MOST_ROWS = 1_000_000
"""Quarantined rows that are counted by file and reason; there may be very many."""

Kind = Literal["unread", "in part", "quarantined", "set aside", "note", "skipped"]
"""The kinds of problems, in the order in which they are listed."""


class Trouble(msgspec.Struct, frozen=True):
    """A file of the input that is not labelled wholly, and one reason for it.

    Attributes
    ----------
    kind : str
        "unread": nothing was read of it. "in part": not all was read, or its columns differ. "quarantined": rows of it
        were read and have no label. "set aside": a chunk is left to another run. "note": all of it was read, and may
        not be what it should be. "skipped": it is no input.
    path : str or None
        The file as the output names it, or the chunk that was set aside; None for quarantined rows that were not
        counted by file.
    reason : str
        Why; of quarantined rows that of the first one. Rows whose reasons differ in numbers alone are counted together.
    rows_read : int or None
        Rows that were read of the file; None where that is not known.
    rows_lost : int or None
        Rows without a label for this reason; None where that is not known.
    remedy : str or None
        The flags with which the same command labels them, once the cause is gone; None where none does.

    """

    kind: Kind
    path: str | None
    reason: str
    rows_read: int | None
    rows_lost: int | None
    remedy: str | None


def troubles(report: JobReport) -> list[Trouble]:
    """What went wrong with the input of a job: of each kind the files that lose most rows first."""
    found = [*_of_files(report), *_quarantined(report)]
    found += [Trouble("set aside", name, why, None, None, "--resume") for name, why in report.run.set_aside]
    found += [
        Trouble("note", path, note, report.run.rows_of.get(path), 0, None)
        for note, paths in report.run.notes.items()
        for path in paths
    ]
    found += [Trouble("skipped", path, why, 0, None, None) for path, why in report.tally.left_out]
    return sorted(found, key=lambda one: (get_args(Kind).index(one.kind), -(one.rows_lost or 0), one.path or ""))


def as_json_lines(found: list[Trouble]) -> bytes:
    """As `_runs/ID.problems.jsonl` has them."""
    return b"".join(msgspec.json.encode(one) + b"\n" for one in found)


def _of_files(report: JobReport) -> Iterator[Trouble]:
    """Files that could not be opened, or not read to their end."""
    unread, repair = dict(report.tally.unread), report.job.repair_flags
    for path, message in report.tally.problems:
        reason = message.removeprefix(f"{path}: ")
        if path in unread:
            yield Trouble("unread", path, reason, 0, unread[path], repair)
        else:
            yield Trouble("in part", path, reason, report.run.rows_of.get(path), None, repair)


def _quarantined(report: JobReport) -> Iterator[Trouble]:
    """Rows in quarantine by file and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for file, reason in report.results.each_quarantined(MOST_ROWS):
        cause = file, without_numbers(reason)
        counts[cause] += 1
        first.setdefault(cause, reason)
    for cause, rows in counts.items():
        yield Trouble("quarantined", cause[0], first[cause], report.run.rows_of.get(cause[0]), rows, None)
    if rest := report.rows_quarantined - counts.total():
        yield Trouble("quarantined", None, "not counted by file: _quarantine/ has all rows", None, rest, None)
