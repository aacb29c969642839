"""The reports of a running training run: its cost, each step, each epoch, and a warning if the loss does not fall.

This module also draws the curve of a run as an image, and notes Ctrl-C and SIGTERM, so that the run stops between two
steps, when its state is complete.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..storage.disk import write_file
from .recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cost:
    """The estimated time of a run, measured by a trial step, and reported before training begins or resumes.

    Attributes
    ----------
    device : str
        The name of the device, with the precision.
    rows : int
        The number of rows that an epoch trains on.
    epochs : int
        The number of remaining epochs. Part of the first one may be done.
    seconds : float
        The time of an epoch.
    seconds_on_gpu : float, optional
        The time of an epoch on one NVIDIA H200, if this device is no GPU.

    """

    device: str
    rows: int
    epochs: int
    seconds: float
    seconds_on_gpu: float | None


class RowsDone(NamedTuple):
    """The progress of a phase before training: a teacher that answers, or an encoder that computes vectors.

    Attributes
    ----------
    phase : str
        The name of the phase.
    done, most : int
        The number of rows that are finished, and the number of all rows.

    """

    phase: str
    done: int
    most: int


class Fit(NamedTuple):
    """The progress of fitting linear models. There may be fewer fits than `most`: weaker penalties are tried only while
    they are better.

    Attributes
    ----------
    done, most : int
        The number of finished fits, and the largest number of fits.
    what : str
        The features to which the model is fitted.

    """

    done: int
    most: int
    what: str = "n-grams"


class Step(NamedTuple):
    """The progress of an epoch.

    Attributes
    ----------
    epoch : int
        The number of the epoch, from 1.
    done, steps : int
        The number of finished steps, and the number of all steps.
    loss : float, optional
        The mean training loss of the epoch so far, if it is known.

    """

    epoch: int
    done: int
    steps: int
    loss: float | None = None


class Epoch(NamedTuple):
    """The figures of an epoch.

    Attributes
    ----------
    number : int
        The number of the epoch, from 1.
    loss : float
        The training loss, the mean over the batches.
    accuracy : float
        The accuracy of the averaged weights on the held-out rows; nan if there are none.

    """

    number: int
    loss: float
    accuracy: float


class Odd(NamedTuple):
    """Something odd in labelled rows.

    Attributes
    ----------
    what : str
        The name of the oddity.
    rows : int
        The number of rows that it concerns.
    which : str
        The classes, texts or values that it concerns.
    remedy : str
        What happens to these rows, or what you can do.
    map_line : tuple of str, optional
        An example line for a file for --map-labels: a label and its class, or "" to leave out the label's rows.

    """

    what: str
    rows: int
    which: str
    remedy: str
    map_line: tuple[str, str] | None = None


class Oddities(NamedTuple):
    """Everything odd in the rows to learn, reported before training. found: the oddities; there may be none."""

    found: tuple[Odd, ...]


class Note(NamedTuple):
    """A line of text for the user."""

    text: str


Told: TypeAlias = Cost | RowsDone | Fit | Step | Epoch | Note | Oddities

Tell: TypeAlias = Callable[[Told], None]


class TrainingStopped(KeyboardInterrupt):
    """A run was interrupted and stopped between two steps. If it writes checkpoints, it has written one."""


@contextmanager
def interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether an interrupt (Ctrl-C or SIGTERM) has come within the block.

    A second interrupt raises KeyboardInterrupt at once. Only the main thread of a process gets interrupts; in any other
    thread the function always returns False.
    """
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield noted.is_set
        return

    def note(_signal: int, _frame: FrameType | None) -> None:
        if noted.is_set():
            raise KeyboardInterrupt
        noted.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_SHARE = 0.1  # the warning comes after this share of the epochs
_LEAST = 3  # and after at least this many epochs
_MOVED = 0.02  # the share of the loss of guessing by which the loss must have fallen


class Stuck:
    """Passes on each report, and warns once if the loss is still that of guessing by the frequencies of the classes."""

    def __init__(self, tell: Tell, labels: NDArray[np.int64], classes: int, recipe: Recipe) -> None:
        self._tell, self._recipe, self._told = tell, recipe, False
        self._after = max(_LEAST, round(_SHARE * recipe.epochs))
        shares = np.bincount(labels, minlength=classes) / len(labels)
        shares = (1 - recipe.label_smoothing) * shares + recipe.label_smoothing / classes
        self.guessing = float(-(shares * np.log(np.maximum(shares, np.finfo(float).tiny))).sum())

    def __call__(self, what: Told) -> None:
        """Pass on a report of the run."""
        self._tell(what)
        if self._told or not isinstance(what, Epoch) or what.number < self._after:
            return
        if what.loss > (1 - _MOVED) * self.guessing:
            self._told = True
            rate, so_far = self._recipe.learning_rate, f"after {what.number} of {self._recipe.epochs} epochs"
            self._tell(
                Note(
                    f"warning: {so_far} the loss is {what.loss:.3f}, that of guessing {self.guessing:.3f}: nothing "
                    f"is learnt yet. Try a learning rate of {rate / 10:g}, no dropout (dropout=0, input_dropout=0), "
                    "less augmentation (dropped_words=0, random_characters=0, erased_spans=0), or n-grams alone"
                )
            )


def plot_curve(history: Sequence[Epoch], path: Path) -> None:
    """Plot loss and held-out accuracy by epoch, in the image format of the path's suffix, or PNG without a suffix.

    Raises ImportError without Matplotlib, and OutputError for a file that cannot be written.
    """
    picture = BytesIO()
    draw_curve(history).savefig(picture, format=path.suffix[1:] or "png")
    write_file(path, picture.getvalue())


def draw_curve(history: Sequence[Epoch]) -> Figure:
    """Return the plot. Its legend is above the axes, where it covers no curve."""
    from matplotlib.figure import Figure

    epochs = [e.number for e in history]
    figure = Figure(figsize=(7, 3.6), dpi=150, layout="constrained")
    loss = figure.add_subplot(xlabel="epoch", ylabel="training loss")
    lines = loss.plot(epochs, [e.loss for e in history], color="tab:blue", label="training loss (augmented rows)")
    measured = [e for e in history if e.accuracy == e.accuracy]
    if measured:
        accuracy = loss.twinx()
        accuracy.set_ylabel("held-out accuracy (%)")
        # In the first epochs, the accuracy is far lower. An axis that shows them would flatten the rest of the curve.
        best = 100 * max(e.accuracy for e in measured)
        accuracy.set_ylim(best - 12, best + 2)
        numbers, shares = [e.number for e in measured], [100 * e.accuracy for e in measured]
        lines += accuracy.plot(numbers, shares, color="tab:orange", label="held-out accuracy")
    loss.grid(alpha=0.3)
    figure.legend(handles=lines, loc="outside upper center", ncols=2, frameon=False)
    return figure
