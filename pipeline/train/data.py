"""The first stage of `train`: labelled articles, encoded once, in memory, and which of them are held out.

They are read as `classify` reads. Beside labels, or in their place, there may be soft labels: the probability of every
class, by models as teachers or in columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..engine import base
from ..engine.open import opened
from ..errors import UsageError
from ..measures.rows import hold_out, numbered
from ..model.alphabet import Alphabet, encode
from ..model.charcnn import Model, load_model
from ..model.layers import CLASSES
from ..model.ngrams import MOST_READ
from ..source.chunk import Chunk, Selection
from ..source.columns import NO_TRUTH, label_lists, label_sets, truth_indices
from ..source.inputs import chunks_here, identify, open_input

_CHUNK_ROWS = 16_384

T = TypeVar("T")


class TextBuffers(NamedTuple):
    """N texts, UTF-8. data: uint8 [bytes]. offsets: int64 [N + 1]; text i is data[offsets[i]:offsets[i + 1]]."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    def rows(self, rows: NDArray[np.int64]) -> TextBuffers:
        """Those of some texts."""
        sizes = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], sizes)
        return TextBuffers(self.data[at], offsets)

    def numbered(self) -> NDArray[np.int64]:
        """Of each text a number, the same for equal texts."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return numbered(pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self.offsets) - 1, buffers))


@dataclass(frozen=True)
class LabelledArticles:
    """N articles. ids: uint8 [N, length] as `alphabet.encode` gives them. text: their first MOST_READ characters.
    labels: int64 [N], indices into `classes`; or bool [N, classes], where an article may have several. files: path and
    sha256 of each input file (one entry "memory" for rows in memory). skipped: unreadable rows.
    """

    ids: NDArray[np.uint8]
    text: TextBuffers
    labels: NDArray[Any]
    classes: tuple[str, ...]
    files: tuple[dict[str, str], ...]
    skipped: int

    @property
    def is_multi_label(self) -> bool:
        """Whether an article may have several labels."""
        return self.labels.ndim > 1

    def __len__(self) -> int:
        return len(self.labels)

    def about(self) -> dict[str, Any]:
        """The data as described in a model card."""
        if self.is_multi_label:
            counts = self.labels.sum(axis=0)
        else:
            counts = np.bincount(self.labels, minlength=len(self.classes))
        about = {
            "files": [{"name": os.path.basename(f["path"]), "sha256": f["digest"]} for f in self.files],
            "rows": len(self),
            "rows_by_class": {name: int(n) for name, n in zip(self.classes, counts, strict=True)},
        }
        return about | ({"unreadable_rows": self.skipped} if self.skipped else {})


class _Articles(NamedTuple):
    """What was read. ids, texts: of each chunk. files, skipped: as of `LabelledArticles`."""

    ids: list[NDArray[np.uint8]]
    texts: list[TextBuffers]
    files: tuple[dict[str, str], ...]
    skipped: int

    def labelled(self, labels: NDArray[Any], classes: tuple[str, ...]) -> LabelledArticles:
        """All of them, with their labels."""
        return LabelledArticles(np.concatenate(self.ids), joined(self.texts), labels, classes, self.files, self.skipped)


@dataclass(frozen=True)
class ArticleReader:
    """How articles are read, and encoded. header: column names of a CSV without a header line."""

    text_columns: tuple[str, ...]
    alphabet: Alphabet
    length: int
    header: tuple[str, ...] | None = None

    def articles(
        self, source: Any, kept: tuple[str, ...], wanted: str, of_chunk: Callable[[Chunk], T]
    ) -> tuple[_Articles, list[T]]:
        """Every article of `source` (as `classify` takes it), and what `of_chunk` makes of each chunk.

        kept: columns beside the text. wanted: what a one-hot file lacks.
        """
        selection = Selection(self.text_columns, kept, header=self.header, reads=MOST_READ)
        found = identify(source, len(self.alphabet), self.length, whole_hash=True, by_content=True)
        ids, texts, others, skipped = [], [], [], 0
        for chunk in chunks_here(open_input(found, selection, _CHUNK_ROWS)):
            if chunk.ids is not None:
                raise UsageError(f"a one-hot file holds no {wanted} to train on")
            others.append(of_chunk(chunk))
            ids.append(encode(chunk.data, chunk.offsets, self.alphabet, self.length).ids)
            texts.append(
                TextBuffers(chunk.data[chunk.offsets[0] : chunk.offsets[-1]], chunk.offsets - chunk.offsets[0])
            )
            skipped += len(chunk.quarantine)
        files = tuple({"path": f["path"], "digest": f["digest"]} for f in found.identity)
        return _Articles(ids, texts, files, skipped), others


def read_labelled(
    source: Any,
    reading: ArticleReader,
    label_column: str,
    classes: Iterable[str] | None = None,
    multi_label: bool = False,
    separator: str | None = None,
) -> LabelledArticles:
    """Read every article of `source` with its label.

    classes: the class names in the order of the model; labels are then names or numbers from 1. By default the classes
    are the labels that occur, sorted (as numbers if all are).
    multi_label: an article may have several labels, or none; they are lists, or texts with a separator between them.

    Raises UsageError for a column that is missing, a null or unknown label, or fewer than two classes; SourceError for
    a file that cannot be read.
    """
    names = None if classes is None else tuple(classes)
    if label_column in reading.text_columns:
        raise UsageError(f"column {label_column!r} is the label, it cannot be the text too")

    def labels_of(chunk: Chunk) -> pa.Array:
        if multi_label:
            return label_lists(chunk.rows, label_column, separator)
        labels = _labels(chunk.rows, label_column)
        first = pc.index(labels.is_null(), True).as_py()
        if first >= 0:
            where = chunk.rows.slice(first, 1).to_pylist()[0]
            problem = f"has no label: column {label_column!r} is null there"
            raise UsageError(f"{where['file']}: row {where['row']} {problem}")
        return labels

    articles, labels = reading.articles(source, (label_column,), "labels", labels_of)
    column = pa.chunked_array(labels, pa.list_(pa.string()) if multi_label else pa.large_string()).combine_chunks()
    values = column.flatten() if multi_label else column
    if names is None:
        names = _sorted_names(pc.unique(values).to_pylist())
    if len(names) < CLASSES[0]:
        raise UsageError(f"column {label_column!r} has {_count(names)}: a model needs at least two")
    if len(names) > CLASSES[1]:
        raise UsageError(f"column {label_column!r} has {len(names):,} classes: a model has at most {CLASSES[1]:,}")
    indices = _indices(values, names, label_column)
    given = label_sets(column, names)[0] if multi_label else indices.astype(np.int64)
    return articles.labelled(given, names)


def _labels(rows: pa.Table, column: str) -> pa.Array:
    """The labels of a chunk, null where there is none."""
    values = rows.column(column).combine_chunks()
    nothing = values.is_null(nan_is_null=True)
    values = values.cast(pa.large_string())
    empty = pc.fill_null(pc.equal(values, ""), True)
    return pc.if_else(pc.or_(nothing, empty), pa.scalar(None, pa.large_string()), values)


def _indices(labels: pa.Array, classes: tuple[str, ...], column: str | None) -> NDArray[np.int32]:
    """Class indices of labels, NO_TRUTH of nulls. Raises UsageError for an unknown label."""
    indices = truth_indices(labels, classes)
    unknown = (indices == NO_TRUTH) & labels.is_valid().to_numpy(zero_copy_only=False)
    if unknown.any():
        value = labels[int(np.argmax(unknown))].as_py()
        raise UsageError(f"column {column!r} holds {value!r}, which is none of {', '.join(classes)}")
    return indices


def joined(parts: list[TextBuffers]) -> TextBuffers:
    """The articles of the first, then those of the next, and so on."""
    sizes = np.concatenate([np.diff(part.offsets) for part in parts])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return TextBuffers(np.concatenate([part.data for part in parts]), offsets)


def _sorted_names(values: list[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted(values, key=int))
    except ValueError:
        return tuple(sorted(values))


def _count(names: tuple[str, ...]) -> str:
    return f"one class only, {names[0]!r}" if names else "no labels"


_PREFIX = "score_"  # of the columns that `classify --scores` writes


@dataclass(frozen=True)
class Teachers:
    """Models whose mean probabilities are soft labels. Raises UsageError where their classes differ."""

    engines: tuple[base.Engine, ...]

    def __post_init__(self) -> None:
        for engine in self.engines:
            if set(engine.model.classes) != set(self.classes):
                raise UsageError(f"the teachers have different classes: {engine.model.name} is not like the first")

    @property
    def classes(self) -> tuple[str, ...]:
        """Those of the first."""
        return self.engines[0].model.classes

    def probabilities(self, texts: base.Texts, classes: tuple[str, ...]) -> NDArray[np.float64]:
        """Their mean, [N, classes] in this order; NaN where one of them overflows."""
        found = np.zeros((len(texts), len(classes)))
        for engine in self.engines:
            scores = engine.classify(texts, all_scores=True).all_scores
            assert scores is not None
            found += scores[:, [engine.model.classes.index(name) for name in classes]]
        return found / len(self.engines)


@dataclass(frozen=True)
class SoftLabels:
    """Where soft labels come from: `columns`, or models (or model files) as teachers, which compute on a device.

    unlabelled: more text, as `classify` takes it, for the teachers. share: of what is learned of an article that has a
    label too.

    Raises UsageError for both or neither, text without a teacher, and a share that is none.
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
            raise UsageError("soft labels come either from teachers or from columns")
        if self.unlabelled is not None and not self.models:
            raise UsageError("unlabelled text needs a teacher")

    def about(self) -> dict[str, Any]:
        """For the card of a model."""
        models = [m.name if isinstance(m, Model) else str(m) for m in self.models]
        return {"share": self.share, **({"teachers": models} if models else {"columns": list(self.columns)})}

    def read(
        self,
        source: Any,
        reading: ArticleReader,
        label_column: str | None,
        classes: tuple[str, ...] | None,
    ) -> Taught:
        """Read `source`, with labels where it has them, and `unlabelled`. Arguments and errors as of `read_taught`."""
        if not self.models:
            return read_taught(source, reading, label_column, self.columns, None, classes)
        with opened([load_model(model).asking("all") for model in self.models], self.device) as engines:
            by = Teachers(tuple(engines))
            names = classes or by.classes
            if set(names) != set(by.classes):
                raise UsageError(f"the teacher's classes are {', '.join(by.classes)}, not {', '.join(names)}")
            found = read_taught(source, reading, label_column, (), by, names)
            if self.unlabelled is not None:
                more = read_taught(self.unlabelled, reading, None, (), by, names)
                found = found.and_(more)
        return found


