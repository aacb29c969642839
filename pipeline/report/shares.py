"""Formats shares of rows for printing: in percent, with the confidence interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..measures.accuracy import Confusion
from ..measures.intervals import Interval, wilson


def share_text(hits: int, rows: int) -> str:
    """Return a share of rows with its 95 % confidence interval, in percent.

    >>> share_text(99, 100)
    '99.00% (95% interval 94.55–99.82%)'
    """
    return f"{hits / rows:.2%} (95% interval {interval_text(wilson(hits, rows))})" if rows else "–"


def share_of_card(figures: Mapping[str, Any], name: str) -> str:
    """Return a share of a model's card with its interval, in percent."""
    return f"{figures[name]:.2%} (95% interval {interval_text(Interval(*figures[f'{name} interval']))})"


def interval_text(interval: Interval) -> str:
    """Return an interval of shares, in percent."""
    return f"{100 * interval.low:.2f}–{100 * interval.high:.2f}%"


def accuracy_text(confusion: Confusion) -> str:
    """Return the accuracy with its interval, and the number of rows that it is computed from."""
    return f"{share_text(confusion.correct, confusion.rows)}: {confusion.correct:,} of {confusion.rows:,} right"
