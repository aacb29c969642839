"""Shares of rows as they are printed: in percent, with the interval that the rows allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..measures.accuracy import Confusion
from ..measures.intervals import Interval, wilson


def share_text(hits: int, rows: int) -> str:
    """A share of rows with its 95 % confidence interval, in percent.

    >>> share_text(99, 100)
    '99.00% (95% interval 94.55–99.82%)'
    """
    return f"{hits / rows:.2%} (95% interval {interval_text(wilson(hits, rows))})" if rows else "–"


def share_of_card(figures: Mapping[str, Any], name: str) -> str:
    """A share with its interval, of a model's card."""
    return f"{figures[name]:.2%} (95% interval {interval_text(Interval(*figures[f'{name} interval']))})"


def interval_text(interval: Interval) -> str:
    """An interval of shares, in percent."""
    return f"{100 * interval.low:.2f}–{100 * interval.high:.2f}%"


def accuracy_text(confusion: Confusion) -> str:
    """The accuracy with its interval, and of how many rows it is."""
    return f"{share_text(confusion.correct, confusion.rows)}: {confusion.correct:,} of {confusion.rows:,} right"
