"""Soft labels: a probability for every class, from teachers or from columns, in addition to labels or instead of them.

A teacher is one of our models, a function, or a sentence encoder. For a sentence encoder, a linear model is fitted to
the vectors of the labelled rows. A row without a label counts more, the surer its soft label is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import softmax

from ..engine import base
from ..engine.open import opened
from ..engine.open import vectors as vectors_of
from ..errors import ModelError, UsageError, install
from ..evaluation.chain import answers_of
from ..evaluation.rows import hold_out
from ..model.charcnn import Model
from ..model.encoder_file import FILES, has_head
from ..model.loading import load_encoder
from ..model.model_file import HUB, fetch_from_hub
from ..model.scores import Levels
from ..model.several import load_one
from ..source.rows.chunk import Chunk
from ..source.rows.labels import class_of_each
from .answers import Answers
from .branch import folds_of, on_vectors
from .data import ArticleReader, LabelledArticles, TextBuffers, indices_of, joined, sorted_names, with_first_number
from .progress import RowsDone, Tell

_PREFIX = "score_"  # begins the names of the columns that `classify --scores` writes
_BATCH = 1024  # texts that a function gets at once
_TEXTS_AT_ONCE = {"cpu": 256, "cuda": 131_072}  # texts that a model gets at once; after them, it reports its progress

Doubles = NDArray[np.float64]
Rows = NDArray[np.int64]
Report = Callable[[int], None]
"""Called with the number of finished texts."""


@dataclass(frozen=True)
class SoftLabels:
    """The source of soft labels: columns, or teachers. With several teachers, their mean is used.

    Attributes
    ----------
    columns : tuple of str
        One column of lists, or a column for each class.
    models : tuple of str, Path or Model
        The teachers. Each is one of:

        - One of our models: anything that `load_model` takes, which includes an encoder with a head. If the model
          returns numbers, its numbers are learned.
        - "module:function", the name of a function from a list of texts to an array [N, classes] of probabilities.
        - A model of sentence-transformers: a folder, or a name on the Hub. A folder, or a name that begins with
          "hf://", does not need PyTorch if our kernels can compute the model.
    unlabelled : as `classify` takes it, optional
        More texts for the teachers.
    share : float
        The share of the soft label in the target of an article that also has a label.
    device : str
        The device on which the teachers compute.

    Raises
    ------
    UsageError
        If there are both columns and teachers, or neither; for more texts without a teacher; and for a share that is
        not from 0 to 1.

    """

    columns: tuple[str, ...] = ()
    models: tuple[str | Path | Model, ...] = ()
    unlabelled: Any = None
    share: float = 0.5
    device: str = "auto"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"soft share {self.share}: it must be from 0 to 1")
        if bool(self.columns) == bool(self.models):
            raise UsageError("soft labels come from teachers or from columns: give one of the two")
        if self.unlabelled is not None and not self.models:
            raise UsageError("unlabelled text needs a teacher")

    @cached_property
    def _loaded(self) -> tuple[str | Path | Model, ...]:
        """The teachers. A teacher that is a model of ours is loaded."""
        return tuple(load_one(one) if _is_ours(one) else one for one in self.models)

    @property
    def _ours(self) -> list[Model]:
        return [one for one in self._loaded if isinstance(one, Model)]

    @property
    def levels(self) -> Levels | None:
        """The levels of the numbers that the teachers return; None if the first of our models returns no numbers."""
        return self._ours[0].levels if self._ours else None

    @property
    def encoder(self) -> Model:
        """The only teacher, which a chain keeps beside the n-grams.

        Raises UsageError if there is another teacher, or if it is no encoder with a head.
        """
        model = self._ours[0] if len(self.models) == len(self._ours) == 1 else None
        if len(self.models) == 1 and model is None:
            _refuse_without_head(str(self.models[0]))
        if model is None or model.encoder is None or model.ngrams or model.is_multi_label or model.preparation:
            raise UsageError(
                "--keep-teacher needs one teacher: an encoder with a head that gives each text one label or a number. "
                "A model file holds no other teacher beside n-grams"
            )
        return model

    def about(self) -> dict[str, Any]:
        """Return the description of the source for a model's card."""
        models = [m.name if isinstance(m, Model) else str(m) for m in self.models]
        return {"share": self.share, **({"teachers": models} if models else {"columns": list(self.columns)})}

    def read(
        self, source: Any, reading: ArticleReader, label_column: str | None, classes: tuple[str, ...] | None
    ) -> Taught:
        """Read `source`, with its labels if it has any, and `unlabelled`. The teachers do not answer yet.

        The classes are `classes` if you give them, otherwise those of the teachers that are our models, otherwise those
        that `read_taught` finds. Raises UsageError for teachers that do not fit together or to the classes, and like
        `read_taught`.
        """
        names = classes
        if self.levels and any(not isinstance(one, Model) or one.levels != self.levels for one in self._loaded):
            raise UsageError("a teacher gives numbers, but not all teachers have its levels: give teachers of one kind")
        for model in self._ours:
            if model.is_multi_label:
                raise UsageError(f"the teacher {model.name} gives a text several labels: only one label can be taught")
            names = names or model.classes
            if model.classes != names if self.levels else set(model.classes) != set(names):
                message = f"a teacher has the classes {', '.join(model.classes)}, not {', '.join(names)}"
                raise UsageError(f"{message}: give teachers of the same classes, and --classes only with these")
        taught = read_taught(source, reading, label_column, self.columns, names, bool(self.models))
        if self.unlabelled is not None:
            taught = taught.and_(read_taught(self.unlabelled, reading, None, (), taught.data.classes, True))
        return taught

    def taught(self, taught: Taught, held: Rows, tell: Tell | None = None) -> Taught:
        """Return the rows with the answers of the teachers.

        The answer for a row is the mean over the teachers that have one for it. Sentence encoders learn from the
        labelled rows that are not held out. Raises UsageError for a teacher that fails, or that has no answer at all.

        Parameters
        ----------
        taught : Taught
            The rows.
        held : int64 [K]
            The numbers of the held-out rows.
        tell : callable, optional
            Called with the progress of each teacher.

        """
        if not self.models:
            return taught
        data = taught.data
        known = taught.labelled.copy()
        known[held] = False
        # Ask the teachers, and refuse one that answers nothing.
        parts = np.stack([self._answers(one, data, np.flatnonzero(known), tell) for one in self._loaded])
        answers = np.logical_not(np.isnan(parts).any(2, keepdims=True))
        for one, of_one in zip(self.models, answers, strict=True):
            if not of_one.any():
                what = f"the teacher {one.name if isinstance(one, Model) else one}"
                raise UsageError(f"{what} has no probabilities for any of the texts, only NaN: name another")
        # Average over the teachers that answer; a row without an answer gets NaN.
        average = np.where(answers, parts, 0).sum(0) / np.where(answers.any(0), answers.sum(0), np.nan)
        given = np.nan_to_num(average)
        if self.levels is not None:
            numbers = np.where(np.isnan(average), self.levels.low, average)[:, 0]
            nearest = self.levels.nearest(numbers, len(data.classes))
            return Taught(replace(data, labels=nearest, numbers=numbers, levels=self.levels), average, taught.labelled)
        labels = np.where(taught.labelled, data.labels, given.argmax(1))
        return Taught(replace(data, labels=labels), average, taught.labelled)

    def _answers(self, what: str | Path | Model, data: LabelledArticles, known: Rows, tell: Tell | None) -> Doubles:
        phase = f"teacher {os.path.basename(what.name if isinstance(what, Model) else str(what))}"

        def report(rows: int) -> None:
            if tell is not None:
                tell(RowsDone(phase, rows, len(data)))

        if isinstance(what, Model):
            return _of_model(what, data, self.device, report)
        texts = [text.tobytes().decode(errors="replace") for text in np.split(data.text.data, data.text.offsets[1:-1])]
        name = str(what)
        if ":" in name and not (name.startswith(HUB) or Path(name).exists()):
            return _of_function(name, texts, data.classes, report)
        return _learned(_encoded(name, data.text, texts, self.device, report), data, known)


