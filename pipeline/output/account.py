"""What the entries of a job add up to: whether they account for every row that was read, and the totals over them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add

from msgspec import UNSET

from ..errors import UsageError
from ..measures.accuracy import LENGTHS
from ..source.columns import NO_TRUTH
from ..source.plan.plan import group_name, part_name
from .layout import group_of
from .record import SUMS, ClosingEntry, Entry, Judged, ListedFile, SavedPlan, Scores, Totals
from .saved_plan import files_of


@dataclass(frozen=True)
class Committed:
    """What the entries of a job say. chunks: by name. closed: the closing entries by the number of the group."""

    chunks: Mapping[str, Entry]
    closed: Mapping[int, ClosingEntry]

    @cached_property
    def done(self) -> set[str]:
        """The names of the chunks, and of the groups that need not be read again."""
        names = set(self.chunks)
        for number, closing in self.closed.items():
            if all(part_name(number, chunk) in self.chunks for chunk in range(closing.chunks)):
                names.add(group_name(number))
        return names


@dataclass(frozen=True)
class Gap:
    """Rows that the entries do not account for once. chunk: whose entry is missing or wrong; None for another cause.
    group: whose closing entry is wrong; None where none is.
    """

    message: str
    chunk: str | None = None
    group: int | None = None


def groups_of(plan: SavedPlan | None) -> range:
    """The numbers of the groups of a job, or of an update. plan: None for rows in memory, which are one group."""
    return range(plan.first_group, plan.first_group + len(plan.groups)) if plan else range(1)


def open_to_change(closing: ClosingEntry, chunks: Mapping[str, Entry]) -> list[str]:
    """The chunks of a group that may become others once all of its files can be read: those that end in the first file
    with a problem, or after it.
    """
    numbers = {path: number for number, (path, _) in enumerate(closing.files)}
    least = min((numbers.get(path, 0) for path, _ in closing.problems), default=len(numbers))
    names = [part_name(closing.group, chunk) for chunk in range(closing.chunks)]
    for at, following in enumerate(names[1:]):
        sources = chunks[following].sources if following in chunks else ()
        if not sources or numbers.get(sources[0][0], 0) > least:
            return names[at:]
    return names[-1:]


def gaps(committed: Committed, plan: SavedPlan | None) -> Iterator[Gap]:
    """Everything in which the chunks' entries are not those that the closing entries of all groups count. plan: None
    for rows in memory.
    """
    entries: dict[int, dict[str, Entry]] = defaultdict(dict)
    for name, entry in committed.chunks.items():
        entries[int(name.split("-")[1])][name] = entry
    listed: Sequence[tuple[ListedFile, ...] | None] = files_of(plan) if plan else [None]
    numbers = groups_of(plan)
    for number, files in zip(numbers, listed, strict=True):
        yield from _of_group(number, files, committed.closed.get(number), entries.pop(number, {}))
    for others in entries.values():
        yield from (Gap(f"{name} is no chunk of this job", name) for name in others)
    for number in committed.closed.keys() - set(numbers):
        yield Gap(f"there is a closing entry of group {number}, which is none of this job", group=number)


def _of_group(
    number: int, files: tuple[ListedFile, ...] | None, closing: ClosingEntry | None, entries: dict[str, Entry]
) -> Iterator[Gap]:
    """The chunks of a group are numbered from 0, and each begins where the one before it ends."""
    what = f"group {number}" if files is None or len(files) != 1 else files[0].path
    if closing is None:
        if files == ():  # the number was that of a group of an update that was discarded
            return
        yield Gap(f"{what} has no closing entry, which says how many chunks it has")
        return
    if files is not None and [file.path for file in files] != [p for p, rows in closing.files if rows is not None]:
        yield Gap(f"the closing entry of {what} has other files than the plan", group=number)
        return
    rows = {path: 0 for path, count in closing.files if count is not None}
    for chunk in range(closing.chunks):
        name = part_name(number, chunk)
        entry = entries.pop(name, None)
        if entry is None:
            yield Gap(f"the chunk {name} of {what} has no entry", name)
            return  # where the next one should begin is not known
        for path, first, count in entry.sources if rows else ():
            if rows.get(path) != first:
                yield Gap(f"the entry of {name} does not begin where the chunk before it ends, in {path}", name)
                return
            rows[path] += count
    for name in entries:
        yield Gap(f"{name} comes after the {closing.chunks:,} chunks of {what}", name)
    for path, total in closing.files:
        if total is not None and rows[path] != total:
            yield Gap(f"{path} has {total:,} rows, its entries have {rows[path]:,}", group=number)


def most_quarantined(limit: str | int, rows: int) -> int:
    """How many of so many rows may be in quarantine. limit: a number, or a share such as "10%". Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%|(\d+)", str(limit))
    if not found or float(found[1] or 0) > 100:
        raise UsageError(f"max_quarantined is {limit!r}, it must be a number of rows, or a share such as 10%")
    return int(found[2]) if found[2] else int(float(found[1]) / 100 * rows)


