"""Chooses the rows that a report shows: rows between two classes, and some rows of each label.

The choice stays small while chunks are finished in any order. The choices of two parts of a job, joined, are the choice
of the whole.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..source.rows.chunk import SHOWN_BYTES, Chunk

MOST_CLOSEST, MOST_OF_LABEL, MOST_LABELS = 10, 3, 30


class Example(NamedTuple):
    """A row between two classes.

    Attributes
    ----------
    margin : float
        The difference between the probabilities of the two classes.
    file, row : str, int
        The file of the row, and its number in the file.
    label, second : str
        The two classes, the more probable one first.
    text : str
        The first 400 bytes.

    """

    margin: float
    file: str
    row: int
    label: str
    second: str
    text: str


class Sample(NamedTuple):
    """A row of a label, drawn at random.

    Attributes
    ----------
    label : str
        The label.
    order : float
        A random number that follows from the row's score and length. The rows of a label with the lowest are kept.
    file, row : str, int
        The file of the row, and its number in the file.
    score : float
        The score of the label.
    text : str
        The first 400 bytes.

    """

    label: str
    order: float
    file: str
    row: int
    score: float
    text: str


class Shown(NamedTuple):
    """The rows that a report shows.

    Attributes
    ----------
    closest : tuple of Example
        The rows whose two best classes are closest.
    samples : tuple of Sample
        Rows of each label, by label.

    """

    closest: tuple[Example, ...] = ()
    samples: tuple[Sample, ...] = ()

    def and_(self, other: Shown) -> Shown:
        """Join two choices, and return what is shown of all their rows."""
        closest = sorted([*self.closest, *other.closest])[:MOST_CLOSEST]
        return Shown(tuple(closest), _of_each_label([*self.samples, *other.samples]))

    def numbered(self, first: int) -> Shown:
        """Return the same rows, numbered from `first` instead of 0."""
        closest = tuple(one._replace(row=one.row + first) for one in self.closest)
        return Shown(closest, tuple(one._replace(row=one.row + first) for one in self.samples))


def _of_each_label(samples: list[Sample]) -> tuple[Sample, ...]:
    """Return the first few samples of each label.

    With many labels, those whose first sample has the lowest order are kept, which are mostly the frequent ones.
    """
    groups = [[*group][:MOST_OF_LABEL] for _, group in groupby(sorted(samples), lambda one: one.label)]
    shown_groups = sorted(groups, key=lambda group: group[0].order)[:MOST_LABELS]
    return tuple(one for group in sorted(shown_groups) for one in group)


def shown_of(chunk: Chunk, labels: NDArray[np.int32], scores: NDArray[np.float32], classes: tuple[str, ...]) -> Shown:
    """Return the rows of a chunk to show.

    Parameters
    ----------
    chunk : Chunk
        The chunk.
    labels : int32 [N, 2 or more]
        The best classes, best first.
    scores : float32 [N, 2 or more]
        The scores of these classes.
    classes : tuple of str
        The names of the classes.

    """
    if not len(chunk):
        return Shown()
    return Shown(_closest(chunk, labels, scores, classes), _samples(chunk, labels[:, 0], scores[:, 0], classes))


def _closest(
    chunk: Chunk, labels: NDArray[np.int32], scores: NDArray[np.float32], classes: tuple[str, ...]
) -> tuple[Example, ...]:
    margins = scores[:, 0] - scores[:, 1]
    rows = np.argpartition(margins, min(MOST_CLOSEST, len(margins)) - 1)[:MOST_CLOSEST]  # no full sort: a GPU waits
    rows = rows[np.lexsort((rows, margins[rows]))]
    texts, (files, numbers) = chunk.beginnings(rows.tolist(), SHOWN_BYTES), _places(chunk, rows)
    found = []
    for row, file, number, text in zip(rows.tolist(), files, numbers, texts, strict=True):
        label, second = (classes[i] for i in labels[row, :2])
        found.append(Example(float(margins[row]), file, number, label, second, text.decode(errors="ignore")))
    return tuple(found)


def _samples(
    chunk: Chunk, labels: NDArray[np.int32], scores: NDArray[np.float32], classes: tuple[str, ...]
) -> tuple[Sample, ...]:
    order, drawn = _orders(chunk, scores), []
    left = np.where(labels >= 0, order, np.inf)
    for _ in range(MOST_OF_LABEL):
        best = np.full(len(classes), np.inf)
        np.minimum.at(best, np.maximum(labels, 0), left)
        found = np.flatnonzero((left == best[labels]) & np.isfinite(left))
        found = found[np.unique(labels[found], return_index=True)[1]]  # equal texts have equal orders: take one
        drawn.append(found)
        left[found] = np.inf
    rows = np.concatenate(drawn)
    if len(drawn[0]) > MOST_LABELS:
        shown_labels = labels[drawn[0][np.argsort(order[drawn[0]], kind="stable")[:MOST_LABELS]]]
        rows = rows[np.isin(labels[rows], shown_labels)]
    texts, (files, numbers) = chunk.beginnings(rows.tolist(), SHOWN_BYTES), _places(chunk, rows)
    return _of_each_label([
        Sample(classes[labels[row]], float(order[row]), file, number, float(scores[row]), text.decode(errors="ignore"))
        for row, file, number, text in zip(rows.tolist(), files, numbers, texts, strict=True)
    ])  # fmt: skip


def _places(chunk: Chunk, rows: NDArray[np.int64]) -> tuple[list[str], list[int]]:
    taken = chunk.rows.select(["file", "row"]).take(rows)
    return taken.column("file").to_pylist(), taken.column("row").to_pylist()


def _orders(chunk: Chunk, scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return a random number from 0 to 1 for each row, [N].

    It follows from the score and the length of the row, since the number of the row may not be known yet. The method is
    that of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
    """
    lengths = np.diff(chunk.offsets).astype(np.uint64)
    mixed = (np.ascontiguousarray(scores).view(np.uint32).astype(np.uint64) << np.uint64(32)) + lengths
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.asarray(mixed / np.float64(2**64))
