"""Finds the parts of a text that support a label.

If only n-grams decide, the score is a sum over them, so each n-gram's part is exact: these parts and the bias add up to
the score. For a network, an encoder or a fastText model, each word is left out in turn, and the word's weight is what
the score loses (Li, Monroe and Jurafsky, "Understanding Neural Networks through Representation Erasure", 2016). These
weights need not add up to the score: of two words with the same meaning, either can be left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ..engine.base import Engine, Texts
from ..engine.open import open_engine
from ..errors import SourceError, UsageError
from ..model.charcnn import Model
from ..model.layers import BIAS, WHOLE
from ..model.ngrams import NGrams
from ..model.scores import log_scores
from ..model.several import load_one
from ..model.spelled import WeighedNGrams, weighed
from ..options import ENGINE, EngineKeywords

Doubles = NDArray[np.float64]

_WORD = re.compile(r"\S+")
_MOST_PARTS = 256  # parts of a text to leave out in turn; in a longer text, a part has several words
_LEAST = 1e-7  # probabilities nearer to 0 or 1 count as this near, so that their log odds are finite


class Piece(NamedTuple):
    """A part of a text, and how much it supports a label. A weight below 0 speaks against the label.

    Attributes
    ----------
    text : str
        The n-gram or the word, as it first stands in the text.
    kind : str
        "words" (an n-gram of words), "characters" (an n-gram of characters), or "left out" (a word that was left out).
    weight : float
        What the part adds to the label's logit, the score before softmax or sigmoid. For an n-gram, all occurrences.

    """

    text: str
    kind: str
    weight: float


class Word(NamedTuple):
    """A stretch of a text without white space, and its part of the label's weight.

    Attributes
    ----------
    begin, end : int
        The word is ``text[begin:end]``.
    weight : float
        The word's share of all n-grams that cover it, by characters; or what the score loses without it.

    """

    begin: int
    end: int
    weight: float


class Explanation(NamedTuple):
    """Why a text has a label, or why it could have one.

    Attributes
    ----------
    text : str
        The text that the model read. Its preparation, if it has one, has been applied.
    label : str
        The label that is explained.
    score : float
        The probability of the label.
    bias : float or None
        The label's logit without any n-gram; with the weights of all pieces it adds up to the logit. None if words
        were left out instead.
    pieces : tuple of Piece
        The n-grams or words. Those that support the label most come first.
    words : tuple of Word
        The same weights word by word, in the order of the text.

    Examples
    --------
    >>> why = broadsheet.explain("ag-news", "Stocks fell on Monday as oil rose.")
    >>> why.label, why.pieces[0].weight > 0
    ('Business', True)

    """

    text: str
    label: str
    score: float
    bias: float | None
    pieces: tuple[Piece, ...]
    words: tuple[Word, ...]


class Explainer:
    """A model that explains its labels. It is a context manager, which holds its engine.

    Raises UsageError for a model that gives numbers, and the errors of `open_engine`.

    Parameters
    ----------
    model : str, path or Model
        As in `load`.
    **options
        As in `explain`.

    """

    def __init__(self, model: str | Path | Model, **options: Unpack[EngineKeywords]) -> None:
        given = {name: str(options.get(name, ENGINE[name].default)) for name in ENGINE}
        self.model = load_one(model).asking(given["network"])
        if self.model.levels is not None:
            raise UsageError(f"{self.model.name} gives a text a number: only labels are explained")
        self._engine_options = given["device"], given["precision"], None, given["kernels"]
        self._engine = open_engine(self.model, *self._engine_options)
        self._whole: Engine | None = None

    def __enter__(self) -> Explainer:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in (self._engine, self._whole):
            if engine is not None:
                engine.close()

    def explain(self, text: str, label: str | None = None) -> Explanation:
        """Explain the label of a text. The errors are those of `explain`.

        Parameters
        ----------
        text : str
            The text.
        label : str, optional
            One of the model's classes; by default the most probable one.

        """
        if not isinstance(text, str):
            raise UsageError(f"a {type(text).__name__} is not a text: give a string, or a list of strings")
        try:
            texts = Texts.of([text.encode()])
        except UnicodeEncodeError as error:
            raise SourceError(f"the text is not valid Unicode: {error.reason}") from error
        predictions = self._engine.classify(texts, all_scores=True)
        scores = predictions.all_scores
        if scores is None or predictions.overflowed.any():
            raise SourceError("the model overflows on this text: load it with precision='fp32'")
        number = self._number(label, scores[0])
        read = self._read(texts)
        linear = self._linear if not predictions.asked else None
        if linear is not None:
            return self._of_ngrams(read, number, float(scores[0, number]), linear)
        return self._of_left_out(read, number, float(scores[0, number]))

    @property
    def _linear(self) -> Model | None:
        """The model of n-grams alone, if the labels come from these; else None."""
        model = self.model
        if model.has_network or model.encoder is not None:
            if model.cascade is None:
                return None
            model = model.asking("none")
        return model if isinstance(model.ngrams, NGrams) else None

    def _number(self, label: str | None, scores: NDArray[np.float32]) -> int:
        classes = self.model.classes
        if label is None and self.model.heads is not None:
            raise UsageError(
                f"{self.model.name} gives several labels: name the one to explain, of {', '.join(classes)}"
            )
        if label is not None and label not in classes:
            raise UsageError(f"{label!r} is no label of {self.model.name}, which has {', '.join(classes)}")
        return int(scores.argmax()) if label is None else classes.index(label)

    def _read(self, texts: Texts) -> str:
        """Return the text as the model reads it."""
        prepared = texts.as_read_by(self.model)
        text = bytes(prepared.data).decode()
        reads = self.model.reads
        return text if reads == WHOLE else text[:reads]

    def _of_ngrams(self, text: str, number: int, score: float, model: Model) -> Explanation:
        """Explain a label by each n-gram's part of the score, which is exact."""
        assert isinstance(model.ngrams, NGrams)
        grams = weighed(text, model.ngrams)
        weights = grams.weights[:, number] / model.temperature
        bias = float(model.tensors[BIAS][number]) / model.temperature
        pieces = _pieces_of(text, grams, weights)
        return Explanation(text, model.classes[number], score, bias, pieces, _words_of(text, grams, weights))

    def _of_left_out(self, text: str, number: int, score: float) -> Explanation:
        """Explain a label by what the score loses without each word. The whole model computes all texts."""
        if self._whole is None:
            self._whole = open_engine(self.model.asking("all"), *self._engine_options)
        words = [*_WORD.finditer(text)]
        runs = [part.tolist() for part in np.array_split(np.arange(len(words)), min(len(words), _MOST_PARTS) or 1)]
        spans = [(words[run[0]].start(), words[run[-1]].end()) for run in runs if run]
        without = [text, *(f"{text[:begin]} {text[end:]}" for begin, end in spans)]
        scored = self._whole.classify(Texts.of([one.encode() for one in without]), all_scores=True).all_scores
        assert scored is not None
        losses = _logits(scored[:, number])
        weights = losses[0] - losses[1:]
        found = [Word(*span, float(weight)) for span, weight in zip(spans, weights, strict=True)]
        pieces = [Piece(text[word.begin : word.end], "left out", word.weight) for word in found]
        pieces.sort(key=lambda piece: -piece.weight)
        return Explanation(text, self.model.classes[number], score, None, tuple(pieces), tuple(found))


