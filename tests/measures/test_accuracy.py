"""Counts of true and predicted classes, against counting them one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.labelling.counts import count_pairs
from pipeline.measures.accuracy import confusion_of
from pipeline.source.columns import NO_TRUTH

ROWS = st.lists(st.tuples(st.integers(NO_TRUTH, 999), st.integers(0, 999)) | st.tuples(st.just(3), st.just(0)))


@given(ROWS)
def test_pairs_are_counted_each_once_and_in_order(rows: list[tuple[int, int]]) -> None:
    truth, predicted = np.array(rows, np.int32).reshape(-1, 2).T
    found = count_pairs(truth, predicted)
    assert found == [(*pair, count) for pair, count in sorted(Counter(rows).items())]
    confusion = confusion_of(found, tuple(map(str, range(1000))))
    assert confusion.rows + confusion.without_truth == len(rows)
    assert confusion.correct == sum(true == label for true, label in rows)
