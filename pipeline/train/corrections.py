"""Applies a person's decisions to labelled rows before training.

A decision gives a row its right label, leaves out a row, or adds a row with a text that had no label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..engine.base import Texts
from ..errors import UsageError, counted
from ..evaluation.decisions import LEAVE_OUT, Decision, key_of, read_decisions
from ..model.alphabet import Alphabet, encode
from ..source.rows.labels import NO_TRUTH
from .data import LabelledArticles, TextBuffers, joined

_SHOWN = 5
_LEFT_OUT = NO_TRUTH - 1  # stands in place of a class index for a row that is left out


class Corrections(NamedTuple):
    """The number of rows that decisions changed.

    Attributes
    ----------
    changed : int
        The number of rows that got another label.
    confirmed : int
        The number of rows whose label was right.
    left_out : int
        The number of rows that were left out.
    added : int
        The number of rows that were added because no row had their text.
    unknown : int
        The number of decisions about a text that no row has, and that the file of decisions does not contain either.

    """

    changed: int
    confirmed: int
    left_out: int
    added: int
    unknown: int

    def line(self, path: Path) -> str:
        """Return a message for the user. path: the file of decisions."""
        said = f"{counted(self.changed, 'row')} with another label, {self.confirmed:,} confirmed"
        ignored = f"; {counted(self.unknown, 'decision')} ignored: no row has the text" if self.unknown else ""
        return f"{path}: {said}, {self.left_out:,} left out, {self.added:,} added{ignored}"


def corrected(
    data: LabelledArticles, path: Path, symbols: Alphabet, length: int, keep_classes: bool
) -> tuple[LabelledArticles, Corrections, NDArray[np.bool_]]:
    """Apply the decisions of a file to articles with one label each.

    Parameters
    ----------
    data : LabelledArticles
        The articles.
    path : Path
        The file of decisions.
    symbols, length
        The alphabet and the length with which `ArticleReader` encodes, for rows that are added.
    keep_classes : bool
        Whether to keep a class that no row has any more.

    Returns
    -------
    LabelledArticles
        The articles with their right labels.
    Corrections
        The number of changed rows.
    bool [N]
        Which of these articles a person has decided about.

    Raises
    ------
    UsageError
        For a file that cannot be read, for a decision that is no label of the articles, and if only one class is left.

    """
    # Read the decisions, and find the rows that have their texts.
    decisions = read_decisions(path)
    indices = _indices(decisions, data.classes, path)
    keys = [key_of(text) for text in data.text.column.to_pylist()]
    by_key = {decision.key: index for decision, index in zip(decisions, indices, strict=True)}
    decided = np.array([key in by_key for key in keys], np.bool_)
    labels = np.array([by_key.get(key, label) for key, label in zip(keys, data.labels.tolist(), strict=True)], np.int64)
    out, there = labels == _LEFT_OUT, {*keys}
    # Count what changes. A decision about a text that no row has adds a row, if the file has the text.
    changed = decided & ~out & (labels != data.labels)
    others = [pair for pair in zip(decisions, indices, strict=True) if pair[0].key not in there]
    new = [(decision.text, index) for decision, index in others if decision.text and index != _LEFT_OUT]
    unknown = sum(not decision.text for decision, _ in others)
    confirmed = int((decided & ~out & ~changed).sum())
    counts = Corrections(int(changed.sum()), confirmed, int(out.sum()), len(new), unknown)
    # Leave rows out, and add the new ones.
    rows_to_keep = np.flatnonzero(~out)
    data = _with_rows(replace(data, labels=labels), rows_to_keep, new, path, symbols, length)
    decided = np.concatenate([decided[rows_to_keep], np.ones(len(new), np.bool_)])
    return data if keep_classes else _without_empty_classes(data), counts, decided


def _indices(decisions: Sequence[Decision], classes: tuple[str, ...], path: Path) -> list[int]:
    """Return the class index of each decision. Raises UsageError for a decision that is no class."""
    number = {name: index for index, name in enumerate(classes)} | {LEAVE_OUT: _LEFT_OUT}
    unknown = Counter(decision.label for decision in decisions if decision.label not in number)
    if unknown:
        shown = ", ".join(f"{name!r} ({count:,})" for name, count in unknown.most_common(_SHOWN))
        raise UsageError(
            f"{path}: no row has the label {shown}: correct it, or name all labels with --classes. Known are "
            f"{', '.join(classes)}, and {LEAVE_OUT!r} for a row that is not to be learned"
        )
    return [number[decision.label] for decision in decisions]


def _with_rows(
    data: LabelledArticles,
    rows_to_keep: NDArray[np.int64],
    new: list[tuple[str, int]],
    path: Path,
    symbols: Alphabet,
    length: int,
) -> LabelledArticles:
    """Return some of the articles, and new articles after them, whose place is the file of decisions.

    Parameters
    ----------
    data : LabelledArticles
        The articles.
    rows_to_keep : int64 [K]
        The numbers of the articles to keep.
    new : list of (str, int)
        Text and class of each new article.
    path, symbols, length
        See `corrected`.

    """
    texts = Texts.of([text.encode() for text, _ in new])
    added = TextBuffers(np.asarray(texts.data), np.asarray(texts.offsets))
    ids = np.concatenate([data.ids[rows_to_keep], encode(*added, symbols, length).ids])
    labels = np.concatenate([data.labels[rows_to_keep], np.array([index for _, index in new], np.int64)])
    places = data.places
    if places is not None:
        in_file = pa.array([str(path)] * len(new), pa.string()), pa.array(range(len(new)), pa.int64())
        of_new = pa.table(dict(zip(("file", "row"), in_file, strict=True)))
        places = pa.concat_tables([places.take(pa.array(rows_to_keep)), of_new], promote_options="default")
    return replace(data, ids=ids, text=joined([data.text.rows(rows_to_keep), added]), labels=labels, places=places)


def _without_empty_classes(data: LabelledArticles) -> LabelledArticles:
    """Remove the classes that no article has. Raises UsageError if fewer than two classes are left."""
    used = np.unique(data.labels)
    if len(used) < 2:
        raise UsageError(f"with the corrections all rows have one label, {data.classes[used[0]]!r}: a model needs two")
    return replace(data, labels=np.searchsorted(used, data.labels), classes=tuple(data.classes[i] for i in used))
