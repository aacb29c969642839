"""cudf DataFrames with their labels: the text stays on the GPU."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..engine.on_gpu import texts_on_gpu
from ..errors import UsageError
from ..model.charcnn import Model
from ..options import Options
from .rows import Labels, labels_of


def is_gpu_frame(frame: Any) -> bool:
    """Whether it is a cudf DataFrame."""
    return type(frame).__module__.partition(".")[0] == "cudf" and hasattr(frame, "columns")


def label_gpu_frame(
    frame: Any, model: str | Path | Model | Iterable[str | Path | Model], options: Options, suffix: str | None
) -> Any:
    """A cudf DataFrame with the columns of labels after its own.

    Raises UsageError for a column or option that does not fit.
    """
    given = [model] if isinstance(model, str | Path | Model) else list(model)
    return with_gpu_labels(frame, gpu_labels(frame, given, options), suffix)


def gpu_labels(frame: Any, models: list[str | Path | Model], options: Options) -> Labels:
    """What is to be said of the rows of such a frame. Raises UsageError for several text columns, and a truth."""
    labels = labels_of(models, options, frame.head(0).to_arrow().schema)
    if len(labels.selection.columns) > 1:
        raise UsageError("of a frame on a GPU one text column is read, and no other: join them with cudf's str.cat")
    return labels


def with_gpu_labels(frame: Any, labels: Labels, suffix: str | None) -> Any:
    """The frame with its labels, which are made on the host."""
    import cudf

    column = labels.selection.text[0]
    found = texts_on_gpu(frame, column) if len(frame) else None
    added = labels.schema.empty_table() if found is None else labels.of_gpu(found)
    names = [name + suffix if suffix and name in frame.columns else name for name in added.column_names]
    taken = next((name for name in names if name in frame.columns), None)
    if taken is not None:
        raise UsageError(f"the frame has a column {taken!r} already: rename it, or pass another suffix")
    on_gpu = cudf.DataFrame.from_arrow(pa.table(added.columns, names))
    on_gpu.index = frame.index
    return frame.assign(**{name: on_gpu[name] for name in names})
