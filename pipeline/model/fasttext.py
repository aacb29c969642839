"""fastText's classifiers (https://fasttext.cc), in NumPy: the specification of their kernel, and the CPU backend.

A text gets its scores in five steps:

1. It is cut into tokens at `WHITE_SPACE`, and "</s>" is added as the last token. If the text itself contains the token
   "</s>", the text after it is not read. Tokens that are labels are left out.
2. Each remaining token gives rows of a table: its own row, if it is a word of the dictionary; and a row for each of its
   subwords, runs of characters of "<token>", which are hashed to buckets. Each n-gram of words is hashed to a bucket,
   too. A pruned model has rows for some buckets only.
3. The mean of all these rows is the text's vector.
4. The product of the vector with a matrix gives an output for each class or, in a tree, for each node.
5. Softmax, sigmoids or a tree of sigmoids turn the outputs into scores.

If the model has no more classes than columns, the product is folded into the table: each row then has what it adds to
each class. A table is used as integers of 32 or 16 bits with a scale for each column, so the sum over a text is exact
in any order, and a text has the same vector on every backend. A text that gives no row has a vector of zeros.

Hashes are the same as in the original, also those of invalid UTF-8: a byte is signed, and a character is a byte and the
continuation bytes after it. The sigmoid of one-vs-all and negative sampling is the original's too, a table of 512
steps. The original adds 1e-5 to each probability that it returns, and in hierarchical softmax to each probability on
the way to a class; the scores here are without it.
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
"""The alphabet of such a model, which only fills the field: the model reads bytes, and no character is unknown to it.
"""

MOST_ORDER = 32
"""The largest number of words of an n-gram of words."""

MOST_SUBWORD = 128
"""The largest number of characters of a subword. Each character of a token begins up to this many subwords, as in the
original.
"""

MOST_CLASSES = 16_000
"""The largest number of classes whose scores fit into a block of threads."""

MOST_BYTES = 16 << 30
"""The size of the largest model file in bytes."""

MOST_BUCKETS = 1 << 28
"""The largest number of buckets of a pruned model, which needs four bytes of memory for each."""

TABLE, OUTPUT, WORDS, ENDS, PRUNED, COUNTS = (
    f"fasttext.{name}" for name in ("table", "output", "words", "ends", "pruned", "counts")
)
"""The names of the classifier's tensors in a model file."""

_OF_LOSS = {"softmax": SOFTMAX, "one-vs-all": STEPS, "negative sampling": STEPS, "hierarchical softmax": GIVEN}

_BATCH_BYTES = 1 << 17  # of texts
_BATCH_VALUES = 1 << 22  # of the table
_BLANKS = bytes(0x20 if byte in WHITE_SPACE else byte for byte in range(256))
_BETWEEN = b" " + END + b" "
FIRST_HASH, _PRIME, _OF_WORDS = np.uint32(2166136261), np.uint32(16777619), np.uint64(116049371)
_BYTES_AT_ONCE = 32
"""How many bytes of a token or a character NumPy hashes, for all at once; Python hashes the rest of the longer ones."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a classifier that decide what it reads, and how it computes scores.

    Attributes
    ----------
    words : int
        The number of words of the longest n-gram of words; 1 for no n-grams.
    characters : tuple of int
        The number of characters of the shortest and of the longest subword; the longest is 0 for no subwords.
    buckets : int
        The number of buckets to which subwords and n-grams of words are hashed; 0 for no buckets.
    loss : str
        The loss that the model was trained with, which decides how scores are computed.

    """

    words: Annotated[int, Meta(ge=1, le=MOST_ORDER)]
    characters: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0, le=MOST_SUBWORD)]]
    buckets: Annotated[int, Meta(ge=0, lt=1 << 31)]
    loss: Literal["softmax", "one-vs-all", "negative sampling", "hierarchical softmax"]

    @property
    def reads(self) -> int:
        """How many characters of a text the model reads: all."""
        return WHOLE

    @property
    def hashes(self) -> bool:
        """Whether the model has n-grams or subwords to hash to buckets."""
        return self.words > 1 or self.characters[1] > 0


class Table(NamedTuple):
    """The rows of a table, as integers.

    values: int32 or int16 [rows, columns]; or the fp32 values themselves if the table is mapped from a file. scale:
    fp32 [columns], the value of one step.
    """

    values: NDArray[Any]
    scale: Floats


class Paths(NamedTuple):
    """The path to each class in the tree of hierarchical softmax.

    steps: int32 [S], the paths one after another: for each node of a path, twice the number of the node, plus 1 if the
    path goes right there. ends: int32 [classes], where the path of each class ends in `steps`.
    """

    steps: NDArray[np.int32]
    ends: NDArray[np.int32]


