"""Predictions as the rows of a part."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.engine.base import Predictions
from pipeline.errors import UsageError
from pipeline.source.chunk import NO_TRUTH, Chunk, Selection

REASON = pa.field("reason", pa.string())
"""The last column of results in memory: why a row has no label."""


def output_schema(selection: Selection, classes: tuple[str, ...], top_k: int, all_scores: bool) -> pa.Schema:
    """The columns of a part. Raises UsageError where a kept column has the name of another."""
    rows, truth = selection.row_schema, bool(selection.truth or selection.answers)
    computed = computed_columns(classes, top_k, all_scores, truth)
    for name in rows.names[2:]:
        if name in ("file", "row", *computed.names, REASON.name):
            raise UsageError(
                f"the column {name!r} cannot be copied: the output has a column of that name. Rename it, or leave it "
                "out of those to copy"
            )
    return pa.schema([*rows, *computed])


def computed_columns(classes: tuple[str, ...], top_k: int, all_scores: bool, truth: bool) -> pa.Schema:
    """Those that a job adds to `file`, `row` and the kept columns."""
    fields = [pa.field("label", pa.string()), pa.field("score", pa.float32())]
    if truth:
        fields.append(pa.field("truth", pa.string()))
    if all_scores:
        fields += [pa.field(f"score_{name}", pa.float32()) for name in classes]
    if top_k > 1:
        fields.append(pa.field("top_labels", pa.list_(pa.string())))
        fields.append(pa.field("top_scores", pa.list_(pa.float32())))
    fields += [
        pa.field("n_chars", pa.int64()),
        pa.field("truncated", pa.bool_()),
        pa.field("unknown_chars", pa.int64()),
    ]
    return pa.schema(fields)


def label_table(chunk: Chunk, predictions: Predictions, schema: pa.Schema, classes: tuple[str, ...]) -> pa.Table:
    """The labelled rows: the columns of `chunk.rows` and of its predictions, in the order of `schema`."""
    truth = None
    if chunk.truth is not None:
        truth = pa.array(classes, pa.string()).take(pa.array(chunk.truth, mask=chunk.truth == NO_TRUTH))
    top = "top_labels" in schema.names
    return pa.table([*chunk.rows.columns, *label_columns(predictions, classes, top, truth)], schema)


def label_columns(
    predictions: Predictions, classes: tuple[str, ...], top: bool, truth: pa.Array | None = None
) -> list[pa.Array]:
    """The columns of `computed_columns`. top: with the best labels, and their scores, as lists."""
    names = pa.array(classes, pa.string())
    count, k = predictions.labels.shape
    columns = [names.take(pa.array(predictions.labels[:, 0])), pa.array(predictions.scores[:, 0])]
    if truth is not None:
        columns.append(truth)
    if predictions.all_scores is not None:
        columns += [pa.array(np.ascontiguousarray(scores)) for scores in predictions.all_scores.T]
    if top:
        bounds = pa.array(np.arange(count + 1, dtype=np.int32) * k)
        labels = names.take(pa.array(predictions.labels.reshape(-1)))
        columns.append(pa.ListArray.from_arrays(bounds, labels))
        columns.append(pa.ListArray.from_arrays(bounds, pa.array(predictions.scores.reshape(-1))))
    columns += [pa.array(c) for c in (predictions.n_chars, predictions.truncated, predictions.unknown_chars)]
    return columns
