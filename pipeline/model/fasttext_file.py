"""The reader of fastText's own files, `.bin` and `.ftz`, which it checks, and whose product quantisation it undoes.

The reader compares each size in a file with the number of bytes that are left before it allocates anything. It maps a
large table that can be used as it is in the file, so that all processes of a machine share its pages.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from .fasttext import END, LABEL, MOST_CLASSES, MOST_ORDER, MOST_SUBWORD, FastText, Floats, Settings

MAGIC = (793_712_314).to_bytes(4, "little")
_VERSIONS = (11, 12)
_SUPERVISED = 3
_FLORET = struct.Struct("<ii11i2iid3i")
"""The beginning of a file of floret: as in fastText's files, but with two more settings after the 11th, which are small
numbers.
"""

_LOSSES = {1: "hierarchical softmax", 2: "negative sampling", 3: "softmax", 4: "one-vs-all"}
_CENTROIDS = 256
_FOLDED_AT_ONCE = 1 << 22
"""The number of values of a table that are folded at once."""

_MAPPED = 128 << 20
"""The size in bytes from which a table is mapped. Rows of a mapped table take up to twice as long to read as those of a
copy in integers.
"""

_MOST_DECODED, _MOST_TIMES = 1 << 30, 64
"""The largest size of a table without its quantisation: this many bytes or this many times the size of the file,
whichever is more. 8 times is usual.
"""

_BLOCK = 1 << 22
_LONGEST_WORD = 1 << 24


class Read(NamedTuple):
    """The content of a file.

    Attributes
    ----------
    classes : tuple of str
        The labels, without the usual prefix.
    model : FastText
        The classifier.
    card : dict
        The content of the model's card: its origin and its training.

    """

    classes: tuple[str, ...]
    model: FastText
    card: dict[str, Any]


@dataclass(frozen=True)
class _Quantised:
    """A quantised matrix, whose rows are decoded when they are read.

    Attributes
    ----------
    shape : tuple of int
        The numbers of rows and columns.
    decoded : callable
        A function that returns the rows of a slice.
    norms : callable or None
        A function that returns the norms of the rows of a slice, if they are quantised separately.

    """

    shape: tuple[int, int]
    decoded: Callable[[slice], Floats]
    norms: Callable[[slice], Floats] | None

    def __getitem__(self, rows: slice) -> Floats:
        part = self.decoded(rows)
        return part if self.norms is None else np.multiply(part, self.norms(rows), out=part)


class _Bytes:
    """A reader of a file's values: each call reads the next bytes, and raises ModelError if the file has too few."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._size, self.name = file, os.fstat(file.fileno()).st_size, name

    def damaged(self, what: str) -> ModelError:
        """Return the error for a damaged file. what: the damage."""
        return ModelError(f"{self.name}: the file of fastText is damaged or cut off: {what}. Copy or download it again")

    @property
    def _left(self) -> int:
        """The number of bytes that are not read yet."""
        return self._size - self._file.tell()

    def values(self, layout: str, what: str) -> tuple[Any, ...]:
        """Read little-endian numbers. layout: as in `struct`. what: their name in messages."""
        return struct.unpack(f"<{layout}", self.array("u1", struct.calcsize(f"<{layout}"), what).tobytes())

    def array(self, dtype: str, count: int, what: str) -> NDArray[Any]:
        """Read `count` numbers of one dtype. what: their name in messages."""
        size = count * np.dtype(dtype).itemsize
        if not 0 <= size <= self._left:
            raise self.damaged(f"{what} should take {size:,} bytes, and {self._left:,} are left")
        numbers = np.fromfile(self._file, dtype, count)
        if len(numbers) != count:
            raise self.damaged(f"{what} was cut off while it was read")
        return numbers

    def entries(self, count: int) -> tuple[list[bytes], list[int], list[int]]:
        """Read the words, counts and kinds of the dictionary's entries.

        A word ends with a zero byte; its count, of eight bytes, and its kind, of one byte, follow.
        """
        if not 0 <= 10 * count <= self._left:
            raise self.damaged(f"it has no room for a dictionary of {count:,} entries")
        words, counts, kinds = [], [], []
        block, at = b"", 0
        for _ in range(count):
            while (end := block.find(b"\0", at)) < 0 or end + 10 > len(block):
                more = self._file.read(_BLOCK)
                if not more or len(block) - at > _LONGEST_WORD:
                    raise self.damaged("its dictionary does not end")
                block, at = block[at:] + more, 0
            words.append(block[at:end])
            number, kind = struct.unpack_from("<qb", block, end + 1)
            counts.append(number)
            kinds.append(kind)
            at = end + 10
        self._file.seek(at - len(block), os.SEEK_CUR)
        return words, counts, kinds

    def dense(self, what: str) -> Floats:
        """Read a matrix of fp32, or map a large one. what: its name in messages."""
        rows, columns = self._shape(what)
        size, at = 4 * rows * columns, self._file.tell()
        if not _MAPPED <= size <= self._left:
            return self.array("<f4", rows * columns, what).reshape(rows, columns)
        mapped: Floats = np.memmap(self._file, "<f4", "r", at, (rows, columns))
        self._file.seek(at + size)
        return mapped

    def quantised(self, what: str) -> _Quantised:
        """Read a quantised matrix. what: its name in messages."""
        (has_norms,) = self.values("?", what)
        rows, columns = self._shape(what)
        (size,) = self.values("i", what)
        codes = self.array("u1", size, what)
        decoded = self._decoded(codes, rows, columns, what)
        norms = self._decoded(self.array("u1", rows, what), rows, 1, what) if has_norms else None
        return _Quantised((rows, columns), decoded, norms)

    def may_take(self, rows: int, columns: int, what: str) -> None:
        """Raise ModelError if a matrix is much larger without its quantisation than a file of this size can have."""
        size, largest = 4 * rows * columns, max(_MOST_DECODED, _MOST_TIMES * self._size)
        if size > largest:
            raise ModelError(
                f"{self.name}: {what} takes {size / (1 << 30):,.1f} GiB without its quantisation, more than "
                f"{largest / (1 << 30):,.1f}, of a file of {self._size:,} bytes: give the model before it was quantised"
            )

    def _shape(self, what: str) -> tuple[int, int]:
        """Read the numbers of rows and columns of a matrix."""
        rows, columns = self.values("qq", what)
        if not (0 <= rows < 1 << 40 and 1 <= columns < 1 << 20):
            raise self.damaged(f"{what} has {rows:,} rows and {columns:,} columns")
        return rows, columns

    def _decoded(self, codes: NDArray[np.uint8], rows: int, columns: int, what: str) -> Callable[[slice], Floats]:
        """Read the centroids of a quantised matrix, and return a function that decodes the rows of a slice.

        Each code is the number of one of 256 centroids, which are the values of a part of a row. The last part of a row
        may be shorter.
        """
        dim, parts, width, last = self.values("iiii", what)
        if dim != columns or width < 1 or parts < 1 or (parts - 1) * width + last != dim or not 1 <= last <= width:
            raise self.damaged(f"{what} has {parts} parts of {width} and {last} columns, for rows of {columns}")
        if len(codes) != rows * parts:
            raise self.damaged(f"{what} has {len(codes):,} codes for {rows:,} rows of {parts} parts")
        centroids = self.array("<f4", dim * _CENTROIDS, what)

        def decoded(some: slice) -> Floats:
            wanted = codes.reshape(rows, parts)[some]
            matrix = np.empty((len(wanted), columns), np.float32)
            for part, of_rows in enumerate(wanted.T):
                first = part * width
                size = last if part == parts - 1 else width
                values = centroids[first * _CENTROIDS : (first + size) * _CENTROIDS]
                matrix[:, first : first + size] = values.reshape(-1, size)[of_rows]
            return matrix

        return decoded

    def end(self) -> None:
        """Raise ModelError unless the whole file is read."""
        if self._left:
            raise self.damaged(f"{self._left:,} bytes follow its end")


