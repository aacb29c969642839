"""The messages between a server and an engine in another process or on a worker, and the expected time of a batch.

The time is measured when a model is loaded, and each batch corrects it.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..engine.base import Backend, Engine, Texts
from ..errors import BroadsheetError
from ..model.charcnn import Model
from ..model.ngrams import MOST_READ

Rows: TypeAlias = NDArray[np.void]
"""Predictions with all scores, one row for each text, as `to_rows` of `requests.py` makes them."""


class EngineLost(BroadsheetError):
    """The process or the worker that computed a batch is gone."""


@dataclass(frozen=True)
class Choice:
    """The settings of all engines.

    Attributes
    ----------
    device, precision, kernels : str
        As in `open_engine`.
    longest : float
        The seconds of the longest batch to measure.

    """

    device: str
    precision: str
    kernels: str
    longest: float


@dataclass(frozen=True)
class LoadedModel:
    """A model that the server offers.

    Attributes
    ----------
    name : str
        The name that clients use.
    number : int
        1 at the start of the server, and one more after each reload.
    source : str
        The file, or the name of a shipped model, from which the model was loaded.
    model : Model
        The model.
    data : bytes
        The model as the bytes that engines get: `Model.to_bytes`.

    """

    name: str
    number: int
    source: str
    model: Model
    data: bytes

    @property
    def key(self) -> str:
        """The name that engines use, which differs between versions of the model."""
        return f"{self.name}@{self.number}"


@dataclass(frozen=True)
class Ready:
    """The report of an engine about a model that it has loaded.

    Attributes
    ----------
    backend : Backend
        Everything that decides the bits of the scores.
    device : str
        The name of the device.
    points : list of Point
        The measured times of batches.
    batch : int or None
        The number of texts in the largest batch, or None if there is no limit.

    """

    backend: Backend
    device: str
    points: list[Point]
    batch: int | None


class Load(NamedTuple):
    """Asks an engine to load a model, in addition to those that it has.

    Attributes
    ----------
    key : str
        The key of the model in later messages.
    name : str
        The name of the model.
    model : bytes
        The model, as in `LoadedModel.data`.
    choice : Choice
        Device, precision and kernels.
    threads : int
        The number of threads that the engine may use. In a message to a Dask worker, it is the number of workers on its
        host, which share the cores.

    """

    key: str
    name: str
    model: bytes
    choice: Choice
    threads: int


class Loaded(NamedTuple):
    """Reports that the engine has loaded a model."""

    key: str
    ready: Ready


class Unload(NamedTuple):
    """Asks an engine to forget a model."""

    key: str


class Classify(NamedTuple):
    """Asks an engine to classify a batch.

    Attributes
    ----------
    number : int
        The number of the batch, which the answer repeats.
    key : str
        The key of the model.
    texts : tuple of PickleBuffer
        `data`, `offsets` and `n_chars` of `Texts`. Buffers are pickled much faster than arrays.
    top_k : int
        The number of most probable classes to find for each text.

    """

    number: int
    key: str
    texts: tuple[Any, Any, Any]
    top_k: int


class Classified(NamedTuple):
    """The predictions of a batch.

    Attributes
    ----------
    number : int
        The number of the batch, from `Classify`.
    rows : PickleBuffer
        The predictions, as `to_rows` makes them.
    classes, top_k : int
        The numbers of classes and of best labels in each row, which decide its type (`kind_of`).
    seconds : float
        The seconds that the device took.

    """

    number: int
    rows: Any
    classes: int
    top_k: int
    seconds: float


class Failed(NamedTuple):
    """Reports that a model cannot be loaded. If `key` is "", the device has failed, and the engine's process ends."""

    key: str
    error: BroadsheetError


class RemoteEngine(Protocol):
    """An engine on one device, in another process. Logs and metrics have its `name`."""

    name: str

    async def load(self, loaded: LoadedModel) -> Ready:
        """Load a model in addition to the others. Raises BroadsheetError if that fails, and EngineLost."""
        ...

    async def unload(self, key: str) -> None: ...

    async def classify(self, key: str, texts: Texts, top_k: int) -> tuple[Rows, float]:
        """Return the predictions, and the seconds on the device. Raises EngineLost."""
        ...


_STEP, _QUANTILE = 0.04, 0.8
"""A batch changes the expected time of its size by at most 4 %, so that an outlier does no harm. It raises the time by
more than it lowers it, so that four batches in five take no longer than expected.
"""

_SLOW = 1.25
"""A batch that takes this many times the expected time is slow. It is an outlier, or the first of many: the second slow
batch in a row raises the expected time by twice as much, the third by three times as much.
"""

_OWN_SHARE = 0.25
"""Each batch changes the expected time of all sizes, and that of its own size by this share more. In most cases all
sizes become slower together, because other processes use the same cores.
"""

_LEAST, _MOST = 0.5, 8.0
"""The limits of the factor between expected and measured time. A busy machine is not a thousand times slower."""

LONGEST_S = 0.25
"""The seconds of the longest batch. Longer ones do no more work per second, and make others wait."""

_CHARS = 4
"""The average length of texts is rounded up to a multiple of this, so that close averages share a cached batch size."""

