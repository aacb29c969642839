"""The branch of n-grams beside the network, in NumPy: the specification of its kernel, and its CPU backend.

A text has n-grams of two kinds: of words and of characters. Each n-gram is hashed to a bucket. A bucket has a row in a
table of integers: a weight for each class, and the square of the bucket's importance (in a TF-IDF model, of the inverse
document frequency). A bucket into which t n-grams of one kind fall, whatever their n, counts b times, where b is the
number of binary digits of t: 1, 2, 2, 3, 3, 3, 3, 4, ... Summed over the buckets of one kind, the logit of class c is

    scale[c] * sum of b * weight for c / sqrt(sum of b² * square)

or 0 where the sum of squares is 0. The logits of both kinds are added to those of the network. `NGrams.of_weights`
makes the table of a linear model on TF-IDF features, in which each kind has an L2 norm of its own. b replaces the usual
1 + log(t), with which words that occur often would outweigh all others in long texts. To need no second pass, a kernel
may add the weights at the 1st, 2nd, 4th, 8th, ... n-gram of a bucket, and the square 1, 3, 5, 7, ... times.

Sums are exact in 32 bits, so their order does not matter. The remaining operations are a product, a root, a quotient
and a sum in fp32, each rounded by IEEE 754, so every backend gives the same bits.

Text is read as characters, as `alphabet.encode` reads it. Each character becomes one symbol of 16 bits:

- 0x20 for white space and control characters
- 0xD800 | the lower 11 bits of the code point, for a character beyond the first plane
- 0xD800 | the byte, for a byte that is not UTF-8
- else the code point, after a simple lower-casing

A word is a run of symbols that are letters, digits or underscores. An n-gram of characters is n neighbouring symbols,
of which only the first and the last may be white space. Each text counts as if white space came before and after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from msgspec import Meta, Struct, to_builtins
from numpy.typing import NDArray

from ..errors import ModelError, UsageError
from .alphabet import Alphabet, characters, head_bytes, texts_of_ids
from .layers import WHOLE, check_tensor, refuse_missing

Floats = NDArray[np.float32]
Hashes = NDArray[np.uint32]
Offsets = NDArray[np.int64]
_Hashed = tuple[Hashes, Offsets]

TABLE, SCALE = "ngrams.table", "ngrams.scale"
"""The names of the branch's tensors in a model file."""

MOST_READ = 16_384
"""The largest number of characters to read. With it, and FEW_ORDERS orders, a sum of 16-bit rows fits into 32 bits."""

FEW_ORDERS = 4
"""The largest number of different n of one model's n-grams of characters."""

LARGEST_ORDER = 8
"""The largest n of n-grams of characters."""

BITS = (8, 22)
"""The limits of `NGrams.bits`."""

MOST_TABLE_BYTES = 256 << 20
LARGEST_WEIGHT = 32_767
LARGEST_SQUARE = 14_563
"""The largest square in a table: four ninths of LARGEST_WEIGHT, since b² is at most nine quarters of t."""

_LARGEST_SCALE = 1e20
"""The largest scale with which no score overflows."""

_LEAST = 1e-30
"""The value that replaces the largest weight if all weights are zero, to avoid a division by zero."""

SPACE = 0x20
BEYOND = 0xD800
"""The first of the symbols, up to 0xDFFF, that are no code point themselves: UTF-8 cannot encode these code points."""

_BATCH_BYTES, _BATCH_VALUES = 1 << 17, 1 << 24
_TILE, _TILES_BYTES = 32, 1 << 21  # rows that are added at once; bytes of the tiles that fit into a cache together

