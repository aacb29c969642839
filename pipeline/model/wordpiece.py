"""BERT's tokenizer in NumPy: its normalisation, and WordPiece's longest match.

A text becomes tokens in three steps (Devlin et al., "BERT", 2019; Song et al., "Fast WordPiece Tokenization", 2021):

1. Each code point becomes none, one or several code points, by a table of the results of the library `tokenizers`:
   control characters are removed, accents and case are removed if the model wants that, all white space becomes one
   character, and characters that stand alone (punctuation, Chinese characters) are marked.
2. The text is split into words: the runs between spaces, and each character that stands alone.
3. Each word is cut, from its beginning on, into the longest entries of the vocabulary. A word that cannot be cut, or
   that is too long, is unknown.
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
"""The mark that is added to a code point that is a word of its own."""

SPACE = 0x20
PAGE = 256
MARKER = 0xD800
"""The first of the code points that replace special tokens in a text. They are in no valid text."""

MOST_SPECIAL = 256
FRAMING = 2
"""The number of tokens that begin and end a text."""

LENGTH_BITS = 8  # of the number of code points of a sequence
_MOST_WORDS = 1 << 20  # that the cache of words holds
_BATCH_BYTES = 1 << 22

Integers = NDArray[np.int64]


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules that decide tokens, beside the vocabulary and the table of code points.

    Attributes
    ----------
    first, last, unknown : int
        The numbers of the token that begins each text, of the one that ends it, and of the one for a word that cannot
        be cut.
    prefix : str
        The prefix of the entries of the vocabulary that continue a word.
    longest : int
        The number of code points of the longest word that is cut.
    special : dict of str to int
        The special tokens, each of which is one token wherever it occurs in a text, like "[SEP]", and their numbers.
    marks : str
        The combining marks that stay in a text, and that are put in the order of Unicode's normal form NFD.

    """

    first: Annotated[int, Meta(ge=0)]
    last: Annotated[int, Meta(ge=0)]
    unknown: Annotated[int, Meta(ge=0)]
    prefix: str
    longest: Annotated[int, Meta(ge=1)]
    special: dict[str, Annotated[int, Meta(ge=0)]]
    marks: str


