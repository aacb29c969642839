"""The messages between a server and an engine, wherever that is; and how long a batch takes there.

That is measured when a model is loaded, and corrected by every batch.
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
"""Predictions with all scores, a row a text, as `to_rows` of `requests.py` makes them."""


class EngineLost(BroadsheetError):
    """The process or the worker that had a batch is gone."""


@dataclass(frozen=True)
class Choice:
    """What a user has chosen for all engines.

    Attributes
    ----------
    device, precision, kernels : str
        As in `open_engine`.
    longest : float
        Seconds of the longest batch that is measured.

    """

    device: str
    precision: str
    kernels: str
    longest: float


@dataclass(frozen=True)
class LoadedModel:
    """A model as it is served.

    Attributes
    ----------
    name : str
        The name by which clients ask for it.
    number : int
        1, and one more with each reload.
    source : str
        The file, or the name of a shipped model, from which it was loaded.
    model : Model
        The model.
    data : bytes
        The same, for the engines: `Model.to_bytes`.

    """

    name: str
    number: int
    source: str
    model: Model
    data: bytes

    @property
    def key(self) -> str:
        """The name by which engines know it, beside the version before it."""
        return f"{self.name}@{self.number}"


@dataclass(frozen=True)
class Ready:
    """What an engine reports of a model that it has loaded.

    Attributes
    ----------
    backend : Backend
        What decides the bits of its scores.
    device : str
        The device's name.
    points : list of Point
        What was measured of its batches.
    batch : int or None
        Texts of its largest batch, where it has a limit.

    """

    backend: Backend
    device: str
    points: list[Point]
    batch: int | None


class Load(NamedTuple):
    """Load a model beside those that are there.

    Attributes
    ----------
    key : str
        By which the engine is to know it.
    name : str
        The model's name.
    model : bytes
        The model, as `LoadedModel.data`.
    choice : Choice
        Device, precision and kernels.
    threads : int
        Threads that the engine may use. In a message to a worker of Dask: the workers of its host, which share the
        cores.

    """

    key: str
    name: str
    model: bytes
    choice: Choice
    threads: int


class Loaded(NamedTuple):
    key: str
    ready: Ready


class Unload(NamedTuple):
    key: str


class Classify(NamedTuple):
    """Classify a batch.

    Attributes
    ----------
    number : int
        The batch's, which comes back with the answer.
    key : str
        By which the engine knows the model.
    texts : tuple of PickleBuffer
        `data`, `offsets` and `n_chars` of `Texts`: buffers are pickled much faster than arrays.
    top_k : int
        The most probable classes of each text, so many.

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
        That of `Classify`.
    rows : PickleBuffer
        The predictions, as `to_rows` makes them.
    classes, top_k : int
        Of each row, which say how long it is (`kind_of`).
    seconds : float
        How long the device took.

    """

    number: int
    rows: Any
    classes: int
    top_k: int
    seconds: float


class Failed(NamedTuple):
    """A model that could not be loaded under `key`. With a key of "", the device has failed, and its process ends."""

    key: str
    error: BroadsheetError


class RemoteEngine(Protocol):
    """One device. `name` is what logs and metrics call it."""

    name: str

    async def load(self, loaded: LoadedModel) -> Ready:
        """Load a model beside the others. Raises BroadsheetError where it cannot be, EngineLost."""
        ...

    async def unload(self, key: str) -> None: ...

    async def classify(self, key: str, texts: Texts, top_k: int) -> tuple[Rows, float]:
        """Predictions, and seconds on the device. Raises EngineLost."""
        ...


_STEP, _QUANTILE = 0.04, 0.8
"""A batch moves what is expected of its size by 4 % at most, so that an outlier does no harm; and by more upwards than
downwards, so that four batches in five take no longer than expected.
"""

_SLOW = 1.25
"""A batch that takes so many times what is expected is an outlier, or the first of many: the second in a row moves what
is expected by twice as much, the third by three times as much.
"""

_OWN_SHARE = 0.25
"""A step moves what is expected of all sizes, and of the batch's own size by this share of it more: mostly all sizes
become slower together, when other processes use the same cores.
"""

_LEAST, _MOST = 0.5, 8.0
"""How far what is expected may move from what was measured: a machine gets busy, but not a thousand times slower."""

LONGEST_S = 0.25
"""Seconds of the longest batch: longer ones would do no more work in the same time, and hold up others."""

_CHARS = 4
"""Characters of a text are rounded up to this, so that the size found for one average is used for the next."""

_IN_A_GRAPH = 32
"""A GPU labels up to so many texts as one graph, made for each number of texts when it first comes
(`kernels/small_batches.py`): `measure` makes them all, while no request waits.
"""

_REPEATS = 3
_LARGEST = 1 << 15


class Point(NamedTuple):
    """What was measured of batches of one size.

    Attributes
    ----------
    texts : int
        Texts in a batch.
    seconds : float
        Seconds of a batch of texts of one character.
    per_char : float
        Seconds more for each character that the model reads.

    """

    texts: int
    seconds: float
    per_char: float


def measure(engine: Engine, longest: float) -> list[Point]:
    """Time batches of 1, 2, 4, … texts, of one character and of as many as the model reads, MOST_READ at most, until a
    batch takes `longest` seconds, or LONGEST_S.
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
        chars = texts * max(1, length // 5 * 5 - 1)
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
    return min(timings)  # whatever else the machine does only makes it longer


class BatchTime:
    """Seconds of a batch, by its texts and the characters that the model reads of them.

    Between the sizes that were measured it is interpolated; beyond the largest it grows in proportion.

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
        self._most: dict[tuple[float, int], int] = {}

    def seconds(self, texts: int, chars: int) -> float:
        """What a batch of so many texts, of which the model reads so many characters, is expected to take."""
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
        """How many texts of that length are expected to be computed within `seconds`; 1 at least."""
        chars_a_text = _CHARS * math.ceil(chars_a_text / _CHARS)
        if (seconds, chars_a_text) not in self._most:
            low, high = 1, 2 * _LARGEST
            while low < high:
                middle = (low + high + 1) // 2
                if self.seconds(middle, middle * chars_a_text) <= seconds:
                    low = middle
                else:
                    high = middle - 1
            self._most[seconds, chars_a_text] = low
        return self._most[seconds, chars_a_text]

    def learn(self, texts: int, chars: int, seconds: float) -> None:
        """Correct what is expected of batches of about this size by the seconds that a batch took."""
        right = min(bisect_right(self._sizes, texts), len(self._sizes) - 1)
        nearest = right if right == 0 or texts >= 0.75 * self._sizes[right] else right - 1
        over = seconds / self.seconds(texts, chars)
        self._slow = self._slow + 1 if over > _SLOW else 0
        step = _STEP * (_QUANTILE * max(1, self._slow) if over > 1 else _QUANTILE - 1)
        self._most.clear()
        self._common = _within(self._common * (1 + step))
        self._factors[nearest] = _within(self._factors[nearest] * (1 + _OWN_SHARE * step))

    def _at(self, index: int, chars: int, times: float = 1.0) -> float:
        point = self._points[index]
        return _within(self._common * self._factors[index]) * (point.seconds * times + point.per_char * chars)


def _within(factor: float) -> float:
    return min(_MOST, max(_LEAST, factor))
