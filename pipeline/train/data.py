"""The first stage of `train`: reads labelled articles into memory and encodes them once.

Articles are read in the same way as `classify` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import UsageError
from ..evaluation.rows import chosen_input, numbered
from ..model.alphabet import Alphabet, encode
from ..model.layers import CLASSES
from ..model.ngrams import MOST_READ
from ..model.preparation import buffers_of, column_of
from ..model.scores import Heads, Levels, of_head, parts_of
from ..options import ReadKeywords
from ..source.inputs import chunks_here, open_input
from ..source.rows.chunk import Chunk
from ..source.rows.label_columns import label_lists, label_sets, numbers_in
from ..source.rows.labels import (
    NO_TRUTH,
    LabelRules,
    class_indices,
    class_of_each,
    first_class_number,
    has_numbers,
    one_label_each,
)

_CHUNK_ROWS = 16_384

Rows = NDArray[np.int64]

T = TypeVar("T")


class TextBuffers(NamedTuple):
    """N texts in UTF-8. data: uint8 [bytes]. offsets: int64 [N + 1]; text i is data[offsets[i]:offsets[i + 1]]."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @property
    def column(self) -> pa.LargeStringArray:
        """The same texts as an Arrow array."""
        return column_of(self.data, self.offsets)

    def rows(self, rows: NDArray[np.int64]) -> TextBuffers:
        """Return the texts with the given row numbers."""
        return TextBuffers(*buffers_of(self.column.take(pa.array(rows))))

    def numbered(self) -> NDArray[np.int64]:
        """Return a number for each text, int64 [N]. Equal texts have the same number."""
        return numbered(self.column)


class LabelColumn(NamedTuple):
    """The labels of N articles in one column.

    Attributes
    ----------
    name : str
        The name of the head; "" for a model without heads.
    part : slice
        Which of the model's classes belong to this column.
    labels : int64 [N], or bool [N, classes]
        The index of each article's class among these classes, or NO_TRUTH if it has none. If an article may have
        several labels: which classes it has.

    """

    name: str
    part: slice
    labels: NDArray[Any]


