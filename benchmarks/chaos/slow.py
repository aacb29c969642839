"""A worker preload that makes a step of each chunk take longer, so that a job can be caught in the middle."""

from __future__ import annotations

_SLOWED = """
import os, time
from pipeline.worker import STATE
def slowly(kept):
    def slow(*arguments):
        time.sleep({seconds})
        return kept(*arguments)
    return slow
# Dask runs a preload more than once.
STATE.{step} = slowly(vars(STATE).setdefault("kept_{step}", STATE.{step}))
"""


def slowed(step: str, seconds: object = 0.3) -> str:
    """The preload. step: "read" or "commit". seconds: a number, or an expression that gives one on the worker."""
    return _SLOWED.format(step=step, seconds=seconds)