# Ranges of capitals: the first symbol, the last one, and the distance to the lower-case letter.
_CAPITALS = (
    (0x41, 0x5A, 32), (0xC0, 0xD6, 32), (0xD8, 0xDE, 32), (0x391, 0x3A9, 32), (0x400, 0x40F, 80), (0x410, 0x42F, 32),
)  # fmt: skip
_SPACES = ((0, 0x20), (0x7F, 0xA0), (0x2000, 0x200F), (0x2028, 0x202F), (0x3000, 0x3000), (0xFEFF, 0xFEFF))
_LETTERS = (
    (0x30, 0x39), (0x5F, 0x5F), (0x61, 0x7A), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x1FFF), (0x2C00, 0x2DFF),
    (0x3040, 0xD7FF), (0xF900, 0xFDFF), (0xFE70, 0xFEFE), (0xFF10, 0xFF19), (0xFF21, 0xFFDC),
)  # fmt: skip


class Script(NamedTuple):
    """The tables by which a kernel reads characters.

    symbols: uint16 [65536], the symbol of each code point of the first plane. letters: uint32 [2048], a bit for each
    symbol, which is set if words may contain the symbol.
    """

    symbols: NDArray[np.uint16]
    letters: NDArray[np.uint32]


def script() -> Script:
    """Return the tables by which a kernel reads characters."""
    return Script(_SYMBOLS, np.packbits(_IS_LETTER, bitorder="little").view("<u4"))


def _tables() -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """Return the symbol of each code point of the first plane, and whether each symbol is part of words; [65536]."""
    symbols = np.arange(1 << 16, dtype=np.uint16)
    for first, last, distance in _CAPITALS:
        symbols[first : last + 1] += np.uint16(distance)
    for first, last in _SPACES:
        symbols[first : last + 1] = SPACE
    letters = np.zeros(1 << 16, np.bool_)
    for first, last in _LETTERS:
        letters[first : last + 1] = True
    return symbols, letters


_SYMBOLS, _IS_LETTER = _tables()

# The constants of the hash, which is computed in unsigned arithmetic of 32 bits: a prime near 2^32 divided by the
# golden ratio, and a first state for each kind of n-grams, which are words of SHA-256's initial state.
_MULTIPLIER = np.uint32(0x9E3779B1)
_OF_CHARACTERS, _OF_WORDS = np.uint32(0x3C6EF372), np.uint32(0xBB67AE85)


def _step(state: Hashes, symbol: Hashes | NDArray[np.uint16]) -> Hashes:
    """Return the hashes of n-grams that are extended by one symbol each, or by the hash of a word."""
    state = (state ^ symbol) * _MULTIPLIER
    state ^= state >> np.uint32(15)
    return state


def _buckets(hashes: Hashes, bits: int) -> NDArray[np.uint32]:
    """Return the upper `bits` of hashes after the final mix of MurmurHash3 (https://github.com/aappleby/smhasher)."""
    mixed = hashes ^ (hashes >> np.uint32(16))
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed >> np.uint32(32 - bits)


class Kinds(Struct, frozen=True, forbid_unknown_fields=True):
    """The kinds of n-grams that a model uses.

    Attributes
    ----------
    words : int
        The number of words of the longest n-gram of words: 0 for no such n-grams, 1, or 2.
    characters : tuple of int
        The number of characters of the shortest and of the longest n-gram of characters; (0, 0) for no such n-grams.
    reads : int
        How many characters at the beginning of a text are read.
    hash : str
        The name of the method by which this module turns bytes into buckets.

    """

    words: Annotated[int, Meta(ge=0, le=2)]
    characters: tuple[int, int]
    reads: Annotated[int, Meta(ge=1, le=MOST_READ)]
    hash: Literal["16-bit symbols/1"] = "16-bit symbols/1"

    def check(self, model: str) -> None:
        """Raise ModelError for lengths of n-grams that no kernel computes."""
        low, high = self.characters
        some = 1 <= low <= high <= LARGEST_ORDER and high - low < FEW_ORDERS
        if not (some or (low, high) == (0, 0)) or not (self.words or high):
            raise ModelError(f"{model}: n-grams of {self.words} words and of {low} to {high} characters are not known")


