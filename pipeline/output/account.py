"""Adds up the entries of a job, and checks that they account for every row that was read."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import add
from typing import Any

from msgspec import UNSET, UnsetType

from ..errors import UsageError
from ..labelling.counts import LENGTHS
from ..source.plan.plan import Start, part_name, range_name
from ..source.rows.chunk import RowRange
from ..source.rows.labels import NO_TRUTH
from .layout import range_of
from .record import Accounted, ClosingEntry, Entry, Figures, Judged, LearnedFrom, ListedFile, SavedPlan, Scores, Totals
from .saved_plan import files_of

Sources = tuple[RowRange, ...]
"""The ranges of rows that a chunk was read from."""

_Listed = tuple[ListedFile, ...] | None
"""The files of a range; None for rows in memory."""
_SUMS = ("rows_read", "rows_written", "rows_filtered", "rows_quarantined", "chars")
_SUMS_OF_MODEL = ("truncated", "unknown_chars", "saturated", "asked", "unlabelled")
"""The figures of an entry that are summed to give those of the totals."""


@dataclass(frozen=True)
class Entries:
    """Entries of a job. chunks: the entries of chunks, by name. closed: the closing entries, by number of the range."""

    chunks: Mapping[str, Entry]
    closed: Mapping[int, ClosingEntry]

    @cached_property
    def whole(self) -> set[int]:
        """The numbers of the ranges that have all of their chunks."""
        closings = self.closed.items()
        return {n for n, end in closings if all(part_name(n, chunk) in self.chunks for chunk in range(end.chunks))}

    @cached_property
    def committed(self) -> set[str]:
        """The names of the chunks and of the ranges that need not be read again."""
        return {*self.chunks, *map(range_name, self.whole)}

    def start_after(self, number: int, start: Start | None) -> Start | None:
        """Return where the next range begins in its file; None if it is unknown. start: the start of this range."""
        closing = self.closed.get(number)
        if start is None or closing is None or closing.after is UNSET or range_name(number) not in self.committed:
            return None
        return Start(start.row + (closing.files[0][1] or 0), closing.after)


@dataclass(frozen=True)
class Gap:
    """Rows that the entries do not account for exactly once.

    Attributes
    ----------
    message : str
        What is wrong.
    chunk : str or None
        The chunk whose entry is missing or wrong; None if the cause is another.
    range_number : int or None
        The number of the range whose closing entry is wrong; None if the cause is another.

    """

    message: str
    chunk: str | None = None
    range_number: int | None = None


def range_numbers(plan: SavedPlan | None) -> range:
    """Return the numbers of the ranges of a job or an update. plan: None for rows in memory, which are one range."""
    return range(plan.first_group, plan.first_group + plan.ranges) if plan else range(1)


def open_to_change(closing: ClosingEntry, chunks: Mapping[str, Entry]) -> list[str]:
    """Return the chunks of a range that may change once all of its files can be read.

    These are the chunks that end in the first file with a problem, or after it.
    """
    numbers = {path: number for number, (path, _) in enumerate(closing.files)}
    least = min((numbers.get(path, 0) for path, _ in closing.problems), default=len(numbers))
    names = [part_name(closing.group, chunk) for chunk in range(closing.chunks)]
    for at, following in enumerate(names[1:]):
        sources = chunks[following].sources if following in chunks else ()
        if not sources or numbers.get(sources[0][0], 0) > least:
            return names[at:]
    return names[-1:]


def gaps(chunks: Mapping[str, Sources], closed: Mapping[int, ClosingEntry], plan: SavedPlan | None) -> Iterator[Gap]:
    """Yield every contradiction between the entries of chunks and the closing entries of the ranges.

    chunks: the sources of each chunk, by its name. plan: None for rows in memory.
    """
    entries: dict[int, dict[str, Sources]] = defaultdict(dict)
    for name, sources in chunks.items():
        entries[int(name.split("-")[1])][name] = sources
    listed: Sequence[_Listed] = files_of(plan) if plan else [None]
    numbers = range_numbers(plan)
    before: _Listed = None
    known: set[int] = set()
    row: int | None = 0
    for number, files in zip(numbers, listed, strict=True):
        # The parts of a file, which have the same tuple of files, number its rows one after the other.
        row = row if files and files is before else 0
        closing, before = closed.get(number), files
        if files == () and (closing is None or closing.files):
            continue  # the range was withdrawn, or it belonged to an update that was discarded
        known.add(number)
        yield from _gaps_of_range(number, files, closing, entries.pop(number, {}), row)
        row = None if closing is None or row is None else row + sum(count or 0 for _, count in closing.files)
    for others in entries.values():
        yield from (Gap(f"{name} is no chunk of this job", name) for name in others)
    for number in closed.keys() - known:
        yield Gap(f"there is a closing entry of group {number}, which is none of this job", range_number=number)


def _gaps_of_range(
    number: int, files: _Listed, closing: ClosingEntry | None, entries: dict[str, Sources], row: int | None
) -> Iterator[Gap]:
    """Yield the gaps of one range. Its chunks are numbered from 0, and each begins where the one before it ends.

    Parameters
    ----------
    number : int
        The number of the range.
    files : tuple of ListedFile or None
        The files of the range; None for rows in memory.
    closing : ClosingEntry or None
        The closing entry of the range.
    entries : dict of str to tuple of RowRange
        The sources of its chunks, by name.
    row : int or None
        The number of the first row of its files; None if it is unknown.

    """
    # Compare the closing entry with the plan.
    what = f"group {number}" if files is None or len(files) != 1 else files[0].path
    if closing is None:
        yield Gap(f"{what} has no closing entry, which says how many chunks it has")
        return
    if files is not None and [file.path for file in files] != [p for p, rows in closing.files if rows is not None]:
        yield Gap(f"the closing entry of {what} has other files than the plan", range_number=number)
        return
    # Follow the rows of each file from chunk to chunk.
    if row is None:
        row = next((sources[0].first for _, sources in sorted(entries.items()) if sources), 0)
    rows = {path: row for path, count in closing.files if count is not None}
    for chunk in range(closing.chunks):
        name = part_name(number, chunk)
        sources = entries.pop(name, None)
        if sources is None:
            yield Gap(f"the chunk {name} of {what} has no entry", name)
            return  # the start of the next chunk is unknown
        for path, first, count in sources if rows else ():
            if rows.get(path) != first:
                yield Gap(f"the entry of {name} does not begin where the chunk before it ends, in {path}", name)
                return
            rows[path] += count
    # Compare what is left: chunks after the last, and the number of rows of each file.
    for name in entries:
        yield Gap(f"{name} comes after the {closing.chunks:,} chunks of {what}", name)
    for path, total in closing.files:
        if total is not None and rows[path] - row != total:
            yield Gap(f"{path} has {total:,} rows, its entries have {rows[path] - row:,}", range_number=number)


def most_allowed(option: str, limit: str | int, count: int, what: str) -> int:
    """Return how many rows or files may lack labels before the job fails. Raises UsageError.

    Parameters
    ----------
    option : str
        The option that sets the limit.
    limit : str or int
        The value of the option: a number, or a share such as "10%".
    count : int
        How many rows or files there are.
    what : str
        "rows" or "files".

    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%|(\d+)", str(limit))
    if not match or float(match[1] or 0) > 100:
        raise UsageError(f"{option} is {limit!r}, it must be a number of {what}, or a share such as 10%")
    return int(match[2]) if match[2] else int(float(match[1]) / 100 * count)


