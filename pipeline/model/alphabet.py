"""The encoding of characters as ids, in NumPy: the specification of the encode kernel.

An article is read as UTF-8. Each code point takes one position; ASCII A-Z is lower-cased, other letters are not. A byte
that is not part of a well-formed UTF-8 sequence (Unicode 15, table 3-7) is one unknown character and takes one
position, so hostile bytes never raise an error.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

PUBLISHED = "abcdefghijklmnopqrstuvwxyz0123456789-,;.!?:'\"/\\|_@#$%^&*~`+-=<>()[]{}\n"
"""The 70 symbols of Zhang, Zhao and LeCun (2015), https://arxiv.org/abs/1509.01626; it contains '-' twice."""

MAX_SYMBOLS = 254  # an id has one byte, and two ids are those of unknown characters and padding
_BATCH_BYTES = 1 << 20  # bounds the working memory of one vectorised step
_LONGEST_SEQUENCE = 4  # bytes of a character in UTF-8

NOT_UTF8 = 0x110000
"""The number, above every code point, that marks a byte that is not UTF-8."""


class Encoded(NamedTuple):
    """The input of the network for N articles, and three figures about their characters.

    Attributes
    ----------
    ids : uint8 [N, length]
        Encoded characters: the number of a symbol, `Alphabet.unknown` or `Alphabet.padding`.
    n_chars : int64 [N]
        Number of characters of the whole text.
    truncated : bool [N]
        Whether the text is longer than `length`.
    unknown_chars : int64 [N]
        Number of characters outside the alphabet, among the first `length`.

    """

    ids: NDArray[np.uint8]
    n_chars: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    unknown_chars: NDArray[np.int64]


@dataclass(frozen=True)
class Alphabet:
    """The characters that a model reads: 1 to 254 symbols, numbered by their first position.

    Attributes
    ----------
    symbols : str
        The symbols in order. A repeated symbol has the number of its first position.

    Raises
    ------
    ValueError
        If the alphabet is empty or too long, or contains a lone surrogate or an ASCII capital. A capital could never
        match, since text is lower-cased.

    Examples
    --------
    >>> alphabet = Alphabet("abc ")
    >>> len(alphabet), alphabet.unknown, alphabet.padding
    (4, 4, 5)

    """

    symbols: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.symbols) <= MAX_SYMBOLS:
            raise ValueError(f"an alphabet holds 1 to {MAX_SYMBOLS} symbols, this one {len(self.symbols)}")
        capitals = [s for s in self.symbols if "A" <= s <= "Z"]
        if capitals:
            raise ValueError(f"text is lower-cased, so the symbol {capitals[0]!r} could never match: leave it out")
        try:
            self.symbols.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError("an alphabet holds no lone surrogates") from error

    def __len__(self) -> int:
        return len(self.symbols)

    def __reduce__(self) -> tuple[type[Alphabet], tuple[str]]:
        """Pickle the symbols without the tables, which follow from them."""
        return Alphabet, (self.symbols,)

    @property
    def unknown(self) -> int:
        """The id of a character outside the alphabet: a zero column of the one-hot input."""
        return len(self.symbols)

    @property
    def padding(self) -> int:
        """The id of a position after the end of the text: a zero column too."""
        return len(self.symbols) + 1

    @cached_property
    def tables(self) -> tuple[NDArray[np.uint8], NDArray[np.uint32], NDArray[np.uint8]]:
        """The ids of single bytes, [256]; the symbols' code points beyond ASCII, ascending; and the ids of these."""
        byte_ids = np.full(256, self.unknown, np.uint8)
        beyond: dict[int, int] = {}
        for number, symbol in reversed(list(enumerate(self.symbols))):  # a symbol's first position overwrites others
            if ord(symbol) < 0x80:
                byte_ids[ord(symbol)] = number
            else:
                beyond[ord(symbol)] = number
        byte_ids[ord("A") : ord("Z") + 1] = byte_ids[ord("a") : ord("z") + 1]
        points = sorted(beyond)
        return byte_ids, np.array(points, np.uint32), np.array([beyond[p] for p in points], np.uint8)

    def ids_of(self, data: NDArray[np.uint8], starts: NDArray[np.int64], leads: _Sequences) -> NDArray[np.uint8]:
        """Return the ids, uint8, of the characters that begin at `starts`.

        leads: the multi-byte sequences of `data`.
        """
        byte_ids, known_points, point_ids = self.tables
        ids = byte_ids[data[starts]]
        if len(known_points) and len(leads.at):
            points = _code_points(data, leads)
            slot = np.minimum(np.searchsorted(known_points, points), len(known_points) - 1)
            known = known_points[slot] == points
            ids[np.searchsorted(starts, leads.at[known])] = point_ids[slot[known]]
        return ids


