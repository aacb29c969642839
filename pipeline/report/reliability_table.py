"""How far scores can be believed, in a terminal: calibration error, the reliability diagram, thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.table import Table

from ..measures.reliability import Reliability, Threshold
from .console import PlainConsole

_BAR = 30
_MOST_CLASSES = 20


def print_reliability(found: Reliability, before: Reliability | None, diagram: bool, console: PlainConsole) -> None:
    """The expected calibration error with the model's temperature and without it, and a bar for each bin of scores.

    before: without the temperature; None for a model that has none. diagram: whether to print the bars.
    """
    if before is None:
        console.print(
            f"expected calibration error {found.expected_error:.4f}; the model has no temperature: "
            "broadsheet calibrate finds one"
        )
    else:
        console.print(
            f"expected calibration error {before.expected_error:.4f} before the model's temperature, "
            f"{found.expected_error:.4f} after it"
        )
    if not diagram:
        return
    table = _table("score", "rows", "mean score", "right")
    table.add_column("│ marks the mean score")
    for one in found.bins:
        if one.rows:
            scores, right = f"{one.score:.3f}", f"{one.accuracy:.3f}"
            table.add_row(
                f"{one.low:.2f} – {one.high:.2f}", f"{one.rows:,}", scores, right, _bar(one.accuracy, one.score)
            )
    console.print(table)


def _bar(length: float, mark: float) -> str:
    """A bar of a length from 0 to 1, and a mark at another."""
    filled, at = round(length * _BAR), min(round(mark * _BAR), _BAR - 1)
    cells = ["█" if i < filled else " " for i in range(_BAR)]
    cells[at] = "│"
    return "".join(cells).rstrip()


def print_thresholds(thresholds: Sequence[Threshold], console: PlainConsole) -> None:
    """From which score on labels have the wanted precision, of all labels and of each class."""
    table = _table("labels", "score from", "precision", "rows", "coverage")
    for one in thresholds[: _MOST_CLASSES + 1]:
        name = "all" if one.name is None else one.name
        if math.isnan(one.score):
            table.add_row(name, "none", "–", "0", "–")
        else:
            # Rounded up: at a score that is a little lower there may be rows that lack the precision.
            score = math.ceil(one.score * 1e4) / 1e4
            table.add_row(name, f"{score:.4f}", f"{one.precision:.4f}", f"{one.rows:,}", f"{one.coverage:.1%}")
    if len(thresholds) > _MOST_CLASSES + 1:
        table.add_row(f"{len(thresholds) - 1 - _MOST_CLASSES} more", "", "", "", "")
    console.print(table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table
