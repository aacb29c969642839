"""What a run reports while it goes on: what it will cost, each step, each epoch, a loss that does not move.

Its curve as an image, and Ctrl-C and SIGTERM: it stops between two steps, when its state is whole.
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
    """What the rest of a run takes, reported before it begins, from a trial step.

    Attributes
    ----------
    device : str
        Its name, with the precision.
    rows : int
        Trained on in an epoch.
    epochs : int
        That are left, the first maybe in part.
    seconds : float
        Of an epoch.
    seconds_on_gpu : float, optional
        Of an epoch on one NVIDIA H200, where this is no GPU.

    """

    device: str
    rows: int
    epochs: int
    seconds: float
    seconds_on_gpu: float | None


class RowsDone(NamedTuple):
    """How far a phase before the training is: a teacher's, or an encoder's.

    Attributes
    ----------
    phase : str
        What is done.
    done, most : int
        How many rows are done, and how many there are.

    """

    phase: str
    done: int
    most: int


class Fit(NamedTuple):
    """How many fits of a linear model are done, of how many at most: weaker penalties are tried while they are better.

    Attributes
    ----------
    done, most : int
        The fits.
    what : str
        What it is fitted to.

    """

    done: int
    most: int
    what: str = "n-grams"


class Step(NamedTuple):
    """How far an epoch is.

    Attributes
    ----------
    epoch : int
        Its number, from 1.
    done, steps : int
        Steps that are done, and how many there are.
    loss : float, optional
        The mean training loss of the epoch so far, where it is known.

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
        From 1.
    loss : float
        Training loss, the mean over its batches.
    accuracy : float
        Accuracy of the averaged weights on the held-out rows; nan where there are none.

    """

    number: int
    loss: float
    accuracy: float


class Odd(NamedTuple):
    """Something odd in labelled rows.

    Attributes
    ----------
    what : str
        What it is.
    rows : int
        How many rows it concerns.
    which : str
        Which classes or texts.
    remedy : str
        What becomes of these rows, or what would help.
    map_line : tuple of str, optional
        A label and its class, or "" to leave its rows out: an example of what a file for --map-labels would say.

    """

    what: str
    rows: int
    which: str
    remedy: str
    map_line: tuple[str, str] | None = None


class Oddities(NamedTuple):
    """Everything odd in the rows to learn, reported before anything is trained. found: may be empty."""

    found: tuple[Odd, ...]


class Note(NamedTuple):
    """A line for whoever waits."""

    text: str


Told: TypeAlias = Cost | RowsDone | Fit | Step | Epoch | Note | Oddities

Tell: TypeAlias = Callable[[Told], None]


class TrainingStopped(KeyboardInterrupt):
    """A run was interrupted, and has stopped between two steps; its checkpoint, if it has one, is written."""


@contextmanager
def interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Whether an interrupt has come, within the block; a second one raises KeyboardInterrupt at once.

    Outside a process's main thread, which alone gets them, it is never true.
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


_SHARE = 0.1  # of the epochs, after which the note is given
_LEAST = 3  # epochs
_MOVED = 0.02  # of the loss of guessing


class Stuck:
    """Passes on each report, and notes once that the loss is still that of guessing by how frequent the classes are."""

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
    """Plot loss and held-out accuracy by epoch, in the image format of the path's suffix, PNG where it has none.

    Raises ImportError without Matplotlib, OutputError for a file that cannot be written.
    """
    picture = BytesIO()
    draw_curve(history).savefig(picture, format=path.suffix[1:] or "png")
    write_file(path, picture.getvalue())


def draw_curve(history: Sequence[Epoch]) -> Figure:
    """The plot. Its legend is above the axes, where it covers no curve."""
    from matplotlib.figure import Figure

    epochs = [e.number for e in history]
    figure = Figure(figsize=(7, 3.6), dpi=150, layout="constrained")
    loss = figure.add_subplot(xlabel="epoch", ylabel="training loss")
    lines = loss.plot(epochs, [e.loss for e in history], color="tab:blue", label="training loss (augmented rows)")
    measured = [e for e in history if e.accuracy == e.accuracy]
    if measured:
        accuracy = loss.twinx()
        accuracy.set_ylabel("held-out accuracy (%)")
        # The first epochs, before the network has learned anything, would flatten the rest.
        best = 100 * max(e.accuracy for e in measured)
        accuracy.set_ylim(best - 12, best + 2)
        numbers, shares = [e.number for e in measured], [100 * e.accuracy for e in measured]
        lines += accuracy.plot(numbers, shares, color="tab:orange", label="held-out accuracy")
    loss.grid(alpha=0.3)
    figure.legend(handles=lines, loc="outside upper center", ncols=2, frameon=False)
    return figure
