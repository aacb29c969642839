"""Evaluation of a model that gives several labels to a text, on labelled articles: precision, recall and F1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.open import open_engine
from ..errors import UsageError
from ..labelling.scored import Scoring, scored
from ..model.charcnn import Model, load_model
from ..model.scores import assigned
from ..source.chunk import Selection
from ..source.inputs import identify, open_input
from ..source.label_sets import label_lists, label_sets
from ..source.read.read import chunks_here
from .f1 import LabelCounts

_CHUNK_ROWS = 2048


@dataclass(frozen=True)
class LabelEvaluation:
    """The result of `evaluate_labels`.

    Attributes
    ----------
    model : str
        Name of the model.
    backend : str
        Device, precision and kernels that computed the scores.
    counts : LabelCounts
        Labels that the rows have and were given; it has the figures of each class, micro and macro F1.
    unknown : int
        Rows with a label that is no class of the model; this label is ignored.
    quarantined : int
        Rows that could not be read.
    overflowed : int
        Rows on which the model overflows, so that they have no labels.

    """

    model: str
    backend: str
    counts: LabelCounts
    unknown: int
    quarantined: int
    overflowed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as JSON values.

        Returns
        -------
        dict
            Plain values; a figure that is not defined, such as the precision of a class never given, is None.

        """
        counts = self.counts
        return {
            "model": self.model,
            "backend": self.backend,
            "rows": counts.rows,
            "micro_f1": _defined(counts.micro_f1),
            "macro_f1": _defined(counts.macro_f1),
            "exact": _defined(counts.exact_share),
            "unknown": self.unknown,
            "quarantined": self.quarantined,
            "overflowed": self.overflowed,
            "classes": [
                {name: _defined(value) for name, value in figures._asdict().items()} for figures in counts.per_class()
            ],
        }


def _defined(value: Any) -> Any:
    return None if value != value else value


def evaluate_labels(
    model: str | Path | Model,
    source: Any,
    *,
    text_column: str | Iterable[str] = (),
    label_column: str,
    label_separator: str | None = None,
    columns: Iterable[str] | None = None,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
) -> LabelEvaluation:
    """Give every article of `source` its labels in this process, and compare them with the true ones.

    Parameters
    ----------
    model : str, Path or Model
        A model file, or a loaded `Model`, that was trained with several labels a text.
    source : str, path, Paths, or other object
        Anything that `classify` takes.
    text_column : str or iterable of str
        Column with the text, "text" by default. Several are joined by a space.
    label_column : str
        Column with the true labels: lists, or texts; names of classes, or numbers from 1.
    label_separator : str, optional
        What is between two labels where they are a text.
    columns : iterable of str, optional
        Column names of a CSV or TSV without a header line.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        "auto", "simt", "sm75", "sm80" or "sm90".

    Returns
    -------
    LabelEvaluation
        Precision, recall and F1 of each class, micro and macro F1.

    Raises
    ------
    UsageError
        For a model that gives one label, a column, device or precision that is not available, or a column that holds no
        labels.
    ModelError
        For a model that cannot be loaded.
    SourceError
        For a file that cannot be read.

    Examples
    --------
    >>> result = evaluate_labels("topics.safetensors", "test.parquet", text_column="body", label_column="topics")
    >>> f"{result.counts.micro_f1:.3f}"
    '0.871'

    """
    loaded = load_model(model)
    if loaded.thresholds is None:
        raise UsageError(f"{loaded.name} gives each text one label: evaluate() is for such models")
    texts = (text_column,) if isinstance(text_column, str) else tuple(text_column)
    header = None if columns is None else tuple(columns)
    selection = Selection(texts, (label_column,), header=header, reads=loaded.reads)
    found = identify(source, len(loaded.alphabet), loaded.length)
    job_input = open_input(found, selection, _CHUNK_ROWS)
    engine = open_engine(loaded, device, precision, kernels=kernels)
    nothing = np.empty((0, len(loaded.classes)), np.bool_)
    counts = LabelCounts.of(loaded.classes, nothing, nothing)
    unknown = quarantined = overflowed = 0
    try:
        for each in scored(chunks_here(job_input), [engine], [Scoring(all_scores=True)]):
            chunk, (predictions,) = each.chunk, each.predictions
            quarantined += len(chunk.quarantine) - each.overflowed
            overflowed += each.overflowed
            if not len(chunk):
                continue
            true, others = label_sets(label_lists(chunk.rows, label_column, label_separator), loaded.classes)
            assert predictions.all_scores is not None
            counts += LabelCounts.of(loaded.classes, assigned(predictions.all_scores, loaded.thresholds), true)
            unknown += int(others.sum())
    finally:
        engine.close()
    return LabelEvaluation(loaded.name, str(engine.backend), counts, unknown, quarantined, overflowed)
