"""fastText's classifiers (https://fasttext.cc), in NumPy: the specification of their kernel, and the CPU backend.

A text is cut into tokens at `WHITE_SPACE`, and "</s>" is its last token; what follows a token that is "</s>" is not
read. Tokens that are labels are left out. The others give rows of a table: a word of the dictionary its own; each token
those of its subwords, runs of characters of "<token>", whose hashes are buckets; and neighbouring tokens the buckets of
their hashes. A pruned model has rows for some buckets only. The text's vector is the mean of all these rows; a product
with a matrix gives what decides its labels; and softmax, sigmoids or a tree of sigmoids give the scores.

Where there are no more classes than columns, the product is folded into the table: each row has what it adds to each
class. A table is used as integers of 32 or 16 bits with a scale for each column, so the sum over a text is exact in any
order, and a text has the same vector on every backend. A text without any row has a vector of zeros.

Hashes, also of invalid UTF-8, are those of the original, in which a byte is signed, and a character is a byte and the
continuation bytes after it. So is the sigmoid of one-vs-all and negative sampling, a table of 512 steps. The original
adds 1e-5 to each probability that it returns (with hierarchical softmax to each on the way): these scores are without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, pairwise, repeat
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from msgspec import Meta, Struct, to_builtins
from numpy.typing import NDArray

from ..errors import ModelError
from .alphabet import Alphabet, batches
from .layers import WHOLE, check_tensor, refuse_missing
from .scores import GIVEN, SOFTMAX, STEPS

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]
Hashes = NDArray[np.uint32]

WHITE_SPACE = b" \n\r\t\v\f\0"
END, LABEL = b"</s>", b"__label__"
ALPHABET = Alphabet(" ")
"""What such a model has for one: it reads bytes, and no character is unknown to it."""

MOST_ORDER = 32
"""Words of the longest n-gram of words."""

MOST_SUBWORD = 128
"""Characters of the longest subword: each character of a token begins so many, as in the original."""

MOST_CLASSES = 16_000
"""A block of threads holds the scores of so many classes."""

MOST_BYTES = 16 << 30
"""The largest model file."""

MOST_BUCKETS = 1 << 28
"""Buckets of a pruned model at most, which takes four bytes for each."""

TABLE, OUTPUT, WORDS, ENDS, PRUNED, COUNTS = (
    f"fasttext.{name}" for name in ("table", "output", "words", "ends", "pruned", "counts")
)
"""Its tensors in a model file."""

_OF_LOSS = {"softmax": SOFTMAX, "one-vs-all": STEPS, "negative sampling": STEPS, "hierarchical softmax": GIVEN}

_BATCH_BYTES = 1 << 17
_BATCH_VALUES = 1 << 22
_BLANKS = bytes(0x20 if byte in WHITE_SPACE else byte for byte in range(256))
_BETWEEN = b" " + END + b" "
FIRST_HASH, _PRIME, _OF_WORDS = np.uint32(2166136261), np.uint32(16777619), np.uint64(116049371)
_TOGETHER = 32
"""Bytes of a token or a character that are hashed side by side with those of others."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model reads.

    Attributes
    ----------
    words : int
        Words of the longest n-gram of words, 1 for none.
    characters : tuple of int
        Characters of the shortest and of the longest subword; the longest is 0 where there are none.
    buckets : int
        Numbers that subwords and n-grams of words are hashed to; 0 where there are none.
    loss : str
        By what it was trained, which says how scores are computed.

    """

    words: Annotated[int, Meta(ge=1, le=MOST_ORDER)]
    characters: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0, le=MOST_SUBWORD)]]
    buckets: Annotated[int, Meta(ge=0, lt=1 << 31)]
    loss: Literal["softmax", "one-vs-all", "negative sampling", "hierarchical softmax"]

    @property
    def reads(self) -> int:
        """Characters: all."""
        return WHOLE

    @property
    def hashes(self) -> bool:
        """Whether there is anything to hash to buckets."""
        return self.words > 1 or self.characters[1] > 0


class Table(NamedTuple):
    """Rows as integers. values: int32 or int16 [rows, columns], or fp32, those of a file that is mapped. scale: fp32
    [columns], what one step stands for.
    """

    values: NDArray[Any]
    scale: Floats


class Paths(NamedTuple):
    """The way to each class in the tree of hierarchical softmax. steps: int32 [S], twice the number of a node, plus 1
    where the class is on its right. ends: int32 [classes], where the way of each ends.
    """

    steps: NDArray[np.int32]
    ends: NDArray[np.int32]


@dataclass(frozen=True)
class FastText:
    """A classifier of fastText's, in place of a network; immutable.

    Attributes
    ----------
    kinds : Settings
        What it reads.
    table : float32 [rows, columns]
        The rows of the words, then those of the buckets.
    output : float32 [classes, columns], optional
        The matrix of the product, of one class less with hierarchical softmax; None where it is folded into the table.
    words, ends : uint8 [bytes], int64 [entries]
        The dictionary: words and then labels, one after another, and where each ends.
    pruned : int32 [P, 2], optional
        Of a pruned model: the buckets that have a row, and the number of it, after those of the words.
    counts : int64 [classes]
        How often each label was in the training data, from which follows the tree of hierarchical softmax.

    """

    kinds: Settings
    table: Floats = field(repr=False)
    output: Floats | None = field(repr=False)
    words: NDArray[np.uint8] = field(repr=False)
    ends: Offsets = field(repr=False)
    pruned: NDArray[np.int32] | None = field(repr=False)
    counts: NDArray[np.int64] = field(repr=False)
    feature: ClassVar = "fasttext"

    @classmethod
    def of_file(cls, kinds: Settings, tensors: dict[str, NDArray[Any]], model: str) -> FastText:
        """Take its tensors out of those of a model file. Raises ModelError where one is missing."""
        refuse_missing((TABLE, WORDS, ENDS, COUNTS), tensors, model)
        return cls(kinds, *(tensors.pop(name, None) for name in (TABLE, OUTPUT, WORDS, ENDS, PRUNED, COUNTS)))  # type: ignore[arg-type]

    def check(self, classes: int, length: int, several: bool, model: str) -> None:
        """Raise ModelError unless this fits a model of so many classes and characters. several: labels a text."""
        if length != WHOLE or several != (self.kinds.loss == "one-vs-all"):
            raise ModelError(f"{model}: a model of fastText's reads whole texts, and has thresholds with one-vs-all")
        if not 2 <= classes <= MOST_CLASSES:
            raise ModelError(f"{model}: {classes:,} classes: a model of fastText's has 2 to {MOST_CLASSES:,} here")
        outputs = classes - (self.link == GIVEN)
        columns = self.table.shape[1] if self.output is not None and self.table.ndim == 2 else outputs
        expected: dict[str, tuple[str, tuple[int | None, ...]]] = {
            TABLE: ("float32", (None, columns)),
            OUTPUT: ("float32", (outputs, columns)),
            WORDS: ("uint8", (None,)),
            ENDS: ("int64", (None,)),
            PRUNED: ("int32", (None, 2)),
            COUNTS: ("int64", (classes,)),
        }
        for name, tensor in self.tensors().items():
            check_tensor(f"{model}: tensor {name}", tensor, *expected[name])
            if tensor.dtype == np.float32 and not all(np.isfinite(part).all() for part in _parts(tensor)):
                raise ModelError(f"{model}: tensor {name} holds a value that is not finite")
        ends, buckets = self.ends, self.kinds.buckets if self.kinds.hashes else 0
        if len(ends) < classes or (np.diff(ends, prepend=0) < 0).any() or (len(ends) and ends[-1] != len(self.words)):
            raise ModelError(f"{model}: its dictionary is damaged")
        if not columns or (self.link == GIVEN and self.counts.min() < 1):
            raise ModelError(f"{model}: a table without columns, or a label that the training data did not have")
        if self.kinds.hashes and not buckets:
            raise ModelError(f"{model}: n-grams, and no buckets for them")
        if self.pruned is not None:
            least, most = self.pruned.min(axis=0, initial=0), self.pruned.max(axis=0, initial=-1)
            if buckets > MOST_BUCKETS or (least < 0).any() or most[0] >= max(buckets, 1):
                raise ModelError(f"{model}: its index of {buckets:,} buckets is damaged, or above {MOST_BUCKETS:,}")
            buckets = int(most[1]) + 1
        if len(self.table) < self.known + buckets:
            raise ModelError(f"{model}: {len(self.table):,} rows for {self.known:,} words and {buckets:,} buckets")

    @property
    def link(self) -> int:
        """How scores follow from the outputs of the product; with a tree, from what `tree` makes of them."""
        return _OF_LOSS[self.kinds.loss]

    @property
    def known(self) -> int:
        """Words of the dictionary, which have the first rows."""
        return len(self.ends) - len(self.counts)

    @property
    def about(self) -> Any:
        """What decides its scores, beside the tensors, as JSON values."""
        return to_builtins(self.kinds)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The tensors by their names in a model file."""
        every = {TABLE: self.table, OUTPUT: self.output, WORDS: self.words, ENDS: self.ends, PRUNED: self.pruned}
        return {name: tensor for name, tensor in {**every, COUNTS: self.counts}.items() if tensor is not None}

    def numbers(self) -> dict[bytes, int]:
        """The dictionary: each entry and its number."""
        words = self.words.tobytes()
        return {words[first:last]: number for number, (first, last) in enumerate(pairwise([0, *self.ends.tolist()]))}

    def rows_of_buckets(self) -> NDArray[np.int32] | None:
        """The row of each bucket of a pruned model, counted after those of the words, -1 for none; None for other
        models.
        """
        if self.pruned is None:
            return None
        rows = np.full(max(self.kinds.buckets, 1), -1, np.int32)
        rows[self.pruned[:, 0]] = self.pruned[:, 1]
        return rows

    def scale(self, bits: int) -> Floats:
        """What one step of each column's integers stands for, fp32 [columns]."""
        largest = np.full(self.table.shape[1], 1e-30, np.float32)
        for part in _parts(self.table):
            np.maximum(largest, np.abs(part).max(axis=0), out=largest)
        return np.asarray((largest.astype(np.float64) / (2 ** (bits - 1) - 1)).astype(np.float32))

    def fixed(self, bits: int) -> Table:
        """The table as integers of 16 or 32 bits."""
        scale, values = self.scale(bits), np.empty(self.table.shape, np.int16 if bits == 16 else np.int32)
        for part, out in zip(_parts(self.table), _parts(values), strict=True):
            out[:] = in_steps(part, scale, bits)
        return Table(values, scale)

    @cached_property
    def paths(self) -> Paths | None:
        """The tree of hierarchical softmax, Huffman's, by the counts of the labels, which come in falling order."""
        if self.link != GIVEN:
            return None
        leaves = len(self.counts)
        counts = [*self.counts.tolist(), *[10**15] * (leaves - 1)]
        parent, is_right = [-1] * len(counts), [0] * len(counts)
        leaf, node = leaves - 1, leaves
        for at in range(leaves, len(counts)):
            counts[at] = 0
            for right in (0, 1):
                if leaf >= 0 and (node >= at or counts[leaf] < counts[node]):
                    child, leaf = leaf, leaf - 1
                else:
                    child, node = node, node + 1
                parent[child], is_right[child] = at, right
                counts[at] += counts[child]
        steps: list[int] = []
        ends = []
        for at in range(leaves):
            while parent[at] >= 0:
                steps.append(2 * (parent[at] - leaves) + is_right[at])
                at = parent[at]
            ends.append(len(steps))
        return Paths(np.array(steps, np.int32), np.array(ends, np.int32))

    def tree(self, nodes: Floats) -> Floats:
        """The scores, fp32 [N, classes], by what the product gives for each node of the tree, [N, nodes]."""
        assert self.paths is not None
        with np.errstate(over="ignore"):
            right = np.float32(1) / (np.exp(-nodes) + np.float32(1))
        both = np.stack([np.float32(1) - right, right], axis=2).reshape(len(nodes), -1)
        steps, firsts = self.paths.steps, np.concatenate([[0], self.paths.ends[:-1]])
        return np.asarray(np.multiply.reduceat(both[:, steps], firsts, axis=1))