def _refuse_without_head(name: str) -> None:
    """Raise UsageError for an encoder without a head. The message names the two steps that make a chain of it."""
    if name.startswith(HUB) or Path(name).is_dir():
        raise UsageError(
            f"{name} is an encoder without a head, which gives vectors and no labels. Two steps make a chain of it: "
            f"train on your labelled rows with --encoder {name}, which fits a head and saves both in one file; then "
            "train on other texts with that file as the teacher and --keep-teacher"
        )


def _is_ours(what: str | Path | Model) -> bool:
    """Return whether a teacher is one of our models, and neither a function nor a sentence encoder without a head."""
    if isinstance(what, Model):
        return True
    path = fetch_from_hub(str(what), FILES)[0] if str(what).startswith(HUB) else Path(what)
    if path.is_dir():
        return has_head(path)
    return path.is_file() or not (":" in str(what) or "/" in str(what))


def _of_model(model: Model, data: LabelledArticles, device: str, report: Report) -> Doubles:
    """Return a model's probabilities [N, classes], or its numbers [N, 1]; NaN if it overflows for a text."""
    order = [model.classes.index(name) for name in data.classes]
    parts = []
    with opened([model.asking("all")], device) as (engine,):
        size = _TEXTS_AT_ONCE[engine.backend.device]
        for first in range(0, len(data), size):
            rows = np.arange(first, min(first + size, len(data)))
            parts.append(answers_of(model, engine.classify(base.Texts(*data.text.rows(rows)), all_scores=True)))
            report(first + len(rows))
    scores = np.concatenate(parts)
    return scores if model.levels is not None else scores[:, order]