class Grams(NamedTuple):
    """The n-grams of N texts, of one kind and one n.

    buckets: uint32 [G], the bucket of each n-gram. offsets: int64 [N + 1], where each text's n-grams begin.
    """

    buckets: NDArray[np.uint32]
    offsets: Offsets


class FoundGrams(NamedTuple):
    """The n-grams of N texts of both kinds, with one `Grams` for each n."""

    words: list[Grams]
    characters: list[Grams]


class CountedBuckets(NamedTuple):
    """The distinct buckets of each of N texts, B in all.

    Attributes
    ----------
    buckets : uint32 [B]
        The numbers of the buckets, in ascending order within each text.
    times : int32 [B]
        How often each bucket counts: b in this module's docstring.
    offsets : int64 [N + 1]
        Where the buckets of each text begin, and where those of the last text end.

    """

    buckets: NDArray[np.uint32]
    times: NDArray[np.int32]
    offsets: Offsets


@dataclass(frozen=True)
class NGrams:
    """The branch of n-grams of a model; immutable.

    Attributes
    ----------
    kinds : Kinds
        The kinds of n-grams that the branch uses.
    table : int16 [buckets, classes + 1]
        For each bucket, the weights of the classes, then the square of the bucket's importance. The number of buckets
        is a power of two, from 2^8 to 2^22.
    scale : float32 [2, classes]
        The value of one step of a weight: for words, then for characters.

    Examples
    --------
    >>> table = np.zeros((256, 5), np.int16)
    >>> branch = NGrams(Kinds(words=2, characters=(3, 5), reads=1014), table, np.ones((2, 4), np.float32))
    >>> branch.bits
    8

    """

    kinds: Kinds
    table: NDArray[np.int16] = field(repr=False)
    scale: Floats = field(repr=False)
    feature: ClassVar = "ngrams"

    @classmethod
    def of_file(cls, kinds: Kinds, tensors: dict[str, NDArray[Any]], model: str) -> NGrams:
        """Return the branch of a model file, and remove its tensors from `tensors`.

        Raises ModelError if one is missing.
        """
        refuse_missing((TABLE, SCALE), tensors, model)
        return cls(kinds, tensors.pop(TABLE), tensors.pop(SCALE))

    def check(self, classes: int, length: int, several: bool, model: str) -> None:
        """Raise ModelError unless the branch fits a model with this number of classes and characters.

        several: whether the model gives several labels to a text.
        """
        if length == WHOLE:
            raise ModelError(f"{model}: n-grams beside a network read the beginning of a text, not all of it")
        self.kinds.check(model)
        check_tensor(f"{model}: tensor {TABLE}", self.table, "int16", (1 << self.bits, classes + 1))
        check_tensor(f"{model}: tensor {SCALE}", self.scale, "float32", (2, classes))
        if not BITS[0] <= self.bits <= BITS[1] or self.table.nbytes > MOST_TABLE_BYTES:
            allowed = f"2^{BITS[0]} to 2^{BITS[1]} rows and at most {MOST_TABLE_BYTES:,} bytes"
            there = f"{len(self.table):,} rows, {self.table.nbytes:,} bytes"
            raise ModelError(f"{model}: tensor {TABLE} has {there}: not {allowed}")
        if self.table[:, -1].min() < 0 or self.table[:, -1].max() > LARGEST_SQUARE:
            raise ModelError(f"{model}: tensor {TABLE} holds a square that is not from 0 to {LARGEST_SQUARE:,}")
        if not (np.abs(self.scale) <= _LARGEST_SCALE).all():
            raise ModelError(f"{model}: tensor {SCALE} holds a value that is not finite, or beyond {_LARGEST_SCALE:g}")

    @classmethod
    def of_weights(cls, kinds: Kinds, weights: NDArray[np.floating], importance: NDArray[np.floating]) -> NGrams:
        """Return the branch of a linear model, with its weights rounded to 16 bits.

        Parameters
        ----------
        kinds : Kinds
            The kinds of n-grams that the model uses.
        weights : float [buckets, classes]
            The model's coefficients.
        importance : float [buckets]
            For each bucket, the inverse document frequency, or 0 if the model leaves the bucket out.

        Returns
        -------
        NGrams
            A branch whose scores are, except for the rounding, the coefficients times the features. The feature of a
            bucket is, for each kind, importance * b / sqrt(sum over buckets of importance² * b²).

        """
        exact, squares = weights * importance[:, None], np.square(importance)
        step = np.maximum(np.abs(exact).max(axis=0), _LEAST) / LARGEST_WEIGHT
        step_of_squares = max(float(squares.max()), _LEAST) / LARGEST_SQUARE
        table = np.rint(np.column_stack([exact / step, squares / step_of_squares])).astype(np.int16)
        table[(importance != 0) & (table[:, -1] == 0), -1] = 1
        return cls(kinds, table, np.tile((step / np.sqrt(step_of_squares)).astype(np.float32), (2, 1)))

    def of_classes(self, part: slice) -> NGrams:
        """Return a branch for some of the classes, which computes the same bits for them as this branch."""
        table = np.column_stack([self.table[:, part], self.table[:, -1]])
        return NGrams(self.kinds, table, np.ascontiguousarray(self.scale[:, part]))

    @property
    def bits(self) -> int:
        """The binary logarithm of the number of buckets."""
        return max(len(self.table) - 1, 0).bit_length()

    @property
    def about(self) -> Any:
        """All that decides the branch's scores beside the tensors, as JSON values."""
        return to_builtins(self.kinds)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the tensors by their names in a model file."""
        return {TABLE: self.table, SCALE: self.scale}


def of_network(branch: object, model: str, what: str) -> NGrams | None:
    """Return a branch of n-grams, or None, unchanged. Raises UsageError for a fastText table.

    what: the part of the message that says what a model of fastText cannot do.
    """
    if branch is None or isinstance(branch, NGrams):
        return branch
    raise UsageError(f"{model} is a model of fastText's, without a network: {what}")


def scores(data: NDArray[np.uint8], offsets: Offsets, ngrams: NGrams) -> Floats:
    """Return what the branch adds to the logits of N texts, fp32 [N, classes].

    data: uint8 [bytes], UTF-8. offsets: int64 [N + 1], ascending; text i is data[offsets[i]:offsets[i + 1]].
    """
    out = np.zeros((len(offsets) - 1, ngrams.table.shape[1] - 1), np.float32)
    for texts, part, bounds in _parts(data, offsets, ngrams):
        grams_of_kinds = find(part, bounds, ngrams.kinds, ngrams.bits)
        for grams, scale in zip(grams_of_kinds, ngrams.scale, strict=True):
            out[texts] += _weighted(_sums(grams, ngrams.table, len(bounds) - 1), scale)
    return out


def count_rows(data: NDArray[np.uint8], offsets: Offsets, ngrams: NGrams) -> int:
    """Return how many rows of the table the branch adds for N texts."""
    total = 0
    for _, part, bounds in _parts(data, offsets, ngrams):
        for kind in find(part, bounds, ngrams.kinds, ngrams.bits):
            total += int(counted(kind, len(bounds) - 1, ngrams.bits).times.sum()) if kind else 0
    return total


def scores_of_ids(ids: NDArray[np.uint8], alphabet: Alphabet, ngrams: NGrams) -> Floats:
    """Return `scores` of the texts that `alphabet.texts_of_ids` makes of ids, uint8 [N, length]."""
    return scores(*texts_of_ids(ids, alphabet), ngrams)


def find(data: NDArray[np.uint8], offsets: Offsets, kinds: Kinds, bits: int) -> FoundGrams:
    """Find the n-grams of N texts, in the characters that `kinds` reads. Takes about a hundred times the text's memory.

    data, offsets: as for `scores`, but offsets[0] is 0 and offsets[-1] is len(data). The caller may cut each text to
    its first bytes to save memory.
    """
    points, bounds = characters(data, offsets, kinds.reads)
    count = len(bounds) - 1
    # Put white space before each text and after the last one, so that each n-gram lies within the places of its text.
    symbols = np.full(len(points) + count + 1, SPACE, np.uint16)
    symbols[np.arange(len(points)) + np.repeat(np.arange(count) + 1, np.diff(bounds))] = _symbols(points)
    begins = bounds + np.arange(count + 1)
    words = _of_words(symbols, begins, kinds.words) if kinds.words else []
    letters = _of_characters(symbols, begins, *kinds.characters) if kinds.characters[0] else []
    return FoundGrams(*([Grams(_buckets(h, bits), at) for h, at in kind] for kind in (words, letters)))


def _symbols(points: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Return the symbols of code points, or of bytes that are not UTF-8, as `alphabet.characters` gives them."""
    low = points < 1 << 16
    folded = np.where(low, points, BEYOND | (points & 0x7FF))
    return np.asarray(np.where(low, _SYMBOLS[folded], folded), np.uint16)


