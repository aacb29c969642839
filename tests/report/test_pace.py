"""The pace of a job covers its last half minute, and rows count as soon as they are computed."""

from __future__ import annotations

from broadsheet.pipeline.report.pace import WINDOW_SECONDS, Pace
from broadsheet.pipeline.report.tally import Reach
from broadsheet.pipeline.source.plan.plan import RangeEnd, part_name


def test_the_time_left_follows_a_job_that_becomes_slower() -> None:
    """A quarter of the rows takes a thousand rows a second, and the rest a hundred, so the mean would be far off."""
    reach, now = Reach(100_000), [0.0]
    pace = Pace(reach, lambda: now[0])
    assert pace.seconds_left is None
    chunk = 0
    while reach.rows < 25_000:
        now[0] += 1
        reach.add(part_name(0, chunk), 1000)
        chunk += 1
        assert round(pace.rows_per_second) == 1000
    assert pace.seconds_left is not None
    assert round(pace.seconds_left) == 75
    for _ in range(round(2 * WINDOW_SECONDS)):
        now[0] += 1
        reach.add(part_name(0, chunk), 100)
        chunk += 1
        pace.rows_per_second  # noqa: B018 - as who shows it asks for it
    assert round(pace.rows_per_second) == 100
    assert abs(pace.seconds_left - (100_000 - reach.rows) / 100) < 2


def test_rows_count_while_their_chunk_is_computed_and_once() -> None:
    reach = Reach(0, {0: 1000, 1: 3000})
    first, second, other = part_name(0, 0), part_name(0, 1), part_name(1, 0)
    reach.compute(first, 40)
    assert (reach.rows, reach.computed, reach.share) == (0, 40, 0.0)  # the length of rows is not known yet
    reach.note(first, 100, 500)
    assert (reach.rows, reach.computed, reach.share) == (100, 100, 500 / 4000)
    reach.compute(second, 50)
    assert (reach.rows, reach.computed, reach.share) == (100, 150, 750 / 4000)
    reach.compute(first, 60)  # a report that comes late
    reach.compute(other, 30)
    assert reach.computed == 180
    reach.add(first, 100)
    reach.note(second, 100, 1000)
    reach.close(RangeEnd(0, (("a", 200),), 2))
    assert (reach.rows, reach.computed, reach.share) == (200, 230, (1000 + 30 * 5) / 4000)
    reach.add(other, 600)
    reach.close(RangeEnd(1, (("b", 600),), 1))
    assert (reach.rows, reach.computed, reach.rows_known, reach.share) == (800, 800, 800, 1.0)