def _of_function(name: str, texts: list[str], classes: tuple[str, ...], report: Report) -> Doubles:
    module, _, function = name.partition(":")
    try:
        teacher: Callable[[list[str]], Any] = getattr(import_module(module), function)
        if not callable(teacher):
            raise TypeError(f"{function} of {module} is no function")
    except Exception as error:  # a module's own code may raise anything
        raise UsageError(f"there is no teacher {name} ({error}): give MODULE:FUNCTION that Python finds") from error
    parts = []
    try:
        for at in range(0, len(texts), _BATCH):
            parts.append(np.asarray(teacher(texts[at : at + _BATCH]), np.float64))
            report(min(at + _BATCH, len(texts)))
    except Exception as error:  # the function may raise anything too
        what = f"the teacher {name} gave no probabilities ({type(error).__name__}: {error})"
        remedy = f"it gets a list of texts, and must return {len(classes)} probabilities for each"
        raise UsageError(f"{what}: {remedy}") from error
    for at, part in enumerate(parts):
        wanted = (len(texts[at * _BATCH : (at + 1) * _BATCH]), len(classes))
        if part.shape != wanted:
            raise UsageError(f"the teacher {name} gave an array {list(part.shape)}, not {list(wanted)}")
    return shares(np.concatenate(parts), f"the teacher {name}")


def _encoded(name: str, text: TextBuffers, texts: list[str], device: str, report: Report) -> NDArray[np.float32]:
    """Compute the vectors of a sentence encoder, of length one, by our engine if it can.

    Parameters
    ----------
    name : str
        The name of the encoder.
    text, texts
        The same texts, as buffers and as strings.
    device : str
        The device on which the encoder computes.
    report : callable
        Called now and then with the number of finished texts.

    """
    vectors, refused = None, ""
    if name.startswith(HUB) or Path(name).is_dir():
        try:
            vectors = vectors_of(load_encoder(name), *text, device, report)
        except ModelError as error:
            refused = f"{error.message}; "
    if vectors is None:
        vectors = _by_sentence_transformers(name, texts, device, refused, report)
    if not np.isfinite(vectors).all():
        raise UsageError(f"the vectors of {name} are not all finite: name another teacher")
    return vectors


