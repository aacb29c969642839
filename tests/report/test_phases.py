"""One bar shows the progress of rows, fits and steps: the amount done, the rate of the last seconds, the time left."""

from __future__ import annotations

import io

import pytest

from broadsheet.pipeline.report.console import PlainConsole
from broadsheet.pipeline.report.phases import Phases


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(seconds: list[float], done: list[int], most: int | None, phase: str = "evaluating") -> str:
    """Return what a terminal shows if these amounts are done at these times."""
    console, clock = PlainConsole(), Clock()
    console.file = io.StringIO()
    console._force_terminal = console.is_interactive = True
    console.width = 100
    phases = Phases(console, clock)
    for clock.now, rows in zip(seconds, done, strict=True):
        phases(phase, rows, most)
    phases.stop()
    return console.file.getvalue()


def test_nothing_is_shown_of_what_takes_less_than_two_seconds() -> None:
    assert shown([0.0, 1.0, 1.9], [0, 500, 1000], 1000) == ""


def test_the_rate_and_the_time_left_are_those_of_the_last_seconds() -> None:
    """The rate was 1,000 rows a second for a minute, and is 100 now: 4,000 rows take 40 seconds."""
    seconds = [*map(float, range(61)), *(60.0 + i for i in range(1, 21))]
    done = [*(1000 * i for i in range(61)), *(60_000 + 100 * i for i in range(1, 21))]
    text = shown(seconds, done, 66_000)
    assert "evaluating" in text
    assert "62,000 of 66,000 rows, 100/s, 0:00:40 left" in text


def test_a_phase_that_is_done_leaves_no_bar() -> None:
    text = shown([0.0, 1.0, 3.0, 4.0], [0, 10, 90, 100], 100)
    assert "90 of 100 rows" in text
    assert "100 of 100 rows" not in text


def test_rows_of_which_the_number_is_not_known_have_no_time_left() -> None:
    text = shown([0.0, 1.0, 3.0], [0, 100, 300], None)
    assert "300 rows, 100/s" in text
    assert "left" not in text
