"""Requests that wait for a device: the earliest deadline first, and each with its share of a batch."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.engine.base import Predictions, Texts
from pipeline.model.charcnn import Model
from pipeline.serve.batch_time import BatchTime

STRETCH = 1.2
"""How much longer a batch may take where it then leaves nothing waiting."""


@dataclass(eq=False, slots=True)
class Request:
    """Texts of one client, and what is known of them so far.

    key, model: of the loaded model that they are for. chars: int64 [N + 1], the sum of the characters that the model
    reads of the texts before. arrived, deadline: by the monotonic clock. answer: their predictions, or an error.
    started: texts that went to a device. parts: predictions by the number of their first text.
    """

    key: str
    model: Model
    texts: Texts
    chars: NDArray[np.int64]
    top_k: int
    arrived: float
    deadline: float
    answer: asyncio.Future[Predictions]
    is_large: bool = False
    started: int = 0
    first_started: float = 0.0
    tries: int = 0
    parts: dict[int, Predictions] = field(default_factory=dict)
    finished: int = 0

    def __lt__(self, other: Request) -> bool:
        return self.deadline < other.deadline

    @property
    def left(self) -> int:
        return len(self.texts) - self.started

    def chars_of(self, first: int, last: int) -> int:
        return int(self.chars[last] - self.chars[first])


class Piece(NamedTuple):
    """Texts first to last of a request, which go into a batch."""

    request: Request
    first: int
    last: int


class Batch(NamedTuple):
    """Texts of one model that are computed together. chars: that the model reads of them."""

    key: str
    pieces: tuple[Piece, ...]
    texts: int
    chars: int

    def joined(self) -> Texts:
        """The texts of all pieces, in order."""
        if len(self.pieces) == 1:
            request, first, last = self.pieces[0]
            if first == 0 and last == len(request.texts):
                return request.texts
        data, sizes, counts = [], [], []
        for request, first, last in self.pieces:
            offsets = request.texts.offsets
            data.append(request.texts.data[offsets[first] : offsets[last]])
            sizes.append(np.diff(offsets[first : last + 1]))
            assert request.texts.n_chars is not None
            counts.append(request.texts.n_chars[first:last])
        offsets = np.zeros(self.texts + 1, np.int64)
        np.cumsum(np.concatenate(sizes), out=offsets[1:])
        return Texts(np.concatenate(data), offsets, n_chars=np.concatenate(counts))


class Waiting:
    """The queue of all devices. texts: how many wait."""

    def __init__(self) -> None:
        self.texts = 0
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        insort(self._requests, request)
        self.texts += request.left

    def remove(self, request: Request) -> None:
        """Forget a request; what of it is on a device is computed for nobody."""
        if request in self._requests:
            self._requests.remove(request)
            self.texts -= request.left

    def expired(self, now: float) -> list[Request]:
        """Requests whose deadline has passed before they began: the first in the queue, if any are."""
        late = []
        for request in self._requests:
            if request.deadline >= now:
                break
            if request.started == 0:
                late.append(request)
        return late

    def take(self, times: dict[str, BatchTime], seconds: float, most: int) -> Batch | None:
        """A batch for a device on which it is expected to take `seconds` at most, of `most` texts at most.

        times: of the models on that device. The request with the earliest deadline decides the model, and the others
        for it follow in that order. Of one that is larger than a batch, no more goes in than an equal share for each
        request, until all have been asked. A batch has one text at least, and takes all that waits rather than leave a
        few for one of their own.
        """
        first = next((request for request in self._requests if request.key in times), None)
        if first is None:
            return None
        key, time_of = first.key, times[first.key]
        candidates = [request for request in self._requests if request.key == key]
        wanted = sum(request.left for request in candidates)
        chars = sum(request.chars_of(request.started, len(request.texts)) for request in candidates)
        taken = [request.left for request in candidates]
        if wanted > most or time_of.seconds(wanted, chars) > STRETCH * seconds:
            most = min(most, time_of.most_texts(seconds, chars / wanted))
            taken = _shared(candidates, most, seconds, time_of)
        return self._cut(key, candidates, taken)

    def _cut(self, key: str, candidates: Sequence[Request], taken: Sequence[int]) -> Batch:
        pieces, chars = [], 0
        for request, count in zip(candidates, taken, strict=True):
            if count:
                pieces.append(Piece(request, request.started, request.started + count))
                chars += request.chars_of(request.started, request.started + count)
                request.started += count
                self.texts -= count
        done = {id(piece.request) for piece in pieces if piece.request.left == 0}
        self._requests = [request for request in self._requests if id(request) not in done]
        return Batch(key, tuple(pieces), sum(taken), chars)


def _shared(candidates: Sequence[Request], most: int, seconds: float, time_of: BatchTime) -> list[int]:
    """How many texts of each request go into a batch of `most` texts, which may take `seconds`."""
    taken = [0] * len(candidates)
    texts = chars = 0
    share = max(1, most // len(candidates))
    for for_large in (share, most):
        for i, request in enumerate(candidates):
            room = min(request.left, for_large if request.is_large else most) - taken[i]
            room = min(room, most - texts)
            if room <= 0:
                continue
            begin = request.started + taken[i]
            while room and texts:  # of long texts, fewer go in
                if time_of.seconds(texts + room, chars + request.chars_of(begin, begin + room)) <= seconds:
                    break
                room //= 2
            taken[i] += room
            texts += room
            chars += request.chars_of(begin, begin + room)
    return taken
