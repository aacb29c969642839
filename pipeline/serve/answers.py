"""Predictions as a client gets them: the columns that `classify` writes, in JSON or as an Arrow stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..engine.base import Predictions
from ..output.columns import REASON, computed_columns
from ..output.formats import to_plain
from ..output.model_columns import N_CHARS, ModelColumns

_FEW = 64
"""Numbers that Python converts sooner than Arrow does."""

_NO_LABEL = "the model overflows on this text"


def to_json(model: str, found: Predictions, model_columns: ModelColumns) -> bytes:
    """An object with the fields `model` and `results`, an object a text; floats as in a job's JSON lines."""
    if model_columns.thresholds is None:
        columns = _lists(found, model_columns)
    else:
        columns = {name: _plain(column) for name, column in _columns(found, model_columns).items()}
    results = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if found.overflowed.any():
        for result, is_lost in zip(results, found.overflowed.tolist(), strict=True):
            if is_lost:
                result |= {**dict.fromkeys(set(columns) - _counts(model_columns)), REASON.name: _NO_LABEL}
    return msgspec.json.encode({"model": model, "results": results})


def to_arrow(found: Predictions, model_columns: ModelColumns) -> bytes:
    """A stream with the same columns."""
    columns = _columns(found, model_columns)
    if found.overflowed.any():
        lost, kept = pa.array(found.overflowed), _counts(model_columns)
        for name in set(columns) - kept:
            columns[name] = columns[name].take(pa.array(np.arange(len(lost)), mask=found.overflowed))
        columns[REASON.name] = pc.if_else(lost, _NO_LABEL, pa.scalar(None, pa.string()))
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _columns(found: Predictions, model_columns: ModelColumns) -> dict[str, pa.Array]:
    """By name, in the order of a job's columns; of texts on which the model overflows, with the first class."""
    known = replace(found, labels=np.maximum(found.labels, 0))
    columns = {N_CHARS.name: pa.array(found.n_chars), **model_columns.columns(known)}
    return {name: columns[name] for name in computed_columns([model_columns], truth=False).names}


def _lists(found: Predictions, model_columns: ModelColumns) -> dict[str, list[Any]]:
    """The same of a model that gives one label, as Python's values: for a few texts Arrow takes longer."""
    classes, names = model_columns.classes, model_columns.names
    columns: dict[str, list[Any]] = {
        names.label: [classes[label] for label in np.maximum(found.labels[:, 0], 0).tolist()],
        names.score: _numbers(found.scores[:, 0]),
    }
    if model_columns.scores and found.all_scores is not None:
        for name, scores in zip(classes, found.all_scores.T, strict=True):
            columns[names.score_of(name)] = _numbers(scores)
    if model_columns.top_k > 1:
        columns[names.top_labels] = [[classes[label] for label in row] for row in np.maximum(found.labels, 0).tolist()]
        k, scores = found.scores.shape[1], _numbers(found.scores.reshape(-1))
        columns[names.top_scores] = [scores[first : first + k] for first in range(0, len(scores), k)]
    columns[N_CHARS.name] = found.n_chars.tolist()
    columns[names.truncated] = found.truncated.tolist()
    columns[names.unknown_chars] = found.unknown_chars.tolist()
    return columns


def _numbers(values: NDArray[np.float32]) -> list[float]:
    """A float32 as the float64 with the fewest digits that reads back as the same float32."""
    if len(values) <= _FEW:
        return [float(str(value)) for value in values]
    numbers: list[float] = to_plain(pa.array(np.ascontiguousarray(values))).to_pylist()
    return numbers


def _counts(model_columns: ModelColumns) -> set[str]:
    """The columns that a text has even where it has no label."""
    return {N_CHARS.name, *(field.name for field in model_columns.of_text)}


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = (to_plain(column) if _has_floats(column.type) else column).to_pylist()
    return values


def _has_floats(kind: pa.DataType) -> bool:
    return bool(pa.types.is_float32(kind) or (pa.types.is_list(kind) and pa.types.is_float32(kind.value_type)))
