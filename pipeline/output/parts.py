"""Predictions as the rows of a part."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.engine.base import Predictions
from pipeline.errors import UsageError
from pipeline.source.chunk import Chunk, Selection


def output_schema(selection: Selection, classes: tuple[str, ...], top_k: int, all_scores: bool) -> pa.Schema:
    """The columns of a part. Raises UsageError where an id column has the name of another column."""
    fields = [*selection.row_schema, pa.field("label", pa.string()), pa.field("score", pa.float32())]
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
    names = [field.name for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"an id column cannot be called {twice[0]!r}: the output has a column of that name")
    return pa.schema(fields)


def label_table(chunk: Chunk, predictions: Predictions, schema: pa.Schema, classes: tuple[str, ...]) -> pa.Table:
    """The rows of the part: the columns of `chunk.rows` and of its predictions, in the order of `schema`."""
    names = pa.array(classes, pa.string())
    count, k = predictions.labels.shape
    columns = list(chunk.rows.columns)
    columns += [names.take(pa.array(predictions.labels[:, 0])), pa.array(predictions.scores[:, 0])]
    if predictions.all_scores is not None:
        columns += [pa.array(np.ascontiguousarray(scores)) for scores in predictions.all_scores.T]
    if "top_labels" in schema.names:
        bounds = pa.array(np.arange(count + 1, dtype=np.int32) * k)
        labels = names.take(pa.array(predictions.labels.reshape(-1)))
        columns.append(pa.ListArray.from_arrays(bounds, labels))
        columns.append(pa.ListArray.from_arrays(bounds, pa.array(predictions.scores.reshape(-1))))
    columns += [pa.array(c) for c in (predictions.n_chars, predictions.truncated, predictions.unknown_chars)]
    return pa.table(columns, schema)
