"""The queue of requests that wait for a device: the earliest deadline first, and each with its share of a batch.

This file also has the exceptions that end a request, and the form of predictions as bytes, one row for each text. In
this form, the predictions of a batch are split among its requests and sent without being unpacked.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engine.base import Predictions, Texts
from .engines import BatchTime, LoadedModel, Rows


class Packed(NamedTuple):
    """The arrays of `Texts`, as bytes.

    Attributes
    ----------
    data : bytes
        The texts, one after another, in UTF-8.
    offsets : bytes
        int64 [N + 1]: text i is ``data[offsets[i]:offsets[i + 1]]``.
    n_chars : bytes
        int64 [N]: the number of characters of each whole text.

    """

    data: bytes
    offsets: bytes
    n_chars: bytes


class Refused(Exception):
    """A request that the server refuses to compute.

    The client should wait for `retry_after` seconds. Until the time `until`, by the monotonic clock, any other request
    of one text for the same model would be refused too; 0 if this is not known.
    """

    def __init__(self, message: str, retry_after: float = 1.0, until: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after, self.until = max(1, math.ceil(retry_after)), until


def settle(answer: asyncio.Future[Any], result: object) -> None:
    """Give a future its result or its error, unless it is done."""
    if answer.done():
        return
    if isinstance(result, BaseException):
        answer.set_exception(result)
    else:
        answer.set_result(result)


class Gone(Exception):
    """The client has hung up."""


class ModelChanged(Exception):
    """The model was loaded again after the request was read."""


_COUNTS = ("n_chars", "truncated", "unknown_chars")


@lru_cache
def kind_of(classes: int, top_k: int) -> np.dtype[np.void]:
    """Return the type of a row. Its byte order is that of this machine, since rows are not stored or sent elsewhere."""
    labels = [("labels", np.int32, (top_k,)), ("scores", np.float32, (top_k,)), ("all_scores", np.float32, (classes,))]
    return np.dtype([("n_chars", np.int64), ("unknown_chars", np.int64), *labels, ("truncated", np.bool_)], align=True)


def to_rows(predictions: Predictions) -> Rows:
    """Return predictions with all scores as an array of rows, [N]."""
    assert predictions.all_scores is not None
    rows = np.zeros(len(predictions.labels), kind_of(predictions.all_scores.shape[1], predictions.labels.shape[1]))
    for name in rows.dtype.names or ():
        rows[name] = getattr(predictions, name)
    return rows


def cut(rows: Rows, top_k: int) -> Rows:
    """Return the rows with only the `top_k` best labels of each."""
    had, classes = rows["labels"].shape[1], rows["all_scores"].shape[1]
    if had == top_k:
        return rows
    fewer = np.zeros(len(rows), kind_of(classes, top_k))
    for name in ("labels", "scores"):
        fewer[name] = rows[name][:, :top_k]
    for name in ("all_scores", *_COUNTS):
        fewer[name] = rows[name]
    return fewer


def from_rows(data: bytes, classes: int, top_k: int) -> Predictions:
    """Return the predictions from which `to_rows` made these rows, of `classes` classes and `top_k` labels each."""
    rows = np.frombuffer(data, kind_of(classes, top_k))
    n_chars, truncated, unknown_chars = (rows[name] for name in _COUNTS)
    return Predictions(rows["labels"], rows["scores"], rows["all_scores"], n_chars, truncated, unknown_chars)


STRETCH = 1.2
"""The factor by which a batch may take longer than allowed if it then takes all waiting texts."""


class PendingRequest:
    """The texts of one request, and how far their labels are computed.

    Parameters
    ----------
    loaded : LoadedModel
        The model that labels the texts.
    texts : Texts
        The texts, with `n_chars`.
    top_k : int
        The number of most probable classes to find for each text.
    arrived : float
        The time at which the request had arrived, by the monotonic clock.
    answer : asyncio.Future of bytes
        Receives the predictions for all texts as rows, or an error.
    trace : str
        The result of `Traces.carried`.

    Attributes
    ----------
    key : str
        The key of the model.
    deadline : float
        The time at which the answer is due, by the monotonic clock.
    is_large : bool
        Whether the texts are too many for one batch.
    all_chars : int
        The number of characters that the model reads of all texts.
    started : int
        The number of texts that a device has got.
    tries : int
        How often the texts were on an engine that was lost.
    parts : dict of int to bytes
        The rows of each computed part, by the number of its first text.
    finished : int
        The number of texts whose labels are computed.

    """

    __slots__ = (
        *("key", "loaded", "texts", "top_k", "arrived", "deadline", "answer", "is_large", "all_chars", "started"),
        *("tries", "parts", "finished", "trace", "_before"),
    )

    def __init__(
        self, loaded: LoadedModel, texts: Texts, top_k: int, arrived: float, answer: asyncio.Future[bytes], trace: str
    ) -> None:
        self.key, self.loaded, self.texts, self.top_k = loaded.key, loaded, texts, top_k
        self.arrived, self.answer, self.trace = arrived, answer, trace
        self.deadline = math.inf
        self.is_large, self.started, self.tries, self.finished = False, 0, 0, 0
        self.parts: dict[int, bytes] = {}
        self._before: NDArray[np.int64] | None = None
        assert texts.n_chars is not None
        if len(texts.n_chars) == 1:
            self.all_chars = min(int(texts.n_chars[0]), loaded.model.reads)
        else:
            self.all_chars = int(np.minimum(texts.n_chars, loaded.model.reads).sum())

    def __lt__(self, other: PendingRequest) -> bool:
        return bool(self.deadline < other.deadline)

    @property
    def left(self) -> int:
        """The number of texts that no device has got yet."""
        return len(self.texts) - self.started

    @property
    def chars_left(self) -> int:
        """The number of characters that the model reads of these texts."""
        return self.chars_of(self.started, len(self.texts))

    def chars_of(self, first: int, last: int) -> int:
        """Return the number of characters that the model reads of the texts from `first` to before `last`."""
        if first == 0 and last == len(self.texts):
            return self.all_chars
        if self._before is None:
            assert self.texts.n_chars is not None
            self._before = np.zeros(len(self.texts) + 1, np.int64)
            np.cumsum(np.minimum(self.texts.n_chars, self.loaded.model.reads), out=self._before[1:])
        return int(self._before[last] - self._before[first])

    def add(self, first: int, last: int, rows: bytes) -> None:
        """Add the rows of the texts from `first` to before `last`. The rows of the last texts complete the answer."""
        if self.answer.done():
            return
        self.parts[first] = rows
        self.finished += last - first
        if self.finished == len(self.texts):
            parts = [self.parts[number] for number in sorted(self.parts)]
            self.answer.set_result(parts[0] if len(parts) == 1 else b"".join(parts))


class Piece(NamedTuple):
    """The texts of one request that go into a batch.

    Attributes
    ----------
    request : PendingRequest
        The request.
    first, last : int
        The number of the first text in the batch, and of the first text after them.

    """

    request: PendingRequest
    first: int
    last: int


class Batch(NamedTuple):
    """Texts that one model labels in one call.

    Attributes
    ----------
    key : str
        The key of the model.
    pieces : tuple of Piece
        The texts, in order.
    texts : int
        The number of texts.
    chars : int
        The number of characters that the model reads of them.

    """

    key: str
    pieces: tuple[Piece, ...]
    texts: int
    chars: int

    def joined(self) -> Texts:
        """Return the texts of all pieces, in order."""
        if len(self.pieces) == 1:
            request, first, last = self.pieces[0]
            if first == 0 and last == len(request.texts):
                return request.texts
        data, sizes, counts = [], [], []
        for request, first, last in self.pieces:
            texts = request.texts
            assert texts.n_chars is not None
            if last - first == len(texts):
                data.append(texts.data)
                counts.append(texts.n_chars)
            else:
                data.append(texts.data[texts.offsets[first] : texts.offsets[last]])
                counts.append(texts.n_chars[first:last])
            sizes.append(texts.offsets[first + 1 : last + 1] - texts.offsets[first:last])
        offsets = np.zeros(self.texts + 1, np.int64)
        np.cumsum(np.concatenate(sizes), out=offsets[1:])
        return Texts(np.concatenate(data), offsets, n_chars=np.concatenate(counts))


@dataclass(slots=True)
class Sums:
    """Sums over the waiting requests for one model, without the texts that devices have got.

    Attributes
    ----------
    texts : int
        The number of texts that no device has got yet.
    chars : int
        The number of characters that the model reads of these texts.
    large : int
        The number of requests that are larger than a batch.
    small : int
        The number of other requests.
    small_texts, small_chars : int
        As `texts` and `chars`, of the small requests only.

    """

    texts: int = 0
    chars: int = 0
    large: int = 0
    small: int = 0
    small_texts: int = 0
    small_chars: int = 0

    def add(self, request: PendingRequest, sign: int) -> None:
        """Add the texts of a request that no device has got yet, or subtract them if `sign` is -1."""
        texts, chars = sign * request.left, sign * request.chars_left
        self.texts += texts
        self.chars += chars
        if request.is_large:
            self.large += sign
        else:
            self.small += sign
            self.small_texts += texts
            self.small_chars += chars


NOTHING = Sums()


class Waiting:
    """The queue of all devices.

    `texts` is the number of waiting texts. `of` has sums of the waiting requests, by the key of the model. They are
    always up to date, so that a new request need not be compared with each of the others.
    """

    def __init__(self) -> None:
        self.texts = 0
        self.of: dict[str, Sums] = {}
        self._requests: list[PendingRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(self._requests)

    def add(self, request: PendingRequest) -> None:
        insort(self._requests, request)
        self._count(request, 1)

    def remove(self, request: PendingRequest) -> None:
        """Remove a request from the queue. Devices still compute the texts that they have got."""
        at = bisect_left(self._requests, request)
        while at < len(self._requests) and self._requests[at].deadline == request.deadline:
            if self._requests[at] is request:
                del self._requests[at]
                self._count(request, -1)
                return
            at += 1

    def _count(self, request: PendingRequest, sign: int) -> None:
        sums = self.of.setdefault(request.key, Sums())
        sums.add(request, sign)
        self.texts += sign * request.left
        if not sums.large and not sums.small:
            del self.of[request.key]

    def expired(self, now: float) -> list[PendingRequest]:
        """Return the requests whose deadline has passed before a device has got any of their texts."""
        late = []
        for request in self._requests:
            if request.deadline >= now:
                break
            if request.started == 0:
                late.append(request)
        return late

    def take(self, key: str, time_of: BatchTime, seconds: float, most_texts: int) -> Batch:
        """Take a batch out of the queue, for a model for which requests wait.

        Requests with earlier deadlines come first. A request that is larger than a batch gets no more than an equal
        share of it, unless the others leave room. A batch has at least one text. It takes all waiting texts if it would
        otherwise leave only a few for a batch of their own.

        Parameters
        ----------
        key : str
            The key of the model.
        time_of : BatchTime
            The expected time of batches on the device.
        seconds : float
            The longest time that the batch should take.
        most_texts : int
            The largest number of texts in the batch.

        """
        candidates = [request for request in self._requests if request.key == key]
        sums = self.of[key]
        taken = [request.left for request in candidates]
        if sums.texts > most_texts or time_of.seconds(sums.texts, sums.chars) > STRETCH * seconds:
            most_texts = min(most_texts, time_of.most_texts(seconds, sums.chars / sums.texts))
            taken = _shared(candidates, most_texts, seconds, time_of)
        return self._cut(key, candidates, taken)

    def _cut(self, key: str, candidates: Sequence[PendingRequest], taken: Sequence[int]) -> Batch:
        pieces, chars, all_taken = [], 0, set()
        for request, count in zip(candidates, taken, strict=True):
            if count:
                self._count(request, -1)
                pieces.append(Piece(request, request.started, request.started + count))
                chars += request.chars_of(request.started, request.started + count)
                request.started += count
                if request.left:
                    self._count(request, 1)
                else:
                    all_taken.add(id(request))
        self._requests = [request for request in self._requests if id(request) not in all_taken]
        return Batch(key, tuple(pieces), sum(taken), chars)


def _shared(candidates: Sequence[PendingRequest], most_texts: int, seconds: float, time_of: BatchTime) -> list[int]:
    """Return how many texts of each request go into a batch of at most `most_texts` texts, which may take `seconds`."""
    taken = [0] * len(candidates)
    texts = chars = 0
    share = max(1, most_texts // len(candidates))
    for for_large in (share, most_texts):  # at first a large request gets its share at most, then any room that is left
        for i, request in enumerate(candidates):
            room = min(request.left, for_large if request.is_large else most_texts) - taken[i]
            room = min(room, most_texts - texts)
            if room <= 0:
                continue
            begin = request.started + taken[i]
            while room and texts:  # long texts take more time, so fewer fit
                if time_of.seconds(texts + room, chars + request.chars_of(begin, begin + room)) <= seconds:
                    break
                room //= 2
            taken[i] += room
            texts += room
            chars += request.chars_of(begin, begin + room)
    return taken
