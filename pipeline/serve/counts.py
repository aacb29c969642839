"""Requests that are over: each HTTP process counts its own, and the main process adds them up."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict

from .messages import Counted

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Upper bounds of the histogram's buckets; one more has no bound."""


class RequestCounts:
    """requests: by model and HTTP status. texts: that were answered, by model. seconds, buckets: of the requests that
    were answered, by model: their sum, and how many are in each bucket of SECONDS.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.texts: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(SECONDS) + 1))

    def answered(self, model: str, status: int, texts: int, seconds: float) -> None:
        self.requests[model, status] += 1
        if status == 200:
            self.texts[model] += texts
            self.seconds[model] += seconds
            self.buckets[model][bisect_left(SECONDS, seconds)] += 1

    def message(self, is_asked: bool) -> Counted:
        requests = [(*key, count) for key, count in self.requests.items()]
        return Counted(is_asked, requests, dict(self.texts), dict(self.seconds), dict(self.buckets))

    def add(self, counted: Counted) -> None:
        for model, status, count in counted.requests:
            self.requests[model, status] += count
        self.texts.update(counted.texts)
        for model, counts in counted.buckets.items():
            self.seconds[model] += counted.seconds[model]
            self.buckets[model] = [a + b for a, b in zip(self.buckets[model], counts, strict=True)]
