"""Lists the problems with the input of a job by file and reason, for programs to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from .summary import without_numbers

if TYPE_CHECKING:
    from .job import JobReport

MOST_ROWS = 1_000_000
"""The limit of quarantined rows that are counted by file and reason, as there may be very many."""

Kind = Literal["unread", "in part", "quarantined", "set aside", "note", "skipped"]
"""The kinds of problems, in the order in which they are listed."""


class Trouble(msgspec.Struct, frozen=True):
    """A problem with a file of the input, and one reason for it.

    Attributes
    ----------
    kind : str
        "unread": nothing of the file was read. "in part": only a part was read, or its columns differ. "quarantined":
        some rows were read but have no label. "set aside": a chunk is left to another run. "note": the whole file was
        read, but its content may be wrong. "skipped": the file is no input.
    path : str or None
        The file as the output names it, or the chunk that was set aside; None for quarantined rows that were not
        counted by file.
    reason : str
        The reason. For quarantined rows it is the reason of the first one; rows whose reasons differ only in numbers
        are counted together.
    rows_read : int or None
        The number of rows that were read from the file; None if it is unknown.
    rows_lost : int or None
        The number of rows without a label for this reason; None if it is unknown.
    remedy : str or None
        The flags with which the same command labels these rows after the cause is gone; None if no flags do.

    """

    kind: Kind
    path: str | None
    reason: str
    rows_read: int | None
    rows_lost: int | None
    remedy: str | None


def troubles(report: JobReport) -> list[Trouble]:
    """Return the problems with the input of a job, sorted by kind. Files that lose most rows come first."""
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
    """Return problems as JSON lines, for `_runs/ID.problems.jsonl`."""
    return b"".join(msgspec.json.encode(one) + b"\n" for one in found)


def _of_files(report: JobReport) -> Iterator[Trouble]:
    """Yield the files that could not be opened or read to their end."""
    unread, repair = dict(report.tally.unread), report.job.repair_flags
    for path, message in report.tally.problems:
        reason = message.removeprefix(f"{path}: ")
        if path in unread:
            yield Trouble("unread", path, reason, 0, unread[path], repair)
        else:
            yield Trouble("in part", path, reason, report.run.rows_of.get(path), None, repair)


def _quarantined(report: JobReport) -> Iterator[Trouble]:
    """Yield the rows in quarantine, counted by file and reason."""
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
