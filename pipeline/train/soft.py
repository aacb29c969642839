"""Soft labels: the probability of every class, by models as teachers or in columns, beside labels or in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..engine import base
from ..engine.open import open_engine
from ..errors import UsageError
from ..measures.rows import hold_out
from ..model.alphabet import Alphabet, encode
from ..model.charcnn import Model, load_model
from ..model.ngrams import MOST_READ
from ..source.chunk import NO_TRUTH, Selection, truth_indices
from ..source.inputs import identify, open_input
from ..source.read.read import chunks_here
from .data import Labelled, Texts, joined

_CHUNK_ROWS = 16_384
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


@contextmanager
def teachers(models: Iterable[str | Path | Model], device: str) -> Iterator[Teachers]:
    """Load models on a device, as long as the block lasts."""
    with ExitStack() as stack:
        engines = []
        for model in models:
            engine = open_engine(model if isinstance(model, Model) else load_model(model), device)
            stack.callback(engine.close)
            engines.append(engine)
        yield Teachers(tuple(engines))


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
        text_columns: tuple[str, ...],
        label_column: str | None,
        alphabet: Alphabet,
        length: int,
        header: Iterable[str] | None,
        classes: tuple[str, ...] | None,
    ) -> Taught:
        """Read `source`, with labels where it has them, and `unlabelled`. Arguments and errors as of `read_taught`."""
        if not self.models:
            return read_taught(
                source, text_columns, label_column, self.columns, None, alphabet, length, header, classes
            )
        with teachers(self.models, self.device) as by:
            names = classes or by.classes
            if set(names) != set(by.classes):
                raise UsageError(f"the teacher's classes are {', '.join(by.classes)}, not {', '.join(names)}")
            found = read_taught(source, text_columns, label_column, (), by, alphabet, length, header, names)
            if self.unlabelled is not None:
                more = read_taught(self.unlabelled, text_columns, None, (), by, alphabet, length, header, names)
                found = found.and_(more)
        return found


@dataclass(frozen=True)
class Taught:
    """N articles with soft labels. data: where there is no label, the most probable class is. probabilities: float64
    [N, classes], NaN where there are none. labelled: bool [N].
    """

    data: Labelled
    probabilities: NDArray[np.float64]
    labelled: NDArray[np.bool_]

    def and_(self, more: Taught) -> Taught:
        """These articles, then those."""
        data = Labelled(
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
    text_columns: tuple[str, ...],
    label_column: str | None,
    soft_columns: tuple[str, ...],
    by: Teachers | None,
    alphabet: Alphabet,
    length: int,
    header: Iterable[str] | None = None,
    classes: tuple[str, ...] | None = None,
) -> Taught:
    """Read every article of `source`, with its label if it has one, and with the probabilities in `soft_columns` (one
    column of lists, or one for each class) or by teachers.

    The classes are those of the teachers, or else as `data.read_labelled` finds them, or named by the columns.

    Raises UsageError as that does, and for a row with neither label nor probabilities, or with negative ones.
    """
    kept = tuple(dict.fromkeys((*([label_column] if label_column else []), *soft_columns)))
    if both := set(kept) & set(text_columns):
        raise UsageError(f"column {min(both)!r} is a label, it cannot be the text too")
    header = None if header is None else tuple(header)
    selection = Selection(text_columns, kept, header=header, reads=MOST_READ)
    found = identify(source, len(alphabet), length, whole_hash=True, by_content=True)
    names = classes or (by.classes if by else None)
    ids, parts, labels, columns, soft, skipped = [], [], [], [], [], 0
    for chunk in chunks_here(open_input(found, selection, _CHUNK_ROWS)):
        if chunk.ids is not None:
            raise UsageError("a one-hot file holds no text to train on")
        rows = chunk.rows
        ids.append(encode(chunk.data, chunk.offsets, alphabet, length).ids)
        parts.append(Texts(chunk.data[chunk.offsets[0] : chunk.offsets[-1]], chunk.offsets - chunk.offsets[0]))
        labels.append(_labels(rows, label_column))
        columns.append(rows.select(list(soft_columns)))
        if by is not None and names is not None:
            soft.append(by.probabilities(base.Texts(chunk.data, chunk.offsets), names))
        skipped += len(chunk.quarantine)
    label = pa.chunked_array(labels, pa.large_string()).combine_chunks()
    if names is None:
        names = _named(label, soft_columns)
    probabilities = np.concatenate(soft) if by else _in_columns(pa.concat_tables(columns), soft_columns, names)
    indices = truth_indices(label, names)
    labelled = label.is_valid().to_numpy(zero_copy_only=False)
    if (unknown := labelled & (indices == NO_TRUTH)).any():
        value = label[int(np.argmax(unknown))].as_py()
        raise UsageError(f"column {label_column!r} holds {value!r}, which is none of {', '.join(names)}")
    nothing = ~labelled & np.isnan(probabilities).any(1)
    if nothing.any():
        raise UsageError(f"row {int(np.argmax(nothing))} has neither a label nor probabilities")
    best = np.where(np.isnan(probabilities), 0, probabilities).argmax(1)
    files = tuple({"path": f["path"], "digest": f["digest"]} for f in found.identity)
    truth = np.where(labelled, indices, best).astype(np.int64)
    return Taught(Labelled(np.concatenate(ids), joined(parts), truth, names, files, skipped), probabilities, labelled)


def hold_out_labelled(
    labels: NDArray[np.int64], labelled: NDArray[np.bool_], share: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As `hold_out`, of the labelled rows; of all where there are none, to see how well soft labels are learned."""
    if not labelled.any():
        return hold_out(labels, share)
    rows = np.flatnonzero(labelled)
    fit, held = hold_out(labels[rows], share)
    return np.sort(np.concatenate([rows[fit], np.flatnonzero(~labelled)])), rows[held]


def _labels(rows: pa.Table, column: str | None) -> pa.Array:
    """The labels of a chunk, null where there is none."""
    if column is None:
        return pa.nulls(len(rows), pa.large_string())
    values = rows.column(column).combine_chunks()
    nothing = values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    values = values.cast(pa.large_string())
    empty = np.array([value == "" for value in values.to_pylist()], np.bool_)
    return pa.array(np.where(nothing | empty, None, values.to_pylist()), pa.large_string())


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
