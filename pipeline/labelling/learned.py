"""Finds the rows of a chunk that a model has learned from."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..model.charcnn import Model
from ..model.learned import LookedUp
from ..source.rows.chunk import Chunk


def looked_up(model: Model, chunk: Chunk) -> LookedUp | None:
    """Return which rows of a chunk a model has learned from; None if it is unknown.

    It is unknown for a model that was trained elsewhere or by a version before 0.3, whose file does not say. It is also
    unknown for encoded rows, which have no text, and for prepared texts, whose originals are not read completely.
    """
    if model.learned is None or model.preparation is not None or chunk.ids is not None:
        return None
    text = chunk.text if isinstance(chunk.text, pa.Array) else chunk.text.on_host()
    return model.learned.look_up(text.cast(pa.large_string()))


def looked_up_by_each(models: Sequence[Model], chunk: Chunk) -> list[LookedUp | None]:
    """Return the result of `looked_up` for each model, repeated for each of its heads."""
    return [found for model in models for found in [looked_up(model, chunk)] * len(model.heads or (None,))]
