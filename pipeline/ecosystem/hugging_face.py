"""Datasets of Hugging Face with their labels: a Dataset is labelled at once, an IterableDataset as it is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import UsageError
from ..model.charcnn import Model
from ..options import Options
from .rows import Labels, labels_of

_LABELLED_AT_ONCE = 10_000


def is_dataset(frame: Any) -> bool:
    """Whether it is a Dataset or an IterableDataset."""
    return type(frame).__module__.startswith("datasets.") and hasattr(frame, "features")


def label_dataset(
    dataset: Any, model: str | Path | Model | Iterable[str | Path | Model], options: Options, suffix: str | None
) -> Any:
    """The dataset with the columns of labels after its own.

    Raises UsageError for a column or option that does not fit.
    """
    from datasets import Features

    if options.truth_column:
        raise UsageError("truth_column is for classify, whose report has the accuracy: a dataset keeps its own column")
    if dataset.features is None:  # of a generator
        names = next((list(row) for row in dataset.take(1)), ["text"])
        own, features = pa.schema([(name, pa.string()) for name in names]), None
    else:
        own, features = dataset.features.arrow_schema, dataset.features
    labels = labels_of([model] if isinstance(model, str | Path | Model) else list(model), options, own)
    called = [name + suffix if suffix and name in own.names else name for name in labels.schema.names]
    for name in called:
        if name in own.names:
            remedy = "" if suffix else ", or pass suffix='_predicted', for example"
            raise UsageError(f"the dataset has a column {name!r} already: rename it{remedy}")
    if features is not None:
        added = Features.from_arrow_schema(labels.schema)
        features = Features({**features, **dict(zip(called, added.values(), strict=True))})
    return dataset.map(
        _label_batch,
        batched=True,
        batch_size=_LABELLED_AT_ONCE,
        features=features,
        fn_kwargs={"labels": labels, "called": called},
    )


def _label_batch(batch: dict[str, list[Any]], labels: Labels, called: list[str]) -> dict[str, list[Any]]:
    table = pa.table({name: batch[name] for name in labels.selection.columns})
    return dict(zip(called, labels.of(table).to_pydict().values(), strict=True))
