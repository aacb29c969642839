"""Long texts in windows: each window is labelled like a text of its own, and a text's scores follow from its windows'.

A window is as long as the model reads, or as is asked for. Windows begin every `length - overlap` characters, and the
last one ends where the text does, or where the most windows allowed end; or they are at its beginning, middle and end.
A text that the model reads whole is one window, with the bits that it has without windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..engine.base import Engine, Predictions, Prepared, Texts
from ..errors import UsageError
from ..model.alphabet import count_characters, count_unknown
from ..model.charcnn import Model
from ..model.layers import WHOLE
from ..model.reference import top_k as best_of
from ..model.scores import parts_of
from ..model.several import Models
from ..telemetry.spans import Span

SCORES = ("mean", "best", "worst")
_PARTS = {"first": 1, "last": 1, "first+last": 2, "spread": 3}
"""How many windows each is, at most."""

_AT_ONCE_BYTES = 64 << 20


class _Piece(NamedTuple):
    """One window each of some texts. rows: numbers of these texts. texts: large_string."""

    rows: NDArray[np.int64]
    texts: pa.Array


@dataclass(frozen=True)
class Windows:
    """How texts are cut into windows.

    Attributes
    ----------
    most : int
        Windows of a text at most.
    part : str
        Where they are: "" from the beginning on, "last", "first+last", or "spread": beginning, middle and end.
    size : int or None
        Characters of a window; None for as many as the model reads.
    overlap : int
        Characters that a window shares with the next.
    score : str
        "mean", the mean of each class's scores over the windows, or "best" or "worst", the scores of the window whose
        best score is highest or lowest, the first of such.

    """

    most: int
    overlap: int = 0
    score: str = "mean"
    part: str = ""
    size: int | None = None

    @classmethod
    def of(cls, windows: int | str, overlap: int, score: str) -> Windows:
        """As the option has them: how many, or which, and after a colon their size. Raises UsageError."""
        found = re.fullmatch(rf"([1-9]\d*|{'|'.join(map(re.escape, _PARTS))})(?::([1-9]\d*))?", str(windows))
        if found is None:
            some = "a number from 1 on, first, last, first+last or spread, and after it perhaps :CHARS, the size of one"
            raise UsageError(f"windows is {windows!r}, it must be {some}")
        which, size = found.groups()
        if overlap and which in _PARTS:
            raise UsageError(f"--overlap goes with a number of --windows, not with {which}")
        part = which if which in _PARTS and which != "first" else ""
        return cls(_PARTS.get(which) or int(which), overlap, score, part, None if size is None else int(size))

    def length(self, model: Model) -> int:
        """Characters of a window of a text that this model labels."""
        return model.window if self.size is None else self.size

    def reads(self, length: int) -> int:
        """Characters of a text that windows of `length` reach."""
        return (self.most - 1) * (length - self.overlap) + length

    def reads_of(self, models: Models) -> int:
        """Characters from a text's beginning on that the labels of all these need. Raises UsageError for an overlap of
        whole windows, and for windows that a model does not read whole.
        """
        for model in models.every:
            what = "overlap" if self.overlap >= self.length(model) else "a window"
            if self.overlap >= self.length(model) or self.length(model) > model.window:
                given, least = (self.overlap, "below") if what == "overlap" else (self.length(model), "at most")
                raise UsageError(
                    f"{what} is {given:,}: it must be {least} the {model.window:,} characters that {model.name} reads"
                )
        is_whole = self.part or any(model.preparation for model in models.every)
        return WHOLE if is_whole else max(self.reads(self.length(model)) for model in models.every)

    def counts(self, n_chars: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Windows of texts of so many characters, [N]; an empty text has one."""
        if self.part:
            spread = (n_chars > length).astype(np.int64) + (n_chars > 2 * length)
            return 1 + np.minimum(spread, self.most - 1)
        beyond = np.minimum(n_chars, self.reads(length)) - length
        counts: NDArray[np.int64] = 1 + np.maximum(-(-beyond // (length - self.overlap)), 0)
        return counts

    def classify(
        self,
        engine: Engine,
        texts: Texts,
        top_k: int,
        all_scores: bool,
        spans: list[Span] | None,
        each_kernel: bool,
        handed_over: Callable[[], object] | None = None,
    ) -> Predictions:
        """What the model says of N texts. Their counts are those of whole texts, as far as windows reach.

        Parameters
        ----------
        engine : Engine
            The model's engine.
        texts, top_k, all_scores, spans, each_kernel, handed_over
            As of `Engine.classify`.

        """
        if isinstance(engine, Prepared):
            how = (top_k, all_scores, spans, each_kernel, handed_over)
            return engine.through(texts, lambda inner, own: self.classify(inner, own, *how))
        length, many = self.length(engine.model), len(texts)
        if texts.ids is not None:
            predictions = engine.classify(texts, top_k, all_scores, spans, each_kernel, handed_over)
            return replace(predictions, n_windows=np.ones(many, np.int64))
        n_chars = count_characters(texts.data, texts.offsets) if texts.n_chars is None else texts.n_chars
        counts = self.counts(n_chars, length)
        truncated = n_chars > self.reads(length)
        as_without = n_chars.max(initial=0) <= length or not (self.part or self.size)
        if counts.max(initial=1) == 1 and as_without:
            predictions = engine.classify(texts, top_k, all_scores, spans, each_kernel, handed_over)
            return replace(predictions, n_chars=n_chars, truncated=truncated, n_windows=counts)
        together = _Together(many, engine.model, self.score)
        reached = _beginnings(texts, WHOLE if self.part else self.reads(length))
        pieces_of = self._parts if self.part else self._pieces
        for pieces in _slabs(pieces_of(reached, counts, length)):
            windows = pa.concat_arrays([piece.texts for piece in pieces])
            predictions = engine.classify(_texts_of(windows), 1, True, spans, each_kernel)
            together.saturated += predictions.saturated
            together.asked += predictions.asked
            first = 0
            for piece in pieces:
                if predictions.all_scores is not None:
                    together.add(piece.rows, predictions.all_scores[first : first + len(piece.rows)])
                first += len(piece.rows)
        scores = together.scores(counts)
        labels, best = best_of(scores, min(top_k, scores.shape[1]))
        every, of_reached = scores if all_scores else None, _texts_of(self._reached(reached, n_chars, length))
        unknown = np.zeros(many, np.int64)
        if engine.model.has_network:
            unknown = count_unknown(of_reached.data, of_reached.offsets, engine.model.alphabet)
        sums = together.saturated, counts, together.asked
        return Predictions(labels, best, every, n_chars, truncated, unknown, *sums)

    def _pieces(self, texts: pa.Array, counts: NDArray[np.int64], length: int) -> Iterator[_Piece]:
        """First the first windows of all texts, then the second ones, and so on."""
        step = length - self.overlap
        for number in range(int(counts.max())):
            last = np.flatnonzero((counts == number + 1) & (number > 0))
            others = np.flatnonzero((counts > number + 1) | ((counts == number + 1) & (number == 0)))
            for rows, start, stop in ((others, number * step, number * step + length), (last, -length, None)):
                if len(rows):
                    yield _Piece(rows, pc.utf8_slice_codeunits(texts.take(pa.array(rows)), start, stop))

    def _parts(self, texts: pa.Array, counts: NDArray[np.int64], length: int) -> Iterator[_Piece]:
        """The windows at the beginning of all texts, then those in their middle and at their end."""
        if self.part != "last":
            yield _Piece(np.arange(len(texts)), pc.utf8_slice_codeunits(texts, 0, length))
        if len(rows := np.flatnonzero(counts > 2)):
            whole = texts.take(pa.array(rows)).to_pylist()
            middles = [text[(len(text) - length) // 2 :][:length] for text in whole]
            yield _Piece(rows, pa.array(middles, pa.large_string()))
        if len(rows := np.flatnonzero((counts > 1) | (self.part == "last"))):
            yield _Piece(rows, pc.utf8_slice_codeunits(texts.take(pa.array(rows)), -length, None))

    def _reached(self, texts: pa.Array, n_chars: NDArray[np.int64], length: int) -> pa.Array:
        """Of texts up to the last window what is in any: all, but where parts of a longer text do not meet."""
        apart = np.flatnonzero(n_chars > self.reads(length)) if self.part else np.empty(0, np.int64)
        if not len(apart):
            return texts
        pieces = self._parts(texts.take(pa.array(apart)), np.full(len(apart), self.most), length)
        joined = pc.binary_join_element_wise(*(piece.texts for piece in pieces), pa.scalar("", texts.type))
        return pc.replace_with_mask(texts, pa.array(n_chars > self.reads(length)), joined)


class _Together:
    """The scores of texts from those of their windows, which are added in the order in which a text has them."""

    def __init__(self, texts: int, model: Model, score: str) -> None:
        self._is_mean, self._sign = score == "mean", -1 if score == "worst" else 1
        self._scores = np.zeros((texts, len(model.classes)), np.float64)
        self._parts = [slice(None)] if model.heads is None else [*parts_of(model.heads)]
        self._best = np.full((len(self._parts), texts), -np.inf)
        self.saturated = self.asked = 0

    def add(self, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        """One window each of some texts. rows: their numbers, [M]. scores: of every class, [M, classes]."""
        if self._is_mean:
            self._scores[rows] += scores
            return
        for part, so_far in zip(self._parts, self._best, strict=True):  # of each head the window that it takes
            best = self._sign * scores[:, part].max(axis=1)
            best[np.isnan(best)] = np.inf  # the model overflows on a part of the text: so it does on the text
            better = best > so_far[rows]
            self._scores[rows[better], part], so_far[rows[better]] = scores[better, part], best[better]

    def scores(self, counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """The scores of every class, float32 [N, classes]; NaN where the model overflows on a window."""
        scores = self._scores / counts[:, None] if self._is_mean else self._scores
        rounded: NDArray[np.float32] = scores.astype(np.float32)
        return rounded


def _slabs(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces that are labelled in one call: windows take more memory than the texts that they overlap in."""
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


def _beginnings(texts: Texts, reads: int) -> pa.Array:
    """Each text up to `reads` characters: a large_string."""
    offsets = np.ascontiguousarray(texts.offsets, np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(texts.data))]
    whole = pa.Array.from_buffers(pa.large_string(), len(texts), buffers)
    if int(np.diff(offsets).max(initial=0)) <= reads:
        return whole
    return pc.utf8_slice_codeunits(whole, 0, reads)


def _texts_of(texts: pa.Array) -> Texts:
    """A large_string array as an engine takes it."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return Texts(np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), bounds)