class _Sequences(NamedTuple):
    """Well-formed multi-byte sequences: the positions of their first bytes, and their lengths in bytes (2 to 4)."""

    at: NDArray[np.int64]
    size: NDArray[np.int64]


def of_ids(ids: NDArray[np.uint8], alphabet: Alphabet) -> Encoded:
    """Count the characters of articles that are given as ids, uint8 [N, length].

    A text ends after its last id that is not padding.
    """
    n_chars = text_ends(ids, alphabet.padding)
    unknown = (ids == alphabet.unknown).sum(axis=1, dtype=np.int64)
    return Encoded(ids, n_chars, np.zeros(len(ids), np.bool_), unknown)


def text_ends(ids: NDArray[np.uint8], padding: int) -> NDArray[np.int64]:
    """Return the index after each article's last character, known or unknown, int64 [N]; 0 for an empty text."""
    in_text = ids != padding
    ends = ids.shape[1] - np.argmax(in_text[:, ::-1], axis=1)
    return np.where(in_text.any(axis=1), ends, 0).astype(np.int64)


def head_bytes(length: int) -> int:
    """Return the number of bytes that contains the first `length` characters of any article."""
    return _LONGEST_SEQUENCE * length


def batches(offsets: NDArray[np.int64], most_bytes: int) -> Iterator[slice]:
    """Split N texts into batches of at most `most_bytes` bytes, each with at least one text, and yield their slices.

    offsets: as for `encode`.
    """
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + most_bytes, side="right")) - 1)
        yield slice(first, last)
        first = last


def encode(data: NDArray[np.uint8], offsets: NDArray[np.int64], alphabet: Alphabet, length: int) -> Encoded:
    """Encode N articles for a network that reads `length` characters of each.

    data and offsets are the two buffers of an Arrow string column. data: uint8 [bytes]. offsets: int64 [N + 1],
    ascending; article i is data[offsets[i]:offsets[i + 1]].
    """
    count = len(offsets) - 1
    ids, truncated = np.full((count, length), alphabet.padding, np.uint8), np.zeros(count, np.bool_)
    out = Encoded(ids, np.zeros(count, np.int64), truncated, np.zeros(count, np.int64))
    head = head_bytes(length)
    first = 0
    while first < count:
        # Choose a batch of bounded bytes. An article that is longer than its head is a batch by itself.
        fits = int(np.searchsorted(offsets, offsets[first] + _BATCH_BYTES, side="right")) - 1
        long = np.flatnonzero(np.diff(offsets[first : fits + 1]) > head)
        last = first + int(long[0]) if len(long) else fits
        last = max(last, first + 1)
        part = slice(first, last)
        bounds = offsets[first : last + 1] - offsets[first]
        text = data[offsets[first] : offsets[last]]
        # Encode it. Count all characters of a long article, but encode only its head.
        if last == first + 1 and len(text) > head:
            out.n_chars[part] = _count_characters(text)
            text, bounds = text[:head], np.array([0, head])
            _encode_batch(text, bounds, alphabet, length, out, part)
        else:
            out.n_chars[part] = _encode_batch(text, bounds, alphabet, length, out, part)
        first = last
    np.greater(out.n_chars, length, out=out.truncated)
    return out


