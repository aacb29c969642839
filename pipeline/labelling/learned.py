"""Which rows of a chunk a model has learned from."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..model.charcnn import Model
from ..model.learned import LookedUp
from ..source.rows.chunk import Chunk


def looked_up(model: Model, chunk: Chunk) -> LookedUp | None:
    """Which rows of a chunk a model has learned from; None where that is not known.

    The file of a model that was trained elsewhere, or by a version before 0.3, does not say. Rows that are encoded
    already have no text, and of prepared texts the original is not read whole.
    """
    if model.learned is None or model.preparation is not None or chunk.ids is not None:
        return None
    text = chunk.text if isinstance(chunk.text, pa.Array) else chunk.text.on_host()
    return model.learned.look_up(text.cast(pa.large_string()))


def looked_up_by_each(models: Sequence[Model], chunk: Chunk) -> list[LookedUp | None]:
    """The same of each model, or of each of its heads."""
    return [found for model in models for found in [looked_up(model, chunk)] * len(model.heads or (None,))]
