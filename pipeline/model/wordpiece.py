"""BERT's tokens of a text, in NumPy: its normalisation, and WordPiece's longest match.

A code point becomes none, one or several others, by a table which has what `tokenizers` makes of each: control
characters are left out, accents and case are taken away where the model wants that, white space is one kind, and what
stands alone (punctuation, Chinese characters) is marked. What is between spaces and what stands alone is a word. A word
is cut from its beginning on into the longest entries of the vocabulary; one that cannot be cut, or is too long, is
unknown. See Devlin et al., "BERT" (2019), and Song et al., "Fast WordPiece Tokenization" (2021).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from ..errors import ModelError
from .alphabet import batches

ALONE = 1 << 21
"""Added to a code point that is a word of its own."""

SPACE = 0x20
PAGE = 256
MARKER = 0xD800
"""The first of the code points that stand for special tokens in a text; no valid text has them."""

MOST_SPECIAL = 256
FRAMING = 2
"""Tokens that begin and end a text."""

LENGTH_BITS = 8
_MOST_WORDS = 1 << 20
_BATCH_BYTES = 1 << 22

Integers = NDArray[np.int64]


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """What decides tokens beside the vocabulary and the table of code points.

    Attributes
    ----------
    first, last, unknown : int
        The tokens that begin and end each text, and that of a word that cannot be cut.
    prefix : str
        What entries of the vocabulary begin with that continue a word.
    longest : int
        Code points of the longest word that is cut.
    special : dict of str to int
        What is one token wherever it stands in a text, like "[SEP]".
    marks : str
        The combining marks that stay, and are put in the order of Unicode's normal form NFD.

    """

    first: Annotated[int, Meta(ge=0)]
    last: Annotated[int, Meta(ge=0)]
    unknown: Annotated[int, Meta(ge=0)]
    prefix: str
    longest: Annotated[int, Meta(ge=1)]
    special: dict[str, Annotated[int, Meta(ge=0)]]
    marks: str


class Tokens(NamedTuple):
    """Of N texts.

    Attributes
    ----------
    ids : int64 [T]
        Of all texts, one after another.
    ends : int64 [N + 1]
        Text i has ``ids[ends[i]:ends[i + 1]]``.
    is_cut : bool [N]
        Whether the text has more than these.

    """

    ids: Integers
    ends: Integers
    is_cut: NDArray[np.bool_]


@dataclass(frozen=True)
class WordPiece:
    """A vocabulary with its rules; immutable.

    Attributes
    ----------
    rules : Rules
        What decides tokens beside the arrays.
    words : uint8 [bytes]
        The entries of the vocabulary in UTF-8, one after another.
    ends : int64 [entries]
        Where each ends.
    pages : uint16 [4352]
        For each 256 code points, which page of `characters` has them.
    characters : int32 [pages * 256]
        What a code point becomes: from 0 on, one, with ALONE or without; else ``-1 - value`` is 256 times the place of
        its first in `sequences`, and how many there are.
    sequences : int32 [S]
        What becomes several.

    """

    rules: Rules
    words: NDArray[np.uint8] = field(repr=False)
    ends: Integers = field(repr=False)
    pages: NDArray[np.uint16] = field(repr=False)
    characters: NDArray[np.int32] = field(repr=False)
    sequences: NDArray[np.int32] = field(repr=False)

    @classmethod
    def of(cls, rules: Rules, vocabulary: Iterable[str], become: dict[int, list[int]]) -> WordPiece:
        """From the entries in their order, and what each code point becomes that does not stay."""
        encoded = [word.encode() for word in vocabulary]
        table = np.arange(0x110000, dtype=np.int32)
        table[MARKER : MARKER + MOST_SPECIAL] += ALONE
        sequences: list[int] = []
        for code_point, points in become.items():
            table[code_point] = points[0] if len(points) == 1 else -1 - (len(sequences) << LENGTH_BITS | len(points))
            sequences += points if len(points) > 1 else []
        pages, numbers = np.unique(table.reshape(-1, PAGE), axis=0, return_inverse=True)
        words, ends = np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([*map(len, encoded)], dtype=np.int64)
        characters = numbers.ravel().astype(np.uint16), pages.ravel(), np.array(sequences, np.int32)
        return cls(rules, words, ends, *characters)

    def check(self, model: str) -> None:
        """Raise ModelError unless the arrays and rules fit each other."""
        counts = self.characters[self.characters < 0].astype(np.int64)
        first, length = np.divmod(-1 - counts, 1 << LENGTH_BITS)
        points = np.concatenate([self.characters[self.characters >= 0], self.sequences]) % ALONE
        fits = (
            len(self.pages) == 0x110000 // PAGE
            and int(self.pages.max()) * PAGE < len(self.characters)
            and len(self.characters) % PAGE == 0
            and (first + length).max(initial=0) <= len(self.sequences)
            and 0 <= points.min(initial=0) <= points.max(initial=0) < 0x110000
            and self.characters.max() < 2 * ALONE
        )
        tokens = self.rules.first, self.rules.last, self.rules.unknown, *self.rules.special.values()
        ends = self.ends
        in_order = len(ends) > 0 and (np.diff(ends, prepend=0) >= 0).all() and ends[-1] == len(self.words)
        if not (fits and in_order and max(tokens) < len(self.ends) and len(self.rules.special) <= MOST_SPECIAL):
            raise ModelError(f"{model}: its vocabulary or its table of characters is damaged")

    @cached_property
    def _pieces(self) -> _Pieces:
        return _Pieces({word: number for number, word in enumerate(self.entries)}, self.rules)

    @property
    def size(self) -> int:
        """How many entries there are."""
        return len(self.ends)

    @property
    def framing(self) -> int:
        """How many tokens are put before a text and after it."""
        return FRAMING

    @property
    def entries(self) -> list[str]:
        """Of the vocabulary, in their order."""
        data, ends = self.words.tobytes(), [0, *self.ends.tolist()]
        return [data[first:last].decode() for first, last in pairwise(ends)]

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        longest_first = sorted(self.rules.special, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @cached_property
    def marks(self) -> tuple[Integers, Integers]:
        """Those that have an order, and the classes that it follows."""
        marks = sorted(self.rules.marks)
        return np.array([*map(ord, marks)], np.int64), np.array([*map(unicodedata.combining, marks)], np.int64)

    def of_texts(self, data: NDArray[np.uint8], offsets: Integers, most: int) -> Tokens:
        """The tokens of N texts in valid UTF-8, with the ones that begin and end each.

        Parameters
        ----------
        data : uint8 [bytes]
            The texts, one after another.
        offsets : int64 [N + 1]
            Text i is ``data[offsets[i]:offsets[i + 1]]``.
        most : int
            Tokens of a text; what is beyond is cut off.

        """
        parts = []
        for some in batches(offsets, _BATCH_BYTES):
            own = offsets[some.start : some.stop + 1].tolist()
            parts.append(self._of_strings([data[a:b].tobytes().decode() for a, b in pairwise(own)], most))
        parts = parts or [self._of_strings([], most)]
        ends = np.cumsum(np.concatenate([[0], *(np.diff(part.ends) for part in parts)]))
        ids, is_cut = (np.concatenate([part[i] for part in parts]) for i in (0, 2))
        return Tokens(ids, ends.astype(np.int64), is_cut)

    def _of_strings(self, texts: list[str], most: int) -> Tokens:
        texts = [self._marked(text) for text in texts]
        points = _points("".join(texts))
        of_text = np.repeat(np.arange(len(texts)), np.fromiter(map(len, texts), np.int64, len(texts)))
        become, of_text = self._expanded(self._become(points), of_text)
        become = self._in_order(become, of_text)
        begins, stops = _words(become, of_text)
        words_in = np.bincount(of_text[begins], minlength=len(texts))
        reached = _rank(words_in) < most - 2  # a word has a token at least
        begins, stops, of_word = begins[reached], stops[reached], of_text[begins][reached]
        words = self._cut_all(become, begins, stops)
        sizes = np.fromiter(map(len, words), np.int64, len(words))
        ids = np.fromiter(chain.from_iterable(words), np.int64, int(sizes.sum()))
        tokens_in = np.bincount(of_word, sizes, len(texts)).astype(np.int64)
        ids = ids[_rank(tokens_in) < most - 2]
        counts = np.minimum(tokens_in, most - 2)
        ends = np.concatenate([[0], np.cumsum(counts + 2)])
        framed = np.full(ends[-1], self.rules.first, np.int64)
        framed[ends[1:] - 1] = self.rules.last
        framed[np.arange(len(ids)) + 1 + 2 * np.repeat(np.arange(len(texts)), counts)] = ids
        return Tokens(framed, ends, (tokens_in > most - 2) | (words_in > most - 2))

    def words_of(self, text: str) -> tuple[Integers, Integers]:
        """Of one text: where each word begins, in code points, and how many tokens it has, [words]."""
        is_left = np.ones(len(text), np.bool_)
        for found in self._special.finditer(text) if self._special else ():
            is_left[found.start() + 1 : found.end()] = False
        points = _points(self._marked(text))
        become, places = self._expanded(self._become(points), np.arange(len(points)))
        become = self._in_order(become, np.zeros_like(become))  # which moves marks within their word
        begins, stops = _words(become, np.zeros_like(become))
        counts = [len(word) for word in self._cut_all(become, begins, stops)]
        return np.flatnonzero(is_left)[places[begins]], np.array(counts, np.int64)

    def _cut_all(self, become: Integers, begins: Integers, stops: Integers) -> list[tuple[int, ...]]:
        """The tokens of each word."""
        string = (become % ALONE).astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
        return [self._pieces[string[a:b]] for a, b in zip(begins.tolist(), stops.tolist(), strict=True)]

    def _marked(self, text: str) -> str:
        """The text with a code point of its own for each special token."""
        names = [*self.rules.special]
        if self._special is None or not self._special.search(text):
            return text
        return self._special.sub(lambda found: chr(MARKER + names.index(found[0])), text)

    def _become(self, points: Integers) -> Integers:
        """What is in `characters` for code points."""
        places = self.pages[points // PAGE].astype(np.int64) * PAGE + points % PAGE
        return np.asarray(self.characters[places].astype(np.int64))

    def _expanded(self, become: Integers, of_text: Integers) -> tuple[Integers, Integers]:
        """The code points that become of some, and of which text each is."""
        several = become < 0
        first, count = np.divmod(np.where(several, -1 - become, 1), 1 << LENGTH_BITS)
        ends = np.cumsum(count)
        out = np.repeat(become, count)
        places = np.repeat(first - (ends - count), count) + np.arange(len(out))
        from_sequence = np.repeat(several, count)
        out[from_sequence] = self.sequences[places[from_sequence]]
        return out, np.repeat(of_text, count)

    def _in_order(self, become: Integers, of_text: Integers) -> Integers:
        """The code points with marks that follow each other in the order of Unicode's normal form NFD."""
        marks, classes = self.marks
        is_mark = np.isin(become, marks)
        together = is_mark[1:] & is_mark[:-1] & (of_text[1:] == of_text[:-1])
        if not together.any():
            return become
        run = np.cumsum(np.concatenate([[True], ~together]))
        class_ = np.zeros(len(become), np.int64)
        class_[is_mark] = classes[np.searchsorted(marks, become[is_mark])]
        return become[np.lexsort((class_, run))]