def _parts(table: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Its rows, some at a time."""
    step = max(1, _BATCH_VALUES // table.shape[1])
    return (table[first : first + step] for first in range(0, len(table), step))


def in_steps(rows: Floats, scale: Floats, bits: int) -> NDArray[np.float64]:
    """Rows of a table in steps of `scale`, which are integers."""
    steps: NDArray[np.float64] = rows / scale.astype(np.float64)
    np.rint(steps, out=steps)
    return np.clip(steps, 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1, out=steps)


class Words(NamedTuple):
    """The tokens of N texts but labels, T of them.

    Attributes
    ----------
    tokens : list of bytes
        The tokens.
    numbers : int32 [T]
        Their numbers in the dictionary; -1 for none, -2 for "</s>" where the dictionary lacks it.
    texts : int64 [T]
        The text that each is in, ascending.

    """

    tokens: list[bytes]
    numbers: NDArray[np.int32]
    texts: Offsets


class Reader:
    """A model ready to read: its dictionary as one of Python's, its table in integers; one that is mapped stays as it
    is, and its rows become integers as they are read. bits: of these.
    """

    def __init__(self, model: FastText, bits: int = 32) -> None:
        self._kinds, self._known = model.kinds, model.known
        self._numbers = model.numbers()
        self._end = self._numbers.setdefault(END, -2)
        self._rows = model.rows_of_buckets()
        self._bits = bits
        is_mapped = isinstance(model.table, np.memmap)
        self.table = Table(model.table, model.scale(bits)) if is_mapped else model.fixed(bits)

    def means(self, data: NDArray[np.uint8], offsets: Offsets) -> Floats:
        """The mean row of each of N texts, fp32 [N, columns].

        data: uint8 [bytes]. offsets: int64 [N + 1], ascending; text i is data[offsets[i]:offsets[i + 1]].
        """
        count, columns = len(offsets) - 1, self.table.values.shape[1]
        sums, rows_added = np.zeros((count, columns), np.int64), np.zeros(count, np.int64)
        for some in batches(offsets, _BATCH_BYTES):
            for rows, texts in self.rows(data, offsets[some.start : some.stop + 1]):
                self._add(rows, texts + some.start, sums, rows_added)
        counts = np.maximum(rows_added, 1).astype(np.float32)[:, None]
        return np.asarray(sums.astype(np.float32) * self.table.scale / counts)

    def rows(self, data: NDArray[np.uint8], offsets: Offsets) -> Iterator[tuple[NDArray[np.int64], Offsets]]:
        """The rows that N texts have, in several parts: numbers of rows, and for each the number of its text,
        ascending.
        """
        words = self._words(data, offsets)
        is_known = words.numbers >= 0
        yield words.numbers[is_known].astype(np.int64), words.texts[is_known]
        if not self._kinds.hashes or not words.tokens:
            return
        text = np.frombuffer(b"<" + b"><".join(words.tokens) + b">", np.uint8)
        sizes = np.fromiter(map(len, words.tokens), np.int64, len(words.tokens))
        begins = np.cumsum(sizes + 2) - sizes - 1
        if self._kinds.words > 1:
            yield from self._of_words(hashed(np.full(len(sizes), FIRST_HASH), text, begins, sizes), words.texts)
        if self._kinds.characters[1]:
            yield from self._of_subwords(text, begins, words)

    def _words(self, data: NDArray[np.uint8], offsets: Offsets) -> Words:
        raw, bounds = data[offsets[0] : offsets[-1]].tobytes(), (offsets - offsets[0]).tolist()
        joined = _BETWEEN.join([raw[first:last] for first, last in pairwise(bounds)]) + _BETWEEN
        line = joined.translate(_BLANKS)
        tokens = line.split()
        numbers = np.fromiter(map(self._numbers.get, tokens, repeat(-1)), np.int32, len(tokens))
        is_end = numbers == self._end
        kept = numbers < self._known
        if LABEL in line:
            kept &= ~np.fromiter((token.startswith(LABEL) for token in tokens), np.bool_, len(tokens)) | (numbers >= 0)
        if np.count_nonzero(is_end) == len(bounds) - 1:
            texts = np.cumsum(is_end) - is_end
        else:  # a text has "</s>" within it
            blank = np.frombuffer(b" " + line, np.uint8) == ord(" ")
            begins = np.flatnonzero(blank[:-1] & ~blank[1:])
            starts = offsets[:-1] - offsets[0] + len(_BETWEEN) * np.arange(len(bounds) - 1)
            texts = np.searchsorted(starts, begins, side="right") - 1
            before = np.cumsum(is_end) - is_end
            kept &= before == before[np.searchsorted(begins, starts)][texts]
        if kept.all():
            return Words(tokens, numbers, texts)
        return Words(list(compress(tokens, kept)), numbers[kept], texts[kept])

    def _of_words(self, hashes: Hashes, texts: Offsets) -> Iterator[tuple[NDArray[np.int64], Offsets]]:
        signed = hashes.view(np.int32).astype(np.int64).view(np.uint64)
        state = signed
        for more in range(1, self._kinds.words):
            state = state[: max(len(signed) - more, 0)] * _OF_WORDS + signed[more:]
            whole = texts[: len(state)] == texts[more:]
            yield self._in_buckets(state[whole] % np.uint64(self._kinds.buckets), texts[: len(state)][whole])

    def _of_subwords(
        self, text: NDArray[np.uint8], begins: Offsets, words: Words
    ) -> Iterator[tuple[NDArray[np.int64], Offsets]]:
        """text: all tokens between < and >. begins: of each token."""
        lowest, highest = self._kinds.characters
        starts = np.flatnonzero((text & 0xC0) != 0x80)
        sizes = np.diff(starts, append=len(text))
        firsts = np.searchsorted(starts, begins - 1)
        counts = np.diff(firsts, append=len(starts))
        of_token = np.repeat(np.arange(len(firsts)), counts)
        last = (firsts + counts - 1)[of_token]
        at = np.flatnonzero((np.arange(len(starts)) < last) & (words.numbers != self._end)[of_token])
        hashes = np.full(len(at), FIRST_HASH)
        for n in range(1, highest + 1):
            if n > 1:
                longer = at + n - 1 <= last[at]
                at, hashes = at[longer], hashes[longer]
            if not len(at):
                return
            hashes = hashed(hashes, text, starts[at + n - 1], sizes[at + n - 1])
            if n >= lowest:
                some = at > firsts[of_token[at]] if n == 1 else slice(None)
                buckets = hashes[some] % np.uint32(self._kinds.buckets)
                yield self._in_buckets(buckets, words.texts[of_token[at[some]]])

    def _in_buckets(self, buckets: NDArray[Any], texts: Offsets) -> tuple[NDArray[np.int64], Offsets]:
        if self._rows is None:
            return buckets.astype(np.int64) + self._known, texts
        rows = self._rows[buckets]
        there = rows >= 0
        return rows[there].astype(np.int64) + self._known, texts[there]

    def _add(
        self, rows: NDArray[np.int64], texts: Offsets, sums: NDArray[np.int64], rows_added: NDArray[np.int64]
    ) -> None:
        rows_added += np.bincount(texts, minlength=len(sums))
        most = _BATCH_VALUES // sums.shape[1]
        for first in range(0, len(rows), most):
            part, of_text = self.table.values[rows[first : first + most]], texts[first : first + most]
            if part.dtype == np.float32:  # of a table that other processes share
                part = in_steps(part, self.table.scale, self._bits).astype(np.int64)
            places = np.flatnonzero(np.diff(of_text, prepend=-1))
            sums[of_text[places]] += np.add.reduceat(part, places, axis=0, dtype=np.int64)


def hashed(hashes: Hashes, text: NDArray[np.uint8], begins: Offsets, sizes: Offsets) -> Hashes:
    """Hashes that go on over so many bytes from `begins` on, [N]: FNV-1a, but for bytes that are signed."""
    hashes = hashes.copy()
    which = np.flatnonzero(sizes)
    for place in range(_TOGETHER):
        signed = text[begins[which] + place].view(np.int8).astype(np.int32).view(np.uint32)
        hashes[which] = (hashes[which] ^ signed) * _PRIME
        if sizes.max(initial=0) <= place + 1:
            return hashes
        which = np.flatnonzero(sizes > place + 1)
    for number in which.tolist():
        state = int(hashes[number])
        for byte in text[begins[number] + _TOGETHER : begins[number] + sizes[number]].tolist():
            state = (state ^ (byte | 0xFFFFFF00 if byte & 0x80 else byte)) * 16777619 & 0xFFFFFFFF
        hashes[number] = state
    return hashes
