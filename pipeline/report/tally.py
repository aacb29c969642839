"""What a job's rows came to: the sums over the entries of its chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.accuracy import LENGTHS, Confusion, confusion_of
from pipeline.errors import BroadsheetError
from pipeline.output.record import Entry, Totals

_SUMS = ("rows_read", "rows_written", "rows_filtered", "rows_quarantined", "chars", "truncated", "unknown_chars")


@dataclass
class Tally:
    """Over all chunks, those committed before too; the same however often the job was interrupted.

    rows_read = rows_written + rows_filtered + rows_quarantined. chars, truncated, unknown_chars: sums of the output's
    columns over written rows (characters, rows, characters). labels: rows by label. lengths: written rows by class of
    `accuracy.LENGTHS`. problems: (file, message) of files not wholly readable or not like the first. confusion: where
    there is a truth.
    """

    classes: tuple[str, ...]
    problems: list[tuple[str, str]] = field(default_factory=list)
    chunks: int = 0
    rows_read: int = 0
    rows_written: int = 0
    rows_filtered: int = 0
    rows_quarantined: int = 0
    chars: int = 0
    truncated: int = 0
    unknown_chars: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=lambda: [0] * len(LENGTHS))
    confusion: Confusion | None = None

    def add(self, entries: Iterable[Entry]) -> None:
        """Count committed chunks."""
        for entry in entries:
            self.chunks += 1
            for name in _SUMS:
                setattr(self, name, getattr(self, name) + getattr(entry, name))
            self.labels.update(entry.labels)
            self.lengths = [sum(pair) for pair in zip(self.lengths, entry.lengths, strict=True)]
            self.problems += [(entry.sources[0][0], message) for message in entry.problems]
            if entry.confusion is not None:
                self.confusion = confusion_of(entry.confusion, self.classes, self.confusion)

    def check(self) -> None:
        """Raise BroadsheetError unless every row that was read is accounted for."""
        if self.rows_read != self.rows_written + self.rows_filtered + self.rows_quarantined:
            raise BroadsheetError(
                f"{self.rows_read:,} rows were read, but {self.rows_written:,} written, {self.rows_filtered:,} "
                f"filtered and {self.rows_quarantined:,} quarantined: please report this"
            )

    def totals(self) -> Totals:
        """The manifest's last word."""
        return Totals(
            chunks=self.chunks,
            **{name: getattr(self, name) for name in _SUMS},
            labels={name: self.labels[name] for name in self.classes if self.labels[name]},
            problems=tuple(sorted(self.problems)),
        )
