"""Predictions as bytes, a row a text, so that those of many requests are cut and sent without being looked at."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..engine.base import Predictions

_COUNTS = ("n_chars", "truncated", "unknown_chars")


@lru_cache
def kind_of(classes: int, top_k: int) -> np.dtype[np.void]:
    """The type of a row. Its bytes are those of this machine: rows are not kept, nor sent to others."""
    labels = [("labels", np.int32, (top_k,)), ("scores", np.float32, (top_k,)), ("all_scores", np.float32, (classes,))]
    return np.dtype([("n_chars", np.int64), ("unknown_chars", np.int64), *labels, ("truncated", np.bool_)], align=True)


def to_rows(found: Predictions) -> NDArray[np.void]:
    """Predictions with all scores as an array of rows, [N]."""
    assert found.all_scores is not None
    rows = np.zeros(len(found.labels), kind_of(found.all_scores.shape[1], found.labels.shape[1]))
    for name in rows.dtype.names or ():
        rows[name] = getattr(found, name)
    return rows


def cut(rows: NDArray[np.void], top_k: int) -> NDArray[np.void]:
    """The same with the `top_k` best labels only."""
    had, classes = rows["labels"].shape[1], rows["all_scores"].shape[1]
    if had == top_k:
        return rows
    fewer = np.zeros(len(rows), kind_of(classes, top_k))
    for name in ("labels", "scores"):
        fewer[name] = rows[name][:, :top_k]
    for name in ("all_scores", *_COUNTS):
        fewer[name] = rows[name]
    return fewer


def from_rows(data: bytes, classes: int, top_k: int) -> Predictions:
    """What `to_rows` was given, of rows with that many classes and labels."""
    rows = np.frombuffer(data, kind_of(classes, top_k))
    n_chars, truncated, unknown_chars = (rows[name] for name in _COUNTS)
    return Predictions(rows["labels"], rows["scores"], rows["all_scores"], n_chars, truncated, unknown_chars)