@dataclass(frozen=True)
class LabelledArticles:
    """N articles with their labels.

    The fields are of four groups: the texts (`ids`, `text`); what is learned (`labels`, `classes`, `numbers`, `levels`,
    `heads`, `numbers_from`, `taught`); where the articles come from (`files`, `places`); and how many rows were left
    out (`skipped`, `blank`, `without_label`).

    Attributes
    ----------
    ids : uint8 [N, length]
        The ids that the network reads, as `alphabet.encode` returns them.
    text : TextBuffers
        The first MOST_READ characters of each article.
    labels : int64 [N], bool [N, classes], or int64 [N, heads]
        The index of each article's class in `classes`. If an article may have several labels: which classes it has.
        With heads: an index among the classes of each head, or NO_TRUTH.
    classes : tuple of str
        The names of the classes.
    files : tuple of dict
        Path and sha256 of each input file; one entry "memory" for rows in memory.
    skipped : int
        The number of unreadable rows.
    numbers : float64 [N], optional
        The numbers to learn, if the model learns numbers. `labels` then holds the nearest level of each.
    levels : Levels, optional
        The levels of these numbers.
    heads : Heads, optional
        Name and number of classes of each head.
    places : Table, optional
        The file and the row number of each article, and its id if the user named an id column.
    numbers_from : int, optional
        The number of the first class, if the labels were class numbers.
    taught : bool [N], optional
        Which articles have their label, or number, from a teacher or from soft labels. None: no article has.
    blank : int
        The number of rows that were left out because their text is blank.
    without_label : int
        The number of rows that were left out because they have no label.

    """

    ids: NDArray[np.uint8]
    text: TextBuffers
    labels: NDArray[Any]
    classes: tuple[str, ...]
    files: tuple[dict[str, str], ...]
    skipped: int
    numbers: NDArray[np.float64] | None = None
    levels: Levels | None = None
    heads: Heads | None = None
    places: pa.Table | None = None
    numbers_from: int | None = None
    taught: NDArray[np.bool_] | None = None
    blank: int = 0
    without_label: int = 0

    def are_taught(self, rows: Rows | slice = slice(None)) -> bool:
        """Return whether one of these articles has its label from a teacher.

        A model that agrees with such a label is not necessarily right.
        """
        return self.taught is not None and bool(self.taught[rows].any())

    @property
    def is_multi_label(self) -> bool:
        """Whether an article may have several labels of one column."""
        return self.labels.dtype == np.bool_

    @property
    def columns(self) -> list[LabelColumn]:
        """The label columns: one without a name, or one for each head."""
        if self.heads is None:
            return [LabelColumn("", slice(None), self.labels)]
        parts = zip(self.heads, parts_of(self.heads), self.labels.T, strict=True)
        return [LabelColumn(name, part, labels) for (name, _), part, labels in parts]

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self, column: LabelColumn, rows: Rows | slice = slice(None)) -> NDArray[np.int64]:
        """Return how many of these rows have each class of a column, int64 [classes of the column]."""
        labels = column.labels[rows]
        if self.is_multi_label:
            return np.asarray(labels.sum(axis=0))
        return np.bincount(labels[labels != NO_TRUTH], minlength=len(self.classes[column.part]))

    def about(self) -> dict[str, Any]:
        """Return the description of the data for a model's card."""
        counts = np.concatenate([self.counts(column) for column in self.columns])
        about = {
            "files": [{"name": os.path.basename(f["path"]), "sha256": f["digest"]} for f in self.files],
            "rows": len(self),
            "rows_by_class": {name: int(n) for name, n in zip(self.classes, counts, strict=True)},
        }
        left_out = {
            "unreadable_rows": self.skipped,
            "rows_without_text": self.blank,
            "rows_without_label": self.without_label,
        }
        return about | {name: rows for name, rows in left_out.items() if rows}


class _Articles(NamedTuple):
    """Articles that were read, without their labels.

    Attributes
    ----------
    ids : list of uint8 [N, length]
        The ids of each chunk.
    texts : list of TextBuffers
        The texts of each chunk.
    places : list of Table
        The places of the rows of each chunk, as in `LabelledArticles`.
    files, skipped, blank, without_label
        The same as in `LabelledArticles`.

    """

    ids: list[NDArray[np.uint8]]
    texts: list[TextBuffers]
    places: list[pa.Table]
    files: tuple[dict[str, str], ...]
    skipped: int
    blank: int
    without_label: int

    def labelled(self, labels: NDArray[Any], classes: tuple[str, ...]) -> LabelledArticles:
        """Join the chunks, and add the labels."""
        ids, text, places = np.concatenate(self.ids), joined(self.texts), pa.concat_tables(self.places)
        data = LabelledArticles(ids, text, labels, classes, self.files, self.skipped, places=places)
        return replace(data, blank=self.blank, without_label=self.without_label)


