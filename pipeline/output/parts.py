"""Predictions as the rows of a part."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.engine.base import Predictions
from pipeline.errors import UsageError
from pipeline.source.chunk import NO_TRUTH, Chunk, Selection

_REASON = pa.field("reason", pa.string())


def output_schema(
    selection: Selection, classes: tuple[str, ...], top_k: int, all_scores: bool, in_memory: bool
) -> pa.Schema:
    """The columns of a part, or of results in memory. Raises UsageError where a kept column has the name of another."""
    truth = bool(selection.truth or selection.answers)
    rows, computed = selection.row_schema, computed_columns(classes, top_k, all_scores, truth, in_memory)
    for name in selection.kept:
        if name in ("file", "row", *computed.names):
            remedy = "name those to keep instead of keeping all" if selection.keep_all else "do not keep it"
            raise UsageError(
                f"the column {name!r} cannot be kept: the output has a column of that name. Rename it, or {remedy}"
            )
    return pa.schema([*rows, *computed])


def computed_columns(classes: tuple[str, ...], top_k: int, all_scores: bool, truth: bool, in_memory: bool) -> pa.Schema:
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
    if in_memory:
        fields.append(_REASON)
    return pa.schema(fields)


def label_table(chunk: Chunk, predictions: Predictions, schema: pa.Schema, classes: tuple[str, ...]) -> pa.Table:
    """The labelled rows: the columns of `chunk.rows` and of its predictions, in the order of `schema`."""
    names = pa.array(classes, pa.string())
    count, k = predictions.labels.shape
    columns = list(chunk.rows.columns)
    columns += [names.take(pa.array(predictions.labels[:, 0])), pa.array(predictions.scores[:, 0])]
    if chunk.truth is not None:
        columns.append(names.take(pa.array(chunk.truth, mask=chunk.truth == NO_TRUTH)))
    if predictions.all_scores is not None:
        columns += [pa.array(np.ascontiguousarray(scores)) for scores in predictions.all_scores.T]
    if "top_labels" in schema.names:
        bounds = pa.array(np.arange(count + 1, dtype=np.int32) * k)
        labels = names.take(pa.array(predictions.labels.reshape(-1)))
        columns.append(pa.ListArray.from_arrays(bounds, labels))
        columns.append(pa.ListArray.from_arrays(bounds, pa.array(predictions.scores.reshape(-1))))
    columns += [pa.array(c) for c in (predictions.n_chars, predictions.truncated, predictions.unknown_chars)]
    if schema.names[-1] == _REASON.name:
        columns.append(pa.nulls(count, _REASON.type))
    return pa.table(columns, schema)