class _Pieces(dict[str, tuple[int, ...]]):
    """The tokens of each word, found when it is first asked for."""

    def __init__(self, numbers: dict[str, int], rules: Rules) -> None:
        self._numbers, self._rules = numbers, rules
        self._longest = max(map(len, numbers))

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= _MOST_WORDS:
            self.clear()
        self[word] = pieces = self._cut(word)
        return pieces

    def _cut(self, word: str) -> tuple[int, ...]:
        if MARKER <= ord(word[0]) < MARKER + MOST_SPECIAL:
            return ([*self._rules.special.values()][ord(word[0]) - MARKER],)
        if len(word) > self._rules.longest:
            return (self._rules.unknown,)
        pieces: list[int] = []
        first = 0
        while first < len(word):
            prefix = self._rules.prefix if first else ""
            for last in range(min(len(word), first + self._longest), first, -1):
                number = self._numbers.get(prefix + word[first:last])
                if number is not None:
                    break
            else:
                return (self._rules.unknown,)
            pieces.append(number)
            first = last
        return tuple(pieces)


def _words(become: Integers, of_text: Integers) -> tuple[Integers, Integers]:
    """Where words begin and where they end, among code points of which some stand alone."""
    inside, alone = become != SPACE, become >= ALONE
    parted = np.empty(len(become) + 1, np.bool_)  # whether there is a border before each
    parted[[0, -1]] = True
    parted[1:-1] = alone[1:] | alone[:-1] | (of_text[1:] != of_text[:-1])
    begins = inside & (parted[:-1] | ~np.concatenate([[False], inside[:-1]]))
    stops = inside & (parted[1:] | ~np.concatenate([inside[1:], [False]]))
    return np.flatnonzero(begins), np.flatnonzero(stops) + 1


def _points(text: str) -> Integers:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)


def _rank(counts: Integers) -> Integers:
    """0, 1, … up to each count, one after another."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
