"""Precision, recall and F1 of a model that gives several labels, in a terminal."""

from __future__ import annotations

import math

from rich import box
from rich.table import Table

from ..measures.accuracy import LabelCounts
from .console import PlainConsole

_MOST_CLASSES = 20


def print_label_figures(counts: LabelCounts, console: PlainConsole) -> None:
    """Micro and macro F1, and the figures of each class, those of most rows first."""
    console.print(
        f"micro F1 {_ratio(counts.micro_f1)}, macro F1 {_ratio(counts.macro_f1)}; "
        f"{counts.exact:,} of {counts.rows:,} rows were given exactly their labels"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("class", overflow="fold")
    for name in ("precision", "recall", "F1", "rows", "labelled"):
        table.add_column(name, justify="right")
    figures = sorted(counts.per_class(), key=lambda one: -one.support)
    for name, precision, recall, f1, support, given in figures[:_MOST_CLASSES]:
        table.add_row(name, _ratio(precision), _ratio(recall), _ratio(f1), f"{support:,}", f"{given:,}")
    if len(figures) > _MOST_CLASSES:
        table.add_row(f"{len(figures) - _MOST_CLASSES} more", "", "", "", "", "")
    console.print(table)


def _ratio(value: float) -> str:
    """Three decimals; a class that no row has or was given has no figures."""
    return "–" if math.isnan(value) else f"{value:.3f}"
