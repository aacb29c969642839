"""Totals summed over entries: those of a whole job, or of one update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET

from ..measures.accuracy import LENGTHS
from ..source.columns import NO_TRUTH
from .account import Committed, groups_of
from .layout import group_of
from .record import SUMS, Judged, SavedPlan, Totals


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
        doubtful=_sum(each.doubtful for each in judged),
        confusion=_confusion(each.confusion for each in judged),
    )


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
