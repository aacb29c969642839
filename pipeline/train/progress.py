"""What a run tells while it goes on: what it will cost, each step, each epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True)
class Cost:
    """What the rest of a run takes, told before it begins, from a trial step.

    device: its name, with the precision. rows: trained on in an epoch. epochs: that are left, the first maybe in part.
    seconds: of an epoch. seconds_on_gpu: of an epoch on one NVIDIA H200, where this is no GPU; else None.
    """

    device: str
    rows: int
    epochs: int
    seconds: float
    seconds_on_gpu: float | None


class Step(NamedTuple):
    """So many of an epoch's steps are done."""

    epoch: int
    done: int
    steps: int


class Epoch(NamedTuple):
    """The figures of an epoch.

    Attributes
    ----------
    number : int
        From 1.
    loss : float
        Training loss, the mean over its batches.
    accuracy : float
        Accuracy of the averaged weights on the held-out rows; nan where there are none.

    """

    number: int
    loss: float
    accuracy: float


class Note(NamedTuple):
    """A line for whoever waits."""

    text: str


Tell: TypeAlias = Callable[[Cost | Step | Epoch | Note], None]


class Stopped(KeyboardInterrupt):
    """A run was interrupted, and has stopped between two steps; its checkpoint, if it has one, is written."""
