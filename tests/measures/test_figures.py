"""Figures of labels and scores, by their definitions."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.pipeline.labelling.counts import count_pairs
from broadsheet.pipeline.measures.accuracy import confusion_of
from broadsheet.pipeline.measures.reliability import reliability, threshold
from broadsheet.pipeline.source.labels import NO_TRUTH

ACCURACY_ROWS = st.lists(st.tuples(st.integers(NO_TRUTH, 999), st.integers(0, 999)) | st.tuples(st.just(3), st.just(0)))


@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), max_size=60), st.floats(0.1, 1))
def test_bins_and_thresholds_are_what_their_definitions_say(rows: list[tuple[float, bool]], target: float) -> None:
    scores, right = np.array([s for s, _ in rows], np.float32), np.array([r for _, r in rows], np.bool_)
    found = reliability(scores, right)
    error = 0.0
    for i, one in enumerate(found.bins):
        inside = [(s, r) for s, r in rows if i / 15 < s <= (i + 1) / 15 or (i == 0 and s == 0)]
        assert one.rows == len(inside)
        error += abs(sum(s for s, _ in inside) - sum(r for _, r in inside))
    if rows:
        assert found.expected_error == pytest.approx(error / len(rows), abs=1e-6)
    at = threshold(scores, right, target)
    good = [s for s in scores if right[scores >= s].mean() >= target]
    if good:
        assert at.score == min(good)
        assert (at.rows, at.precision) == ((scores >= min(good)).sum(), right[scores >= min(good)].mean())
        assert at.coverage == at.rows / len(rows)
    else:
        assert math.isnan(at.score)


@given(ACCURACY_ROWS)
def test_pairs_are_counted_each_once_and_in_order(rows: list[tuple[int, int]]) -> None:
    truth, predicted = np.array(rows, np.int32).reshape(-1, 2).T
    found = count_pairs(truth, predicted)
    assert found == [(*pair, count) for pair, count in sorted(Counter(rows).items())]
    confusion = confusion_of(found, tuple(map(str, range(1000))))
    assert confusion.rows + confusion.without_truth == len(rows)
    assert confusion.correct == sum(true == label for true, label in rows)