def is_fasttext(path: Path) -> bool:
    """Whether a file begins as fastText's files do. Raises OSError if it cannot be read."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.read(len(MAGIC)) == MAGIC


def read(path: Path, name: str) -> Read:
    """Read a fastText classifier. Raises OSError; ModelError if the file is damaged, or contains no classifier."""
    _refuse_floret(path, name)
    with open(path, "rb") as file:
        return _read(_Bytes(file, name))


def read_vectors(path: Path) -> tuple[list[str], FastText]:
    """Read the word vectors of a file, which may contain a classifier.

    Returns the words, the most frequent first, and a model. The model's mean row of a text that is one word is the
    word's vector, in which its subwords count too. Raises the errors of `read`.
    """
    _refuse_floret(path, str(path))
    with open(path, "rb") as file:
        model = _read(_Bytes(file, str(path)), is_classifier=False).model
    bounds = [0, *model.ends.tolist()]
    words = model.words.tobytes()
    return [words[first:last].decode(errors="ignore") for first, last in pairwise(bounds)], model


def _refuse_floret(path: Path, name: str) -> None:
    """Raise ModelError for a file of floret, a fork of fastText with the same first bytes and version."""
    with open(path, "rb") as file:
        start = file.read(_FLORET.size)
    if len(start) < _FLORET.size:
        return
    *_, hashes, mode, _, _, entries, words, labels = _FLORET.unpack(start)
    if 1 <= hashes <= 4 and mode in (1, 2) and entries == words + labels and words >= 0 and entries > 0:
        raise ModelError(
            f"{name} is a file of floret, which has other settings than fastText's. fastText cannot read it either: "
            "train the model with fasttext"
        )


def _read(data: _Bytes, is_classifier: bool = True) -> Read:
    """Read the content of a file.

    is_classifier: whether the file must contain a classifier. Otherwise only the vectors of its words are read, and the
    file may contain any model.
    """
    # Read and check the settings.
    _, version = data.values("ii", "its beginning")
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        raise ModelError(f"{data.name}: version {version} of fastText's files; known are {known}")
    numbers = data.values("12id", "its settings")
    dim, _, epochs, least, _, words, loss, kind, buckets, lowest, highest, _, _ = numbers
    if is_classifier and kind != _SUPERVISED:
        raise ModelError(
            f"{data.name}: holds word vectors of fastText, and no classifier: give a model of fasttext supervised"
        )
    if loss not in _LOSSES or dim < 1 or buckets < 0:
        raise data.damaged(f"loss {loss}, {dim} dimensions, {buckets} buckets")
    if words > MOST_ORDER or highest > MOST_SUBWORD:
        raise ModelError(
            f"{data.name}: n-grams of up to {words:,} words and {highest:,} characters: at most {MOST_ORDER} and "
            f"{MOST_SUBWORD} here, as the time to read a text grows with them: train it with less -wordNgrams or -maxn"
        )
    if version == _VERSIONS[0]:  # models of this version had no subwords
        highest = 0
    # Read the dictionary, the table and the output matrix.
    entries, known, labels, _, pruned_count = data.values("3i2q", "its dictionary")
    tokens, counts, kinds = data.entries(entries)
    if known < 0 or labels < 0 or entries != known + labels or kinds != [0] * known + [1] * labels:
        raise data.damaged(f"{entries:,} entries, of which {known:,} are words and {labels:,} labels")
    pruned = data.array("<i4", 2 * max(pruned_count, 0), "its index of buckets").reshape(-1, 2)
    (is_quantised,) = data.values("?", "its table")
    table = data.quantised("its table") if is_quantised else data.dense("its table")
    (has_quantised_output,) = data.values("?", "its output")
    output = data.quantised("its output") if is_quantised and has_quantised_output else data.dense("its output")
    data.end()
    if isinstance(output, _Quantised):
        data.may_take(*output.shape, "its output")
        output = output[:]
    # Check that these parts fit together.
    if pruned_count >= 0 and not is_quantised:
        raise ModelError(f"{data.name}: is pruned but not quantised: fastText does not read such a file either")
    if is_classifier and not 2 <= labels <= MOST_CLASSES:
        raise ModelError(f"{data.name}: {labels:,} labels; a model has 2 to {MOST_CLASSES:,} here")
    if table.shape[1] != dim or output.shape != (labels if kind == _SUPERVISED else known, dim):
        raise data.damaged(f"a table of {table.shape} and an output of {output.shape}, with {dim} dimensions")
    # Make the settings. A pruned model in which no bucket has a row reads no n-grams and no subwords.
    if pruned_count == 0:
        words, lowest, highest = 1, 0, 0
    characters = (max(lowest, 0), highest) if highest > 0 else (0, 0)
    if not is_classifier:  # a word's vector must not include the row of the token at a text's end
        tokens, words = [b"" if token == END else token for token in tokens], 1
    settings = Settings(max(words, 1), characters, buckets, _LOSSES[loss])  # type: ignore[arg-type]
    # Fold the output matrix into the table, if the table does not grow by that.
    outputs = output[: labels - 1] if loss == 1 else output  # a tree has one node less than classes
    is_folded = is_classifier and len(outputs) <= dim
    if isinstance(table, _Quantised):
        data.may_take(table.shape[0], len(outputs) if is_folded else dim, "its table")
    rows = _folded(table, outputs) if is_folded else table[:]
    # Make the model and its card.
    ends = np.cumsum(np.fromiter(map(len, tokens), np.int64, entries))
    dictionary = np.frombuffer(b"".join(tokens), np.uint8), ends
    matrix = None if is_folded or not is_classifier else np.ascontiguousarray(outputs)
    index = pruned.astype(np.int32) if pruned_count > 0 else None
    model = FastText(settings, rows, matrix, *dictionary, index, np.array(counts[known:], np.int64))
    card = {
        "origin": "converted from fastText",
        "training": {"loss": settings.loss, "dimensions": dim, "epochs": epochs, "least count of a word": least},
    }
    return Read(_names(tokens[known:], data), model, card)


def _folded(table: Floats | _Quantised, output: Floats) -> Floats:
    """Return what each row of the table adds to each class, computed in float64 and rounded to fp32 once."""
    folded = np.empty((table.shape[0], len(output)), np.float32)
    step = max(1, _FOLDED_AT_ONCE // table.shape[1])
    for first in range(0, len(folded), step):
        part = slice(first, first + step)
        folded[part] = table[part].astype(np.float64) @ output.T.astype(np.float64)
    return folded


def _names(labels: list[bytes], data: _Bytes) -> tuple[str, ...]:
    """Return the labels as text, without the usual prefix if all of them have it."""
    prefix = LABEL if all(label.startswith(LABEL) and label != LABEL for label in labels) else b""
    try:
        return tuple(label.removeprefix(prefix).decode() for label in labels)
    except UnicodeDecodeError as error:
        raise ModelError(f"{data.name}: the label {error.object!r:.100} is not UTF-8") from error
