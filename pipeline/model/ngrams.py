"""The wide branch beside the network, in NumPy: the specification of its kernel, and the CPU backend of it.

A text has n-grams of words and n-grams of characters. Each is hashed to a bucket, and a bucket has a row in a table of
integers: a weight for each class, and the square of its own importance (in a TF-IDF model, of the inverse document
frequency). A bucket that t n-grams of one kind fall into, of whatever n, counts b times, where b is the number of
binary digits of t: 1, 2, 2, 3, 3, 3, 3, 4, ... Over the buckets of one kind, that kind gives class c

    scale[c] * sum of b * weight for c / sqrt(sum of b² * square)

or 0 where the sum of squares is 0. Both kinds are added to the network's logits. `NGrams.of_weights` makes the table of
a linear model on TF-IDF, each kind with an L2 norm of its own. b takes the place of 1 + log(t), which is usual there:
in long texts, words that occur often would outweigh all others. So that it needs no second pass, a kernel may add the
weights at the 1st, 2nd, 4th, 8th, ... n-gram of a bucket, and the square 1, 3, 5, 7, ... times.

Sums are exact in 32 bits, so their order does not matter. The rest is a product, a root, a quotient and a sum of fp32,
each rounded by IEEE 754, so every backend gives the same bits.

Text is read as characters, as `alphabet.encode` reads it, each as one symbol of 16 bits: its code point after a simple
lower-casing; 0x20 for every white space and control character; 0xD800 with the lower 11 bits of the code point beyond
the first plane, and with the byte itself for a byte that is not UTF-8. A word is a run of symbols that are letters,
digits or underscores. An n-gram of characters is n neighbouring symbols with no white space but in the first or the
last place, where there is one before the text and after it too.
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
"""Its tensors in a model file."""

MOST_READ = 16_384
"""Characters. With so many, and FEW_ORDERS orders, a sum of 16-bit rows stays within 32 bits."""

FEW_ORDERS = 4
LARGEST_ORDER = 8
BITS = (8, 22)
MOST_TABLE_BYTES = 256 << 20
LARGEST_WEIGHT = 32_767
LARGEST_SQUARE = 14_563
"""Four ninths of LARGEST_WEIGHT, since b² is at most nine quarters of t."""

_LARGEST_SCALE = 1e20
"""The largest scale with which no score overflows."""

_LEAST = 1e-30
"""What stands in for the largest weight where all are zero."""

SPACE = 0x20
BEYOND = 0xD800
"""Symbols from here to 0xDFFF stand for no code point: UTF-8 has none of these."""

_BATCH_BYTES, _BATCH_VALUES = 1 << 17, 1 << 24
_TILE, _TILES_BYTES = 32, 1 << 21  # rows of a text's n-grams that are added at once; of tiles that fit into a cache

# First symbol, last symbol, and what is added to it.
_CAPITALS = (
    (0x41, 0x5A, 32), (0xC0, 0xD6, 32), (0xD8, 0xDE, 32), (0x391, 0x3A9, 32), (0x400, 0x40F, 80), (0x410, 0x42F, 32),
)  # fmt: skip
_SPACES = ((0, 0x20), (0x7F, 0xA0), (0x2000, 0x200F), (0x2028, 0x202F), (0x3000, 0x3000), (0xFEFF, 0xFEFF))
_LETTERS = (
    (0x30, 0x39), (0x5F, 0x5F), (0x61, 0x7A), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x1FFF), (0x2C00, 0x2DFF),
    (0x3040, 0xD7FF), (0xF900, 0xFDFF), (0xFE70, 0xFEFE), (0xFF10, 0xFF19), (0xFF21, 0xFFDC),
)  # fmt: skip


class Script(NamedTuple):
    """symbols: uint16 [65536], of code points. letters: uint32 [2048], a bit for each symbol that a word may hold."""

    symbols: NDArray[np.uint16]
    letters: NDArray[np.uint32]


def script() -> Script:
    """What characters are to a kernel."""
    return Script(_SYMBOLS, np.packbits(_IS_LETTER, bitorder="little").view("<u4"))


def _tables() -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
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

# The hash, in unsigned arithmetic of 32 bits.
_MULTIPLIER = np.uint32(0x9E3779B1)
_OF_CHARACTERS, _OF_WORDS = np.uint32(0x3C6EF372), np.uint32(0xBB67AE85)


def _step(state: Hashes, symbol: Hashes | NDArray[np.uint16]) -> Hashes:
    """A hash and one more symbol."""
    state = (state ^ symbol) * _MULTIPLIER
    state ^= state >> np.uint32(15)
    return state


def _buckets(hashes: Hashes, bits: int) -> NDArray[np.uint32]:
    """The upper `bits` of hashes that are mixed once more, as MurmurHash3 ends (https://github.com/aappleby/smhasher)."""
    mixed = hashes ^ (hashes >> np.uint32(16))
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed >> np.uint32(32 - bits)


class Kinds(Struct, frozen=True, forbid_unknown_fields=True):
    """Which n-grams there are.

    Attributes
    ----------
    words : int
        Words of the longest n-gram of words: 0 for none, 1, or 2.
    characters : tuple of int
        Characters of the shortest and of the longest n-gram of characters; (0, 0) for none.
    reads : int
        Characters at the beginning of a text in which they are looked for.
    hash : str
        The name of what this module does from bytes to buckets.

    """

    words: Annotated[int, Meta(ge=0, le=2)]
    characters: tuple[int, int]
    reads: Annotated[int, Meta(ge=1, le=MOST_READ)]
    hash: Literal["16-bit symbols/1"] = "16-bit symbols/1"

    def check(self, model: str) -> None:
        """Raise ModelError for orders that no kernel computes."""
        low, high = self.characters
        some = 1 <= low <= high <= LARGEST_ORDER and high - low < FEW_ORDERS
        if not (some or (low, high) == (0, 0)) or not (self.words or high):
            raise ModelError(f"{model}: n-grams of {self.words} words and of {low} to {high} characters are not known")


class Grams(NamedTuple):
    """The n-grams of N texts, of one kind and one n. buckets: uint32 [G]. offsets: int64 [N + 1], ascending."""

    buckets: NDArray[np.uint32]
    offsets: Offsets


class FoundGrams(NamedTuple):
    """The n-grams of N texts, one Grams for each n."""

    words: list[Grams]
    characters: list[Grams]


class CountedBuckets(NamedTuple):
    """The buckets of N texts, B in all.

    Attributes
    ----------
    buckets : uint32 [B]
        Their numbers, in ascending order within each text.
    times : int32 [B]
        The number `b` above: how much each counts.
    offsets : int64 [N + 1]
        Where the buckets of each text begin, and where those of the last end.

    """

    buckets: NDArray[np.uint32]
    times: NDArray[np.int32]
    offsets: Offsets


@dataclass(frozen=True)
class NGrams:
    """The branch of a model; immutable.

    Attributes
    ----------
    kinds : Kinds
        Which n-grams there are.
    table : int16 [buckets, classes + 1]
        Of each bucket the weights of the classes, then the square of its importance. The number of buckets is a power
        of two, from 2^8 to 2^22.
    scale : float32 [2, classes]
        What one step of a weight stands for: of words, then of characters.

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
        """Take the branch's tensors out of those of a model file. Raises ModelError where one is missing."""
        refuse_missing((TABLE, SCALE), tensors, model)
        return cls(kinds, tensors.pop(TABLE), tensors.pop(SCALE))

    def check(self, classes: int, length: int, several: bool, model: str) -> None:
        """Raise ModelError unless this fits a model of so many classes and characters. several: labels a text."""
        if length == WHOLE:
            raise ModelError(f"{model}: n-grams beside a network read the beginning of a text, not all of it")
        self.kinds.check(model)
        check_tensor(f"{model}: tensor {TABLE}", self.table, "int16", (1 << self.bits, classes + 1))
        check_tensor(f"{model}: tensor {SCALE}", self.scale, "float32", (2, classes))
        if not BITS[0] <= self.bits <= BITS[1] or self.table.nbytes > MOST_TABLE_BYTES:
            most = f"2^{BITS[0]} to 2^{BITS[1]} rows and at most {MOST_TABLE_BYTES:,} bytes"
            there = f"{len(self.table):,} rows, {self.table.nbytes:,} bytes"
            raise ModelError(f"{model}: tensor {TABLE} has {there}: not {most}")
        if self.table[:, -1].min() < 0 or self.table[:, -1].max() > LARGEST_SQUARE:
            raise ModelError(f"{model}: tensor {TABLE} holds a square that is not from 0 to {LARGEST_SQUARE:,}")
        if not (np.abs(self.scale) <= _LARGEST_SCALE).all():
            raise ModelError(f"{model}: tensor {SCALE} holds a value that is not finite, or beyond {_LARGEST_SCALE:g}")

    @classmethod
    def of_weights(cls, kinds: Kinds, weights: NDArray[np.floating], importance: NDArray[np.floating]) -> NGrams:
        """The branch of a linear model, rounded to 16 bits.

        Parameters
        ----------
        kinds : Kinds
            Which n-grams there are.
        weights : float [buckets, classes]
            The model's coefficients.
        importance : float [buckets]
            Of each bucket: the inverse document frequency, or 0 for one that is left out.

        Returns
        -------
        NGrams
            Its scores are, but for the rounding, the coefficients times the features. The feature of a bucket is, for
            each kind, importance * b / sqrt(sum over buckets of importance² * b²).

        """
        exact, squares = weights * importance[:, None], np.square(importance)
        step = np.maximum(np.abs(exact).max(axis=0), _LEAST) / LARGEST_WEIGHT
        step_of_squares = max(float(squares.max()), _LEAST) / LARGEST_SQUARE
        table = np.rint(np.column_stack([exact / step, squares / step_of_squares])).astype(np.int16)
        table[(importance != 0) & (table[:, -1] == 0), -1] = 1
        return cls(kinds, table, np.tile((step / np.sqrt(step_of_squares)).astype(np.float32), (2, 1)))

    def of_classes(self, part: slice) -> NGrams:
        """The branch of some of the classes, which has the bits that they have here."""
        table = np.column_stack([self.table[:, part], self.table[:, -1]])
        return NGrams(self.kinds, table, np.ascontiguousarray(self.scale[:, part]))

    @property
    def bits(self) -> int:
        """The number of buckets is 2 to this power."""
        return max(len(self.table) - 1, 0).bit_length()

    @property
    def about(self) -> Any:
        """What decides its scores, beside the tensors, as JSON values."""
        return to_builtins(self.kinds)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The tensors by their names in a model file."""
        return {TABLE: self.table, SCALE: self.scale}


def of_network(branch: object, model: str, what: str) -> NGrams | None:
    """The branch beside a network, or none. Raises UsageError for a model of fastText's, which cannot do `what`."""
    if branch is None or isinstance(branch, NGrams):
        return branch
    raise UsageError(f"{model} is a model of fastText's, without a network: {what}")


def scores(data: NDArray[np.uint8], offsets: Offsets, ngrams: NGrams) -> Floats:
    """What the branch adds to the logits of N texts, fp32 [N, classes].

    data: uint8 [bytes], UTF-8. offsets: int64 [N + 1], ascending; text i is data[offsets[i]:offsets[i + 1]].
    """
    out = np.zeros((len(offsets) - 1, ngrams.table.shape[1] - 1), np.float32)
    for texts, part, bounds in _parts(data, offsets, ngrams):
        grams_of_kinds = find(part, bounds, ngrams.kinds, ngrams.bits)
        for grams, scale in zip(grams_of_kinds, ngrams.scale, strict=True):
            out[texts] += _weighted(_sums(grams, ngrams.table, len(bounds) - 1), scale)
    return out


def count_rows(data: NDArray[np.uint8], offsets: Offsets, ngrams: NGrams) -> int:
    """How many rows of the table are added for N texts."""
    total = 0
    for _, part, bounds in _parts(data, offsets, ngrams):
        for kind in find(part, bounds, ngrams.kinds, ngrams.bits):
            total += int(counted(kind, len(bounds) - 1, ngrams.bits).times.sum()) if kind else 0
    return total


def scores_of_ids(ids: NDArray[np.uint8], alphabet: Alphabet, ngrams: NGrams) -> Floats:
    """The same as `scores` for texts given as ids, uint8 [N, length], as `alphabet.texts_of_ids` spells them."""
    return scores(*texts_of_ids(ids, alphabet), ngrams)


def find(data: NDArray[np.uint8], offsets: Offsets, kinds: Kinds, bits: int) -> FoundGrams:
    """The n-grams of N texts, which are not cut to what is read. Takes some hundred times the memory of the text.

    data, offsets: as for `scores`, but offsets[0] is 0 and offsets[-1] is len(data).
    """
    points, bounds = characters(data, offsets, kinds.reads)
    count = len(bounds) - 1
    # A white space before each text and after the last one, so that each n-gram lies within the places of its text.
    symbols = np.full(len(points) + count + 1, SPACE, np.uint16)
    symbols[np.arange(len(points)) + np.repeat(np.arange(count) + 1, np.diff(bounds))] = _symbols(points)
    begins = bounds + np.arange(count + 1)
    words = _of_words(symbols, begins, kinds.words) if kinds.words else []
    letters = _of_characters(symbols, begins, *kinds.characters) if kinds.characters[0] else []
    return FoundGrams(*([Grams(_buckets(h, bits), at) for h, at in kind] for kind in (words, letters)))


def _symbols(points: NDArray[np.uint32]) -> NDArray[np.uint16]:
    low = points < 1 << 16
    folded = np.where(low, points, BEYOND | (points & 0x7FF))
    return np.asarray(np.where(low, _SYMBOLS[folded], folded), np.uint16)


def _of_characters(symbols: NDArray[np.uint16], begins: Offsets, lowest: int, highest: int) -> list[_Hashed]:
    """begins: of each text the place before its first character, [N + 1]."""
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
    within = np.ones(max(len(hashes) - 1, 0), np.bool_)
    last = of_text[1:] - 1
    within[last[(last >= 0) & (last < len(within))]] = False
    at = np.flatnonzero(within)
    pairs = _step(hashes[at] * _MULTIPLIER, hashes[at + 1])
    return [(hashes, of_text), (pairs, np.searchsorted(at, of_text))]


def counted(grams_of_kind: list[Grams], count: int, bits: int) -> CountedBuckets:
    """The buckets of each of N texts over all n of one kind, in ascending order, with the times that each counts."""
    # The smaller one is sorted in half the time.
    kind: type[np.unsignedinteger] = np.uint32 if count <= 1 << (32 - bits) else np.uint64
    keys = [
        (np.repeat(np.arange(count, dtype=kind), np.diff(grams.offsets)) << kind(bits)) | grams.buckets.astype(kind)
        for grams in grams_of_kind
    ]
    unique, often = np.unique(np.concatenate(keys), return_counts=True)
    offsets = np.searchsorted(unique, np.arange(count + 1) << bits)
    return CountedBuckets((unique & kind((1 << bits) - 1)).astype(np.uint32), np.frexp(often)[1], offsets)


def _sums(grams_of_kind: list[Grams], table: NDArray[np.int16], count: int) -> NDArray[np.int32]:
    """The sums of the rows of each text, [N, classes + 1].

    BLAS adds the weights of a tile, in float32: a text has at most 2^16 n-grams of a kind, so the rows of a tile count
    12 times each on average at most, and sums below 2^24 are exact. The last tile of a text ends with rows that do not
    count. (In integers, four more classes took a third more time.)
    """
    sums = np.zeros((count, table.shape[1]), np.int32)
    if not any(len(grams.buckets) for grams in grams_of_kind):
        return sums
    buckets, times, offsets = counted(grams_of_kind, count, (len(table) - 1).bit_length())
    tiles_of = -(-(rows_of := np.diff(offsets)) // _TILE)
    begins = np.cumsum(tiles_of) - tiles_of
    places = np.arange(len(buckets)) + np.repeat(_TILE * begins - offsets[:-1], rows_of)
    rows_of_tiles, often = np.zeros((2, tiles_of.sum(), _TILE), np.int32)
    rows_of_tiles.reshape(-1)[places], often.reshape(-1)[places] = buckets, times
    of_tiles = np.empty((len(rows_of_tiles), table.shape[1]), np.int32)
    most = max(1, _TILES_BYTES // (4 * _TILE * table.shape[1]))
    for first in range(0, len(rows_of_tiles), most):
        tiles = slice(first, first + most)
        rows, counts = table.take(rows_of_tiles[tiles], axis=0), often[tiles]
        of_tiles[tiles] = (counts[:, None].astype(np.float32) @ rows.astype(np.float32))[:, 0]
        of_tiles[tiles, -1] = (counts * counts * rows[:, :, -1]).sum(axis=1)
    sums[rows_of > 0] = np.add.reduceat(of_tiles, begins[rows_of > 0], axis=0)
    return sums


def _weighted(sums: NDArray[np.int32], scale: Floats) -> Floats:
    """scale: fp32 [classes]. A product with the scale, a division by the square root: no sum that may be contracted."""
    squares = sums[:, -1:]
    values = sums[:, :-1].astype(np.float32) * scale
    norms = np.sqrt(np.maximum(squares, 1).astype(np.float32))
    return np.where(squares > 0, values / norms, np.float32(0))


def _parts(
    data: NDArray[np.uint8], offsets: Offsets, ngrams: NGrams
) -> Iterator[tuple[slice, NDArray[np.uint8], Offsets]]:
    """Texts by bounded bytes, or one by one, without what is not read: which, and data and offsets as for `find`."""
    most = min(_BATCH_BYTES, _BATCH_VALUES // ngrams.table.shape[1])
    sizes = np.minimum(np.diff(offsets), head_bytes(ngrams.kinds.reads))
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = int(ends[first] - sizes[first])
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        bounds = np.concatenate([[0], ends[first:last] - before])
        part = data[offsets[first] : offsets[last]]
        if len(part) > bounds[-1]:
            texts = zip(offsets[first:last], sizes[first:last], strict=True)
            part = np.concatenate([data[at : at + size] for at, size in texts])
        yield slice(first, last), part, bounds
        first = last