def _by_sentence_transformers(
    name: str, texts: list[str], device: str, refused: str, report: Report
) -> NDArray[np.float32]:
    """Compute the vectors of a sentence encoder, of length one, by sentence-transformers.

    Parameters
    ----------
    name, texts, device, report
        See `_encoded`.
    refused : str
        The reason why our engine cannot compute them, for messages.

    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        remedy = f"{install('teacher')} ({error})"
        raise UsageError(f"{refused}the teacher {name} needs sentence-transformers: {remedy}") from error
    try:
        encoder = SentenceTransformer(name, device=None if device == "auto" else device)
    except Exception as error:  # it uses many libraries, which raise many kinds of errors
        what = "is no model of sentence-transformers that can be loaded"
        raise UsageError(f"{refused}{name} {what} ({error})") from error
    parts = []
    for at in range(0, len(texts), _BATCH):
        parts.append(encoder.encode(texts[at : at + _BATCH], normalize_embeddings=True, show_progress_bar=False))
        report(min(at + _BATCH, len(texts)))
    return np.concatenate(parts)


def _learned(vectors: NDArray[np.float32], data: LabelledArticles, known: Rows) -> Doubles:
    """Return the probabilities of a linear model on vectors, which is fitted to the rows `known`.

    The probabilities of the rows `known` themselves come from models that were fitted to others of these rows.
    """
    labels = data.labels[known]
    if len(np.unique(labels)) < 2:
        raise UsageError("a sentence encoder as teacher needs labelled rows of two classes or more")
    folds = folds_of(labels, data.text.numbered()[known])
    order = np.concatenate([known, np.setdiff1d(np.arange(len(vectors)), known)])
    _, tried = on_vectors(vectors[order], Answers.of(labels, len(data.classes)), folds)
    return np.asarray(softmax(tried.logits[np.argsort(order)], axis=1))


class Taught(NamedTuple):
    """N articles with soft labels.

    Attributes
    ----------
    data : LabelledArticles
        The articles. The label of an article without one is its most probable class.
    probabilities : float64 [N, classes], or [N, 1]
        The probabilities of each article, or its number if the teachers return numbers; NaN if there are none.
    labelled : bool [N]
        Which articles have a label.

    """

    data: LabelledArticles
    probabilities: Doubles
    labelled: NDArray[np.bool_]

    def and_(self, more: Taught) -> Taught:
        """Concatenate these articles and `more`."""
        one, other = self.data, more.data
        ids, labels = np.concatenate([one.ids, other.ids]), np.concatenate([one.labels, other.labels])
        text, files = joined([one.text, other.text]), (*one.files, *other.files)
        skipped, blank = one.skipped + other.skipped, one.blank + other.blank
        data = LabelledArticles(
            ids, text, labels, one.classes, files, skipped, numbers_from=one.numbers_from, blank=blank
        )
        probabilities = np.concatenate([self.probabilities, more.probabilities])
        return Taught(data, probabilities, np.concatenate([self.labelled, more.labelled]))

    def targets(self, share: float, held: Rows) -> NDArray[np.float32]:
        """Return the target probabilities, float32 [N, classes].

        If a row has both a label and probabilities, `share` is the share of the probabilities in its target. The target
        of a held-out row is its label alone.
        """
        hard = np.eye(len(self.data.classes))[self.data.labels]
        weight = np.where(self.labelled, share, 1.0)
        weight[np.isnan(self.probabilities).any(1)] = 0.0
        weight[held] = 0.0
        mixed: Doubles = (1 - weight[:, None]) * hard + weight[:, None] * np.nan_to_num(self.probabilities)
        return mixed.astype(np.float32)

    def sure(self) -> Doubles:
        """Return the weight of each row: 1 with a label; otherwise 1 minus its entropy, as a share of the largest."""
        shares = np.clip(np.nan_to_num(self.probabilities), 1e-12, 1)
        entropy = -(shares * np.log(shares)).sum(axis=1) / np.log(shares.shape[1])
        return np.where(self.labelled, 1.0, np.maximum(1 - entropy, 0.0))

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which rows have a label or probabilities."""
        return self.labelled | ~np.isnan(self.probabilities).any(axis=1)

    def right(self, rows: Rows) -> float | None:
        """Return the share of the labelled rows among `rows` that the teacher gets right; None if there are none."""
        rows = rows[self.labelled[rows] & ~np.isnan(self.probabilities[rows]).any(axis=1)]
        right = self.probabilities[rows].argmax(axis=1) == self.data.labels[rows]
        return float(right.mean()) if len(rows) else None


