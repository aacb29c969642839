"""A Dask worker preload that delays a step of each chunk, so that a trial can disturb a job in the middle."""

from __future__ import annotations

_SLOWED = {
    "commit": """
import os, time
from broadsheet.pipeline.job.worker import STATE
kept_commit = vars(STATE).setdefault("kept_commit", STATE.commit)  # Dask runs a preload more than once
def slow_commit(*arguments):
    time.sleep({seconds})
    return kept_commit(*arguments)
STATE.commit = slow_commit
""",
    "read": """
import os, time
from broadsheet.pipeline.job.worker import STATE
kept_read = vars(STATE).setdefault("kept_read", STATE.read_range)
def slow_read_range(*arguments):
    for item in kept_read(*arguments):
        time.sleep({seconds})
        yield item
STATE.read_range = slow_read_range
""",
}


def slowed(step: str, seconds: object = 0.3) -> str:
    """Return the code of a preload that delays a step, "read" or "commit".

    seconds: a number, or an expression that the worker evaluates. In the expression, `arguments` are the arguments of
    the step; the first argument of "read" is the range.
    """
    return _SLOWED[step].format(seconds=seconds)
