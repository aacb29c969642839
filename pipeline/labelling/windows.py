"""Labels long texts in windows. Each window is labelled like a text, and the text's scores follow from its windows.

A window is as long as the model reads, or as the user asks for. Windows begin every `length - overlap` characters. The
last window ends where the text ends, or where the limit of windows is reached. Windows may also be only at the
beginning, the middle and the end of a text. The windows of an encoder are whole words, with at most as many tokens as
it reads. A text that the model reads completely is one window, with exactly the scores that it has without windows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..engine.base import ALONE, Engine, Predictions, Texts, Wrapped
from ..errors import UsageError
from ..model.alphabet import count_characters, count_unknown
from ..model.charcnn import Model
from ..model.layers import WHOLE
from ..model.preparation import buffers_of, column_of
from ..model.reference import top_k as best_of
from ..model.scores import parts_of
from ..model.several import Models
from ..model.stored_tokenizer import StoredTokenizer
from ..model.wordpiece import WordPiece
from ..telemetry.spans import Span

SCORES = ("mean", "best", "worst")
_PARTS = {"first": 1, "last": 1, "first+last": 2, "spread": 3}
"""The largest number of windows for each choice of parts."""

_AT_ONCE_BYTES = 64 << 20
_IS_SPACE = np.isin(np.arange(256), list(b" \t\n\r\v\f\0"))


class _Piece(NamedTuple):
    """One window of each of some texts. rows: the numbers of these texts. texts: the windows, of type large_string."""

    rows: NDArray[np.int64]
    texts: pa.Array


@dataclass(frozen=True)
class Windows:
    """How texts are cut into windows.

    Attributes
    ----------
    most_windows : int
        The limit of windows in a text.
    part : str
        The places of the windows: "" from the beginning on, "last", "first+last", or "spread" (beginning, middle and
        end).
    size : int or None
        The characters or tokens of a window; None for as many as the model reads.
    in_tokens : bool
        Whether sizes and places are counted in tokens of fastText's models instead of characters. For an encoder they
        are its own tokens, including the two that frame a window. The windows of an encoder also consist of tokens if
        no size is given.
    overlap : int
        The number of characters that a window shares with the next.
    score : str
        "mean" is the mean of each class's scores over the windows. "best" and "worst" are the scores of the first
        window whose best score is highest or lowest. For a model of numbers they are the mean, highest or lowest
        number.

    """

    most_windows: int
    overlap: int = 0
    score: str = "mean"
    part: str = ""
    size: int | None = None
    in_tokens: bool = False

    @classmethod
    def of(cls, windows: int | str, overlap: int, score: str) -> Windows:
        """Read the windows from the option: their number or places, and after a colon their size. Raises UsageError."""
        found = re.fullmatch(rf"([1-9]\d*|{'|'.join(map(re.escape, _PARTS))})(?::([1-9]\d*)(t?))?", str(windows))
        if found is None:
            some = "a number from 1 on, first, last, first+last or spread, and after it perhaps :CHARS or :TOKENSt"
            raise UsageError(f"windows is {windows!r}, it must be {some}")
        which, size, unit = found.groups()
        if overlap and which in _PARTS:
            raise UsageError(f"--overlap goes with a number of --windows, not with {which}")
        part = which if which in _PARTS and which != "first" else ""
        return cls(
            _PARTS.get(which) or int(which), overlap, score, part, None if size is None else int(size), bool(unit)
        )

    def length(self, model: Model) -> int:
        """Return the number of characters or tokens of a window for this model."""
        if self._tokens_of(model):
            assert model.encoder is not None
            return (self.size or model.encoder.settings.most_tokens) - model.encoder.framing
        return model.window if self.size is None else self.size

    def _tokens_of(self, model: Model) -> WordPiece | StoredTokenizer | None:
        """Return the tokenizer by which the windows of an encoder are measured; None for other windows."""
        return model.encoder.tokens if model.encoder is not None and (self.in_tokens or self.size is None) else None

    def reads(self, length: int) -> int:
        """Return how many characters or tokens of a text windows of `length` reach."""
        return (self.most_windows - 1) * (length - self.overlap) + length

    def reads_of(self, models: Models) -> int:
        """Return how many characters from the beginning of a text the labels of all models need.

        Raises UsageError if the overlap is a whole window, or if a model does not read a window completely.
        """
        for model in models.every:
            if self.in_tokens and model.window != WHOLE:
                raise UsageError(f"windows of tokens are for models of fastText's, and encoders, not {model.name}")
            length, room, framing, unit = self.length(model), model.window, 0, "characters"
            if self._tokens_of(model) and model.encoder is not None:
                room, framing, unit = model.encoder.settings.most_tokens, model.encoder.framing, "tokens"
            if length < 1:
                raise UsageError(f"a window of {self.size} tokens has none of a text: {framing} frame it")
            if self.overlap >= length:
                whose = "that you asked for" if self.size else f"that {model.name} reads"
                what = f"overlap is {self.overlap:,}: it must be below the {length:,} {unit}"
                raise UsageError(f"{what} of a window {whose}")
            if length + framing > room:
                what = f"a window is {length + framing:,}: it must be at most the {room:,}"
                raise UsageError(f"{what} {unit} that {model.name} reads")
        is_whole = self.part or self.in_tokens or any(model.preparation or model.encoder for model in models.every)
        return WHOLE if is_whole else max(self.reads(self.length(model)) for model in models.every)

    def counts(self, sizes: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return the number of windows of each text, [N]. An empty text has one.

        sizes: the characters or tokens of each text, [N].
        """
        if self.part:
            spread = (sizes > length).astype(np.int64) + (sizes > 2 * length)
            return 1 + np.minimum(spread, self.most_windows - 1)
        beyond = np.minimum(sizes, self.reads(length)) - length
        return np.asarray(1 + np.maximum(-(-beyond // (length - self.overlap)), 0))

    def classify(
        self,
        engine: Engine,
        texts: Texts,
        top_k: int,
        all_scores: bool,
        spans: list[Span] | None,
        each_kernel: bool,
        turn: AbstractContextManager[object] = ALONE,
    ) -> Predictions:
        """Return the predictions of the model for N texts. Counts are over the texts as far as windows reach.

        Parameters
        ----------
        engine : Engine
            The model's engine.
        texts, top_k, all_scores, spans, each_kernel, turn
            See `Engine.classify`.

        """
        # Leave texts that are encoded already, and the wrappers of engines, to the engine.
        if isinstance(engine, Wrapped):
            options = (top_k, all_scores, spans, each_kernel, turn)
            return engine.through(texts, lambda inner, own: self.classify(inner, own, *options))
        length, many = self.length(engine.model), len(texts)
        if texts.ids is not None:
            predictions = engine.classify(texts, top_k, all_scores, spans, each_kernel, turn)
            return replace(predictions, n_windows=np.ones(many, np.int64))

        # Count the windows of each text. If each text has one, no windows are needed.
        n_chars = count_characters(texts.data, texts.offsets) if texts.n_chars is None else texts.n_chars
        whole = column_of(texts.data, texts.offsets)
        tokens, sizes = self._tokens_of(engine.model), n_chars
        if tokens is None:
            sizes = np.diff(_tokens(whole)[1]) if self.in_tokens else n_chars
            counts, truncated, cut = self.counts(sizes, length), sizes > self.reads(length), []
        else:
            cut = [self._words(text, tokens, length) for text in whole.to_pylist()]
            counts, truncated = np.array([len(one) for one, _ in cut]), np.array([is_cut for _, is_cut in cut])
        is_longer = sizes > length if tokens is None else truncated
        is_as_without = not (self.part or self.size) or not is_longer.any()
        if counts.max(initial=1) == 1 and is_as_without:
            predictions = engine.classify(texts, top_k, all_scores, spans, each_kernel, turn)
            return replace(predictions, n_chars=n_chars, truncated=truncated, n_windows=counts)

        # Label the windows, and add their scores to those of their texts.
        sums_of_texts = _TextScores(many, engine.model, self.score)
        is_reached = cut or self.part or sizes.max(initial=0) <= self.reads(length)
        reached = whole if is_reached else self._slice(whole, 0, self.reads(length))
        pieces_of = self._parts if self.part else self._pieces
        for pieces in _slabs(
            _in_turn([windows_of_text for windows_of_text, _ in cut]) if cut else pieces_of(reached, counts, length)
        ):
            windows = pa.concat_arrays([piece.texts for piece in pieces])
            window_texts = Texts(*buffers_of(windows), sharing=texts.sharing)
            predictions = engine.classify(window_texts, 1, True, spans, each_kernel, turn)
            sums_of_texts.saturated += predictions.saturated
            sums_of_texts.asked += predictions.asked
            first = 0
            for piece in pieces:
                if predictions.all_scores is not None:
                    scores = predictions.all_scores
                    if engine.model.levels is not None:
                        scores = np.concatenate([scores, predictions.scores], axis=1)
                    sums_of_texts.add(piece.rows, scores[first : first + len(piece.rows)])
                first += len(piece.rows)

        # Choose the labels by the scores of the texts, and count unknown characters.
        scores = sums_of_texts.scores(counts)
        if engine.model.levels is None:
            labels, best = best_of(scores, min(top_k, scores.shape[1]))
        else:
            scores, best = scores[:, :-1], scores[:, -1:]
            labels = engine.model.levels.nearest(best, scores.shape[1]).astype(np.int32)
        every, unknown = scores if all_scores else None, np.zeros(many, np.int64)
        if engine.model.has_network:
            unknown = count_unknown(*buffers_of(self._reached(reached, sizes, length)), engine.model.alphabet)
        sums = sums_of_texts.saturated, counts, sums_of_texts.asked
        return Predictions(labels, best, every, n_chars, truncated, unknown, *sums)

    def _pieces(self, texts: pa.Array, counts: NDArray[np.int64], length: int) -> Iterator[_Piece]:
        """Yield the first windows of all texts, then the second windows, and so on."""
        step = length - self.overlap
        for number in range(int(counts.max())):
            last = np.flatnonzero((counts == number + 1) & (number > 0))
            others = np.flatnonzero((counts > number + 1) | ((counts == number + 1) & (number == 0)))
            for rows, start, stop in ((others, number * step, number * step + length), (last, -length, None)):
                if len(rows):
                    yield _Piece(rows, self._slice(texts.take(pa.array(rows)), start, stop))

    def _parts(self, texts: pa.Array, counts: NDArray[np.int64], length: int) -> Iterator[_Piece]:
        """Yield the windows at the beginning of all texts, then those in their middle and those at their end."""
        if self.part != "last":
            yield _Piece(np.arange(len(texts)), self._slice(texts, 0, length))
        if len(rows := np.flatnonzero(counts > 2)):
            yield _Piece(rows, self._middles(texts.take(pa.array(rows)), length))
        if len(rows := np.flatnonzero((counts > 1) | (self.part == "last"))):
            yield _Piece(rows, self._slice(texts.take(pa.array(rows)), -length, None))

    def _words(self, text: str, tokens: WordPiece | StoredTokenizer, length: int) -> tuple[list[str], bool]:
        """Return the windows of a text, and whether they leave words out.

        Each window has as many whole words as fit into `length` tokens. A word with more tokens is a window of its own.
        """
        # Find the tokens of each word, and the places of the words in the text.
        begins, counts = tokens.words_of(text)
        words, before = len(counts), np.append(0, np.cumsum(counts))  # tokens before each word
        places = [0, *begins[1:].tolist(), len(text)]

        def end_of(first: int) -> int:
            return max(first + 1, int(np.searchsorted(before, before[first] + length, side="right")) - 1)

        def from_token(token: int) -> int:
            return min(int(np.searchsorted(before, token)), words - 1)

        # Choose the words of each window.
        total = int(before[-1])
        last, first = (from_token(total - length), words), from_token((total - length) // 2)
        middle = [(first, end_of(first))] if self.most_windows > 2 and total > 2 * length else []
        if total <= length or words <= 1:
            return [text], False
        if self.part:
            spans = [*([(0, end_of(0))] if self.part != "last" else []), *middle, last]
        else:
            spans, first = [], 0
            while len(spans) < self.most_windows and (not spans or spans[-1][1] < words):
                spans.append((first, end_of(first)) if end_of(first) < words else last)
                first = max(first + 1, from_token(before[spans[-1][1]] - self.overlap))
        gaps = zip((0, *(end for _, end in spans)), (*(start for start, _ in spans), words), strict=True)
        return [text[places[a] : places[b]] for a, b in spans], any(end < start for end, start in gaps)

    def _slice(self, texts: pa.Array, start: int, stop: int | None) -> pa.Array:
        """Return `text[start:stop]` of each text, in characters or tokens."""
        if not self.in_tokens:
            return pc.utf8_slice_codeunits(texts, start, stop)
        counts = np.diff(_tokens(texts)[1])
        ends = counts if stop is None else np.minimum(counts, stop)
        return _of_tokens(texts, np.minimum(start, counts) if start >= 0 else np.maximum(counts + start, 0), ends)

    def _middles(self, texts: pa.Array, length: int) -> pa.Array:
        if self.in_tokens:
            first = (np.diff(_tokens(texts)[1]) - length) // 2
            return _of_tokens(texts, first, first + length)
        return pa.array([text[(len(text) - length) // 2 :][:length] for text in texts.to_pylist()], pa.large_string())

    def _reached(self, texts: pa.Array, sizes: NDArray[np.int64], length: int) -> pa.Array:
        """Return the part of each text that is in any window, for texts that end with their last window.

        It is the whole text, unless the text is so long that the parts at its beginning, middle and end do not meet.
        """
        apart = np.flatnonzero(sizes > self.reads(length)) if self.part else np.empty(0, np.int64)
        if not len(apart):
            return texts
        pieces = self._parts(texts.take(pa.array(apart)), np.full(len(apart), self.most_windows), length)
        joined = pc.binary_join_element_wise(*(piece.texts for piece in pieces), pa.scalar("", texts.type))
        return pc.replace_with_mask(texts, pa.array(sizes > self.reads(length)), joined)


class _TextScores:
    """Computes the scores of texts from the scores of their windows, which `add` takes in the order of each text."""

    def __init__(self, texts: int, model: Model, score: str) -> None:
        self._is_mean, self._sign = score == "mean", -1 if score == "worst" else 1
        self._is_number = model.levels is not None
        self._scores = np.zeros((texts, len(model.classes) + self._is_number), np.float64)
        self._parts = [slice(None)] if model.heads is None else [*parts_of(model.heads)]
        self._best = np.full((len(self._parts), texts), -np.inf)
        self.saturated = self.asked = 0

    def add(self, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        """Add one window of each of some texts.

        rows: the numbers of these texts, [M]. scores: the score of every class, [M, classes]; a model of numbers has
        the number in one more column.
        """
        if self._is_mean:
            self._scores[rows] += scores
            return
        for part, so_far in zip(self._parts, self._best, strict=True):  # each head chooses its own window
            best = self._sign * (scores[:, -1] if self._is_number else scores[:, part].max(axis=1))
            best[np.isnan(best)] = np.inf  # a model that overflows on a window overflows on the text
            better = best > so_far[rows]
            self._scores[rows[better], part], so_far[rows[better]] = scores[better, part], best[better]

    def scores(self, counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the scores of every class, float32 [N, classes]; NaN if the model overflows on a window.

        counts: the number of windows of each text, [N].
        """
        return np.asarray(self._scores / counts[:, None] if self._is_mean else self._scores, np.float32)


def _slabs(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """Yield the pieces that are labelled in one call.

    Their size is limited, because overlapping windows take more memory than the texts.
    """
    held: list[_Piece] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += piece.texts.nbytes
        if size >= _AT_ONCE_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _in_turn(windows: list[list[str]]) -> Iterator[_Piece]:
    """Yield the first windows of all texts, then the second windows, and so on. windows: those of each text."""
    for number in range(max(map(len, windows))):
        rows = [row for row, windows_of_text in enumerate(windows) if len(windows_of_text) > number]
        yield _Piece(np.array(rows), pa.array([windows[row][number] for row in rows], pa.large_string()))


def _tokens(texts: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each token begins in the bytes of N texts, and how many tokens begin before each text, [N + 1].

    The last count is the number of all tokens. Tokens are separated by the white space of `FastText`.
    """
    data, offsets = buffers_of(texts)
    is_space = _IS_SPACE[data]
    after_space = np.concatenate([[True], is_space[:-1]]) if len(data) else is_space
    after_space[offsets[:-1][offsets[:-1] < len(data)]] = True
    starts = np.flatnonzero(after_space & ~is_space)
    return starts, np.searchsorted(starts, offsets)


def _of_tokens(texts: pa.Array, first: NDArray[np.int64], end: NDArray[np.int64]) -> pa.Array:
    """Return the tokens from `first` to `end`, [N], of each of N texts, with the white space after them."""
    data, offsets = buffers_of(texts)
    starts, counts = _tokens(texts)
    places = np.append(starts, len(data))
    begins = np.where(first > 0, np.minimum(places[counts[:-1] + first], offsets[1:]), offsets[:-1])
    ends = np.where(counts[:-1] + end < counts[1:], places[np.minimum(counts[:-1] + end, len(starts))], offsets[1:])
    content = data.tobytes()
    cut = [content[begin:stop] for begin, stop in zip(begins.tolist(), ends.tolist(), strict=True)]
    return pa.array(cut, pa.large_binary()).cast(pa.large_string())
