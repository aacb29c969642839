"""Sums up the entries of a job's chunks (`Tally`), and measures how far the job is (`Reach`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from ..errors import BroadsheetError
from ..measures.accuracy import Confusion, confusion_of
from ..measures.overlap import Overlap
from ..output.account import Counts, ModelCounts
from ..output.record import Totals
from ..source.plan.plan import RangeEnd, UnreadFile
from ..source.plan.search import Problem


def balance(totals: Totals | Tally) -> str:
    """Return a sum that says where the rows that were read are."""
    written = f"{totals.rows_written - totals.unlabelled:,} labelled"
    if totals.unlabelled:
        written += f" + {totals.unlabelled:,} without a label"
    if totals.rows_filtered:
        written = f"{totals.rows_written:,} written + {totals.rows_filtered:,} filtered"
    return f"read = {written} + {totals.rows_quarantined:,} quarantined"


def confusion_in(counts: ModelCounts, classes: tuple[str, ...]) -> Confusion | None:
    """Return the confusion matrix of a model over the rows with a truth; None if no row has a truth."""
    pairs = counts.pairs
    return None if pairs is None else confusion_of(((*pair, rows) for pair, rows in pairs.items()), classes)


def overlap_in(counts: ModelCounts, judged: Confusion | None) -> Overlap | None:
    """Return how many of the rows with a truth and a label a model has learned from; None if it is unknown."""
    if judged is None or counts.learned is UNSET:
        return None
    return Overlap(judged.rows, counts.learned.checked, counts.learned.learned, counts.learned.right)


@dataclass
class Tally(Counts):
    """Sums over all chunks, including those of earlier runs. They are the same however often the job was interrupted.

    Attributes
    ----------
    classes : tuple of str
        The names of the labels.
    again : bool
        Whether some of the files of `problems` are listed, so that a resumed job tries again to read them.
    earlier : Totals or None
        The totals of a job before its update. All figures and `totals` include them, but `problems` and `unread` are
        those of the update.

    """

    classes: tuple[str, ...] = ()
    again: bool = False
    earlier: Totals | None = None

    @property
    def asked_share(self) -> float:
        """`asked` divided by the number of rows that were labelled."""
        return self.asked / max(self.rows_written + self.rows_filtered, 1)

    @property
    def confusion(self) -> Confusion | None:
        """The number of rows by true and predicted class, including filtered rows; None without a truth column."""
        return confusion_in(self, self.classes)

    @classmethod
    def after(
        cls,
        earlier: Totals | None,
        classes: tuple[str, ...],
        problems: Iterable[Problem],
        unread: Iterable[UnreadFile],
        left_out: tuple[Problem, ...],
    ) -> Tally:
        """Continue from the totals of an earlier run, which has reported its own problems.

        Parameters
        ----------
        earlier : Totals or None
            The totals of the earlier run; None for a job that is not updated.
        classes : tuple of str
            The names of the labels.
        problems, unread, left_out
            The problems that were found when the input was listed, see `SavedPlan`.

        """
        tally = cls(classes=classes, problems=[*problems], unread=[*unread], left_out=left_out, earlier=earlier)
        if earlier is not None and earlier.chunks:
            tally.chunks = earlier.chunks
            tally.count(earlier)
        return tally

    def close(self, problems: Iterable[Problem], unread: Iterable[UnreadFile]) -> None:
        """Count the problems with the files of a range that has been read to its end. Ranges end in any order."""
        problems = list(problems)
        self.again = self.again or bool(problems)
        self.problems = sorted({*self.problems, *problems})  # a file that is read in parts has each problem once
        self.unread = sorted({*self.unread, *unread}, key=lambda item: item[0])

    def check(self) -> None:
        """Raise BroadsheetError unless every row that was read is accounted for."""
        if self.rows_read != self.rows_written + self.rows_filtered + self.rows_quarantined:
            raise BroadsheetError(
                f"{self.rows_read:,} rows were read, but {self.rows_written:,} written, {self.rows_filtered:,} "
                f"filtered and {self.rows_quarantined:,} quarantined: please report this"
            )

    @property
    def totals(self) -> Totals:
        """The totals for the manifest."""
        problems, unread = (self.earlier.problems, self.earlier.unread) if self.earlier else ((), ())
        return msgspec.structs.replace(
            super().totals,
            labels={name: self.labels[name] for name in self.classes if self.labels[name]},
            problems=tuple(sorted({*problems, *self.problems})),  # each update reports a problem that stays
            unread=tuple(sorted({*unread, *self.unread}, key=str)),
        )


class Reach:
    """How far a job is, including chunks that tasks have committed and not returned yet.

    It is measured in rows if the number of all rows is known, otherwise in bytes of the files as they are stored.

    The number of rows in a range is known when the range has been read to its end, or when the ends of all its chunks
    are found. Until then the range counts with the bytes that have been read of it, if these are known. Otherwise each
    of its rows counts as many bytes as a row of the ranges with a known number of rows.

    rows, chunks: the number of committed rows and chunks. computed: the number of rows that are committed or computed.
    rows_known: the number of rows of the whole job, 0 if it is unknown.
    range_bytes: the bytes of the files of each range, by number; None for rows in memory.
    """

    def __init__(self, rows_known: int = 0, range_bytes: Mapping[int, int] | None = None) -> None:
        self.rows = self.chunks = 0
        self._rows_known = rows_known
        self._bytes = dict(range_bytes or {})
        self.bytes_known = sum(self._bytes.values())
        # The rows of each chunk that is committed but not returned, and of each that is computed but not committed.
        self._noted: dict[str, int] = {}
        self._computing: dict[str, int] = {}
        # By range: its committed rows, all its rows if it has ended, and the bytes read of it if it has not.
        self._rows: Counter[int] = Counter()
        self._ends: dict[int, int] = {}
        self._stored: dict[int, int] = {}
        # Sums: the committed rows of ranges that have not ended, and all rows and bytes of those that have.
        self._open_rows = self._ended_rows = self._ended_bytes = 0
        # The bytes of the committed rows of ranges that have ended.
        self._done_bytes = 0.0

    @property
    def computed(self) -> int:
        """The number of rows that are committed, or computed for chunks that will be committed."""
        return self.rows + sum(self._computing.values())

    def compute(self, chunk: str, rows: int) -> None:
        """Count rows of a chunk as computed. The chunk is not committed yet, and may be begun again elsewhere."""
        if chunk not in self._noted:
            self._computing[chunk] = rows

    def note(self, chunk: str, rows: int, stored: int = 0) -> None:
        """Count a chunk that is committed and that its task will return later. stored: see `Chunk`."""
        if chunk not in self._noted:
            self._count(chunk, rows)
            self._noted[chunk] = rows
        number = _range_of(chunk)
        if stored and number not in self._ends:
            self._stored[number] = max(stored, self._stored.get(number, 0))

    def add(self, chunk: str, rows: int) -> None:
        """Count a committed chunk, unless it was noted before."""
        if self._noted.pop(chunk, None) is None:
            self._count(chunk, rows)

    def _count(self, chunk: str, rows: int) -> None:
        self._computing.pop(chunk, None)
        self.rows += rows
        self.chunks += 1
        number = _range_of(chunk)
        self._rows[number] += rows
        if number in self._ends:
            self._done_bytes += self._share(number, rows)
        else:
            self._open_rows += rows

    def close(self, end: RangeEnd) -> None:
        """Note how many rows a range has, now that it has been read to its end."""
        if end.number in self._ends:
            return
        self._computing = {chunk: rows for chunk, rows in self._computing.items() if _range_of(chunk) != end.number}
        self._ends[end.number] = rows = sum(count or 0 for _, count in end.files)
        self._ended_rows += rows
        self._ended_bytes += self._bytes.get(end.number, 0)
        self._stored.pop(end.number, None)
        counted = self._rows[end.number]
        self._open_rows -= counted
        self._done_bytes += self._share(end.number, counted)

    def _share(self, number: int, rows: int) -> float:
        """Return the bytes of some rows of a range that has ended."""
        held = self._bytes.get(number, 0)
        return held * rows / self._ends[number] if self._ends[number] else held

    @property
    def rows_known(self) -> int:
        """The number of rows of the whole job, 0 if it is unknown."""
        return self._rows_known or (self._ended_rows if self._bytes and len(self._ends) == len(self._bytes) else 0)

    @property
    def bytes(self) -> int:
        """About how many bytes are finished."""
        of_row = self._ended_bytes / self._ended_rows if self._ended_rows else 0.0
        estimated = self._open_rows - sum(self._rows[number] for number in self._stored)  # rows of unknown bytes
        computing = sum(self._bytes_of_row(_range_of(chunk), of_row) * rows for chunk, rows in self._computing.items())
        finished = self._done_bytes + sum(self._stored.values()) + of_row * estimated
        return min(round(finished + computing), self.bytes_known)

    def _bytes_of_row(self, number: int, otherwise: float) -> float:
        """Return the stored bytes of a row in a range that is being read, by the rows of it that are committed.

        otherwise: the value for any other range.
        """
        rows = self._rows[number]
        return self._stored[number] / rows if rows and number in self._stored else otherwise

    @property
    def share(self) -> float:
        """The share of the job that is finished, from 0 to 1; 0 if it is unknown."""
        if self.rows_known:
            return min(self.computed / self.rows_known, 1.0)
        return self.bytes / self.bytes_known if self.bytes_known else 0.0


def _range_of(chunk: str) -> int:
    return int(chunk.split("-")[1])
