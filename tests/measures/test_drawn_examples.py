"""Rows that a report shows: the same ones however the rows are divided into chunks, and some of each label."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pyarrow as pa
import pytest

from broadsheet.pipeline.measures.examples import MOST_LABELS, MOST_OF_LABEL, Shown, shown_of
from broadsheet.pipeline.source.rows.chunk import QUARANTINE_SCHEMA, Chunk


def chunk(first: int, last: int) -> Chunk:
    rows = pa.table({"file": ["a.csv"] * (last - first), "row": pa.array(range(first, last), pa.int64())})
    text = pa.array([f"text {i:03}".encode() for i in range(first, last)], pa.large_binary())
    return Chunk(text, rows, QUARANTINE_SCHEMA.empty_table())


# Chunks of one row, of a size that does not divide 400, of one that does, and all rows in one chunk.
@pytest.mark.parametrize("size", [1, 7, 100, 400])
def test_what_is_shown_does_not_depend_on_chunks_and_their_order(size: int) -> None:
    rng = np.random.default_rng(0)
    labels = np.stack([rng.permutation(4)[:2] for _ in range(400)]).astype(np.int32)
    scores = np.sort(rng.random((400, 2)), axis=1)[:, ::-1].astype(np.float32)
    names = ("a", "b", "c", "d")
    whole = shown_of(chunk(0, 400), labels, scores, names)
    starts = rng.permutation(range(0, 400, size)).tolist()
    parts = [
        shown_of(chunk(at, min(at + size, 400)), labels[at : at + size], scores[at : at + size], names) for at in starts
    ]
    assert reduce(Shown.and_, parts, Shown()) == whole
    late = [  # the number of a part's first row is known only after the part was labelled
        shown_of(chunk(0, min(size, 400 - at)), labels[at : at + size], scores[at : at + size], names).numbered(at)
        for at in starts
    ]
    assert [one.row for one in reduce(Shown.and_, late, Shown()).samples] == [one.row for one in whole.samples]
    margins = scores[:, 0] - scores[:, 1]
    assert [one.row for one in whole.closest] == np.argsort(margins)[:10].tolist()
    assert [one.label for one in whole.samples] == [name for name in names for _ in range(MOST_OF_LABEL)]
    for one in whole.samples:
        assert (names[labels[one.row, 0]], one.text) == (one.label, f"text {one.row:03}")
        assert one.score == pytest.approx(scores[one.row, 0])


def test_rows_are_drawn_alike_and_few_labels_are_kept() -> None:
    """Of 9,000 rows with one label, each third contributes about a third of the sample; of 90 labels, 30 have
    samples.
    """
    labels, thirds, rng = np.zeros((9_000, 2), np.int32), np.zeros(3), np.random.default_rng(1)
    for first in range(0, 9_000 * 60, 9_000):
        scores = rng.random((9_000, 2)).astype(np.float32)
        drawn = shown_of(chunk(first, first + 9_000), labels, scores, ("a", "b")).samples
        thirds += np.bincount([(one.row - first) // 3_000 for one in drawn], minlength=3)
    assert thirds.sum() == 60 * MOST_OF_LABEL
    assert thirds.min() > 30  # 60 are expected, with a standard deviation of 6
    many = np.stack([np.arange(900) % 90, np.zeros(900)], axis=1).astype(np.int32)
    shown = shown_of(chunk(0, 900), many, np.ones((900, 2), np.float32), tuple(f"c{i:02}" for i in range(90)))
    assert len({one.label for one in shown.samples}) == MOST_LABELS