def totals_of(committed: Committed, plan: SavedPlan | None) -> Totals:
    """The totals over the groups of a plan; None for rows in memory."""
    groups = groups_of(plan)
    entries = [entry for name, entry in committed.chunks.items() if group_of(name) in groups]
    closed = [closing for number, closing in committed.closed.items() if number in groups]
    problems = [(entry.sources[0][0], problem) for entry in entries for problem in entry.problems]
    problems += [problem for closing in closed for problem in closing.problems]
    unread = [each for closing in closed for each in closing.unread]
    others = zip(*(entry.judged[1:] for entry in entries), strict=False)
    return Totals(
        chunks=len(entries),
        **{name: sum(getattr(entry, name) for entry in entries) for name in SUMS},
        labels=_sum(entry.labels for entry in entries),
        doubtful=_sum(entry.doubtful for entry in entries),
        lengths=tuple(sum(entry.lengths[i] for entry in entries) for i in range(len(LENGTHS))),
        confusion=_confusion(entry.confusion for entry in entries),
        problems=tuple(sorted((*(plan.problems if plan else ()), *problems))),
        unread=tuple(sorted((*(plan.unread if plan else ()), *unread), key=str)),
        others=tuple(map(summed, others)) or UNSET,
        scores=summed_scores(entry.scores for entry in entries),
    )


def summed(judged: Sequence[Judged]) -> Judged:
    """What one model says of the rows of several entries, together."""
    return Judged(
        labels=_sum(each.labels for each in judged),
        unlabelled=sum(each.unlabelled for each in judged),
        multi_label=any(each.multi_label for each in judged),
        truncated=sum(each.truncated for each in judged),
        unknown_chars=sum(each.unknown_chars for each in judged),
        saturated=sum(each.saturated for each in judged),
        asked=sum(each.asked for each in judged),
        doubtful=_sum(each.doubtful for each in judged),
        confusion=_confusion(each.confusion for each in judged),
        scores=summed_scores(each.scores for each in judged),
    )


def summed_scores(found: Iterable[Scores]) -> Scores:
    """Rows by label and bin of all entries; not known where one of them, of an earlier version, does not tell."""
    total: dict[str, tuple[int, ...]] = {}
    for scores in found:
        if scores is UNSET:
            return UNSET
        for label, bins in scores.items():
            total[label] = tuple(map(add, total[label], bins)) if label in total else bins
    return dict(sorted(total.items()))


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _confusion(found: Iterable[tuple[tuple[int, int, int], ...] | None]) -> tuple[tuple[int, int, int], ...] | None:
    """As `accuracy.Confusion.pairs` has it; None where no entry has one."""
    counts: Counter[tuple[int, int]] = Counter()
    told = [pairs for pairs in found if pairs is not None]
    for true, label, rows in (pair for pairs in told for pair in pairs):
        counts[true, 0 if true == NO_TRUTH else label] += rows
    return tuple((true, label, rows) for (true, label), rows in sorted(counts.items())) if told else None
