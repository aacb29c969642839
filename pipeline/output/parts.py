"""A job's rows: the columns that are copied, and after these what each model says."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..engine.base import Predictions
from ..errors import UsageError
from ..source.chunk import NO_TRUTH, Chunk, Selection
from .model_columns import N_CHARS, TRUTH, ModelColumns

REASON = pa.field("reason", pa.string())
"""The last column of results in memory: why a row has no label."""


def output_schema(selection: Selection, models: Sequence[ModelColumns]) -> pa.Schema:
    """The columns of a part. Raises UsageError where a kept column has the name of another."""
    rows, truth = selection.row_schema, bool(selection.truth or selection.answers)
    computed = computed_columns(models, truth)
    for name in rows.names[2:]:
        if name in ("file", "row", *computed.names, REASON.name):
            raise UsageError(
                f"the column {name!r} cannot be copied: the output has a column of that name. Rename it, or leave it "
                "out of those to copy"
            )
    return pa.schema([*rows, *computed])


def computed_columns(models: Sequence[ModelColumns], truth: bool) -> pa.Schema:
    """Those that a job adds to `file`, `row` and the kept columns. Raises UsageError where two have one name."""
    fields: list[pa.Field] = []
    for model in models:
        fields += model.first
        if truth and model is models[0]:
            fields.append(TRUTH)
        fields += model.more
    fields += [N_CHARS, *(field for model in models for field in model.of_text)]
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two models have a column {name!r}: give one of them another file name")
    return pa.schema(fields)


def label_table(
    chunk: Chunk, predictions: Sequence[Predictions], schema: pa.Schema, models: Sequence[ModelColumns]
) -> pa.Table:
    """The labelled rows: the columns of `chunk.rows` and of its predictions by each model, in the order of `schema`."""
    found = {N_CHARS.name: pa.array(predictions[0].n_chars)}
    for model, predicted in zip(models, predictions, strict=True):
        found |= model.columns(predicted)
    if chunk.truth is not None:
        names = pa.array(models[0].truths or models[0].classes, pa.string())
        found[TRUTH.name] = names.take(pa.array(chunk.truth, mask=chunk.truth == NO_TRUTH))
    computed = schema.names[chunk.rows.num_columns :]
    return pa.table([*chunk.rows.columns, *(found[name] for name in computed)], schema)
