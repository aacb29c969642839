"""The training curve as an image, with Matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .progress import Epoch

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_curve(history: Sequence[Epoch], path: Path) -> None:
    """Plot loss and held-out accuracy by epoch, in the image format of the path's suffix.

    Raises ImportError without Matplotlib.
    """
    draw_curve(history).savefig(path)


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