@dataclass(frozen=True)
class Taught:
    """N articles with soft labels. data: where there is no label, the most probable class is. probabilities: float64
    [N, classes], NaN where there are none. labelled: bool [N].
    """

    data: LabelledArticles
    probabilities: NDArray[np.float64]
    labelled: NDArray[np.bool_]

    def and_(self, more: Taught) -> Taught:
        """These articles, then those."""
        data = LabelledArticles(
            np.concatenate([self.data.ids, more.data.ids]),
            joined([self.data.text, more.data.text]),
            np.concatenate([self.data.labels, more.data.labels]),
            self.data.classes,
            (*self.data.files, *more.data.files),
            self.data.skipped + more.data.skipped,
        )
        return Taught(
            data,
            np.concatenate([self.probabilities, more.probabilities]),
            np.concatenate([self.labelled, more.labelled]),
        )

    def targets(self, share: float, held: NDArray[np.int64]) -> NDArray[np.float32]:
        """What is learned, float32 [N, classes]: `share` of it soft where there are both. Held-out rows: the label."""
        hard = np.eye(len(self.data.classes))[self.data.labels]
        weight = np.where(self.labelled, share, 1.0)
        weight[np.isnan(self.probabilities).any(1)] = 0.0
        weight[held] = 0.0
        mixed: NDArray[np.float64] = (1 - weight[:, None]) * hard + weight[:, None] * np.nan_to_num(self.probabilities)
        return mixed.astype(np.float32)


