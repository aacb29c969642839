"""Evaluation of a model on labelled articles: the confusion matrix, and its most confident mistakes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.accuracy import Confusion, confusion_of, count_pairs
from pipeline.engine.open import open_engine
from pipeline.model.charcnn import Model, load_model
from pipeline.overflow import set_aside_overflow
from pipeline.source.chunk import NO_TRUTH, Chunk, Selection
from pipeline.source.inputs import identify, open_input
from pipeline.source.read import chunks_here

_CHUNK_ROWS = 2048
_SHOWN_BYTES = 400


class Mistake(NamedTuple):
    """A row that was labelled wrong.

    Attributes
    ----------
    score : float
        The probability of `label`.
    file : str
        The input file, or "memory".
    row : int
        Record number in the file, from 0.
    truth : str
        The true class.
    label : str
        The predicted class.
    text : str
        The beginning of the text, up to 400 bytes.

    """

    score: float
    file: str
    row: int
    truth: str
    label: str
    text: str


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes
    ----------
    model : str
        Name of the model.
    backend : str
        Device, precision and kernels that computed the labels.
    confusion : Confusion
        Rows by true and predicted class; it has the accuracy and the figures of each class.
    mistakes : tuple of Mistake
        Rows labelled wrong, the highest score first.
    quarantined : int
        Rows that could not be read.
    overflowed : int
        Rows on which the model overflows, so that they have no label.

    """

    model: str
    backend: str
    confusion: Confusion
    mistakes: tuple[Mistake, ...]
    quarantined: int
    overflowed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as JSON values.

        Returns
        -------
        dict
            Plain values; a figure that is not defined, such as the precision of a class never predicted, is None.

        """
        confusion = self.confusion
        return {
            "model": self.model,
            "backend": self.backend,
            "rows": confusion.rows,
            "accuracy": _defined(confusion.accuracy),
            "standard_error": _defined(confusion.standard_error),
            "without_truth": confusion.without_truth,
            "quarantined": self.quarantined,
            "overflowed": self.overflowed,
            "classes": [
                {name: _defined(value) for name, value in figures._asdict().items()}
                for figures in confusion.per_class()
            ],
            "confusion": confusion.counts.tolist(),
            "mistakes": [mistake._asdict() for mistake in self.mistakes],
        }


def _defined(value: Any) -> Any:
    return None if value != value else value


def evaluate(
    model: str | Path | Model,
    source: Any,
    *,
    text_column: str | Iterable[str] = (),
    label_column: str,
    columns: Iterable[str] | None = None,
    mistakes: int = 10,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
) -> Evaluation:
    """Label every article of `source` in this process, and compare the labels with the true ones.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    source : str, path, Paths, or other object
        Anything that `classify` takes.
    text_column : str or iterable of str
        Column with the text, "text" by default. Several are joined by a space.
    label_column : str
        Column with the true class, by name or by number from 1.
    columns : iterable of str, optional
        Column names of a CSV or TSV without a header line.
    mistakes : int
        How many wrongly labelled rows to keep.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        "auto", "simt", "sm75", "sm80" or "sm90".

    Returns
    -------
    Evaluation
        Accuracy, confusion matrix and the most confident mistakes.

    Raises
    ------
    UsageError
        For a column, device or precision that is not available, or a model that overflows on every row.
    ModelError
        For a model that cannot be loaded.
    SourceError
        For a file that cannot be read.

    Examples
    --------
    >>> result = evaluate("ag-news", "test.csv", text_column=["title", "description"], label_column="class")
    >>> f"{result.confusion.accuracy:.1%}"
    '91.8%'

    """
    loaded = load_model(model)
    texts = (text_column,) if isinstance(text_column, str) else tuple(text_column)
    header = None if columns is None else tuple(columns)
    selection = Selection(texts, truth=label_column, header=header, classes=loaded.classes, reads=loaded.reads)
    found = identify(source, len(loaded.alphabet), loaded.length)
    job_input = open_input(found, selection, _CHUNK_ROWS)
    engine = open_engine(loaded, device, precision, kernels=kernels)
    pairs: list[tuple[int, int, int]] = []
    worst: list[Mistake] = []
    quarantined = overflowed = 0
    try:
        for number, readable in enumerate(chunks_here(job_input)):
            found_labels = engine.classify(readable.texts)
            chunk, (predictions,) = set_aside_overflow(readable, (found_labels,), [engine], first=number == 0)
            labels, scores = predictions.labels[:, 0], predictions.scores[:, 0]
            quarantined += len(readable.quarantine)
            overflowed += len(readable) - len(chunk)
            if chunk.truth is None or not len(chunk):
                continue
            pairs += count_pairs(chunk.truth, labels)
            wrong = np.flatnonzero((labels != chunk.truth) & (chunk.truth != NO_TRUTH))
            surest = wrong[np.argsort(-scores[wrong], kind="stable")[:mistakes]]
            found_here = [_mistake(chunk, int(i), int(labels[i]), float(scores[i]), loaded.classes) for i in surest]
            worst = heapq.nlargest(mistakes, worst + found_here, key=lambda mistake: mistake.score)
    finally:
        engine.close()
    confusion = confusion_of(pairs, loaded.classes)
    return Evaluation(loaded.name, str(engine.backend), confusion, tuple(worst), quarantined, overflowed)


def _mistake(chunk: Chunk, i: int, label: int, score: float, classes: tuple[str, ...]) -> Mistake:
    assert chunk.truth is not None
    where = chunk.rows.slice(i, 1).to_pylist()[0]
    text = chunk.text[i].as_py()[:_SHOWN_BYTES].decode(errors="ignore")
    return Mistake(score, where["file"], where["row"], classes[chunk.truth[i]], classes[label], text)