@dataclass(frozen=True)
class ArticleReader:
    """Reads and encodes articles.

    Attributes
    ----------
    text_columns : tuple of str
        The columns with the text, which are joined.
    alphabet : Alphabet
        The characters that the network reads.
    length : int
        How many characters of a text the network reads.
    reading : ReadKeywords
        How files are read.
    classes_of : mapping of str to str
        The label map: a class for each label that is not itself a class, or "" for no label.
    id_column : str, optional
        A column that names each row. `places` keeps it beside the row's file and number.
    matched : set of str
        The labels of `classes_of` that occur in the rows read so far.

    """

    text_columns: tuple[str, ...]
    alphabet: Alphabet
    length: int
    reading: ReadKeywords = field(default_factory=ReadKeywords)
    classes_of: Mapping[str, str] = field(default_factory=dict)
    id_column: str | None = None
    matched: set[str] = field(default_factory=set)

    @property
    def rules(self) -> LabelRules:
        """The rules by which labels name classes."""
        return LabelRules(self.reading.get("label_numbers_from"), self.reading.get("fold_labels", False))

    def labels(self, chunk: Chunk, column: str) -> pa.Array:
        """Return the label of each row of a chunk, strings [N], null if a row has none. Raises UsageError for lists."""
        return self.mapped(one_label_each(chunk.rows.column(column).combine_chunks(), column))

    def mapped(self, labels: pa.Array) -> pa.Array:
        """Return the classes of some labels by the label map, strings [N], and note which labels it matched."""
        coded = labels.cast(pa.string()).dictionary_encode()
        given = coded.dictionary.to_pylist()
        self.matched.update(self.classes_of.keys() & {*given})
        names = (self.classes_of.get(name, name) or None for name in given)
        return pa.array(names, pa.string()).take(coded.indices)

    def refuse_without_labels(self, source: Any) -> NoReturn:
        """Raise the UsageError for options that name nothing to learn. Its message lists the columns of the source."""
        options = (self.reading, self.alphabet, self.length)
        given, selection = chosen_input(source, self.text_columns, *options, keep_all=True)
        columns = ", ".join(open_input(given, selection, _CHUNK_ROWS).selection.kept_columns)
        raise UsageError(f"there is nothing to learn: give --label-column and the column with the classes: {columns}")

    def articles(
        self,
        source: Any,
        columns: tuple[str, ...],
        wanted: str,
        of_chunk: Callable[[Chunk], T],
        labels: tuple[str, ...] = (),
        has_label: Callable[[Chunk], NDArray[np.bool_]] | None = None,
    ) -> tuple[_Articles, list[T]]:
        """Read every article that has a text and a label, and count the others.

        Parameters
        ----------
        source : Any
            Anything that `classify` takes.
        columns : tuple of str
            The columns to read besides the text: those with labels or targets.
        wanted : str
            What these columns hold, for messages about rows without it.
        of_chunk : callable
            Called with each chunk; its results are returned.
        labels : tuple of str
            Those of `columns` that hold labels.
        has_label : callable, optional
            Returns which rows of a chunk have a label, bool [N]; by default all have.

        Returns
        -------
        articles : _Articles
            The articles.
        others : list
            What `of_chunk` returned for each chunk.

        Raises
        ------
        UsageError
            For a column that is both text and label, for a one-hot file, and if no row is left.

        """
        # Open the source with the columns to learn, and identify files by a hash of their content.
        if both := set(columns) & set(self.text_columns):
            raise UsageError(f"column {min(both)!r} is a label or target, it cannot be the text too")
        options = (self.reading, self.alphabet, self.length, True)
        ids_of_rows = () if self.id_column is None else (self.id_column,)
        copied = tuple(dict.fromkeys((*columns, *ids_of_rows)))
        given, selection = chosen_input(
            source, self.text_columns, *options, kept_columns=copied, labels=labels, reads=MOST_READ
        )
        # Read chunk by chunk, and leave out rows without text or label.
        ids, texts, places, others = [], [], [], []
        skipped = blank = without = 0
        for chunk in chunks_here(open_input(given, selection, _CHUNK_ROWS)):
            if chunk.ids is not None:
                raise UsageError(f"a one-hot file holds no {wanted} to train on")
            skipped += len(chunk.quarantine)
            blank += int(chunk.is_blank.sum())
            chunk = chunk.take(~chunk.is_blank)
            if has_label is not None:
                known = has_label(chunk)
                without += int((~known).sum())
                chunk = chunk.take(known)
            others.append(of_chunk(chunk))
            ids.append(encode(chunk.data, chunk.offsets, self.alphabet, self.length).ids)
            texts.append(TextBuffers(*buffers_of(chunk.text)))
            places.append(chunk.rows.select(["file", "row", *ids_of_rows]))
        # Refuse a source without any row to learn, and say why its rows were left out.
        if not sum(map(len, places)):
            kinds = {"are unreadable": skipped, "have no text": blank, f"have no {wanted}": without}
            why = ", ".join(f"{rows:,} {what}" for what, rows in kinds.items() if rows)
            raise UsageError(f"there is no row to learn from{f': {why}' if why else ''}")
        files = tuple({"path": f["path"], "digest": f["digest"]} for f in given.identity)
        return _Articles(ids, texts, places, files, skipped, blank, without), others


