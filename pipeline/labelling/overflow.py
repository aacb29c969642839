"""Articles on which the model overflows: their scores are not finite, so they go to the quarantine, unlabelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..engine.base import Engine, Predictions
from ..errors import UsageError
from ..source.chunk import HEAD_BYTES, QUARANTINE_SCHEMA, Chunk

_NO_COINCIDENCE = 16
"""Where so many articles overflow, and no other is in their chunk, the cause is the model and not the articles."""

_REMEDIES = {
    "fp16": "use --precision bf16 or --precision fp32",
    "bf16": "use --precision fp32",
    "int8": "use --precision fp32",
    "fp32": "its weights are damaged or too large",
}


def set_aside_overflow(
    chunk: Chunk, predictions: tuple[Predictions, ...], engines: Sequence[Engine], first: bool
) -> tuple[Chunk, tuple[Predictions, ...]]:
    """Move the rows that one of `engines` could not score to the chunk's quarantine. predictions: by each of them.

    first: whether this is the first chunk of a job. Raises UsageError where all rows of the first chunk overflow, or
    all of a larger one: the other chunks would fare no better.
    """
    for i, engine in enumerate(engines):
        lost = predictions[i].overflowed
        if lost.any():
            chunk = _without(chunk, lost, engine, first)
            predictions = tuple(found.take(~lost) for found in predictions)
    return chunk, predictions


def _without(chunk: Chunk, lost: NDArray[np.bool_], engine: Engine, first: bool) -> Chunk:
    precision = engine.backend.precision
    if lost.all() and (first or len(chunk) >= _NO_COINCIDENCE):
        raise UsageError(
            f"{engine.model.name}: overflows in {precision} on each of the {len(chunk):,} articles of a chunk: "
            f"{_REMEDIES[precision]}"
        )
    mask, kept = pa.array(lost), pa.array(~lost)
    rows = chunk.rows.filter(mask)
    columns = [
        rows["file"],
        rows["row"],
        pa.nulls(len(rows), pa.int64()),
        pa.repeat(f"the model overflows in {precision} on this text", len(rows)),
        pc.binary_slice(chunk.text.filter(mask), 0, HEAD_BYTES).cast(pa.binary()),
    ]
    return replace(
        chunk,
        text=chunk.text.filter(kept),
        rows=chunk.rows.filter(kept),
        quarantine=pa.concat_tables([chunk.quarantine, pa.table(columns, QUARANTINE_SCHEMA)]),
        ids=None if chunk.ids is None else chunk.ids[~lost],
        truth=None if chunk.truth is None else chunk.truth[~lost],
        n_chars=None if chunk.n_chars is None else chunk.n_chars[~lost],
        bad=None if chunk.bad is None else pa.concat_tables([chunk.bad, rows.select(chunk.bad.column_names)]),
    )
