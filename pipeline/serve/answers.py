"""Predictions as a client gets them: the columns that `classify` writes, in JSON or as an Arrow stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.engine.base import Predictions
from pipeline.output.formats.plain import to_plain
from pipeline.output.parts import REASON, computed_columns, label_columns

_FEW = 64
"""Numbers that Python converts sooner than Arrow does."""

_NO_LABEL = "the model overflows on this text"


def to_json(model: str, found: Predictions, classes: tuple[str, ...], top_k: int, scores: bool) -> bytes:
    """An object with the fields `model` and `results`, an object a text; floats as in a job's JSON lines."""
    names = computed_columns(classes, top_k, scores, truth=False).names
    columns: list[list[Any]] = [
        [_name(classes, label) for label in found.labels[:, 0].tolist()],
        _plain(found.scores[:, 0]),
    ]
    if scores and found.all_scores is not None:
        columns += [_plain(column) for column in found.all_scores.T]
    if top_k > 1:
        columns.append([[_name(classes, label) for label in row] for row in found.labels.tolist()])
        best, k = _plain(found.scores.reshape(-1)), found.scores.shape[1]
        columns.append([best[i : i + k] for i in range(0, len(best), k)])
    columns += [found.n_chars.tolist(), found.truncated.tolist(), found.unknown_chars.tolist()]
    results = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    if found.overflowed.any():
        for i in np.flatnonzero(found.overflowed).tolist():
            results[i] = {**dict.fromkeys(names), **_counts(results[i]), REASON.name: _NO_LABEL}
    return msgspec.json.encode({"model": model, "results": results})


def to_arrow(found: Predictions, classes: tuple[str, ...], top_k: int, scores: bool) -> bytes:
    """A stream with the same columns."""
    schema = computed_columns(classes, top_k, scores, truth=False)
    lost = found.overflowed
    known = replace(found, labels=np.maximum(found.labels, 0), all_scores=found.all_scores if scores else None)
    table = pa.table(label_columns(known, classes, top_k > 1), schema)
    if lost.any():
        mask, counts = pa.array(lost), ("n_chars", "truncated", "unknown_chars")
        columns = [c if n in counts else _nulled(c, mask) for n, c in zip(schema.names, table.columns, strict=True)]
        reason = pc.if_else(mask, _NO_LABEL, pa.scalar(None, pa.string()))
        table = pa.table([*columns, reason], pa.schema([*schema, REASON]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _nulled(column: pa.ChunkedArray, mask: pa.Array) -> pa.Array:
    column = column.combine_chunks()
    return column.take(pa.array(np.arange(len(column)), mask=np.asarray(mask)))


def _counts(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("n_chars", "truncated", "unknown_chars")}


def _name(classes: tuple[str, ...], label: int) -> str | None:
    return classes[label] if label >= 0 else None


def _plain(column: NDArray[np.float32]) -> list[float]:
    """Each as the float64 with the fewest digits that reads back as the same float32."""
    if len(column) <= _FEW:
        return [float(str(value)) for value in column]
    plain: list[float] = to_plain(pa.array(np.ascontiguousarray(column))).to_pylist()
    return plain