class Tokens(NamedTuple):
    """The tokens of N texts.

    Attributes
    ----------
    ids : int64 [T]
        The numbers of the tokens of all texts, one text after another.
    ends : int64 [N + 1]
        Text i has the tokens ``ids[ends[i]:ends[i + 1]]``.
    is_cut : bool [N]
        Whether the text has more tokens, which were cut off.

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
        The rules that decide tokens beside the arrays.
    words : uint8 [bytes]
        The entries of the vocabulary in UTF-8, one after another.
    ends : int64 [entries]
        Where each entry ends in `words`.
    pages : uint16 [4352]
        For each 256 code points, the number of the page of `characters` that has them.
    characters : int32 [pages * 256]
        What each code point becomes. A value of 0 or more is one code point, with or without ALONE. For a negative
        value, ``-1 - value`` is 256 * i + n, for the n code points of `sequences` from index i on.
    sequences : int32 [S]
        The code points of all results that are not exactly one code point.

    """

    rules: Rules
    words: NDArray[np.uint8] = field(repr=False)
    ends: Integers = field(repr=False)
    pages: NDArray[np.uint16] = field(repr=False)
    characters: NDArray[np.int32] = field(repr=False)
    sequences: NDArray[np.int32] = field(repr=False)

    @classmethod
    def of(cls, rules: Rules, vocabulary: Iterable[str], become: dict[int, list[int]]) -> WordPiece:
        """Return a vocabulary of these entries, in their order.

        become: what each code point becomes, except for those that stay the same.
        """
        encoded = [word.encode() for word in vocabulary]
        table = np.arange(0x110000, dtype=np.int32)
        table[MARKER : MARKER + MOST_SPECIAL] += ALONE
        sequences: list[int] = []
        for code_point, points in become.items():
            table[code_point] = points[0] if len(points) == 1 else -1 - (len(sequences) << LENGTH_BITS | len(points))
            sequences += points if len(points) > 1 else []
        distinct_pages, numbers = np.unique(table.reshape(-1, PAGE), axis=0, return_inverse=True)
        words, ends = np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([*map(len, encoded)], dtype=np.int64)
        pages, characters = numbers.ravel().astype(np.uint16), distinct_pages.ravel()
        return cls(rules, words, ends, pages, characters, np.array(sequences, np.int32))

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
        """The cache of the tokens of words."""
        return _Pieces({word: number for number, word in enumerate(self.entries)}, self.rules)

    @property
    def size(self) -> int:
        """The number of entries."""
        return len(self.ends)

    @property
    def framing(self) -> int:
        """The number of tokens that are added before a text and after it."""
        return FRAMING

    @property
    def entries(self) -> list[str]:
        """The entries of the vocabulary, in their order."""
        data, ends = self.words.tobytes(), [0, *self.ends.tolist()]
        return [data[first:last].decode() for first, last in pairwise(ends)]

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        """A pattern that matches any special token; None without special tokens."""
        longest_first = sorted(self.rules.special, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @cached_property
    def marks(self) -> tuple[Integers, Integers]:
        """The combining marks that have an order, ascending, and the combining classes that decide the order."""
        marks = sorted(self.rules.marks)
        return np.array([*map(ord, marks)], np.int64), np.array([*map(unicodedata.combining, marks)], np.int64)

    def of_texts(self, data: NDArray[np.uint8], offsets: Integers, most_tokens: int) -> Tokens:
        """Return the tokens of N texts in valid UTF-8, including the tokens that begin and end each text.

        Parameters
        ----------
        data : uint8 [bytes]
            The texts, one after another.
        offsets : int64 [N + 1]
            Text i is ``data[offsets[i]:offsets[i + 1]]``.
        most_tokens : int
            The largest number of tokens of a text. Further tokens are cut off.

        """
        parts = []
        for some in batches(offsets, _BATCH_BYTES):
            bounds = offsets[some.start : some.stop + 1].tolist()
            parts.append(self._of_strings([data[a:b].tobytes().decode() for a, b in pairwise(bounds)], most_tokens))
        parts = parts or [self._of_strings([], most_tokens)]
        ends = np.cumsum(np.concatenate([[0], *(np.diff(part.ends) for part in parts)]))
        ids, is_cut = (np.concatenate([part[i] for part in parts]) for i in (0, 2))
        return Tokens(ids, ends.astype(np.int64), is_cut)

    def _of_strings(self, texts: list[str], most_tokens: int) -> Tokens:
        """Return the tokens of a batch of texts."""
        # Normalise all texts at once, and split them into words.
        texts = [self._marked(text) for text in texts]
        points = _points("".join(texts))
        of_text = np.repeat(np.arange(len(texts)), np.fromiter(map(len, texts), np.int64, len(texts)))
        become, of_text = self._expanded(self._become(points), of_text)
        become = self._in_order(become, of_text)
        begins, stops = _words(become, of_text)
        # Cut the words into tokens. A word has at least one token, so later words of a long text are left out.
        words_in = np.bincount(of_text[begins], minlength=len(texts))
        reached = _rank(words_in) < most_tokens - 2
        begins, stops, of_word = begins[reached], stops[reached], of_text[begins][reached]
        words = self._cut_all(become, begins, stops)
        sizes = np.fromiter(map(len, words), np.int64, len(words))
        ids = np.fromiter(chain.from_iterable(words), np.int64, int(sizes.sum()))
        # Cut off what is too long, and frame each text.
        tokens_in = np.bincount(of_word, sizes, len(texts)).astype(np.int64)
        ids = ids[_rank(tokens_in) < most_tokens - 2]
        counts = np.minimum(tokens_in, most_tokens - 2)
        ends = np.concatenate([[0], np.cumsum(counts + 2)])
        framed = np.full(ends[-1], self.rules.first, np.int64)
        framed[ends[1:] - 1] = self.rules.last
        framed[np.arange(len(ids)) + 1 + 2 * np.repeat(np.arange(len(texts)), counts)] = ids
        return Tokens(framed, ends, (tokens_in > most_tokens - 2) | (words_in > most_tokens - 2))

    def words_of(self, text: str) -> tuple[Integers, Integers]:
        """Return where each word of a text begins, in code points, and how many tokens it has, [words] each."""
        is_left = np.ones(len(text), np.bool_)
        for found in self._special.finditer(text) if self._special else ():
            is_left[found.start() + 1 : found.end()] = False
        points = _points(self._marked(text))
        become, places = self._expanded(self._become(points), np.arange(len(points)))
        become = self._in_order(become, np.zeros_like(become))  # moves marks only within their words
        begins, stops = _words(become, np.zeros_like(become))
        counts = [len(word) for word in self._cut_all(become, begins, stops)]
        return np.flatnonzero(is_left)[places[begins]], np.array(counts, np.int64)

    def _cut_all(self, become: Integers, begins: Integers, stops: Integers) -> list[tuple[int, ...]]:
        """Return the tokens of each word."""
        string = (become % ALONE).astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
        return [self._pieces[string[a:b]] for a, b in zip(begins.tolist(), stops.tolist(), strict=True)]

    def _marked(self, text: str) -> str:
        """Replace each special token of a text by a code point of its own."""
        names = [*self.rules.special]
        if self._special is None or not self._special.search(text):
            return text
        return self._special.sub(lambda found: chr(MARKER + names.index(found[0])), text)

    def _become(self, points: Integers) -> Integers:
        """Look code points up in `characters`."""
        places = self.pages[points // PAGE].astype(np.int64) * PAGE + points % PAGE
        return np.asarray(self.characters[places].astype(np.int64))

    def _expanded(self, become: Integers, of_text: Integers) -> tuple[Integers, Integers]:
        """Replace each value of `characters` by its code points. Returns them, and the number of the text of each."""
        several = become < 0
        first, count = np.divmod(np.where(several, -1 - become, 1), 1 << LENGTH_BITS)
        ends = np.cumsum(count)
        out = np.repeat(become, count)
        places = np.repeat(first - (ends - count), count) + np.arange(len(out))
        from_sequence = np.repeat(several, count)
        out[from_sequence] = self.sequences[places[from_sequence]]
        return out, np.repeat(of_text, count)

    def _in_order(self, become: Integers, of_text: Integers) -> Integers:
        """Put runs of marks in the order of Unicode's normal form NFD."""
        marks, classes = self.marks
        is_mark = np.isin(become, marks)
        continues_run = is_mark[1:] & is_mark[:-1] & (of_text[1:] == of_text[:-1])
        if not continues_run.any():
            return become
        run = np.cumsum(np.concatenate([[True], ~continues_run]))
        class_ = np.zeros(len(become), np.int64)
        class_[is_mark] = classes[np.searchsorted(marks, become[is_mark])]
        return become[np.lexsort((class_, run))]


class _Pieces(dict[str, tuple[int, ...]]):
    """A cache of the tokens of words, which cuts a word when it is first looked up."""

    def __init__(self, numbers: dict[str, int], rules: Rules) -> None:
        self._numbers, self._rules = numbers, rules
        self._longest = max(map(len, numbers))

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= _MOST_WORDS:
            self.clear()
        self[word] = pieces = self._cut(word)
        return pieces

    def _cut(self, word: str) -> tuple[int, ...]:
        """Cut a word into its tokens."""
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
    """Return where words begin and where they end, as indices of code points."""
    inside, alone = become != SPACE, become >= ALONE
    parted = np.empty(len(become) + 1, np.bool_)  # whether a border is before each code point
    parted[[0, -1]] = True
    parted[1:-1] = alone[1:] | alone[:-1] | (of_text[1:] != of_text[:-1])
    begins = inside & (parted[:-1] | ~np.concatenate([[False], inside[:-1]]))
    stops = inside & (parted[1:] | ~np.concatenate([inside[1:], [False]]))
    return np.flatnonzero(begins), np.flatnonzero(stops) + 1


def _points(text: str) -> Integers:
    """Return the code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)


def _rank(counts: Integers) -> Integers:
    """Return the numbers from 0 to below each count, one count after another."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
