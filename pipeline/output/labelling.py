"""How a model's labels become columns: the one place that names them, types them, and fills and counts them.

Formats, results in memory, `verify` and the report know the columns of a model by what is said here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.accuracy import count_pairs
from pipeline.engine.base import Predictions
from pipeline.source.chunk import NO_TRUTH

TRUTH = pa.field("truth", pa.string())
"""The true class of a row, where the input has one."""

N_CHARS = pa.field("n_chars", pa.int64())
"""Characters of the whole text: one column, however many models read it."""


@dataclass(frozen=True)
class Names:
    """The names of a model's columns. prefix: of each of them."""

    prefix: str = ""

    @property
    def label(self) -> str:
        return f"{self.prefix}label"

    @property
    def score(self) -> str:
        return f"{self.prefix}score"

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


def names_in(columns: Collection[str]) -> list[Names]:
    """Of the models whose columns are among these."""
    found = []
    for column in columns:
        names = Names(column.removesuffix("unknown_chars"))
        if column == names.unknown_chars and {names.label, names.score, names.truncated} <= {*columns}:
            found.append(names)
    return found


@dataclass(frozen=True)
class Labelling:
    """What one model says of each row, and which of that is asked for.

    classes: of the model. top_k: the best labels and their scores, where above 1. scores: of every class. names: of its
    columns. truths: the classes that a truth may name, where these are not the model's: of several, those of all.
    """

    classes: tuple[str, ...]
    top_k: int = 1
    scores: bool = False
    names: Names = Names()
    truths: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """What the column of labels may hold."""
        return self.classes

    @property
    def with_every_score(self) -> Labelling:
        """The same with the score of every class."""
        return replace(self, scores=True)

    @cached_property
    def first(self) -> tuple[pa.Field, ...]:
        """The columns that come first: the label, and how sure of it the model is."""
        return pa.field(self.names.label, pa.string()), pa.field(self.names.score, pa.float32())

    @cached_property
    def more(self) -> tuple[pa.Field, ...]:
        """Further columns about the classes, where they are asked for."""
        fields = [pa.field(self.names.score_of(name), pa.float32()) for name in self.classes if self.scores]
        if self.top_k > 1:
            fields.append(pa.field(self.names.top_labels, pa.list_(pa.string())))
            fields.append(pa.field(self.names.top_scores, pa.list_(pa.float32())))
        return tuple(fields)

    @cached_property
    def of_text(self) -> tuple[pa.Field, ...]:
        """Columns about the text as this model reads it."""
        return pa.field(self.names.truncated, pa.bool_()), pa.field(self.names.unknown_chars, pa.int64())

    def columns(self, predictions: Predictions) -> dict[str, pa.Array]:
        """The columns of N rows, by name."""
        known, names = pa.array(self.classes, pa.string()), self.names
        count, k = predictions.labels.shape
        found = {
            names.label: known.take(pa.array(self.best(predictions))),
            names.score: pa.array(predictions.scores[:, 0]),
            names.truncated: pa.array(predictions.truncated),
            names.unknown_chars: pa.array(predictions.unknown_chars),
        }
        if self.scores and predictions.all_scores is not None:
            for name, scores in zip(self.classes, predictions.all_scores.T, strict=True):
                found[names.score_of(name)] = pa.array(np.ascontiguousarray(scores))
        if self.top_k > 1:
            bounds = pa.array(np.arange(count + 1, dtype=np.int32) * k)
            labels = known.take(pa.array(predictions.labels.reshape(-1)))
            found[names.top_labels] = pa.ListArray.from_arrays(bounds, labels)
            found[names.top_scores] = pa.ListArray.from_arrays(bounds, pa.array(predictions.scores.reshape(-1)))
        return found

    def best(self, predictions: Predictions) -> NDArray[np.int32]:
        """The class that each row is given, [N]."""
        best: NDArray[np.int32] = predictions.labels[:, 0]
        return best

    def counts(self, predictions: Predictions) -> dict[str, int]:
        """Rows by label, as the column of labels has them."""
        numbers, counts = np.unique(self.best(predictions), return_counts=True)
        return {self.classes[i]: int(n) for i, n in zip(numbers, counts, strict=True)}

    def pairs(self, predictions: Predictions, truth: NDArray[np.int32]) -> list[tuple[int, int, int]]:
        """Rows by true class and label, as `accuracy.count_pairs` has them.

        truth: [N], one of `truths`, or NO_TRUTH. A class that the model does not have counts as no truth.
        """
        if self.truths and self.truths != self.classes:
            own = {name: i for i, name in enumerate(self.classes)}
            of_truth = np.array([*(own.get(name, NO_TRUTH) for name in self.truths), NO_TRUTH], np.int32)
            truth = of_truth[truth]  # NO_TRUTH is -1: the last
        return count_pairs(truth, self.best(predictions))
