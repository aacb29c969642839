"""Adds labels to frames of other libraries.

A collection of Dask is labelled when the user computes it. The text of a cudf frame stays on the GPU. A Hugging Face
dataset is labelled at once, or, if it is iterable, as it is read.

A Dask graph holds the model's name and digest. Each worker process loads it once, at its first partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..engine.on_gpu import texts_on_gpu
from ..errors import UsageError
from ..model.charcnn import Model
from ..options import Options
from ..output.columns import REASON
from ..report.results import refuse_taken, with_columns
from ..source.rows.columns import is_unicode, may_hold
from .resident import share
from .rows import Labels, ModelOrModels, labels_of

if TYPE_CHECKING:
    import pandas as pd

_TEXT = "text"
_LABELLED_AT_ONCE = 10_000


def function_for(frame: Any) -> Callable[[Any, ModelOrModels, Options, str | None], Any] | None:
    """Return the function that labels such a frame where it is, or None for frames that a job labels.

    The function takes the model, the options, and the suffix of added columns. It raises UsageError for a column or
    option that does not fit.
    """
    kinds = ((_is_lazy, _label_lazily), (_is_gpu_frame, _label_gpu_frame), (_is_dataset, _label_dataset))
    return next((label for fits, label in kinds if fits(frame)), None)


def _is_lazy(frame: Any) -> bool:
    """Return whether the frame is a Dask DataFrame, Series or Bag."""
    return hasattr(frame, "__dask_graph__")


def _label_lazily(frame: Any, model: ModelOrModels, options: Options, suffix: str | None) -> Any:
    """Return a Dask DataFrame with the columns of labels after its own, or, for a Bag of strings, a Bag of dicts.

    Raises UsageError for another collection, and for a column or option that does not fit.
    """
    import dask.bag

    given = [model] if isinstance(model, str | Path | Model) else list(model)
    for one in given:
        if isinstance(one, Model):
            share(one)
    if isinstance(frame, dask.bag.Bag):
        if options.text_column or options.label_column:
            raise UsageError("a Bag of strings has no columns: leave out text_column and label_column")
        return frame.map_partitions(_label_items, labels_of(given, options, pa.schema([(_TEXT, pa.string())])))
    import dask.dataframe  # an extra, which a Bag does not need

    if isinstance(frame, dask.dataframe.Series):
        frame = frame.to_frame(_TEXT)
    if not isinstance(frame, dask.dataframe.DataFrame):
        raise UsageError(f"cannot label a Dask {type(frame).__name__}: give a DataFrame, or a Bag of strings")
    if _is_gpu_frame(frame._meta):
        labels = _gpu_labels(frame._meta, given, options)
        meta = _with_gpu_labels(frame._meta, labels, suffix)
        return frame.map_partitions(_with_gpu_labels, labels, suffix, meta=meta)
    labels = labels_of(given, options, pa.Schema.from_pandas(frame._meta, preserve_index=False))
    refuse_taken(frame._meta, labels.schema.names, suffix)
    meta = _with_labels(frame._meta, labels.schema.empty_table(), suffix)
    return frame.map_partitions(_label_partition, labels, suffix, meta=meta)


def _label_partition(partition: pd.DataFrame, labels: Labels, suffix: str | None) -> pd.DataFrame:
    table = pa.Table.from_pandas(partition[may_hold(partition.columns, labels.selection.columns)], preserve_index=False)
    return _with_labels(partition, labels.of(table), suffix)


def _with_labels(partition: pd.DataFrame, added: pa.Table, suffix: str | None) -> pd.DataFrame:
    """Return a partition with its labels, whose types are always the same.

    Integers and booleans may be null, and lists have Arrow's own type, which Dask can write to Parquet.
    """
    import pandas as pd

    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    nullable |= {kind: pd.ArrowDtype(kind) for kind in added.schema.types if pa.types.is_list(kind)}
    labelled: pd.DataFrame = with_columns(partition, added, suffix)
    names = labelled.columns[len(partition.columns) :]
    fixed = [(name, column) for name, column in zip(names, added.columns, strict=True) if column.type in nullable]
    return labelled.assign(**{name: column.to_pandas(types_mapper=nullable.get).array for name, column in fixed})


def _label_items(items: Iterable[Any], labels: Labels) -> list[dict[str, Any]]:
    """Return each text with its labels. An item that is not a string has a reason instead of labels."""
    texts = list(items)
    given = [text if is_unicode(text) else None for text in texts]
    rows = labels.of(pa.table({_TEXT: pa.array(given, pa.large_string())})).to_pylist()
    for text, readable, row in zip(texts, given, rows, strict=True):
        if readable is None and text is not None:
            why = "not valid Unicode" if isinstance(text, str) else f"of type {type(text).__name__}, not a string"
            row[REASON.name] = f"the item is {why}"
    return [{_TEXT: text, **row} for text, row in zip(texts, rows, strict=True)]


def _is_gpu_frame(frame: Any) -> bool:
    """Return whether the frame is a cudf DataFrame."""
    return type(frame).__module__.partition(".")[0] == "cudf" and hasattr(frame, "columns")


def _label_gpu_frame(frame: Any, model: ModelOrModels, options: Options, suffix: str | None) -> Any:
    """Return a cudf DataFrame with the columns of labels after its own.

    Raises UsageError for a column or option that does not fit.
    """
    return _with_gpu_labels(frame, _gpu_labels(frame, model, options), suffix)


def _gpu_labels(frame: Any, model: ModelOrModels, options: Options) -> Labels:
    """Return the `Labels` for such a frame. Raises UsageError for several text columns, and for a truth column."""
    labels = labels_of(model, options, frame.head(0).to_arrow().schema)
    if len(labels.selection.columns) > 1 or labels.selection.join:
        raise UsageError("a frame on a GPU can have only one text column: join several by cudf's str.cat")
    return labels


def _with_gpu_labels(frame: Any, labels: Labels, suffix: str | None) -> Any:
    """Return the frame with its labels, which are made on the host."""
    import cudf

    column = labels.selection.text[0]
    texts = texts_on_gpu(frame, column) if len(frame) else None
    added = labels.schema.empty_table() if texts is None else labels.of_gpu(texts)
    names = _called("frame", frame.columns, added.column_names, suffix)
    on_gpu = cudf.DataFrame.from_arrow(pa.table(added.columns, names))
    on_gpu.index = frame.index
    return frame.assign(**{name: on_gpu[name] for name in names})


def _called(what: str, columns: Sequence[str], added: Sequence[str], suffix: str | None) -> list[str]:
    """Return the names of the label columns next to other columns. Raises UsageError if a name is taken."""
    names = [name + suffix if suffix and name in columns else name for name in added]
    if taken := [name for name in names if name in columns]:
        remedy = "" if suffix else ", or pass suffix='_predicted', for example"
        raise UsageError(f"the {what} has a column {taken[0]!r} already: rename it{remedy}")
    return names


def _is_dataset(frame: Any) -> bool:
    """Return whether the frame is a Dataset or an IterableDataset."""
    return type(frame).__module__.startswith("datasets.") and hasattr(frame, "features")


def _label_dataset(dataset: Any, model: ModelOrModels, options: Options, suffix: str | None) -> Any:
    """Return the dataset with the columns of labels after its own.

    Raises UsageError for a column or option that does not fit.
    """
    from datasets import Features

    if options.label_column:
        raise UsageError("label_column is for classify, whose report has the accuracy: a dataset keeps its own column")
    if dataset.features is None:  # a dataset of a generator has none
        names = next((list(row) for row in dataset.take(1)), ["text"])
        schema, features = pa.schema([(name, pa.string()) for name in names]), None
    else:
        schema, features = dataset.features.arrow_schema, dataset.features
    labels = labels_of(model, options, schema)
    called = _called("dataset", schema.names, labels.schema.names, suffix)
    if features is not None:
        added = Features.from_arrow_schema(labels.schema)
        features = Features({**features, **dict(zip(called, added.values(), strict=True))})
    batching = {"batched": True, "batch_size": _LABELLED_AT_ONCE, "fn_kwargs": {"labels": labels, "called": called}}
    return dataset.map(_label_batch, features=features, **batching)


def _label_batch(batch: dict[str, list[Any]], labels: Labels, called: list[str]) -> dict[str, list[Any]]:
    table = pa.table({name: batch[name] for name in may_hold(batch, labels.selection.columns)})
    return dict(zip(called, labels.of(table).to_pydict().values(), strict=True))
