"""What a process was at, second for second: said as it happens, or of a GPU's batches once they are done."""

from __future__ import annotations

import time

import pytest

from pipeline.telemetry import activity as telling
from pipeline.telemetry.activity import WAITING, activities, activity, add_activity

FAR = time.time() + 1e6
"""Moments that nothing else in this process speaks of; until then it waits."""


def test_each_second_counts_for_one_activity() -> None:
    """Two batches: the second is copied in while the first computes, whose results go out while the second computes."""
    for name, start, end in (
        ("copy-in", 10, 12), ("kernels", 12, 20), ("copy-out", 20, 21),
        ("copy-in", 15, 17), ("kernels", 20.5, 25), ("copy-out", 25, 28),
    ):  # fmt: skip
        add_activity(name, FAR + start, FAR + end)
    assert activities(FAR, FAR + 40) == {WAITING: 22, "copy-in": 2, "kernels": 12.5, "copy-out": 3.5}
    assert activities(FAR + 11, FAR + 13) == {"copy-in": 1, "kernels": 1}
    assert activities(FAR + 13, FAR + 14) == {"kernels": 1}
    halves = [activities(FAR + a, FAR + b) for a, b in ((0, 16.25), (16.25, 40))]
    whole = activities(FAR, FAR + 40)
    assert {name: sum(half.get(name, 0) for half in halves) for name in whole} == pytest.approx(whole)


def test_a_block_is_told_while_it_runs_and_a_device_goes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([FAR + 100, FAR + 102, FAR + 103, FAR + 108])
    monkeypatch.setattr(telling.time, "time", lambda: next(clock))
    before = len(telling._changes)
    with activity("computing"):
        with activity("copy-in"):
            pass
        add_activity("kernels", FAR + 104, FAR + 106)
        assert activities(FAR + 99, FAR + 107) == {WAITING: 1, "computing": 4, "copy-in": 1, "kernels": 2}
    assert activities(FAR + 106, FAR + 110) == {"computing": 2, WAITING: 2}
    while len(telling._changes) > before:
        telling._changes.pop()


def test_nothing_is_told_of_the_time_before_this_process() -> None:
    began = telling._changes[0][0]
    assert sum(activities(began - 5, began + 1e-3).values()) == pytest.approx(1e-3, rel=0.01)