def read_taught(
    source: Any,
    reading: ArticleReader,
    label_column: str | None,
    soft_columns: tuple[str, ...],
    classes: tuple[str, ...] | None = None,
    has_teacher: bool = False,
) -> Taught:
    """Read every article of `source`, with its label if it has one, and with its probabilities.

    The classes are `classes` if you give them, otherwise those that a column for each class names, otherwise the labels
    that occur.

    Raises UsageError like `read_labelled`; for a row with negative probabilities; and for a row without a label,
    without probabilities and without a teacher.

    Parameters
    ----------
    source : Any
        Anything that `classify` takes.
    reading : ArticleReader
        Reads and encodes the articles.
    label_column : str or None
        The column with the labels, if there is one.
    soft_columns : tuple of str
        The columns with the probabilities: one column of lists, or a column for each class.
    classes : tuple of str, optional
        The names of the classes.
    has_teacher : bool
        Whether a teacher labels rows that have neither label nor probabilities.

    """
    # Read the articles, their labels and the columns with probabilities.
    columns = tuple(dict.fromkeys((*([label_column] if label_column else []), *soft_columns)))

    def labels_of(chunk: Chunk) -> tuple[pa.Array, pa.Table]:
        nothing = pa.nulls(len(chunk.rows), pa.string())
        labels = nothing
        if label_column:
            labels = reading.labels(chunk, label_column)
        return labels, chunk.rows.select(list(soft_columns))

    label_columns = (label_column,) if label_column else ()
    articles, of_chunks = reading.articles(source, columns, "text", labels_of, labels=label_columns)
    labels, soft = zip(*of_chunks, strict=True)
    label = pa.chunked_array(labels, pa.string()).combine_chunks()
    # Find the classes, and turn labels and columns into class indices and probabilities.
    rules = reading.rules
    names = classes or _named(label, soft_columns, rules.fold)
    if label_column:
        rules = with_first_number(rules, label.unique().drop_null().to_pylist(), names, label_column)
    probabilities = np.full((len(label), len(names)), np.nan)
    if soft_columns:
        probabilities = _in_columns(pa.concat_tables(soft), soft_columns, names)
    indices = indices_of(label, names, label_column, rules)
    labelled = label.is_valid().to_numpy(zero_copy_only=False)
    best = np.where(np.isnan(probabilities), 0, probabilities).argmax(1)
    truth = np.where(labelled, indices, best).astype(np.int64)
    data = replace(articles.labelled(truth, names), numbers_from=rules.numbers_from)
    taught = Taught(data, probabilities, labelled)
    # Refuse rows from which nothing can be learned.
    if not taught.answered.all() and not has_teacher:
        number = int(np.argmin(taught.answered))
        raise UsageError(f"row {number} has neither a label nor probabilities: add them, or name a teacher")
    if soft_columns and np.isnan(probabilities).any(1).all():
        raise UsageError(f"soft labels in {', '.join(soft_columns)}: no row has any: leave them out")
    return taught


def hold_out_labelled(labels: Rows, labelled: NDArray[np.bool_], share: float, texts: Rows) -> tuple[Rows, Rows]:
    """Return the rows to train on and the rows to hold out, as `hold_out` does, but hold out only labelled rows.

    If no row has a label, any row can be held out; such rows measure how well soft labels are learned. A row without a
    label is not trained on if its text is held out.
    """
    if not labelled.any():
        return hold_out(labels, share, texts)
    rows = np.flatnonzero(labelled)
    held = rows[hold_out(labels[rows], share, texts[rows])[1]]
    return np.flatnonzero(~np.isin(texts, texts[held])), held


def _named(label: pa.Array, columns: Sequence[str], fold: bool) -> tuple[str, ...]:
    """Return the classes: those that several columns name, or else the labels that occur, sorted."""
    if len(columns) > 1:
        return tuple(name.removeprefix(_PREFIX) for name in columns)
    counts = {one["values"]: one["counts"] for one in label.drop_null().value_counts().to_pylist()}
    names = sorted_names({*class_of_each(counts, fold).values()})
    if len(names) < 2:
        raise UsageError("the classes are not known: name them with --classes A,B,C")
    return names


def _in_columns(table: pa.Table, columns: tuple[str, ...], classes: tuple[str, ...]) -> Doubles:
    """Return the probabilities, [N, classes], in one column of lists, or in a column for each class."""
    where = f"soft labels in {', '.join(columns)}"
    try:
        if len(columns) == 1:
            rows = [[np.nan] * len(classes) if row is None else row for row in table.column(0).to_pylist()]
            given = np.array(rows, np.float64).reshape(len(rows), -1)
        else:
            by_name = {name.removeprefix(_PREFIX): name for name in columns}
            order = [by_name[name] for name in classes] if set(by_name) == set(classes) else list(columns)
            values = (table.column(name).cast(pa.float64()).combine_chunks() for name in order)
            given = np.stack([column.to_numpy(zero_copy_only=False) for column in values], axis=1)
    except (ValueError, TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"{where}: not a probability for each class ({error})") from error
    if given.shape[1] != len(classes):
        raise UsageError(f"{where}: {given.shape[1]} probabilities a row, for {len(classes)} classes")
    return shares(given, where)


def shares(given: Doubles, where: str) -> Doubles:
    """Scale the probabilities of each row, [N, classes], to a sum of one.

    Raises UsageError if they cannot be scaled. where: the source of the probabilities, for its message.
    """
    sums: Doubles = given.sum(1, keepdims=True)
    is_wrong = (given < 0).any(1) | (sums[:, 0] <= 0) | np.isinf(sums[:, 0])
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise UsageError(f"{where}: row {row:,} (the first is 0) has negative, infinite or no probabilities")
    return np.asarray(given / sums)
