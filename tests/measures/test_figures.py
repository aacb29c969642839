"""Figures of labels and scores, compared with their definitions."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from broadsheet.pipeline.labelling.counts import count_pairs
from broadsheet.pipeline.measures.accuracy import confusion_of
from broadsheet.pipeline.measures.intervals import least_share, wilson
from broadsheet.pipeline.measures.reliability import reliability
from broadsheet.pipeline.measures.thresholds import threshold
from broadsheet.pipeline.source.rows.labels import NO_TRUTH

ACCURACY_ROWS = st.lists(st.tuples(st.integers(NO_TRUTH, 999), st.integers(0, 999)) | st.tuples(st.just(3), st.just(0)))


@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), max_size=60), st.floats(0.1, 0.99))
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
    if math.isnan(at.score):
        assert at.rows == 0
        assert at.needed is None or at.needed > len(rows)
    else:
        kept = scores >= at.score
        assert (at.rows, at.precision, at.coverage) == (kept.sum(), right[kept].mean(), kept.mean())
        assert target <= at.bound + 1e-6
        assert at.bound <= at.precision


@given(st.integers(1, 3000), st.data())
def test_intervals_and_bounds_are_those_of_scipy(rows: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, rows))
    expected = binomtest(hits, rows).proportion_ci(method="wilson")
    assert wilson(hits, rows) == pytest.approx((expected.low, expected.high), abs=1e-12)
    bound = binomtest(hits, rows, alternative="greater").proportion_ci(method="exact").low
    assert least_share(hits, rows) == pytest.approx(bound, abs=1e-6)


def drawn(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a good model's scores, and which labels are right. High scores are right less often than the
    scores say.
    """
    scores = rng.beta(6, 1, rows).astype(np.float32)
    return scores, rng.random(rows) < 0.97 * scores


@pytest.mark.parametrize("target", [0.85, 0.9])
def test_a_threshold_keeps_its_promise_on_other_rows(target: float) -> None:
    """The promise holds in 19 of 20 cases or more: of 400, fewer than 20 plus three standard deviations fail.

    A threshold that only has the precision on the rows that it was fitted to would break every second promise.
    """
    rng = np.random.default_rng(0)
    others, right = drawn(rng, 400_000)
    found = [threshold(*drawn(rng, 1000), target) for _ in range(400)]
    made = [one for one in found if not math.isnan(one.score)]
    broken = sum(right[others >= one.score].mean() < target for one in made)
    assert len(made) > 300
    assert broken < 20 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_where_rows_are_too_few_as_many_as_it_says_are_enough() -> None:
    rng = np.random.default_rng(1)
    few = threshold(*drawn(rng, 40), 0.95)
    assert few.needed is not None
    assert few.needed > 40
    scores, right = np.full(100, 0.9, np.float32), np.ones(100, np.bool_)
    assert threshold(scores[:58], right[:58], 0.95).needed == 59  # 0.95 ** 58 > 0.05 > 0.95 ** 59
    assert threshold(scores[:59], right[:59], 0.95).rows == 59
    assert threshold(scores, ~right, 0.95).needed is None


@given(ACCURACY_ROWS)
def test_pairs_are_counted_each_once_and_in_order(rows: list[tuple[int, int]]) -> None:
    truth, predicted = np.array(rows, np.int32).reshape(-1, 2).T
    found = count_pairs(truth, predicted)
    assert found == [(*pair, count) for pair, count in sorted(Counter(rows).items())]
    confusion = confusion_of(found, tuple(map(str, range(1000))))
    assert confusion.rows + confusion.without_truth == len(rows)
    assert confusion.correct == sum(true == label for true, label in rows)
