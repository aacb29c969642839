"""Turns a model's labels into columns: it names, types, fills and counts them.

Formats, results in memory, `verify` and the report find the columns of a model by these definitions. The names are in
`source/rows/chunk.py` too, which renames copied columns that have one of them and may not import this module.
tests/source/test_columns.py compares both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..engine.base import Predictions
from ..errors import UsageError
from ..labelling.counts import SCORES, count_pairs, count_scores
from ..labelling.scored import Scoring
from ..labelling.windows import Windows
from ..model.learned import LookedUp
from ..model.reference import NO_LABEL
from ..model.scores import assigned
from ..model.several import Models
from ..source.rows.label_columns import SEPARATOR
from ..source.rows.labels import NO_TRUTH

TRUTH = pa.field("truth", pa.string())
"""The true class of a row, if the input has one."""

N_CHARS = pa.field("n_chars", pa.int64())
"""The number of characters in the whole text. There is one such column, however many models read the text."""

JOINED = {b"separator": SEPARATOR.encode()}
"""The metadata of a column of lists that a CSV file has as texts, with this separator between the values."""


@dataclass(frozen=True)
class Names:
    """The names of a model's columns. prefix: the start of each name. multi_label: whether a row has several labels."""

    prefix: str = ""
    multi_label: bool = False

    @property
    def label(self) -> str:
        return f"{self.prefix}labels" if self.multi_label else f"{self.prefix}label"

    @property
    def score(self) -> str:
        return f"{self.prefix}scores" if self.multi_label else f"{self.prefix}score"

    def score_of(self, label: str) -> str:
        return f"{self.prefix}score_{label}"

    @property
    def top_labels(self) -> str:
        return f"{self.prefix}top_labels"

    @property
    def top_scores(self) -> str:
        return f"{self.prefix}top_scores"

    @property
    def truncated(self) -> str:
        return f"{self.prefix}truncated"

    @property
    def unknown_chars(self) -> str:
        return f"{self.prefix}unknown_chars"

    @property
    def n_windows(self) -> str:
        return f"{self.prefix}n_windows"


def names_in(columns: Collection[str]) -> list[Names]:
    """Return the names of each model whose columns are among these."""
    models = []
    for column in columns:
        prefix = column.removesuffix("unknown_chars")
        both = (Names(prefix), Names(prefix, multi_label=True)) if column == f"{prefix}unknown_chars" else ()
        models += [names for names in both if {names.label, names.score, names.truncated} <= {*columns}]
    return models