@dataclass(frozen=True)
class FastText:
    """A fastText classifier, which replaces the network of a model; immutable.

    Attributes
    ----------
    kinds : Settings
        The settings that decide what the classifier reads.
    table : float32 [rows, columns]
        The rows of the words, then those of the buckets.
    output : float32 [classes, columns], optional
        The matrix of the product, which has one row less with hierarchical softmax; None if the matrix is folded into
        the table.
    words, ends : uint8 [bytes], int64 [entries]
        The dictionary: the bytes of all words and then of all labels, and where each entry ends.
    pruned : int32 [P, 2], optional
        For a pruned model: the buckets that have a row, and the number of that row, counted after the words' rows.
    counts : int64 [classes]
        How often each label occurred in the training data, which decides the tree of hierarchical softmax.

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
        """Return the classifier of a model file, and remove its tensors from `tensors`.

        Raises ModelError if one is missing.
        """
        refuse_missing((TABLE, WORDS, ENDS, COUNTS), tensors, model)
        return cls(kinds, *(tensors.pop(name, None) for name in (TABLE, OUTPUT, WORDS, ENDS, PRUNED, COUNTS)))  # type: ignore[arg-type]

    def check(self, classes: int, length: int, several: bool, model: str) -> None:
        """Raise ModelError unless the classifier is valid, and fits a model with this number of classes and characters.

        several: whether the model gives several labels to a text.
        """
        # Check the settings of the model.
        if length != WHOLE or several != (self.kinds.loss == "one-vs-all"):
            raise ModelError(f"{model}: a model of fastText's reads whole texts, and has thresholds with one-vs-all")
        if not 2 <= classes <= MOST_CLASSES:
            raise ModelError(f"{model}: {classes:,} classes: a model of fastText's has 2 to {MOST_CLASSES:,} here")
        # Check each tensor's dtype, shape and values.
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
        # Check the dictionary, and that each word and bucket has a row.
        ends, buckets = self.ends, self.kinds.buckets if self.kinds.hashes else 0
        if len(ends) < classes or (np.diff(ends, prepend=0) < 0).any() or (len(ends) and ends[-1] != len(self.words)):
            raise ModelError(f"{model}: its dictionary is damaged")
        if not columns or (self.link == GIVEN and self.counts.min() < 1):
            raise ModelError(f"{model}: a table without columns, or a label that the training data did not have")
        if self.kinds.hashes and not buckets:
            raise ModelError(f"{model}: n-grams, and no buckets for them")
        if self.pruned is not None:
            lowest, highest = self.pruned.min(axis=0, initial=0), self.pruned.max(axis=0, initial=-1)
            if buckets > MOST_BUCKETS or (lowest < 0).any() or highest[0] >= max(buckets, 1):
                raise ModelError(f"{model}: its index of {buckets:,} buckets is damaged, or above {MOST_BUCKETS:,}")
            buckets = int(highest[1]) + 1
        if len(self.table) < self.known + buckets:
            raise ModelError(f"{model}: {len(self.table):,} rows for {self.known:,} words and {buckets:,} buckets")

    @property
    def link(self) -> int:
        """The number of the function from logits to scores, as in `scores`. In a tree, `tree` computes the scores."""
        return _OF_LOSS[self.kinds.loss]

    @property
    def known(self) -> int:
        """The number of words in the dictionary. Their rows are the first ones of the table."""
        return len(self.ends) - len(self.counts)

    @property
    def about(self) -> Any:
        """All that decides the scores beside the tensors, as JSON values."""
        return to_builtins(self.kinds)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the tensors by their names in a model file."""
        every = {TABLE: self.table, OUTPUT: self.output, WORDS: self.words, ENDS: self.ends, PRUNED: self.pruned}
        return {name: tensor for name, tensor in {**every, COUNTS: self.counts}.items() if tensor is not None}

    def numbers(self) -> dict[bytes, int]:
        """Return the dictionary: the number of each entry."""
        words = self.words.tobytes()
        return {words[first:last]: number for number, (first, last) in enumerate(pairwise([0, *self.ends.tolist()]))}

    def rows_of_buckets(self) -> NDArray[np.int32] | None:
        """Return the row of each bucket of a pruned model, int32 [buckets]; None for other models.

        Rows are counted after those of the words. -1 is a bucket without a row.
        """
        if self.pruned is None:
            return None
        rows = np.full(max(self.kinds.buckets, 1), -1, np.int32)
        rows[self.pruned[:, 0]] = self.pruned[:, 1]
        return rows

    def scale(self, bits: int) -> Floats:
        """Return the value of one step of each column's integers, fp32 [columns]. bits: their width, 16 or 32."""
        largest = np.full(self.table.shape[1], 1e-30, np.float32)
        for part in _parts(self.table):
            np.maximum(largest, np.abs(part).max(axis=0), out=largest)
        return np.asarray((largest.astype(np.float64) / (2 ** (bits - 1) - 1)).astype(np.float32))

    def fixed(self, bits: int) -> Table:
        """Return the table as integers of 16 or 32 bits."""
        scale, values = self.scale(bits), np.empty(self.table.shape, np.int16 if bits == 16 else np.int32)
        for part, out in zip(_parts(self.table), _parts(values), strict=True):
            out[:] = in_steps(part, scale, bits)
        return Table(values, scale)

    @cached_property
    def paths(self) -> Paths | None:
        """The paths of the tree of hierarchical softmax, None for other models.

        It is the Huffman tree of the labels' counts, which are in descending order.
        """
        if self.link != GIVEN:
            return None
        # Build the tree: join the two rarest nodes, labels or inner ones, until one is left.
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
        # Walk from each label up to the root.
        steps: list[int] = []
        ends = []
        for at in range(leaves):
            while parent[at] >= 0:
                steps.append(2 * (parent[at] - leaves) + is_right[at])
                at = parent[at]
            ends.append(len(steps))
        return Paths(np.array(steps, np.int32), np.array(ends, np.int32))

    def tree(self, nodes: Floats) -> Floats:
        """Return the scores, fp32 [N, classes], from the product's outputs for the nodes of the tree, [N, nodes]."""
        assert self.paths is not None
        with np.errstate(over="ignore"):
            right = np.float32(1) / (np.exp(-nodes) + np.float32(1))
        both = np.stack([np.float32(1) - right, right], axis=2).reshape(len(nodes), -1)
        steps, firsts = self.paths.steps, np.concatenate([[0], self.paths.ends[:-1]])
        return np.asarray(np.multiply.reduceat(both[:, steps], firsts, axis=1))