_IN_A_GRAPH = 32
"""A GPU labels up to this many texts with one CUDA graph (`kernels/small_batches.py`). It captures a graph the first
time that a number of texts comes. `measure` makes it capture all of them, while no request waits.
"""

_REPEATS = 3
_LARGEST = 1 << 15


class Point(NamedTuple):
    """The measured time of batches of one size.

    Attributes
    ----------
    texts : int
        The number of texts in the batch.
    seconds : float
        The seconds that the batch takes if each text has one character.
    per_char : float
        The additional seconds for each further character that the model reads.

    """

    texts: int
    seconds: float
    per_char: float


def measure(engine: Engine, longest: float) -> list[Point]:
    """Measure batches of 1, 2, 4, … texts, until one takes `longest` seconds or LONGEST_S, whichever is less.

    Each size is measured with texts of one character and with texts as long as the model reads, at most MOST_READ.
    """
    for texts in range(1, _IN_A_GRAPH + 1) if engine.backend.device == "cuda" else ():
        engine.classify(Texts.of([b"a"] * texts), all_scores=True)
    longest = min(longest, LONGEST_S)
    points: list[Point] = []
    length = min(engine.model.reads, MOST_READ)
    texts = 1
    while texts <= min(_LARGEST, engine.batch or _LARGEST):
        short = _seconds_of(engine, Texts.of([b"a"] * texts))
        full = short
        if short < longest:
            full = _seconds_of(engine, Texts.of([b"news " * (length // 5)] * texts))
        chars = texts * max(1, length // 5 * 5 - 1)  # the time of the first character is part of `short`
        points.append(Point(texts, short, max(0.0, (full - short) / chars)))
        if full >= longest:
            break
        texts *= 2
    return points


def _seconds_of(engine: Engine, texts: Texts) -> float:
    timings: list[float] = []
    while len(timings) < _REPEATS and sum(timings) < LONGEST_S / 2:
        began = time.perf_counter()
        engine.classify(texts, all_scores=True)
        timings.append(time.perf_counter() - began)
    return min(timings)  # other work of the machine only makes it longer


class BatchTime:
    """The expected seconds of a batch, by its number of texts and the characters that the model reads of them.

    Between measured sizes, the time is interpolated. Beyond the largest, it grows in proportion to the texts.

    Examples
    --------
    >>> batch_time = BatchTime([Point(1, 0.010, 0.0), Point(2, 0.012, 0.0)])
    >>> round(batch_time.seconds(4, 0), 3)
    0.024
    >>> batch_time.most_texts(0.024, chars_a_text=0)
    4

    """

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = list(points)
        self._sizes = [point.texts for point in points]
        self._common, self._factors = 1.0, [1.0] * len(points)
        self._slow = 0
        self._most_texts: dict[tuple[float, int], int] = {}

    def seconds(self, texts: int, chars: int) -> float:
        """Return the expected seconds of a batch with this number of texts and of characters that the model reads."""
        last = self._points[-1].texts
        if texts > last:
            return self._at(-1, chars, texts / last)
        right = bisect_left(self._sizes, texts)
        high = self._at(right, chars)
        if texts == self._sizes[right]:
            return high
        low = self._at(right - 1, chars)
        return low + (high - low) * (texts - self._sizes[right - 1]) / (self._sizes[right] - self._sizes[right - 1])

    def most_texts(self, seconds: float, chars_a_text: float) -> int:
        """Return how many texts of this average length an engine should compute within `seconds`, at least 1."""
        chars_a_text = _CHARS * math.ceil(chars_a_text / _CHARS)
        if (seconds, chars_a_text) not in self._most_texts:
            low, high = 1, 2 * _LARGEST
            while low < high:
                middle = (low + high + 1) // 2
                if self.seconds(middle, middle * chars_a_text) <= seconds:
                    low = middle
                else:
                    high = middle - 1
            self._most_texts[seconds, chars_a_text] = low
        return self._most_texts[seconds, chars_a_text]

    def learn(self, texts: int, chars: int, seconds: float) -> None:
        """Correct the expected time of batches of about this size by the seconds that a batch took.

        Each step follows the gradient of the quantile loss (Koenker and Bassett, "Regression quantiles", 1978): up by
        `_QUANTILE` of `_STEP`, or down by 1 - `_QUANTILE`, however large the difference is.
        """
        # Find the measured size that is nearest: each size is twice the last, so 0.75 of it is halfway between them.
        right = min(bisect_right(self._sizes, texts), len(self._sizes) - 1)
        nearest = right if right == 0 or texts >= 0.75 * self._sizes[right] else right - 1
        over = seconds / self.seconds(texts, chars)
        self._slow = self._slow + 1 if over > _SLOW else 0
        step = _STEP * (_QUANTILE * max(1, self._slow) if over > 1 else _QUANTILE - 1)
        self._most_texts.clear()
        self._common = _within(self._common * (1 + step))
        self._factors[nearest] = _within(self._factors[nearest] * (1 + _OWN_SHARE * step))

    def _at(self, index: int, chars: int, times: float = 1.0) -> float:
        point = self._points[index]
        return _within(self._common * self._factors[index]) * (point.seconds * times + point.per_char * chars)


def _within(factor: float) -> float:
    return min(_MOST, max(_LEAST, factor))
