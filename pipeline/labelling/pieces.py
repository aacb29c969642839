"""Labels the texts of a chunk piece by piece, so that a user who waits for a CPU sees how far it is.

The scores of a text do not depend on the texts beside it, so the result is that of a single call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.base import Predictions, Texts

_FIRST_ROWS = 128
"""The number of rows in the first piece. Its time decides the size of the next piece."""

_SECONDS = 1.0
"""About how long a piece takes, in seconds."""

Label = Callable[[Texts], tuple[Predictions, ...]]


def in_pieces(
    texts: Texts, label: Label, tell: Callable[[int], None], least: int = _FIRST_ROWS, seconds: float = _SECONDS
) -> tuple[Predictions, ...]:
    """Return the predictions of each model for N texts.

    Parameters
    ----------
    texts : Texts
        The texts, in the host's memory.
    label : callable
        Returns the predictions of each model for some of the texts.
    tell : callable
        Called after each piece but the last with the number of texts that are labelled.
    least : int
        The number of texts in the first piece, and the least number in any other.
    seconds : float
        About how long each further piece takes, in seconds.

    """
    rows = len(texts)
    pieces: list[tuple[Predictions, ...]] = []
    first, size = 0, least
    while first < rows or not pieces:
        last = min(first + size, rows)
        began = time.perf_counter()
        pieces.append(label(texts if last - first == rows else _part(texts, first, last)))
        taken = max(time.perf_counter() - began, 1e-6)
        size = max(least, int(seconds * (last - first) / taken))
        if rows - last < size // 2:
            size = rows  # take the whole rest, so that no small piece is left after it
        first = last
        if first < rows:
            tell(first)
    return pieces[0] if len(pieces) == 1 else tuple(map(joined, zip(*pieces, strict=True)))


def _part(texts: Texts, first: int, last: int) -> Texts:
    """Return some of the texts, without a copy of them."""
    return replace(
        texts,
        offsets=texts.offsets[first : last + 1] if texts.ids is None else texts.offsets,
        ids=None if texts.ids is None else texts.ids[first:last],
        n_chars=None if texts.n_chars is None else texts.n_chars[first:last],
        prepared={name: prepared.slice(first, last - first) for name, prepared in texts.prepared.items()},
    )


def joined(pieces: tuple[Predictions, ...]) -> Predictions:
    """Join the predictions of consecutive pieces."""
    made: dict[str, Any] = {}
    for name in ("labels", "scores", "all_scores", "n_chars", "truncated", "unknown_chars", "n_windows"):
        parts = [getattr(piece, name) for piece in pieces]
        made[name] = None if parts[0] is None else np.concatenate(parts)
    saturated, asked = (sum(getattr(piece, name) for piece in pieces) for name in ("saturated", "asked"))
    return Predictions(**made, saturated=saturated, asked=asked)
