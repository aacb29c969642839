"""Finds oddities in labelled rows before training.

Oddities are rows that are left out, labels that contradict each other, classes that look like spellings of one class,
and classes that are too rare to learn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import first_of
from ..source.rows.labels import NO_TRUTH, one_letter_off, spelled_alike
from .data import LabelColumn, LabelledArticles
from .progress import Odd

_FEW = 20
"""A class with fewer rows than this can hardly be learned, or measured."""

_RARE = 0.1
"""A model seldom gives a class with at most this share of the average class's rows."""

_TEXTS_SHOWN, _CHARACTERS_SHOWN, _LABELS_SHOWN = 3, 40, 5


def oddities(
    data: LabelledArticles, balanced: bool = False, unmatched: Sequence[str] = (), leaves_out: bool = False
) -> tuple[Odd, ...]:
    """Return everything odd in labelled rows. Rows that are left out come first.

    Parameters
    ----------
    data : LabelledArticles
        The rows.
    balanced : bool
        Whether every class weighs the same.
    unmatched : sequence of str
        The labels of the label map that no row has.
    leaves_out : bool
        Whether the label map leaves out rows.

    """
    found = [*_left_out(data, leaves_out)]
    if unmatched:
        which = first_of([*map(repr, unmatched)], _LABELS_SHOWN)
        found.append(Odd("labels of --map-labels without rows", 0, which, "check how the rows spell them"))
    for column in data.columns:
        counts = dict(zip(data.classes[column.part], data.counts(column).tolist(), strict=True))
        where = f" in {column.name}" if column.name else ""
        alike = spelled_alike(counts)
        near = one_letter_off(counts)
        found += _spellings(counts, alike, f"spellings of one class{where}", "--fold-labels makes them one class")
        apart = _spellings(counts, near, f"one letter apart{where}", "if they are one class: --map-labels FILE")
        found += [odd._replace(map_line=(names[1], names[0])) for odd, names in zip(apart, near, strict=True)]
        if data.levels is None:
            found += _contradictions(data, column, where)
            spelled = {name for names in (*alike, *near) for name in names[1:]}
            found += _rare({name: rows for name, rows in counts.items() if name not in spelled}, where, balanced)
    return tuple(found)


def _left_out(data: LabelledArticles, by_map: bool) -> Iterator[Odd]:
    """Yield the rows that are left out. by_map: whether the label map leaves out some of them."""
    kind = "number" if data.levels is not None else "label"
    if data.without_label:
        which = "null, empty, blank, or without a class in --map-labels" if by_map else "null, empty or blank"
        yield Odd(f"no {kind}", data.without_label, which, "left out")
    if data.blank:
        yield Odd("blank text", data.blank, "empty, or white space only", "left out")


def _spellings(counts: dict[str, int], groups: list[list[str]], what: str, remedy: str) -> Iterator[Odd]:
    for names in groups:
        yield Odd(what, sum(counts[name] for name in names), _with_counts(counts, names), remedy)


def _contradictions(data: LabelledArticles, column: LabelColumn, where: str) -> Iterator[Odd]:
    """Yield the texts that occur with different labels."""
    labels = column.labels
    if data.is_multi_label:
        labels = np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    known = np.flatnonzero(np.ones(len(data), np.bool_) if data.is_multi_label else labels != NO_TRUTH)
    texts = data.text.numbered()[known]
    pairs = np.unique(np.stack([texts, labels[known]]), axis=1)
    text, kinds = np.unique(pairs[0], return_counts=True)
    contradicting = text[kinds > 1]
    if not len(contradicting):
        return
    rows = np.isin(texts, contradicting)
    shown = [_shown(data, known[np.flatnonzero(texts == one)[0]]) for one in contradicting[:_TEXTS_SHOWN]]
    more = [f"and {len(contradicting) - _TEXTS_SHOWN:,} more"] if len(contradicting) > _TEXTS_SHOWN else []
    which = ", ".join([*shown, *more])
    yield Odd(f"same text, different labels{where}", int(rows.sum()), which, "correct them, or leave them out")


def _shown(data: LabelledArticles, row: np.int64) -> str:
    text = " ".join(data.text.rows(np.array([row])).column[0].as_py().split())
    return repr(text if len(text) <= _CHARACTERS_SHOWN else f"{text[:_CHARACTERS_SHOWN]}…")


def _rare(counts: dict[str, int], where: str, balanced: bool) -> Iterator[Odd]:
    """Yield all classes with few rows: those that can hardly be learned, and others that a model seldom gives."""
    few = [name for name, rows in counts.items() if rows < _FEW]
    usual = float(np.mean([*counts.values()])) if counts else 0.0
    seldom = [name for name, rows in counts.items() if _FEW <= rows <= _RARE * usual]
    for names, what, remedy in (
        (few, f"fewer than {_FEW} rows of a class", "more rows; or another class, or none, with --map-labels FILE"),
        ([] if balanced else seldom, "rare classes, which are seldom given", "--balanced, if they matter as much"),
    ):
        if names:
            rows, rarest_first = sum(counts[name] for name in names), sorted(names, key=counts.__getitem__)
            map_line = (rarest_first[0], "") if "--map-labels" in remedy else None
            yield Odd(f"{what}{where}", rows, _with_counts(counts, rarest_first), remedy, map_line)


def _with_counts(counts: dict[str, int], names: list[str]) -> str:
    return ", ".join(f"{name!r} {counts[name]:,}" for name in names)
