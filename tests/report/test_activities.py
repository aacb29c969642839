"""What a process was at, second for second: said as it happens, or of a GPU's batches once they are done."""

from __future__ import annotations

import time

import pytest

from pipeline.telemetry.activity import WAITING, ActivityLog


def test_each_second_counts_for_one_activity() -> None:
    """Two batches: the second is copied in while the first computes, whose results go out while the second computes."""
    log = ActivityLog(lambda: 0)
    for name, start, end in (
        ("copy-in", 10, 12), ("kernels", 12, 20), ("copy-out", 20, 21),
        ("copy-in", 15, 17), ("kernels", 20.5, 25), ("copy-out", 25, 28),
    ):  # fmt: skip
        log.add(name, start, end)
    assert log.seconds(0, 40) == {WAITING: 22, "copy-in": 2, "kernels": 12.5, "copy-out": 3.5}
    assert log.seconds(11, 13) == {"copy-in": 1, "kernels": 1}
    assert log.seconds(13, 14) == {"kernels": 1}
    halves = [log.seconds(a, b) for a, b in ((0, 16.25), (16.25, 40))]
    whole = log.seconds(0, 40)
    assert {name: sum(half.get(name, 0) for half in halves) for name in whole} == pytest.approx(whole)


def test_a_block_is_noted_while_it_runs_and_a_device_goes_before_it() -> None:
    clock = iter([0, 100, 102, 103, 108])
    log = ActivityLog(lambda: next(clock))
    with log.during("computing"):
        with log.during("copy-in"):
            pass
        log.add("kernels", 104, 106)
        assert log.seconds(99, 107) == {WAITING: 1, "computing": 4, "copy-in": 1, "kernels": 2}
    assert log.seconds(106, 110) == {"computing": 2, WAITING: 2}


def test_nothing_is_said_of_the_time_before_the_log() -> None:
    began = time.time()
    log = ActivityLog()
    assert sum(log.seconds(began - 5, began + 1).values()) == pytest.approx(1, rel=0.01)