@dataclass
class ModelCounts:
    """Sums over what one model says of rows. See `Figures`, which has the same fields.

    Attributes
    ----------
    pairs : Counter of (int, int), or None
        Rows by true and predicted class; None if no entry has a truth.

    """

    truncated: int = 0
    unknown_chars: int = 0
    saturated: int = 0
    asked: int = 0
    unlabelled: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    doubtful: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[int, int]] | None = None
    scores: Scores = field(default_factory=dict)
    right: Scores = field(default_factory=dict)
    learned: LearnedFrom | UnsetType = UNSET
    multi_label: bool = False

    def judge(self, said: Figures) -> None:
        """Add what the model says of more rows."""
        for name in _SUMS_OF_MODEL:
            setattr(self, name, getattr(self, name) + getattr(said, name))
        self.labels.update(said.labels)
        self.doubtful.update(said.doubtful)
        self.scores = _summed(self.scores, said.scores)
        self.right = _summed(self.right, said.right)
        if said.learned is not UNSET:
            self.learned = said.learned if self.learned is UNSET else self.learned.plus(said.learned)
        if said.confusion is not None:
            self.pairs = Counter() if self.pairs is None else self.pairs
            for true, label, rows in said.confusion:  # rows without a truth count together, whatever their label is
                self.pairs[true, 0 if true == NO_TRUTH else label] += rows

    @property
    def figures(self) -> dict[str, Any]:
        """The fields of `Figures`, in an order that does not depend on the order of the entries."""
        pairs = None if self.pairs is None else sorted(self.pairs.items())
        return {
            **{name: getattr(self, name) for name in _SUMS_OF_MODEL},
            "labels": dict(sorted(self.labels.items())),
            "doubtful": dict(sorted(self.doubtful.items())),
            "confusion": None if pairs is None else tuple((*pair, rows) for pair, rows in pairs),
            "scores": self.scores,
            "right": self.right or UNSET,
            "learned": self.learned,
        }