def _of_characters(symbols: NDArray[np.uint16], begins: Offsets, lowest: int, highest: int) -> list[_Hashed]:
    """Return hashes and offsets, int64 [N + 1], of the n-grams of characters of each n from `lowest` to `highest`.

    symbols: of all texts, with white space around each. begins: the place before each text's first character, [N + 1].
    """
    space = symbols == SPACE
    hashes = np.full(len(symbols), _OF_CHARACTERS)
    whole = np.ones(len(symbols), np.bool_)
    hashed = []
    for n in range(1, highest + 1):
        places = max(len(symbols) - n + 1, 0)
        hashes = _step(hashes[:places], symbols[n - 1 :])
        whole = whole[:places]
        if n > 2:
            whole &= ~space[n - 2 : n - 2 + places]
        if n >= lowest:
            at = np.flatnonzero(whole & ~(space[:places] & space[n - 1 :]) if n < 3 else whole)
            hashed.append((hashes[at], np.searchsorted(at, begins)))
    return hashed


def _of_words(symbols: NDArray[np.uint16], begins: Offsets, highest: int) -> list[_Hashed]:
    """Return hashes and offsets, int64 [N + 1], of words and, if `highest` is 2, of pairs of words.

    symbols, begins: as for `_of_characters`.
    """
    # Hash all words at once, one place at a time.
    letter = _IS_LETTER[symbols]
    first = np.flatnonzero(letter[1:] & ~letter[:-1]) + 1
    size = np.flatnonzero(letter[:-1] & ~letter[1:]) + 1 - first
    hashes = np.full(len(first), _OF_WORDS)
    longer, place = np.arange(len(first)), 0
    while len(longer):
        hashes[longer] = _step(hashes[longer], symbols[first[longer] + place])
        place += 1
        longer = longer[size[longer] > place]
    of_text = np.searchsorted(first, begins)
    if highest == 1:
        return [(hashes, of_text)]
    # Pair each word with the next one of the same text.
    within = np.ones(max(len(hashes) - 1, 0), np.bool_)
    last = of_text[1:] - 1
    within[last[(last >= 0) & (last < len(within))]] = False
    at = np.flatnonzero(within)
    pairs = _step(hashes[at] * _MULTIPLIER, hashes[at + 1])
    return [(hashes, of_text), (pairs, np.searchsorted(at, of_text))]