def read_labelled(
    source: Any,
    reading: ArticleReader,
    label_column: str,
    classes: Iterable[str] | None = None,
    multi_label: bool = False,
    separator: str | None = None,
) -> LabelledArticles:
    """Read every article of `source` that has a label, with its label.

    Raises UsageError for a column that is missing, an unknown label, or fewer than two classes; SourceError for a file
    that cannot be read.

    Parameters
    ----------
    source : Any
        Anything that `classify` takes.
    reading : ArticleReader
        Reads and encodes the articles.
    label_column : str
        The column with the labels.
    classes : iterable of str, optional
        The class names in the order of the model; labels are then names or class numbers. By default the classes are
        the labels that occur, sorted (as numbers if all are numbers).
    multi_label : bool
        Whether an article may have several labels, or none. The column then holds lists of labels, or texts in which a
        separator stands between the labels.
    separator : str, optional
        The separator, if the column holds texts.

    """

    # Read the labels of each chunk, and which of its rows have any.
    def labels_of(chunk: Chunk) -> pa.Array:
        if not multi_label:
            return reading.labels(chunk, label_column)
        lists = label_lists(chunk.rows, label_column, separator)
        values = reading.mapped(lists.flatten())
        if values.null_count:
            raise UsageError("--map-labels has a label without a class: with --multi-label, each label needs a class")
        return pa.ListArray.from_arrays(lists.offsets, values)

    def has_label(chunk: Chunk) -> NDArray[np.bool_]:
        if not multi_label:
            return are_valid(reading.labels(chunk, label_column))
        cells = chunk.rows.column(label_column).combine_chunks()
        # A null text with separators is a row without labels. The labels of a null list are unknown.
        return are_valid(cells) if separator is None else np.ones(len(cells), np.bool_)

    columns = (label_column,)
    articles, labels = reading.articles(source, columns, "labels", labels_of, columns, has_label)
    # Find the classes, and turn the labels into class indices or sets of classes.
    column = pa.chunked_array(labels, pa.list_(pa.string()) if multi_label else pa.string()).combine_chunks()
    values = column.flatten() if multi_label else column
    names, rules = _classes_in(values, label_column, classes, reading.rules)
    indices = indices_of(values, names, label_column, rules)
    given = label_sets(column, names, rules)[0] if multi_label else indices.astype(np.int64)
    return replace(articles.labelled(given, names), numbers_from=rules.numbers_from)


def _classes_in(
    labels: pa.Array, column: str, classes: Iterable[str] | None, rules: LabelRules
) -> tuple[tuple[str, ...], LabelRules]:
    """Return the classes of a label column, and the rules by which its labels name them.

    Raises UsageError for fewer or more classes than a model can have, and for class numbers that may count from 0 as
    well as from 1.

    Parameters
    ----------
    labels : pyarrow.StringArray
        All labels.
    column : str
        The name of the column.
    classes : iterable of str or None
        The names of the classes, in order; None if the labels that occur are the classes.
    rules : LabelRules
        The rules that the user gave.

    """
    counts = {one["values"]: one["counts"] for one in labels.drop_null().value_counts().to_pylist()}
    if classes is None:
        names, rules = sorted_names({*class_of_each(counts, rules.fold).values()}), replace(rules, numbers_from=None)
    else:
        names = tuple(classes)
        rules = with_first_number(rules, counts, names, column)
    _check_count(names, column)
    return names, rules


def with_first_number(rules: LabelRules, labels: Iterable[str], classes: tuple[str, ...], column: str) -> LabelRules:
    """Return the rules, with the number of the first class if the labels that occur are class numbers.

    If the names of the classes are themselves numbers, a number among the labels is a name. Raises UsageError if class
    numbers may count from 0 as well as from 1.
    """
    if has_numbers(classes):
        return replace(rules, numbers_from=None)
    if rules.numbers_from is not None:
        return rules
    return replace(rules, numbers_from=first_class_number(labels, classes, column))