@dataclass
class Counts(ModelCounts):
    """Sums over entries, which are counted one by one. See `Totals`, which has the same fields.

    Attributes
    ----------
    others : list of ModelCounts
        The sums of the second and further models.

    """

    chunks: int = 0
    rows_read: int = 0
    rows_written: int = 0
    rows_filtered: int = 0
    rows_quarantined: int = 0
    chars: int = 0
    not_copied: Counter[str] = field(default_factory=Counter)
    unknown_labels: Counter[str] = field(default_factory=Counter)
    mapped_labels: Counter[str] = field(default_factory=Counter)
    lengths: tuple[int, ...] = (0,) * len(LENGTHS)
    others: list[ModelCounts] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    unread: list[tuple[str, int | None]] = field(default_factory=list)
    left_out: tuple[tuple[str, str], ...] = ()

    def count(self, entry: Accounted) -> None:
        """Add the figures of one or more chunks, without the problems of their files."""
        self.judge(entry)
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(entry, name))
        self.not_copied.update(entry.not_copied)
        self.unknown_labels.update(entry.unknown_labels or {})
        self.mapped_labels.update(entry.mapped_labels or {})
        self.lengths = tuple(map(add, self.lengths, entry.lengths))
        others = () if entry.others is UNSET else entry.others
        self.others = self.others or [ModelCounts(multi_label=model.multi_label) for model in others]
        for counts, model in zip(self.others, others, strict=True):
            counts.judge(model)

    def count_chunk(self, entry: Entry) -> None:
        """Add the figures of a chunk, and the problems of its files."""
        self.chunks += 1
        self.count(entry)
        self.problems += [(entry.sources[0][0], problem) for problem in entry.problems]

    @property
    def totals(self) -> Totals:
        """The sums, in an order that does not depend on the order of the entries."""
        return Totals(
            chunks=self.chunks,
            **{name: getattr(self, name) for name in _SUMS},
            **self.figures,
            lengths=self.lengths,
            problems=tuple(sorted({*self.problems})),
            unread=tuple(sorted({*self.unread}, key=str)),
            left_out=self.left_out or UNSET,
            not_copied=dict(sorted(self.not_copied.items())),
            unknown_labels=dict(sorted(self.unknown_labels.items())) or UNSET,
            mapped_labels=dict(sorted(self.mapped_labels.items())) or UNSET,
            others=tuple(Judged(multi_label=one.multi_label, **one.figures) for one in self.others) or UNSET,
        )


class Sums(Counts):
    """Sums over the entries of a plan's ranges. plan: None for rows in memory."""

    def __init__(self, plan: SavedPlan | None) -> None:
        super().__init__()
        if plan is not None:
            self.problems, self.unread, self.left_out = [*plan.problems], [*plan.unread], plan.left_out or ()
        self._ranges = range_numbers(plan)

    def add(self, entry: Entry | ClosingEntry) -> None:
        """Count an entry, unless it belongs to a range of another plan."""
        if isinstance(entry, Entry):
            if range_of(entry.chunk) in self._ranges:
                self.count_chunk(entry)
        elif entry.group in self._ranges:
            self.problems += entry.problems
            self.unread += entry.unread


def _summed(*counts: Scores) -> Scores:
    """Return rows by label and bin over all entries; UNSET if an entry of an earlier version has no such counts."""
    total: dict[str, tuple[int, ...]] = {}
    for scores in counts:
        if scores is UNSET:
            return UNSET
        for label, bins in scores.items():
            total[label] = tuple(map(add, total[label], bins)) if label in total else bins
    return dict(sorted(total.items()))
