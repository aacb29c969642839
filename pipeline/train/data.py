"""Labelled articles for training: the same readers as `classify`, encoded once, in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import UsageError
from ..model.alphabet import Alphabet, encode
from ..model.layers import CLASSES
from ..model.ngrams import MOST_READ
from ..source.chunk import NO_TRUTH, Selection, truth_indices
from ..source.inputs import identify, open_input
from ..source.label_sets import label_lists, label_sets
from ..source.read.read import chunks_here

_CHUNK_ROWS = 16_384


class Texts(NamedTuple):
    """N texts, UTF-8. data: uint8 [bytes]. offsets: int64 [N + 1]; text i is data[offsets[i]:offsets[i + 1]]."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    def rows(self, rows: NDArray[np.int64]) -> Texts:
        """Those of some texts."""
        sizes = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], sizes)
        return Texts(self.data[at], offsets)


@dataclass(frozen=True)
class Labelled:
    """N articles. ids: uint8 [N, length] as `alphabet.encode` gives them. text: their first MOST_READ characters.
    labels: int64 [N], indices into `classes`; or bool [N, classes], where an article may have several. files: path and
    sha256 of each input file (one entry "memory" for rows in memory). skipped: unreadable rows.
    """

    ids: NDArray[np.uint8]
    text: Texts
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


def read_labelled(
    source: Any,
    text_columns: Iterable[str],
    label_column: str,
    alphabet: Alphabet,
    length: int,
    header: Iterable[str] | None = None,
    classes: Iterable[str] | None = None,
    multi_label: bool = False,
    separator: str | None = None,
) -> Labelled:
    """Read every article of `source` (as `classify` takes it) with its label.

    header: column names of a CSV without a header line. classes: the class names in the order of the model; labels are
    then names or numbers from 1. By default the classes are the labels that occur, sorted (as numbers if all are).
    multi_label: an article may have several labels, or none; they are lists, or texts with a separator between them.

    Raises UsageError for a column that is missing, a null or unknown label, or fewer than two classes; SourceError for
    a file that cannot be read.
    """
    names = None if classes is None else tuple(classes)
    if label_column in (texts := tuple(text_columns)):
        raise UsageError(f"column {label_column!r} is the label, it cannot be the text too")
    header = None if header is None else tuple(header)
    selection = Selection(texts, (label_column,), header=header, reads=MOST_READ)
    found = identify(source, len(alphabet), length, whole_hash=True, by_content=True)
    job_input = open_input(found, selection, _CHUNK_ROWS)
    ids, parts, labels, skipped = [], [], [], 0
    for chunk in chunks_here(job_input):
        if chunk.ids is not None:
            raise UsageError("a one-hot file holds no labels to train on")
        label = chunk.rows.column(label_column).combine_chunks()
        if multi_label:
            labels.append(label_lists(chunk.rows, label_column, separator))
        else:
            _refuse_nulls(label, label_column, chunk.rows)
            labels.append(label.cast(pa.large_string()))
        ids.append(encode(chunk.data, chunk.offsets, alphabet, length).ids)
        parts.append(Texts(chunk.data[chunk.offsets[0] : chunk.offsets[-1]], chunk.offsets - chunk.offsets[0]))
        skipped += len(chunk.quarantine)
    column = pa.chunked_array(labels, pa.list_(pa.string()) if multi_label else pa.large_string()).combine_chunks()
    values = column.flatten() if multi_label else column
    if names is None:
        names = _sorted_names(pc.unique(values).to_pylist())
    if len(names) < CLASSES[0]:
        raise UsageError(f"column {label_column!r} has {_count(names)}: a model needs at least two")
    if len(names) > CLASSES[1]:
        raise UsageError(f"column {label_column!r} has {len(names):,} classes: a model has at most {CLASSES[1]:,}")
    indices = truth_indices(values, names)
    if (indices == NO_TRUTH).any():
        unknown = values[int(np.argmax(indices == NO_TRUTH))].as_py()
        raise UsageError(f"column {label_column!r} holds {unknown!r}, which is none of {', '.join(names)}")
    files = tuple({"path": f["path"], "digest": f["digest"]} for f in found.identity)
    given = label_sets(column, names)[0] if multi_label else indices.astype(np.int64)
    return Labelled(np.concatenate(ids), joined(parts), given, names, files, skipped)


def joined(parts: list[Texts]) -> Texts:
    """The articles of the first, then those of the next, and so on."""
    sizes = np.concatenate([np.diff(part.offsets) for part in parts])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Texts(np.concatenate([part.data for part in parts]), offsets)


def _refuse_nulls(label: pa.Array, name: str, rows: pa.Table) -> None:
    null = label.is_null(nan_is_null=True)
    if pa.types.is_string(label.type) or pa.types.is_large_string(label.type):
        null = pc.or_(null, pc.fill_null(pc.equal(label, ""), True))
    first = pc.index(null, True).as_py()
    if first >= 0:
        where = rows.slice(first, 1).to_pylist()[0]
        raise UsageError(f"{where['file']}: row {where['row']} has no label: column {name!r} is null there")


def _sorted_names(values: list[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted(values, key=int))
    except ValueError:
        return tuple(sorted(values))


def _count(names: tuple[str, ...]) -> str:
    return f"one class only, {names[0]!r}" if names else "no labels"
