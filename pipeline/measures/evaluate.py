"""Evaluation of a model on labelled articles: the confusion matrix, calibration error, the most confident mistakes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engine.base import Predictions
from ..engine.open import open_engine
from ..errors import UsageError
from ..labelling.scored import Scoring, scored
from ..model.charcnn import Model, load_model
from ..model.scores import log_scores, probabilities
from ..source.chunk import NO_TRUTH, Chunk, Selection
from ..source.inputs import identify, open_input
from ..source.read.read import chunks_here
from .accuracy import ClassFigures, Confusion, confusion_of, count_pairs
from .reliability import Bin, Reliability, Threshold, reliability, threshold

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
        Rows by true and predicted class; it has the accuracy and the figures of each class. Rows whose score is below
        `abstain` are not in it.
    mistakes : tuple of Mistake
        Rows labelled wrong, the highest score first.
    quarantined : int
        Rows that could not be read.
    overflowed : int
        Rows on which the model overflows, so that they have no label.
    reliability : Reliability
        How the scores of all rows with a true class compare with the share that is right.
    uncalibrated : Reliability or None
        The same as it would be without the model's temperature; None for a model that has none.
    thresholds : tuple of Threshold
        Of the wanted precision, if one was given: for all labels, then for those of each class.
    abstained : int
        Rows with a true class whose score is below `abstain`, so that they would get no label.

    """

    model: str
    backend: str
    confusion: Confusion
    mistakes: tuple[Mistake, ...]
    quarantined: int
    overflowed: int
    reliability: Reliability
    uncalibrated: Reliability | None
    thresholds: tuple[Threshold, ...] = ()
    abstained: int = 0

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
            "classes": [_values(figures) for figures in confusion.per_class()],
            "confusion": confusion.counts.tolist(),
            "mistakes": [mistake._asdict() for mistake in self.mistakes],
            "abstained": self.abstained,
            "calibration_error": _defined(self.reliability.expected_error),
            "calibration_error_before": (
                None if self.uncalibrated is None else _defined(self.uncalibrated.expected_error)
            ),
            "reliability": [_values(found) for found in self.reliability.bins],
            "thresholds": [_values(found) for found in self.thresholds],
        }


def _defined(value: Any) -> Any:
    return None if value != value else value


def _values(found: Bin | ClassFigures | Threshold) -> dict[str, Any]:
    return {name: _defined(value) for name, value in found._asdict().items()}


def evaluate(
    model: str | Path | Model,
    source: Any,
    *,
    text_column: str | Iterable[str] = (),
    label_column: str,
    columns: Iterable[str] | None = None,
    mistakes: int = 10,
    abstain: float | None = None,
    precision_target: float | None = None,
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
    abstain : float, optional
        Rows whose score is below it get no label, and are counted apart, as `classify` does.
    precision_target : float, optional
        A precision above 0, up to 1: the evaluation says from which score on labels have it, and what share of the rows
        that is, for all labels and for those of each class.
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
        For a column, device or precision that is not available, a share out of range, or a model that overflows on
        every row.
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
    for name, share in (("abstain", abstain), ("precision_target", precision_target)):
        if share is not None and not 0 < share <= 1:
            raise UsageError(f"{name} is {share:g}: give a number above 0, up to 1")
    loaded = load_model(model)
    if loaded.is_multi_label:
        raise UsageError(f"{loaded.name} gives a text several labels: evaluate_labels() is for such models")
    texts = (text_column,) if isinstance(text_column, str) else tuple(text_column)
    header = None if columns is None else tuple(columns)
    selection = Selection(texts, truth=label_column, header=header, classes=loaded.classes, reads=loaded.reads)
    found = identify(source, len(loaded.alphabet), loaded.length)
    job_input = open_input(found, selection, _CHUNK_ROWS)
    engine = open_engine(loaded, device, precision, kernels=kernels)
    pairs: list[tuple[int, int, int]] = []
    worst: list[Mistake] = []
    judged = _Judged(loaded.temperature)
    quarantined = overflowed = abstained = 0
    try:
        for each in scored(chunks_here(job_input), [engine], [Scoring(all_scores=True)]):
            chunk, (predictions,) = each.chunk, each.predictions
            labels, scores = predictions.labels[:, 0], predictions.scores[:, 0]
            quarantined += len(chunk.quarantine) - each.overflowed
            overflowed += each.overflowed
            if chunk.truth is None or not len(chunk):
                continue
            judged.add(predictions, chunk.truth)
            known = chunk.truth != NO_TRUTH
            kept = np.ones(len(chunk), np.bool_) if abstain is None else scores >= abstain
            abstained += int((known & ~kept).sum())
            pairs += count_pairs(chunk.truth[kept | ~known], labels[kept | ~known])
            wrong = np.flatnonzero((labels != chunk.truth) & known & kept)
            surest = wrong[np.argsort(-scores[wrong], kind="stable")[:mistakes]]
            found_here = [_mistake(chunk, int(i), int(labels[i]), float(scores[i]), loaded.classes) for i in surest]
            worst = heapq.nlargest(mistakes, worst + found_here, key=lambda mistake: mistake.score)
    finally:
        engine.close()
    confusion = confusion_of(pairs, loaded.classes)
    of_each = () if precision_target is None else judged.thresholds(precision_target, loaded.classes)
    before, after = judged.reliability()
    return Evaluation(
        loaded.name, str(engine.backend), confusion, tuple(worst), quarantined, overflowed, after, before, of_each,
        abstained,
    )  # fmt: skip


class _Judged:
    """Labels and scores of the rows that have a true class, and whether they are right."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._labels = [np.empty(0, np.int32)]
        self._scores = [np.empty(0, np.float32)]
        self._before = [np.empty(0, np.float32)]
        self._right = [np.empty(0, np.bool_)]

    def add(self, predictions: Predictions, truth: NDArray[np.int32]) -> None:
        assert predictions.all_scores is not None
        found = predictions.take(truth != NO_TRUTH)
        self._labels.append(found.labels[:, 0])
        self._scores.append(found.scores[:, 0])
        self._right.append(found.labels[:, 0] == truth[truth != NO_TRUTH])
        if self._temperature != 1 and found.all_scores is not None and len(found.all_scores):
            logits = log_scores(found.all_scores, self._temperature)
            self._before.append(probabilities(logits, 1.0).max(axis=1).astype(np.float32))

    def reliability(self) -> tuple[Reliability | None, Reliability]:
        """Without the model's temperature, if it has one, and with it."""
        scores, right = np.concatenate(self._scores), np.concatenate(self._right)
        before = None if self._temperature == 1 else reliability(np.concatenate(self._before), right)
        return before, reliability(scores, right)

    def thresholds(self, target: float, classes: tuple[str, ...]) -> tuple[Threshold, ...]:
        labels, scores = np.concatenate(self._labels), np.concatenate(self._scores)
        right = np.concatenate(self._right)
        of_class = ((name, labels == i) for i, name in enumerate(classes))
        each = (threshold(scores[rows], right[rows], target, name) for name, rows in of_class)
        return (threshold(scores, right, target), *each)


def _mistake(chunk: Chunk, i: int, label: int, score: float, classes: tuple[str, ...]) -> Mistake:
    assert chunk.truth is not None
    where = chunk.rows.slice(i, 1).to_pylist()[0]
    text = chunk.text[i].as_py()[:_SHOWN_BYTES].decode(errors="ignore")
    return Mistake(score, where["file"], where["row"], classes[chunk.truth[i]], classes[label], text)