def read_heads(
    source: Any, reading: ArticleReader, label_columns: tuple[str, ...], like: LabelledArticles | None = None
) -> LabelledArticles:
    """Read every article of `source` that has a label in at least one of several columns, with these labels.

    Raises UsageError for a column that is missing, an unknown label, or fewer than two classes; SourceError for a file
    that cannot be read.

    Parameters
    ----------
    source : Any
        Anything that `classify` takes.
    reading : ArticleReader
        Reads and encodes the articles.
    label_columns : tuple of str
        The columns with the labels. Labels may be null.
    like : LabelledArticles, optional
        Other articles, whose classes these have too. By default a column's classes are the labels that occur in it,
        sorted.

    """

    def labels_of(chunk: Chunk) -> list[pa.Array]:
        return [reading.labels(chunk, column) for column in label_columns]

    def has_label(chunk: Chunk) -> NDArray[np.bool_]:
        return np.asarray(np.any([are_valid(labels) for labels in labels_of(chunk)], axis=0))

    articles, parts = reading.articles(source, label_columns, "labels", labels_of, label_columns, has_label)
    heads, classes, labels = [], [], []
    for number, name in enumerate(label_columns):
        values = pa.chunked_array([part[number] for part in parts], pa.string()).combine_chunks()
        known = None
        if like is not None:
            known = [label.removeprefix(of_head(name, "")) for label in like.classes[like.columns[number].part]]
        names, rules = _classes_in(values, name, known, reading.rules)
        heads.append((name, len(names)))
        classes += [of_head(name, label) for label in names]
        labels.append(indices_of(values, names, name, rules).astype(np.int64))
    return replace(articles.labelled(np.column_stack(labels), tuple(classes)), heads=tuple(heads))


def _check_count(names: tuple[str, ...], column: str) -> None:
    """Raise UsageError for fewer or more classes than a model can have."""
    if len(names) < CLASSES[0]:
        raise UsageError(f"column {column!r} has {_count(names)}: a model needs at least two")
    if len(names) > CLASSES[1]:
        remedy = "name another column, or learn this one as a target column if it holds numbers"
        raise UsageError(f"column {column!r} has {len(names):,} classes, a model at most {CLASSES[1]:,}: {remedy}")


def read_numbers(
    source: Any,
    reading: ArticleReader,
    column: str,
    names: tuple[str, ...] | None,
    like: LabelledArticles | None = None,
) -> LabelledArticles:
    """Read every article of `source` that has a number, with its number.

    Raises UsageError for a column that is missing, for a value that is neither a number nor a name of a level, and if
    all numbers are the same; SourceError for a file that cannot be read.

    Parameters
    ----------
    source : Any
        Anything that `classify` takes.
    reading : ArticleReader
        Reads and encodes the articles.
    column : str
        The column with the numbers.
    names : tuple of str or None
        Names of levels, from the lowest, which stand for 1, 2, …; None if the column holds numbers.
    like : LabelledArticles, optional
        Other articles, whose levels these have too. By default the levels are found from the numbers.

    """

    def numbers_of(chunk: Chunk) -> NDArray[np.float64]:
        return numbers_in(chunk.rows, column, names or (), reading.rules)

    def has_number(chunk: Chunk) -> NDArray[np.bool_]:
        return np.isfinite(numbers_of(chunk))

    of_names = (column,) if names else ()
    articles, parts = reading.articles(source, (column,), "numbers", numbers_of, of_names, has_number)
    numbers = np.concatenate([np.empty(0), *parts])
    if like is None:
        if not len(numbers) or not np.ptp(numbers):
            raise UsageError(f"column {column!r} has one number only: there is nothing to learn")
        levels, classes = (Levels(1.0, 1.0), names) if names else levels_of(numbers)
    else:
        assert like.levels is not None
        levels, classes = like.levels, like.classes
    labels = levels.nearest(numbers, len(classes))
    return replace(articles.labelled(labels, classes), numbers=numbers, levels=levels)