def _logits(scores: NDArray[np.floating]) -> Doubles:
    """Return the log odds of probabilities."""
    within = np.clip(scores.astype(np.float64), _LEAST, 1 - _LEAST)
    return np.asarray(log_scores(within) - log_scores(1 - within))


def _pieces_of(text: str, grams: WeighedNGrams, weights: Doubles) -> tuple[Piece, ...]:
    """Return the n-grams, with equal ones added up."""
    sums: dict[tuple[bool, str], float] = defaultdict(float)
    first: dict[tuple[bool, str], str] = {}
    for of_words, begin, end, weight in zip(*(part.tolist() for part in (*grams[:3], weights)), strict=True):
        spelled = " ".join(text[begin:end].split()) if of_words else text[begin:end]
        key = of_words, spelled.lower()
        sums[key] += weight
        first.setdefault(key, spelled)
    pieces = [Piece(first[key], "words" if key[0] else "characters", weight) for key, weight in sums.items()]
    return tuple(sorted(pieces, key=lambda piece: -piece.weight))


def _words_of(text: str, grams: WeighedNGrams, weights: Doubles) -> tuple[Word, ...]:
    """Return the weights of the words: each n-gram's weight is spread evenly over the characters that it covers."""
    found = [*_WORD.finditer(text)]
    of_character = np.full(len(text) + 1, -1)
    for number, word in enumerate(found):
        of_character[word.start() : word.end()] = number
    sums = np.zeros(len(found))
    for begin, end, weight in zip(grams.begins.tolist(), grams.ends.tolist(), weights.tolist(), strict=True):
        covered = of_character[begin:end]
        covered = covered[covered >= 0]
        if len(covered):
            np.add.at(sums, covered, weight / len(covered))
    return tuple(Word(*word.span(), float(weight)) for word, weight in zip(found, sums, strict=True))


@overload
def explain(  # type: ignore[overload-overlap]  # a string yields strings
    model: str | Path | Model, text: str, *, label: str | None = None, **options: Unpack[EngineKeywords]
) -> Explanation: ...


@overload
def explain(
    model: str | Path | Model, text: Iterable[str], *, label: str | None = None, **options: Unpack[EngineKeywords]
) -> list[Explanation]: ...


@ENGINE.takes(EngineKeywords)
def explain(
    model: str | Path | Model,
    text: str | Iterable[str],
    *,
    label: str | None = None,
    **options: Unpack[EngineKeywords],
) -> Explanation | list[Explanation]:
    """Find the parts of a text that support a label.

    If n-grams decide the label, the parts are n-grams. Their weights and the bias add up to the label's logit, exactly
    but for rounding. If a network, an encoder or a fastText model decides, the parts are words: each is left out in
    turn, and its weight is what the log odds of the label lose.

    Parameters
    ----------
    model : str, Path or Model
        The name of a shipped model, a model file, or a loaded `Model`.
    text : str or iterable of str
        The text or texts.
    label : str, optional
        The label to explain, one of the model's classes. Default: the most probable one of each text.
    **options
        The options of the engine, and the texts about which a network or an encoder is asked.

    Returns
    -------
    Explanation or list of Explanation
        For one text an explanation; for several texts a list, in order.

    Raises
    ------
    ModelError
        For a model that does not exist or is damaged.
    SourceError
        For a text that is not valid Unicode, or on which the model overflows.
    UsageError
        For a model that gives numbers or has several heads, and for a label that the model does not have. If the
        device, the precision or the kernels are not available.

    Examples
    --------
    >>> why = broadsheet.explain("ag-news", "The home team won the match.")
    >>> why.label, why.score > 0.5
    ('Sports', True)

    """
    with Explainer(model, **options) as explainer:
        if isinstance(text, str):
            return explainer.explain(text, label)
        texts: Sequence[str] = [*text]
        return [explainer.explain(one, label) for one in texts]
