"""Evaluates models on labelled articles: models that give a text one label, and models that give it several."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..labelling.counts import count_pairs
from ..labelling.learned import looked_up
from ..measures.accuracy import Confusion, LabelCounts, confusion_of
from ..measures.intervals import Interval
from ..measures.overlap import Overlap
from ..measures.reliability import Reliability, reliability
from ..measures.thresholds import Threshold, threshold
from ..model.cascade import ASKS
from ..model.charcnn import Model
from ..model.loading import load_model
from ..model.scores import assigned, log_scores, probabilities
from ..model.several import head_of, load_one
from ..options import READ, ReadKeywords
from ..source.rows.chunk import SHOWN_BYTES, Chunk, commonest
from ..source.rows.label_columns import label_lists, label_sets
from ..source.rows.label_map import unmatched
from ..source.rows.labels import NO_TRUTH
from ..source.sample import class_numbers_from, with_class_numbers
from .chain import Finding, Found
from .fitting import Figures, figures_of
from .rows import RowProgress, chosen_input, joined_as, label_column_of, scored_rows, text_columns


class Mistake(NamedTuple):
    """A row with a wrong label.

    Attributes
    ----------
    score : float
        The probability of `label`.
    file : str
        The input file, or "memory".
    row : int
        The number of the record in the file, from 0.
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
        The name of the model.
    backend : str
        The device, precision and kernels that computed the labels.
    confusion : Confusion
        The number of rows by true and predicted class. It has the accuracy and the figures of each class. Rows whose
        score is below `abstain` are not in it.
    mistakes : tuple of Mistake
        The rows with wrong labels, the highest score first.
    quarantined : int
        The number of rows that could not be read.
    overflowed : int
        The number of rows on which the model overflows, so that they have no label.
    reliability : Reliability
        A comparison of the scores of all rows with a true class with the share of right labels.
    uncalibrated : Reliability or None
        The same comparison without the model's temperature; None for a model without a temperature, or with a separate
        one for rows that its network is not asked about.
    thresholds : tuple of Threshold
        The thresholds for the wanted precision, if one was given: for all labels, then for those of each class.
    abstained : int
        The number of rows with a true class whose score is below `abstain`, so that they would get no label.
    networks : dict of str to Figures
        For a model whose network can be asked about only some texts: the accuracy, the agreement with the labels of the
        whole model, the share of rows that the network is asked about, and the calibration error, if the network is
        asked about "uncertain" rows, "all" and "none". They are over the rows with a true class, whatever `abstain` is.
    found : dict of str to Found
        For a chain that has to find the texts with the highest scores, by the same three names: the share of rows that
        the encoder is asked about, and the recall and precision of what the encoder alone finds. They are over all
        rows.
    recalls : tuple of tuple of float
        For such a chain, in steps of half a percent: a share of rows, and the recall if the encoder is asked about this
        share, which are the rows with the highest scores by the first model.
    label_numbers_from : int, optional
        The number of the first class, if the label column holds class numbers.
    unknown_labels : dict of str to int
        The number of rows by each label that names no class of the model, for the most frequent ones.
    unmatched_labels : tuple of str
        The labels of `map_labels` that no row has.
    overlap : Overlap, optional
        How many of the rows of `confusion` the model has learned from, and how good it is on the others; None if its
        file does not say what it has learned.

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
    networks: dict[str, Figures] = field(default_factory=dict)
    found: dict[str, Found] = field(default_factory=dict)
    recalls: tuple[tuple[float, float], ...] = ()
    label_numbers_from: int | None = None
    unknown_labels: dict[str, int] = field(default_factory=dict)
    unmatched_labels: tuple[str, ...] = ()
    overlap: Overlap | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as JSON values.

        Returns
        -------
        dict
            Plain values. A figure that is not defined, such as the precision of a class never predicted, is None.

        """
        confusion = self.confusion
        return {
            "model": self.model,
            "backend": self.backend,
            "rows": confusion.rows,
            "accuracy": _defined(confusion.accuracy),
            "standard_error": _defined(confusion.standard_error),
            "accuracy_interval": _defined(confusion.interval),
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
            "reliability": [_values(one) | {"interval": _defined(one.interval)} for one in self.reliability.bins],
            "thresholds": [_values(figures) for figures in self.thresholds],
            "networks": {name: _values(figures) for name, figures in self.networks.items()},
            "found": {name: _values(figures) for name, figures in self.found.items()},
            "recalls": self.recalls,
            "label_numbers_from": self.label_numbers_from,
            "unknown_labels": self.unknown_labels,
            "unmatched_labels": self.unmatched_labels,
            "learned_rows": None if self.overlap is None else self.overlap.to_dict(),
        }


@dataclass(frozen=True)
class LabelEvaluation:
    """The result of `evaluate_labels`.

    Attributes
    ----------
    model : str
        The name of the model.
    backend : str
        The device, precision and kernels that computed the scores.
    counts : LabelCounts
        The counts of labels that the rows have and were given. It has the figures of each class, micro and macro F1.
    unknown : int
        The number of rows with a label that is no class of the model. Such a label is ignored.
    quarantined : int
        The number of rows that could not be read.
    overflowed : int
        The number of rows on which the model overflows, so that they have no labels.
    label_numbers_from, unknown_labels, unmatched_labels
        See `Evaluation`.
    overlap : Overlap, optional
        How many of the rows the model has learned from; None if its file does not say.
    others : LabelCounts, optional
        The counts of the rows that the model is known not to have learned from; None if there are no such rows.

    """

    model: str
    backend: str
    counts: LabelCounts
    unknown: int
    quarantined: int
    overflowed: int
    label_numbers_from: int | None = None
    unknown_labels: dict[str, int] = field(default_factory=dict)
    unmatched_labels: tuple[str, ...] = ()
    overlap: Overlap | None = None
    others: LabelCounts | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as JSON values.

        Returns
        -------
        dict
            Plain values. A figure that is not defined, such as the precision of a class never given, is None.

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
            "label_numbers_from": self.label_numbers_from,
            "unknown_labels": self.unknown_labels,
            "unmatched_labels": self.unmatched_labels,
            "learned_rows": None if self.overlap is None else self.overlap.to_dict(_f1(self.others)),
            "classes": [_values(figures) for figures in counts.per_class()],
        }


def _f1(counts: LabelCounts | None) -> dict[str, float]:
    return {} if counts is None else {"micro_f1": counts.micro_f1, "macro_f1": counts.macro_f1}


def _defined(value: Any) -> Any:
    """Return a figure, or an interval as a list, as a JSON value; None for nan."""
    if isinstance(value, Interval):
        return None if value.low != value.low else [value.low, value.high]
    return None if value != value else value


def _values(figures: Any) -> dict[str, Any]:
    """Return the fields of a NamedTuple as JSON values."""
    return {name: _defined(value) for name, value in figures._asdict().items()}


@READ.takes(ReadKeywords)
def evaluate(
    model: str | Path | Model,
    source: Any,
    *,
    text_column: str | Iterable[str] = (),
    label_column: str | None = None,
    mistakes: int = 10,
    abstain: float | None = None,
    precision_target: float | None = None,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
    network: str = "uncertain",
    progress: RowProgress | None = None,
    **options: Unpack[ReadKeywords],
) -> Evaluation:
    """Label every article of `source` in this process, and compare the labels with the true ones.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    source : str, path, Paths, or other object
        Anything that `classify` takes.
    text_column : str or iterable of str
        The column with the text. Several columns are joined by a space. Default: the columns that the model learned
        from, if its card names them, or "text".
    label_column : str, optional
        The column with the true class, by name or by number. Default: the one that the model learned from. If a model
        has heads, the head of this name is evaluated.
    mistakes : int
        How many wrongly labelled rows to keep.
    abstain : float, optional
        Rows with a lower score get no label and are counted separately, see `classify`.
    precision_target : float, optional
        A precision above 0 and below 1. The evaluation says from which score labels have it, with 95 % confidence also
        on other rows like these, and what share of the rows that is, for all labels and for those of each class.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        "auto", "simt", "sm75", "sm80" or "sm90".
    network : str
        The texts that the network is asked about, see `classify`. The result compares all three values.
    progress : callable, optional
        Called with the name of the step ("labelling"), the number of finished rows, and the number of all rows or None.
    **options
        Options for reading files.

    Returns
    -------
    Evaluation
        The accuracy, the confusion matrix and the most confident mistakes.

    Raises
    ------
    UsageError
        If a column, device or precision is not available, a share is out of range, or the model overflows on every
        row.
    ModelError
        If the model cannot be loaded.
    SourceError
        If a file cannot be read.

    Examples
    --------
    >>> result = broadsheet.evaluate("ag-news", "news.csv", text_column=["title", "body"], label_column="topic")
    >>> f"{result.confusion.accuracy:.0%}"
    '96%'

    """
    # Check the options, and find the columns to read.
    if abstain is not None and not 0 < abstain <= 1:
        raise UsageError(f"abstain is {abstain:g}: give a number above 0, up to 1")
    if precision_target is not None and not 0 < precision_target < 1:
        raise UsageError(f"precision_target is {precision_target:g}: give a number above 0 and below 1, such as 0.95")
    whole = load_model(model)
    options = joined_as(whole, text_column, options)
    text_column, label_column = text_columns(whole, text_column, options), label_column_of(whole, label_column)
    given_model = head_of(whole, label_column)
    loaded = given_model.asking(network)
    if loaded.levels is not None:
        raise UsageError(f"{loaded.name} gives a text a number: evaluate_numbers() is for such models")
    if loaded.is_multi_label:
        raise UsageError(f"{loaded.name} gives a text several labels: evaluate_labels() is for such models")
    classes = loaded.classes
    wanted: dict[str, Any] = {"truth": label_column, "classes": classes, "reads": loaded.reads}
    given, selection = chosen_input(source, text_column, options, loaded.alphabet, loaded.length, **wanted)
    selection = with_class_numbers(given, selection)

    # Prepare the figures to collect.
    unknown: Counter[str] = Counter()
    mapped: set[str] = set()
    # For the rows with a true class: label, score, the score without the model's temperature, and the true class.
    parts = [(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.float32), np.empty(0, np.int32))]
    overlap = None if given_model.learned is None else Overlap(0, 0, 0)
    ways = {network: loaded} | ({name: given_model.asking(name) for name in ASKS} if given_model.cascade else {})
    by_way: dict[str, list[tuple[NDArray[Any], NDArray[Any], int]]] = {name: [] for name in ways}
    has_before = loaded.temperature != 1 and loaded.cascade is None and loaded.by_class is None
    rows_read, finding = 0, Finding(given_model)
    worst: list[Mistake] = []
    without_truth = quarantined = overflowed = 0
    computing: Any = {"device": device, "precision": precision, "kernels": kernels, "progress": progress}

    # Score the rows, and collect their labels, scores, truths and the worst mistakes.
    with scored_rows([*ways.values()], given, selection, **computing) as (backend, chunks):
        for scored in chunks:
            chunk, truth, predicted = scored.chunk, scored.chunk.truth, scored.predictions[0]
            quarantined += len(chunk.quarantine) - scored.overflowed
            overflowed += scored.overflowed
            unknown.update({label: len(rows) for label, rows in chunk.unknown_labels.items()})
            mapped |= chunk.mapped_labels.keys()
            if truth is None:
                continue
            labels, scores, before = predicted.labels[:, 0], predicted.scores[:, 0], predicted.scores[:, 0]
            if has_before and predicted.all_scores is not None and len(chunk):
                before = probabilities(log_scores(predicted.all_scores, loaded.temperature), 1.0).max(axis=1)
            known = truth != NO_TRUTH
            if overlap is not None and (found := looked_up(given_model, chunk)) is not None:
                judged = known & (scores >= (abstain or 0))
                overlap = overlap.plus(Overlap.of(found.of(judged), (labels == truth)[judged]))
            rows_read += len(chunk)
            finding.add(dict(zip(ways, scored.predictions, strict=True)))
            for name, one in zip(ways, scored.predictions, strict=True):
                by_way[name].append((one.labels[known, 0], one.scores[known, 0], one.asked))
            without_truth += int((~known).sum())
            parts.append((labels[known], scores[known], before[known].astype(np.float32), truth[known]))
            wrong = np.flatnonzero((labels != truth) & known & (scores >= (abstain or 0)))
            surest = wrong[np.argsort(-scores[wrong], kind="stable")[:mistakes]]
            found_here = [_mistake(chunk, int(i), classes[labels[i]], float(scores[i]), classes) for i in surest]
            worst = heapq.nlargest(mistakes, worst + found_here, key=lambda mistake: mistake.score)

    # Compute the figures over all rows.
    labels, scores, before, truth = (np.concatenate(column) for column in zip(*parts, strict=True))
    right, is_kept = labels == truth, scores >= (abstain or 0)
    thresholds = []
    if precision_target is not None:
        thresholds.append(threshold(scores, right, precision_target))
        for i, name in enumerate(classes):
            thresholds.append(threshold(scores[labels == i], right[labels == i], precision_target, name))
    return Evaluation(
        model=loaded.name,
        backend=str(backend),
        confusion=confusion_of([(NO_TRUTH, 0, without_truth), *count_pairs(truth[is_kept], labels[is_kept])], classes),
        mistakes=tuple(worst),
        quarantined=quarantined,
        overflowed=overflowed,
        reliability=reliability(scores, right),
        uncalibrated=reliability(before, right) if has_before else None,
        thresholds=tuple(thresholds),
        abstained=int((~is_kept).sum()),
        networks=_compared(by_way, truth, rows_read) if given_model.cascade else {},
        found=finding.figures(),
        recalls=finding.recalls(),
        label_numbers_from=selection.rules.numbers_from,
        unknown_labels=commonest([unknown]),
        unmatched_labels=unmatched(selection.rules.classes_of, mapped),
        overlap=overlap,
    )


def _compared(
    by_way: dict[str, list[tuple[NDArray[Any], NDArray[Any], int]]], truth: NDArray[Any], rows: int
) -> dict[str, Figures]:
    """Return the figures of each way to ask the network.

    by_way: for each way and chunk, the labels and the scores of rows with a true class, and the number of rows that the
    network was asked about. truth: the true classes. rows: the number of all rows.
    """
    if not len(truth):
        return {}
    labels = {name: np.concatenate([part[0] for part in parts]) for name, parts in by_way.items()}
    scores = {name: np.concatenate([part[1] for part in parts]) for name, parts in by_way.items()}
    shares = {name: sum(part[2] for part in parts) / rows for name, parts in by_way.items()} | {"all": 1.0}
    return {name: figures_of(labels[name], scores[name], truth, labels["all"], shares[name]) for name in ASKS}


def _mistake(chunk: Chunk, i: int, label: str, score: float, classes: tuple[str, ...]) -> Mistake:
    """Return a row with a wrong label.

    Parameters
    ----------
    chunk : Chunk
        The chunk of the row.
    i : int
        The number of the row in the chunk.
    label : str
        The label that the row was given.
    score : float
        The score of this label.
    classes : tuple of str
        The names of the classes.

    """
    assert chunk.truth is not None
    where = chunk.rows.slice(i, 1).to_pylist()[0]
    (beginning,) = chunk.beginnings([i], SHOWN_BYTES)
    text = beginning.decode(errors="ignore")
    return Mistake(score, where["file"], where["row"], classes[chunk.truth[i]], label, text)


@READ.takes(ReadKeywords)
def evaluate_labels(
    model: str | Path | Model,
    source: Any,
    *,
    text_column: str | Iterable[str] = (),
    label_column: str | None = None,
    label_separator: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
    progress: RowProgress | None = None,
    **options: Unpack[ReadKeywords],
) -> LabelEvaluation:
    """Give every article of `source` its labels in this process, and compare them with the true ones.

    Parameters
    ----------
    model : str, Path or Model
        A model file, or a loaded `Model`, that was trained with several labels per text.
    source : str, path, Paths, or other object
        Anything that `classify` takes.
    text_column : str or iterable of str
        The column with the text, see `evaluate`.
    label_column : str, optional
        The column with the true labels, as lists or texts of class names or class numbers. Default: the one that the
        model learned from.
    label_separator : str, optional
        The separator between two labels, if they are a text.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        "auto", "simt", "sm75", "sm80" or "sm90".
    progress : callable, optional
        Called with the name of the step ("labelling"), the number of finished rows, and the number of all rows or None.
    **options
        Options for reading files.

    Returns
    -------
    LabelEvaluation
        The precision, recall and F1 of each class, and micro and macro F1.

    Raises
    ------
    UsageError
        If the model gives one label, a column, device or precision is not available, or a column holds no labels.
    ModelError
        If the model cannot be loaded.
    SourceError
        If a file cannot be read.

    Examples
    --------
    >>> result = evaluate_labels("topics.safetensors", "test.parquet", text_column="body", label_column="topics")
    >>> f"{result.counts.micro_f1:.3f}"
    '0.871'

    """
    # Check the model, and find the columns to read.
    loaded = load_one(model)
    if loaded.thresholds is None:
        raise UsageError(f"{loaded.name} gives each text one label: evaluate() is for such models")
    options = joined_as(loaded, text_column, options)
    text_column, label_column = text_columns(loaded, text_column, options), label_column_of(loaded, label_column)
    wanted: dict[str, Any] = {"kept_columns": (label_column,), "labels": (label_column,), "classes": loaded.classes}
    wanted["reads"] = loaded.reads
    given, selection = chosen_input(source, text_column, options, loaded.alphabet, loaded.length, **wanted)
    numbers_from = class_numbers_from(given, selection, label_column, several=True, separator=label_separator)
    rules = replace(selection.rules, numbers_from=numbers_from)

    # Score the rows, and count the labels that they have and were given.
    nothing = np.empty((0, len(loaded.classes)), np.bool_)
    counts = LabelCounts.of(loaded.classes, nothing, nothing)
    unknown_labels: Counter[str] = Counter()
    mapped: set[str] = set()
    overlap, of_others = None if loaded.learned is None else Overlap(0, 0, 0), counts
    unknown = quarantined = overflowed = 0
    with scored_rows([loaded], given, selection, device, precision, kernels, progress=progress) as (backend, chunks):
        for scored in chunks:
            chunk, all_scores = scored.chunk, scored.predictions[0].all_scores
            quarantined += len(chunk.quarantine) - scored.overflowed
            overflowed += scored.overflowed
            if not len(chunk):
                continue
            lists = label_lists(chunk.rows, label_column, label_separator)
            true, others, names = label_sets(lists, loaded.classes, rules)
            mapped |= {*lists.flatten().unique().to_pylist()}
            unknown_labels.update(names)
            assert all_scores is not None
            labels = assigned(all_scores, loaded.thresholds)
            counts += LabelCounts.of(loaded.classes, labels, true)
            if overlap is not None and (found := looked_up(loaded, chunk)) is not None:
                overlap = overlap.plus(Overlap.of(found))
                of_others += LabelCounts.of(loaded.classes, labels[found.is_other], true[found.is_other])
            unknown += int(others.sum())
    return LabelEvaluation(
        model=loaded.name,
        backend=str(backend),
        counts=counts,
        unknown=unknown,
        quarantined=quarantined,
        overflowed=overflowed,
        label_numbers_from=numbers_from,
        unknown_labels=commonest([unknown_labels]),
        unmatched_labels=unmatched(rules.classes_of, mapped),
        overlap=overlap,
        others=of_others if of_others.rows else None,
    )