@dataclass(frozen=True)
class ModelColumns:
    """The columns that one model fills.

    Attributes
    ----------
    classes : tuple of str
        The classes of the model.
    top_k : int
        How many of the best labels and their scores are written. If it is 1, there are no columns for them.
    scores : bool
        Whether the score of every class has a column.
    names : Names
        The names of the columns.
    truths : tuple of str
        The classes that a truth may name, which are the classes of all models of the job; empty if they are the
        classes of this model.
    abstain : float or None
        A row with a lower score has no label.
    thresholds : tuple of float or None
        The least score for each class of a model that gives several labels; None for other models.
    windows : Windows or None
        How long texts are labelled; None if only their beginning is read.
    counts_scores : bool
        Whether rows are counted by score. Such a score is from 0 to 1.

    """

    classes: tuple[str, ...]
    top_k: int = 1
    scores: bool = False
    names: Names = Names()
    truths: tuple[str, ...] = ()
    abstain: float | None = None
    thresholds: tuple[float, ...] | None = None
    windows: Windows | None = None
    counts_scores: bool = True

    @property
    def scoring(self) -> Scoring:
        """What the model has to compute for these columns."""
        return Scoring(self.top_k, self.scores or self.thresholds is not None, self.windows)

    @cached_property
    def first(self) -> tuple[pa.Field, ...]:
        """The columns that come first: the label and its score, or the labels, best first, and their scores."""
        if self.thresholds is not None:
            kinds = ((self.names.label, pa.string()), (self.names.score, pa.float32()))
            labels, scores = (pa.field(name, pa.list_(kind), metadata=JOINED) for name, kind in kinds)
            return labels, scores
        return pa.field(self.names.label, pa.string()), pa.field(self.names.score, pa.float32())

    @cached_property
    def more(self) -> tuple[pa.Field, ...]:
        """The further columns about classes that the options ask for."""
        fields = [pa.field(self.names.score_of(name), pa.float32()) for name in self.classes if self.scores]
        if self.top_k > 1:
            fields.append(pa.field(self.names.top_labels, pa.list_(pa.string())))
            fields.append(pa.field(self.names.top_scores, pa.list_(pa.float32())))
        return tuple(fields)

    @cached_property
    def of_text(self) -> tuple[pa.Field, ...]:
        """The columns about the text as this model reads it."""
        windows = [pa.field(self.names.n_windows, pa.int64())] if self.windows else []
        return pa.field(self.names.truncated, pa.bool_()), pa.field(self.names.unknown_chars, pa.int64()), *windows

    def columns(self, predictions: Predictions) -> dict[str, pa.Array]:
        """Return the columns of N rows, by name."""
        known, names = pa.array(self.classes, pa.string()), self.names
        count, k = predictions.labels.shape
        arrays = {
            **self._first_columns(predictions, known),
            names.truncated: pa.array(predictions.truncated),
            names.unknown_chars: pa.array(predictions.unknown_chars),
        }
        if predictions.n_windows is not None:
            arrays[names.n_windows] = pa.array(predictions.n_windows)
        if self.scores and predictions.all_scores is not None:
            for name, scores in zip(self.classes, predictions.all_scores.T, strict=True):
                arrays[names.score_of(name)] = pa.array(np.ascontiguousarray(scores))
        if self.top_k > 1:
            bounds = pa.array(np.arange(count + 1, dtype=np.int32) * k)
            labels = known.take(pa.array(predictions.labels.reshape(-1)))
            arrays[names.top_labels] = pa.ListArray.from_arrays(bounds, labels)
            arrays[names.top_scores] = pa.ListArray.from_arrays(bounds, pa.array(predictions.scores.reshape(-1)))
        return arrays

    def _first_columns(self, predictions: Predictions, known: pa.Array) -> dict[str, pa.Array]:
        names = self.names
        if self.thresholds is None:
            best = self.best(predictions)
            label = known.take(pa.array(best, mask=best == NO_LABEL))
            return {names.label: label, names.score: pa.array(predictions.scores[:, 0])}
        given = self._given(predictions)
        row, number = np.nonzero(given)
        scores = self._scores(predictions)[given]
        order = np.lexsort((number, -scores, row))  # best first, and the lowest class first on a tie
        bounds = pa.array(np.concatenate([[0], np.cumsum(given.sum(axis=1))]).astype(np.int32))
        return {
            names.label: pa.ListArray.from_arrays(bounds, known.take(pa.array(number[order]))),
            names.score: pa.ListArray.from_arrays(bounds, pa.array(scores[order])),
        }

    def _scores(self, predictions: Predictions) -> NDArray[np.float32]:
        if predictions.all_scores is None:
            raise ValueError("a model that gives several labels needs the score of every class")
        return predictions.all_scores

    def _given(self, predictions: Predictions) -> NDArray[np.bool_]:
        """Return which labels a model that gives several labels gives each row, [N, classes]."""
        return assigned(self._scores(predictions), self.thresholds or ())

    def best(self, predictions: Predictions) -> NDArray[np.int32]:
        """Return the class of each row, [N]; NO_LABEL if its score is too low."""
        best: NDArray[np.int32] = predictions.labels[:, 0]
        return best if self.abstain is None else np.where(predictions.scores[:, 0] < self.abstain, NO_LABEL, best)

    def unlabelled(self, predictions: Predictions) -> int:
        """Return the number of rows without a label."""
        if self.thresholds is not None:
            return int((~self._given(predictions).any(axis=1)).sum())
        return 0 if self.abstain is None else int((self.best(predictions) == NO_LABEL).sum())

    def counts(self, predictions: Predictions) -> dict[str, tuple[int, ...]]:
        """Count the rows by label and score, see `count_scores`. Rows without a label are left out."""
        if self.thresholds is not None:
            given = self._given(predictions)
            return count_scores(self.classes, np.nonzero(given)[1], self._scores(predictions)[given])
        best = self.best(predictions)
        labelled = best != NO_LABEL
        return count_scores(self.classes, best[labelled], predictions.scores[labelled, 0])

    def pairs(self, predictions: Predictions, truth: NDArray[np.int32]) -> list[tuple[int, int, int]]:
        """Count the rows by true class and label, see `count_pairs`.

        truth: [N], the number of a class in `truths`, or NO_TRUTH. A class that the model does not have counts as no
        truth.
        """
        return count_pairs(self._own(truth), self.best(predictions))

    def right(self, predictions: Predictions, truth: NDArray[np.int32]) -> dict[str, tuple[int, ...]]:
        """Count the rows whose label is their truth ("right") and the others ("wrong"), by bin of `counts.SCORES`.

        Rows without a label or without a truth are left out. truth: see `pairs`.
        """
        truth, best = self._own(truth), self.best(predictions)
        judged = (truth != NO_TRUTH) & (best != NO_LABEL)
        counts = count_scores(("wrong", "right"), (truth == best)[judged].astype(int), predictions.scores[judged, 0])
        return dict.fromkeys(("right", "wrong"), (0,) * len(SCORES)) | counts

    def learned(self, predictions: Predictions, truth: NDArray[np.int32], found: LookedUp) -> tuple[int, int, int]:
        """Count rows that have a truth and a label, for `LearnedFrom`.

        Return three numbers: the rows that can be checked for whether the model has learned from them, the rows that it
        has learned from, and the rows with a right label among the others.

        truth: see `pairs`. found: the result of the check for each row, [N].
        """
        truth, best = self._own(truth), self.best(predictions)
        judged = (truth != NO_TRUTH) & (best != NO_LABEL)
        found, right = found.of(judged), (truth == best)[judged]
        return int(found.checked.sum()), int(found.learned.sum()), int((right & found.is_other).sum())

    def _own(self, truth: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the numbers of classes in `truths` as numbers of the model's classes."""
        if not self.truths or self.truths == self.classes:
            return truth
        numbers = {name: i for i, name in enumerate(self.classes)}
        of_truth = np.array([*(numbers.get(name, NO_TRUTH) for name in self.truths), NO_TRUTH], np.int32)
        return of_truth[truth]  # NO_TRUTH is -1 and finds the last element


def columns_of_models(
    models: Models, top_k: int, scores: bool, abstain: float | None, windows: Windows | None
) -> tuple[ModelColumns, ...]:
    """Return the columns that each model fills.

    Raises UsageError if `top_k` or `abstain` is given for a model that gives numbers.

    Parameters
    ----------
    models : Models
        The models.
    top_k, scores, abstain, windows
        See `ModelColumns`.

    """
    number = next((model for model in models.every if model.levels is not None), None)
    if number is not None and (top_k > 1 or abstain is not None):
        raise UsageError(f"{number.name} gives a text a number: leave out --top-k and --abstain")
    return tuple(
        ModelColumns(
            classes=model.classes,
            top_k=top_k,
            scores=scores,
            names=Names(prefix, model.is_multi_label),
            truths=models.classes,
            abstain=None if model.is_multi_label else abstain,
            thresholds=model.thresholds,
            windows=windows,
            counts_scores=model.levels is None,
        )
        for model, prefix in zip(models.every, models.prefixes, strict=True)
    )


def refuse_unfit(models: Models, judged: bool, by: Sequence[str], abstain: float | None, format_: str) -> None:
    """Raise UsageError for options that do not go with a model that gives several labels.

    Parameters
    ----------
    models : Models
        The models.
    judged : bool
        Whether labels are compared with known ones.
    by : sequence of str
        The columns whose values have folders.
    abstain : float or None
        A row with a lower score has no label.
    format_ : str
        The format of the parts.

    """
    several = next((model for model in models.every if model.is_multi_label), None)
    if several is None:
        return
    if judged:
        raise UsageError(
            f"{several.name} gives a text several labels: leave out --label-column, and compare them with the true "
            "ones by `broadsheet evaluate`"
        )
    if "label" in by and models.first.is_multi_label:
        raise UsageError(f"{several.name} gives a text several labels: a row cannot be in the folder of each")
    if abstain is not None and all(model.is_multi_label for model in models.every):
        raise UsageError(f"{several.name} gives a text several labels, by its own thresholds: leave out --abstain")
    joined = next((name for name in several.classes if SEPARATOR in name), None)
    if format_ == "csv" and joined is not None:
        raise UsageError(
            f"the class {joined!r} cannot be written to CSV, where {SEPARATOR!r} separates labels: use --format "
            "jsonl or parquet"
        )
