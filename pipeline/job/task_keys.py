"""The Dask keys of a job's tasks, from which the step and the chunk of a task can be told."""

from __future__ import annotations

from typing import Any

Key = tuple[str, str, int]
"""Step and run, chunk (or group), and a number that no other task of the run has."""


def task_key(step: str, run: str, chunk: str, number: int) -> Key:
    """The key of a task. run: eight hexadecimal digits, which Dask leaves out when it groups tasks by name."""
    return f"{step}-{run}", chunk, number


def step_and_chunk(key: Any) -> tuple[str, str] | None:
    """Step and chunk of a task; None for a task that is not of a job."""
    if isinstance(key, tuple) and len(key) == 3 and isinstance(key[0], str):
        return key[0].rpartition("-")[0], str(key[1])
    return None


def run_of(key: Key) -> str:
    """The run of which a task is."""
    return key[0].rpartition("-")[2]
