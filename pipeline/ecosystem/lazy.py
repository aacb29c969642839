"""Dask collections with their labels, computed when the user computes them: a DataFrame, or a Bag of strings.

The graph holds the model's name and digest. Each worker process loads it once, at its first partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import UsageError
from ..model.charcnn import Model
from ..output.columns import REASON
from ..report.join import refuse_taken, with_columns
from .gpu_frames import gpu_labels, is_gpu_frame, with_gpu_labels
from .resident import share
from .rows import Labels, labels_of

if TYPE_CHECKING:
    import pandas as pd

    from ..options import Options

_TEXT = "text"


def is_lazy(frame: Any) -> bool:
    """Whether it is a Dask DataFrame, Series or Bag."""
    return hasattr(frame, "__dask_graph__")


def label_lazily(
    frame: Any, model: str | Path | Model | Iterable[str | Path | Model], options: Options, suffix: str | None
) -> Any:
    """A Dask DataFrame with the columns of labels after its own; of a Bag of strings, a Bag of dicts.

    Raises UsageError for another collection, and for a column or option that does not fit.
    """
    import dask.bag
    import dask.dataframe

    given = [model] if isinstance(model, str | Path | Model) else list(model)
    for one in given:
        if isinstance(one, Model):
            share(one)
    if isinstance(frame, dask.bag.Bag):
        if options.text_column or options.truth_column:
            raise UsageError("a Bag of strings has no columns: leave out text_column and truth_column")
        return frame.map_partitions(_label_items, labels_of(given, options, pa.schema([(_TEXT, pa.string())])))
    if isinstance(frame, dask.dataframe.Series):
        frame = frame.to_frame(_TEXT)
    if not isinstance(frame, dask.dataframe.DataFrame):
        raise UsageError(f"cannot label a Dask {type(frame).__name__}: give a DataFrame, or a Bag of strings")
    if is_gpu_frame(frame._meta):
        labels = gpu_labels(frame._meta, given, options)
        meta = with_gpu_labels(frame._meta, labels, suffix)
        return frame.map_partitions(with_gpu_labels, labels, suffix, meta=meta)
    labels = labels_of(given, options, pa.Schema.from_pandas(frame._meta, preserve_index=False))
    refuse_taken(frame._meta, labels.schema.names, suffix)
    meta = _with_labels(frame._meta, labels.schema.empty_table(), suffix)
    return frame.map_partitions(_label_partition, labels, suffix, meta=meta)


def _label_partition(partition: pd.DataFrame, labels: Labels, suffix: str | None) -> pd.DataFrame:
    table = pa.Table.from_pandas(partition[list(labels.selection.columns)], preserve_index=False)
    return _with_labels(partition, labels.of(table), suffix)


def _with_labels(partition: pd.DataFrame, added: pa.Table, suffix: str | None) -> pd.DataFrame:
    """A partition with its labels. Their types are always the same: integers and booleans may be null, and lists have
    Arrow's own type, which Dask can write to Parquet.
    """
    import pandas as pd

    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    nullable |= {kind: pd.ArrowDtype(kind) for kind in added.schema.types if pa.types.is_list(kind)}
    labelled: pd.DataFrame = with_columns(partition, added, suffix)
    names = labelled.columns[len(partition.columns) :]
    fixed = [(name, column) for name, column in zip(names, added.columns, strict=True) if column.type in nullable]
    return labelled.assign(**{name: column.to_pandas(types_mapper=nullable.get).array for name, column in fixed})


def _label_items(items: Iterable[Any], labels: Labels) -> list[dict[str, Any]]:
    """Each text with its labels. What is no string has none, and a reason."""
    texts = list(items)
    given = [text if isinstance(text, str) and _is_unicode(text) else None for text in texts]
    rows = labels.of(pa.table({_TEXT: pa.array(given, pa.large_string())})).to_pylist()
    for text, readable, row in zip(texts, given, rows, strict=True):
        if readable is None and text is not None:
            why = "not valid Unicode" if isinstance(text, str) else f"of type {type(text).__name__}, not a string"
            row[REASON.name] = f"the item is {why}"
    return [{_TEXT: text, **row} for text, row in zip(texts, rows, strict=True)]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