def read_taught(
    source: Any,
    reading: ArticleReader,
    label_column: str | None,
    soft_columns: tuple[str, ...],
    by: Teachers | None,
    classes: tuple[str, ...] | None = None,
) -> Taught:
    """Read every article of `source`, with its label if it has one, and with the probabilities in `soft_columns` (one
    column of lists, or one for each class) or by teachers.

    The classes are those of the teachers, or else as `read_labelled` finds them, or named by the columns.

    Raises UsageError as that does, and for a row with neither label nor probabilities, or with negative ones.
    """
    kept = tuple(dict.fromkeys((*([label_column] if label_column else []), *soft_columns)))
    if both := set(kept) & set(reading.text_columns):
        raise UsageError(f"column {min(both)!r} is a label, it cannot be the text too")
    names = classes or (by.classes if by else None)

    def labels_of(chunk: Chunk) -> tuple[pa.Array, Any]:
        nothing = pa.nulls(len(chunk.rows), pa.large_string())
        labels = _labels(chunk.rows, label_column) if label_column else nothing
        if by is not None and names is not None:
            return labels, by.probabilities(base.Texts(chunk.data, chunk.offsets), names)
        return labels, chunk.rows.select(list(soft_columns))

    articles, found = reading.articles(source, kept, "text", labels_of)
    labels, soft = zip(*found, strict=True)
    label = pa.chunked_array(labels, pa.large_string()).combine_chunks()
    if names is None:
        names = _named(label, soft_columns)
    probabilities = np.concatenate(soft) if by else _in_columns(pa.concat_tables(soft), soft_columns, names)
    indices = _indices(label, names, label_column)
    labelled = label.is_valid().to_numpy(zero_copy_only=False)
    nothing = ~labelled & np.isnan(probabilities).any(1)
    if nothing.any():
        raise UsageError(f"row {int(np.argmax(nothing))} has neither a label nor probabilities")
    best = np.where(np.isnan(probabilities), 0, probabilities).argmax(1)
    truth = np.where(labelled, indices, best).astype(np.int64)
    return Taught(articles.labelled(truth, names), probabilities, labelled)


