"""Which labelled rows are held out of training: a choice that any later command can make again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def hold_out(labels: NDArray[np.int64], share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers to train on and to hold out: `share` of each class, the same rows for every seed."""
    rng = np.random.default_rng(0)
    held = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        held[rng.permutation(rows)[: round(share * len(rows))]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def rarest(labels: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Of each row with several labels, [N, classes], the one that fewest rows have: by it `hold_out` takes a share of
    every class. The number of classes for a row without labels.
    """
    counts = np.where(labels, labels.sum(axis=0), len(labels) + 1)
    found: NDArray[np.int64] = np.where(labels.any(axis=1), counts.argmin(axis=1), labels.shape[1])
    return found