def counted(grams_of_kind: list[Grams], count: int, bits: int) -> CountedBuckets:
    """Return the buckets of each of N texts over all n of one kind, and how often each bucket counts."""
    # Prefer 32 bits, which are sorted in half the time.
    kind: type[np.unsignedinteger] = np.uint32 if count <= 1 << (32 - bits) else np.uint64
    keys = [
        (np.repeat(np.arange(count, dtype=kind), np.diff(grams.offsets)) << kind(bits)) | grams.buckets.astype(kind)
        for grams in grams_of_kind
    ]
    unique, often = np.unique(np.concatenate(keys), return_counts=True)
    offsets = np.searchsorted(unique, np.arange(count + 1) << bits)
    return CountedBuckets((unique & kind((1 << bits) - 1)).astype(np.uint32), np.frexp(often)[1], offsets)


def _sums(grams_of_kind: list[Grams], table: NDArray[np.int16], count: int) -> NDArray[np.int32]:
    """Return the sums of the rows of each text, int32 [N, classes + 1]: of b * weight, and of b² * square.

    BLAS adds the weights of a tile of rows in float32. A text has at most 2^16 n-grams of a kind, so the rows of a tile
    count at most 12 times each on average, and sums below 2^24 are exact. The last tile of a text is filled up with
    rows that count 0 times. (Sums of integers took a third more time for four more classes.)
    """
    sums = np.zeros((count, table.shape[1]), np.int32)
    if not any(len(grams.buckets) for grams in grams_of_kind):
        return sums
    # Arrange the buckets of each text in tiles.
    buckets, times, offsets = counted(grams_of_kind, count, (len(table) - 1).bit_length())
    tiles_of = -(-(rows_of := np.diff(offsets)) // _TILE)
    begins = np.cumsum(tiles_of) - tiles_of
    places = np.arange(len(buckets)) + np.repeat(_TILE * begins - offsets[:-1], rows_of)
    rows_of_tiles, often = np.zeros((2, tiles_of.sum(), _TILE), np.int32)
    rows_of_tiles.reshape(-1)[places], often.reshape(-1)[places] = buckets, times
    # Add the rows of each tile, then the tiles of each text.
    of_tiles = np.empty((len(rows_of_tiles), table.shape[1]), np.int32)
    tiles_at_once = max(1, _TILES_BYTES // (4 * _TILE * table.shape[1]))
    for first in range(0, len(rows_of_tiles), tiles_at_once):
        tiles = slice(first, first + tiles_at_once)
        rows, counts = table.take(rows_of_tiles[tiles], axis=0), often[tiles]
        of_tiles[tiles] = (counts[:, None].astype(np.float32) @ rows.astype(np.float32))[:, 0]
        of_tiles[tiles, -1] = (counts * counts * rows[:, :, -1]).sum(axis=1)
    sums[rows_of > 0] = np.add.reduceat(of_tiles, begins[rows_of > 0], axis=0)
    return sums


def _weighted(sums: NDArray[np.int32], scale: Floats) -> Floats:
    """Return what one kind adds to the logits, from its sums. scale: fp32 [classes].

    Each operation is a product, a root or a quotient: there is no sum that a compiler could contract with a product.
    """
    squares = sums[:, -1:]
    values = sums[:, :-1].astype(np.float32) * scale
    norms = np.sqrt(np.maximum(squares, 1).astype(np.float32))
    return np.where(squares > 0, values / norms, np.float32(0))


def _parts(
    data: NDArray[np.uint8], offsets: Offsets, ngrams: NGrams
) -> Iterator[tuple[slice, NDArray[np.uint8], Offsets]]:
    """Split N texts into batches of bounded bytes, each with at least one text, and cut off what is not read.

    Yields the slice of each batch, and its data and offsets as for `find`.
    """
    batch_bytes = min(_BATCH_BYTES, _BATCH_VALUES // ngrams.table.shape[1])
    sizes = np.minimum(np.diff(offsets), head_bytes(ngrams.kinds.reads))
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = int(ends[first] - sizes[first])
        last = max(first + 1, int(np.searchsorted(ends, before + batch_bytes, side="right")))
        bounds = np.concatenate([[0], ends[first:last] - before])
        part = data[offsets[first] : offsets[last]]
        if len(part) > bounds[-1]:
            texts = zip(offsets[first:last], sizes[first:last], strict=True)
            part = np.concatenate([data[at : at + size] for at, size in texts])
        yield slice(first, last), part, bounds
        first = last