def characters(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], length: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the first `length` characters of each of N texts as code points, uint32, and offsets, int64 [N + 1].

    The characters of text i are at offsets[i]:offsets[i + 1]. A byte that is not part of a well-formed sequence gives
    NOT_UTF8 | byte.
    """
    leads = _sequences(data, offsets[1:], 0, len(data))
    points = np.where(data < 0x80, np.uint32(0), np.uint32(NOT_UTF8)) | data
    points[leads.at] = _code_points(data, leads)
    starts = _starts(data, leads)
    before = np.searchsorted(starts, offsets)
    n_chars = np.diff(before)
    position = np.arange(len(starts)) - np.repeat(before[:-1], n_chars)
    bounds = np.concatenate([[0], np.cumsum(np.minimum(n_chars, length))])
    return points[starts[position < length]], bounds


def texts_of_ids(ids: NDArray[np.uint8], alphabet: Alphabet) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return texts that `encode` would turn into these ids, uint8 [N, length], as data and offsets.

    The text of an unknown character is a space or, if the alphabet contains the space, a byte that is not UTF-8.
    """
    unknown = b"\xff" if " " in alphabet.symbols else b" "
    spelled = [*(symbol.encode() for symbol in alphabet.symbols), unknown, unknown]
    ends = text_ends(ids, alphabet.padding)
    texts = [b"".join([spelled[i] for i in row[:end]]) for row, end in zip(ids, ends, strict=True)]
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)]).astype(np.int64)


def _starts(data: NDArray[np.uint8], leads: _Sequences) -> NDArray[np.int64]:
    """Return the indices of the bytes at which characters begin."""
    begins = np.ones(len(data), np.bool_)
    for distance in (1, 2, 3):
        begins[leads.at[leads.size > distance] + distance] = False
    return np.flatnonzero(begins)