def _parts(table: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Split a table into batches of rows, which are views."""
    step = max(1, _BATCH_VALUES // table.shape[1])
    return (table[first : first + step] for first in range(0, len(table), step))


def in_steps(rows: Floats, scale: Floats, bits: int) -> NDArray[np.float64]:
    """Return rows of a table as multiples of `scale`, rounded to integers that fit into `bits`."""
    steps: NDArray[np.float64] = rows / scale.astype(np.float64)
    np.rint(steps, out=steps)
    return np.clip(steps, 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1, out=steps)


class Words(NamedTuple):
    """The T tokens of N texts, without labels.

    Attributes
    ----------
    tokens : list of bytes
        The tokens.
    numbers : int32 [T]
        The tokens' numbers in the dictionary; -1 if it lacks the token, -2 for "</s>" if it lacks that.
    texts : int64 [T]
        The number of each token's text, ascending.

    """

    tokens: list[bytes]
    numbers: NDArray[np.int32]
    texts: Offsets


class Reader:
    """A classifier in the form in which it reads texts: its dictionary as a dict, its table in integers.

    A table that is mapped from a file stays there, and its rows become integers when they are read. bits: the width of
    the integers, 16 or 32.
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
        """Return the mean row of each of N texts, fp32 [N, columns].

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
        """Yield the rows of N texts, in several parts: the numbers of rows, and of the text of each row, ascending."""
        # Yield the rows of words.
        words = self._words(data, offsets)
        is_known = words.numbers >= 0
        yield words.numbers[is_known].astype(np.int64), words.texts[is_known]
        if not self._kinds.hashes or not words.tokens:
            return
        # Yield the rows of the buckets of n-grams and subwords.
        text = np.frombuffer(b"<" + b"><".join(words.tokens) + b">", np.uint8)
        sizes = np.fromiter(map(len, words.tokens), np.int64, len(words.tokens))
        begins = np.cumsum(sizes + 2) - sizes - 1
        if self._kinds.words > 1:
            yield from self._of_words(hashed(np.full(len(sizes), FIRST_HASH), text, begins, sizes), words.texts)
        if self._kinds.characters[1]:
            yield from self._of_subwords(text, begins, words)

    def _words(self, data: NDArray[np.uint8], offsets: Offsets) -> Words:
        """Cut N texts into tokens, and leave out labels and what follows a "</s>" within a text."""
        # Join the texts with "</s>", and split all of them at once.
        raw, bounds = data[offsets[0] : offsets[-1]].tobytes(), (offsets - offsets[0]).tolist()
        joined = _BETWEEN.join([raw[first:last] for first, last in pairwise(bounds)]) + _BETWEEN
        line = joined.translate(_BLANKS)
        tokens = line.split()
        numbers = np.fromiter(map(self._numbers.get, tokens, repeat(-1)), np.int32, len(tokens))
        is_end = numbers == self._end
        # Leave out the labels of the dictionary, and tokens that it lacks and that begin as labels do.
        is_read = numbers < self._known
        if LABEL in line:
            looks_like_label = np.fromiter((token.startswith(LABEL) for token in tokens), np.bool_, len(tokens))
            is_read &= ~looks_like_label | (numbers >= 0)
        # Find the text of each token.
        if np.count_nonzero(is_end) == len(bounds) - 1:
            texts = np.cumsum(is_end) - is_end
        else:  # a text contains "</s>" itself, and is read up to there
            blank = np.frombuffer(b" " + line, np.uint8) == ord(" ")
            begins = np.flatnonzero(blank[:-1] & ~blank[1:])
            starts = offsets[:-1] - offsets[0] + len(_BETWEEN) * np.arange(len(bounds) - 1)
            texts = np.searchsorted(starts, begins, side="right") - 1
            before = np.cumsum(is_end) - is_end
            is_read &= before == before[np.searchsorted(begins, starts)][texts]
        if is_read.all():
            return Words(tokens, numbers, texts)
        return Words(list(compress(tokens, is_read)), numbers[is_read], texts[is_read])

    def _of_words(self, hashes: Hashes, texts: Offsets) -> Iterator[tuple[NDArray[np.int64], Offsets]]:
        """Yield the rows of n-grams of words, as `rows` does. hashes, texts: the hash and text of each of T tokens."""
        signed = hashes.view(np.int32).astype(np.int64).view(np.uint64)
        state = signed
        for more in range(1, self._kinds.words):
            state = state[: max(len(signed) - more, 0)] * _OF_WORDS + signed[more:]
            whole = texts[: len(state)] == texts[more:]
            yield self._in_buckets(state[whole] % np.uint64(self._kinds.buckets), texts[: len(state)][whole])

    def _of_subwords(
        self, text: NDArray[np.uint8], begins: Offsets, words: Words
    ) -> Iterator[tuple[NDArray[np.int64], Offsets]]:
        """Yield the rows of subwords, as `rows` does.

        text: all tokens, each between < and >. begins: where each token begins in `text`, after its <.
        """
        # Find the characters of each token. Subwords begin at all of them except the final >, and none are in "</s>".
        lowest, highest = self._kinds.characters
        starts = np.flatnonzero((text & 0xC0) != 0x80)
        sizes = np.diff(starts, append=len(text))
        firsts = np.searchsorted(starts, begins - 1)
        counts = np.diff(firsts, append=len(starts))
        of_token = np.repeat(np.arange(len(firsts)), counts)
        last = (firsts + counts - 1)[of_token]
        at = np.flatnonzero((np.arange(len(starts)) < last) & (words.numbers != self._end)[of_token])
        # Extend the hashes of all subwords by one character at a time.
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
        """Return the rows of buckets, without buckets that a pruned model lacks, and the text of each row."""
        if self._rows is None:
            return buckets.astype(np.int64) + self._known, texts
        rows = self._rows[buckets]
        there = rows >= 0
        return rows[there].astype(np.int64) + self._known, texts[there]

    def _add(
        self, rows: NDArray[np.int64], texts: Offsets, sums: NDArray[np.int64], rows_added: NDArray[np.int64]
    ) -> None:
        """Add rows to the sums of their texts, int64 [N, columns], and to the numbers of rows that were added, [N]."""
        rows_added += np.bincount(texts, minlength=len(sums))
        rows_at_once = _BATCH_VALUES // sums.shape[1]
        for first in range(0, len(rows), rows_at_once):
            part, of_text = self.table.values[rows[first : first + rows_at_once]], texts[first : first + rows_at_once]
            if part.dtype == np.float32:  # the table is mapped
                part = in_steps(part, self.table.scale, self._bits).astype(np.int64)
            places = np.flatnonzero(np.diff(of_text, prepend=-1))
            sums[of_text[places]] += np.add.reduceat(part, places, axis=0, dtype=np.int64)


def hashed(hashes: Hashes, text: NDArray[np.uint8], begins: Offsets, sizes: Offsets) -> Hashes:
    """Return N hashes after `sizes` more bytes of text from `begins` on: FNV-1a, except that bytes are signed."""
    # Hash the first bytes of all at once, then the rest of each long one by itself.
    hashes = hashes.copy()
    which = np.flatnonzero(sizes)
    for place in range(_BYTES_AT_ONCE):
        signed = text[begins[which] + place].view(np.int8).astype(np.int32).view(np.uint32)
        hashes[which] = (hashes[which] ^ signed) * _PRIME
        if sizes.max(initial=0) <= place + 1:
            return hashes
        which = np.flatnonzero(sizes > place + 1)
    for number in which.tolist():
        state = int(hashes[number])
        for byte in text[begins[number] + _BYTES_AT_ONCE : begins[number] + sizes[number]].tolist():
            state = (state ^ (byte | 0xFFFFFF00 if byte & 0x80 else byte)) * 16777619 & 0xFFFFFFFF
        hashes[number] = state
    return hashes