_SHOWN_LABELS = 5
_MOST_LEVELS = 21  # the most whole numbers that have a level each
_STEPS_OF_OTHERS = 10  # the steps between the levels of all other numbers


def levels_of(numbers: NDArray[np.float64]) -> tuple[Levels, tuple[str, ...]]:
    """Return the levels of some numbers, and the names of the levels.

    If all numbers are whole and their range is narrow, every whole number in the range is a level. Otherwise, ten equal
    steps divide the range, and their 11 ends are the levels. Names have 4 significant digits, or 9 if
    two levels would otherwise have the same name.
    """
    low, high = float(numbers.min()), float(numbers.max())
    whole = bool((numbers == np.rint(numbers)).all()) and high - low < _MOST_LEVELS
    steps = int(high - low) if whole else _STEPS_OF_OTHERS
    step = (high - low) / steps
    ends = [low + step * i for i in range(steps + 1)]
    short, exact = (tuple(f"{end:.{digits}g}" for end in ends) for digits in (4, 9))
    return Levels(low, step), short if len({*short}) == len(ends) else exact


def indices_of(labels: pa.Array, classes: tuple[str, ...], column: str | None, rules: LabelRules) -> NDArray[np.int32]:
    """Return the class index of each label, NO_TRUTH for null. Raises UsageError for an unknown label."""
    indices, unknown = class_indices(labels, classes, rules)
    if unknown:
        shown = ", ".join(map(repr, [*unknown][:_SHOWN_LABELS]))
        message = f"column {column!r} holds {shown}, which is none of {', '.join(classes)}"
        raise UsageError(f"{message}: correct it, or rename it by --map-labels")
    return indices


def are_valid(values: pa.Array) -> NDArray[np.bool_]:
    """Return which of N values are not null, bool [N]."""
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def joined(parts: list[TextBuffers]) -> TextBuffers:
    """Concatenate the texts of several buffers."""
    return TextBuffers(*buffers_of(pa.concat_arrays([part.column for part in parts])))


def sorted_names(values: Iterable[str]) -> tuple[str, ...]:
    """Sort names, as numbers if all are numbers."""
    try:
        return tuple(sorted(values, key=lambda value: (float(value), value)))
    except ValueError:
        return tuple(sorted(values))


def _count(names: tuple[str, ...]) -> str:
    return f"one class only, {names[0]!r}" if names else "no labels"


@dataclass(frozen=True)
class TrainingData:
    """The rows of a training run.

    The first five fields are always there. Soft labels give `targets`, `sure`, `taught_right` and `answers`;
    corrections give `decided`.

    Attributes
    ----------
    data : LabelledArticles
        Every labelled article.
    tested : LabelledArticles or None
        The articles of the option `test`, if the user gave it.
    fit : int64 [M]
        The numbers of the rows of `data` to train on.
    held : int64 [K]
        The numbers of the rows of `data` that are held out.
    symbols : Alphabet
        The alphabet of the model.
    targets : float32 [N, classes], optional
        The target probabilities of each article, which mix its label and its soft labels.
    sure : float64 [N], optional
        The weight of each article: how sure its target is.
    taught_right : float, optional
        The share of labelled held-out rows that the teachers, or the soft labels, get right.
    answers : float64 [N, classes], or [N, 1], optional
        The answers of the teachers, or the soft labels, for each article: probabilities, or a number.
    decided : bool [N], optional
        The articles whose label a person has decided.

    """

    data: LabelledArticles
    tested: LabelledArticles | None
    fit: NDArray[np.int64]
    held: NDArray[np.int64]
    symbols: Alphabet
    targets: NDArray[np.float32] | None = None
    sure: NDArray[np.float64] | None = None
    taught_right: float | None = None
    answers: NDArray[np.float64] | None = None
    decided: NDArray[np.bool_] | None = None