def hold_out_labelled(
    labels: NDArray[np.int64], labelled: NDArray[np.bool_], share: float, texts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As `hold_out`, of the labelled rows; of all where there are none, to see how well soft labels are learned.

    A row without a label is not trained on either where its text is held out.
    """
    if not labelled.any():
        return hold_out(labels, share, texts)
    rows = np.flatnonzero(labelled)
    held = rows[hold_out(labels[rows], share, texts[rows])[1]]
    return np.flatnonzero(~np.isin(texts, texts[held])), held


def _named(label: pa.Array, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The classes that occur as labels, sorted, or else those that the columns are called after."""
    if len(columns) > 1:
        return tuple(name.removeprefix(_PREFIX) for name in columns)
    found = sorted({value for value in label.to_pylist() if value is not None})
    if len(found) < 2:
        raise UsageError("the classes are not known: name them with --classes A,B,C")
    return tuple(found)


def _in_columns(table: pa.Table, columns: tuple[str, ...], classes: tuple[str, ...]) -> NDArray[np.float64]:
    """Probabilities [N, classes] of one column of lists, or of a column for each class."""
    told = ", ".join(columns)
    try:
        if len(columns) == 1:
            rows = [[np.nan] * len(classes) if row is None else row for row in table.column(0).to_pylist()]
            found = np.array(rows, np.float64).reshape(len(rows), -1)
        else:
            by_name = {name.removeprefix(_PREFIX): name for name in columns}
            order = [by_name[name] for name in classes] if set(by_name) == set(classes) else list(columns)
            values = (table.column(name).cast(pa.float64()).combine_chunks() for name in order)
            found = np.stack([column.to_numpy(zero_copy_only=False) for column in values], axis=1)
    except (ValueError, TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"soft labels in {told}: not a probability for each class ({error})") from error
    if found.shape[1] != len(classes):
        raise UsageError(f"soft labels in {told}: {found.shape[1]} probabilities a row, for {len(classes)} classes")
    sums: NDArray[np.float64] = found.sum(1, keepdims=True)
    if (found < 0).any() or (sums <= 0).any() or np.isinf(sums).any():
        raise UsageError(f"soft labels in {told}: a row has negative, infinite or no probabilities")
    shares: NDArray[np.float64] = found / sums
    return shares


@dataclass(frozen=True)
class TrainingData:
    """What is trained on.

    data: every labelled article. tested: those of `test`, if there are any. fit, held: row numbers of `data` to train
    on and to hold out, int64. targets: what is learned of each article, where that is not its label alone.
    """

    data: LabelledArticles
    tested: LabelledArticles | None
    fit: NDArray[np.int64]
    held: NDArray[np.int64]
    symbols: Alphabet
    targets: NDArray[Any] | None = None