def count_characters(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the characters of each of N articles in valid UTF-8, int64 [N]."""
    texts = pa.LargeStringArray.from_buffers(len(offsets) - 1, *map(pa.py_buffer, (offsets, data)))
    return pc.utf8_length(texts).to_numpy()  # type: ignore[no-any-return]


def unread(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Encoded:
    """Count the characters of N articles without encoding them: the ids have the shape [N, 0]."""
    count, n_chars, end = len(offsets) - 1, np.diff(offsets), int(offsets[-1])
    for low in range(int(offsets[0]), end, _BATCH_BYTES):
        leads = _sequences(data, offsets[1:], low, min(low + _BATCH_BYTES, end))
        of_article = np.searchsorted(offsets, leads.at, side="right") - 1
        np.subtract.at(n_chars, of_article, leads.size - 1)
    return Encoded(np.empty((count, 0), np.uint8), n_chars, np.zeros(count, np.bool_), np.zeros(count, np.int64))


def count_unknown(data: NDArray[np.uint8], offsets: NDArray[np.int64], alphabet: Alphabet) -> NDArray[np.int64]:
    """Count the characters outside the alphabet in the whole of each of N articles in valid UTF-8, int64 [N]."""
    byte_ids, points, _ = alphabet.tables
    of_byte = byte_ids == alphabet.unknown
    of_byte[0x80:0xC0] = False  # these bytes continue a character, whose first byte counts
    unknown = of_byte[data]
    if len(points):
        leads = _sequences(data, offsets[1:], int(offsets[0]), int(offsets[-1]))
        unknown[leads.at[np.isin(_code_points(data, leads), points)]] = False
    return _sums(unknown, offsets)


def _sums(marked: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes of each article are marked, int64 [N]. marked: bool [bytes]."""
    before = np.concatenate([[0], np.cumsum(marked[offsets[0] : offsets[-1]], dtype=np.int64)])
    return np.asarray(np.diff(before[offsets - offsets[0]]))


def _encode_batch(
    data: NDArray[np.uint8], bounds: NDArray[np.int64], alphabet: Alphabet, length: int, out: Encoded, part: slice
) -> NDArray[np.int64]:
    """Encode a batch of M articles of `encode`; return their numbers of characters, int64 [M].

    Parameters
    ----------
    data : uint8 [bytes]
        The text of the batch.
    bounds : int64 [M + 1]
        Where each article begins in `data`, and where the last article ends.
    alphabet : Alphabet
        The characters that the model reads.
    length : int
        How many characters of each article the model reads.
    out : Encoded
        The arrays of all articles. The function fills in the batch's ids and numbers of unknown characters.
    part : slice
        The rows of the batch in `out`.

    """
    # Find the article and the position of each character.
    leads = _sequences(data, bounds[1:], 0, len(data))
    starts = _starts(data, leads)
    before = np.searchsorted(starts, bounds)  # characters before each bound
    n_chars = np.diff(before)
    article = np.repeat(np.arange(len(n_chars)), n_chars)
    position = np.arange(len(starts)) - before[article]
    # Write the ids of the first `length` characters of each article.
    ids = alphabet.ids_of(data, starts, leads)
    read = position < length
    article, position, ids = article[read], position[read], ids[read]
    out.ids[part][article, position] = ids
    out.unknown_chars[part] = np.bincount(article[ids == alphabet.unknown], minlength=len(n_chars))
    return n_chars


def _count_characters(data: NDArray[np.uint8]) -> int:
    """Count the characters of one article of any size in bounded memory.

    Python's decoder counts them, unless the article contains bytes that are not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    with suppress(UnicodeDecodeError):
        pieces = (data[low : low + _BATCH_BYTES].tobytes() for low in range(0, len(data), _BATCH_BYTES))
        return sum(len(decoder.decode(piece)) for piece in pieces) + len(decoder.decode(b"", final=True))
    return int(unread(data, np.array([0, len(data)])).n_chars[0])


def _sequences(data: NDArray[np.uint8], ends: NDArray[np.int64], low: int, high: int) -> _Sequences:
    """Find the well-formed multi-byte sequences that begin in data[low:high].

    A sequence that extends past the end of its article is not well-formed. ends: the end of each article, ascending.
    """
    lead = data[low:high]
    at = np.flatnonzero((lead >= 0xC2) & (lead <= 0xF4)) + low
    if not len(at):
        return _Sequences(at, at)
    byte = data[at]
    size = 2 + (byte >= 0xE0).astype(np.int64) + (byte >= 0xF0)
    inside = at + size <= ends[np.searchsorted(ends, at, side="right")]
    at, byte, size = at[inside], byte[inside], size[inside]
    # Check the second byte, whose range excludes overlong forms, surrogates and code points beyond U+10FFFF.
    lowest = np.select([byte == 0xE0, byte == 0xF0], [0xA0, 0x90], 0x80)
    highest = np.select([byte == 0xED, byte == 0xF4], [0x9F, 0x8F], 0xBF)
    second = data[at + 1]
    good = (second >= lowest) & (second <= highest)
    for distance in (2, 3):
        longer = size > distance
        good[longer] &= (data[at[longer] + distance] & 0xC0) == 0x80
    return _Sequences(at[good], size[good])


def _code_points(data: NDArray[np.uint8], leads: _Sequences) -> NDArray[np.uint32]:
    """Decode multi-byte sequences into code points."""
    points = data[leads.at].astype(np.uint32) & (0x7F >> leads.size).astype(np.uint32)
    for distance in (1, 2, 3):
        longer = leads.size > distance
        points[longer] = points[longer] << 6 | (data[leads.at[longer] + distance] & 0x3F)
    return points
