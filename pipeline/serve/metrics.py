"""What the server counts, in Prometheus's text format. Each HTTP process counts its own requests; they are added up."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""The upper bounds of the histogram's buckets. One more bucket has no bound."""


class RequestCounts:
    """The counts of the requests that have ended. In the main process, they are those of all HTTP processes.

    Attributes
    ----------
    requests : dict of (str, int) to int
        The number of requests, by model and HTTP status.
    texts : dict of str to int
        The number of texts that were answered, by model.
    seconds : dict of str to float
        The sum of the seconds of the requests that were answered, by model.
    buckets : dict of str to list of int
        The number of answered requests in each bucket of SECONDS, by model.

    """

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.texts: defaultdict[str, int] = defaultdict(int)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(SECONDS) + 1))

    def answered(self, model: str, status: int, texts: int, seconds: float) -> None:
        self.requests[model, status] += 1
        if status == 200:
            self.texts[model] += texts
            self.seconds[model] += seconds
            self.buckets[model][bisect_left(SECONDS, seconds)] += 1

    def add(
        self,
        requests: Iterable[tuple[str, int, int]],
        texts: Mapping[str, int],
        seconds: Mapping[str, float],
        buckets: Mapping[str, Sequence[int]],
    ) -> None:
        """Add the counts of another process.

        Parameters
        ----------
        requests : iterable of (str, int, int)
            Model, HTTP status and number of requests.
        texts, seconds, buckets : mapping
            As in the attributes of these names.

        """
        for model, status, count in requests:
            self.requests[model, status] += count
        for model, count in texts.items():
            self.texts[model] += count
        for model, counts in buckets.items():
            self.seconds[model] += seconds[model]
            self.buckets[model] = [a + b for a, b in zip(self.buckets[model], counts, strict=True)]

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics, when Prometheus's client asks for them."""
        requests = CounterMetricFamily(
            "broadsheet_requests", "Requests to classify, by HTTP status", labels=["model", "status"]
        )
        shed = CounterMetricFamily("broadsheet_shed_requests", "Requests refused with a 503", labels=["model"])
        for (model, status), count in self.requests.items():
            requests.add_metric([model, str(status)], count)
            if status == 503:
                shed.add_metric([model], count)
        texts = CounterMetricFamily("broadsheet_texts", "Texts that were answered", labels=["model"])
        for model, count in self.texts.items():
            texts.add_metric([model], count)
        seconds = HistogramMetricFamily(
            "broadsheet_request_seconds", "Seconds from arrival to the answer", labels=["model"]
        )
        bounds = [*(str(float(bound)) for bound in SECONDS), "+Inf"]
        for model, buckets in self.buckets.items():
            below = list(zip(bounds, accumulate(buckets), strict=True))
            seconds.add_metric([model], below, self.seconds[model])
        yield from (requests, texts, shed, seconds)


_USED_SECONDS = 10.0
_TEXTS = tuple(4**i for i in range(9))


class Metrics:
    """The metrics of the server.

    Methods take keys of models, NAME@NUMBER. The metrics' labels have the name alone, so that a reload does not begin a
    new series.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.requests = RequestCounts()
        self.registry.register(self.requests)
        options: dict[str, Any] = {"namespace": "broadsheet", "registry": self.registry}
        self._batch = Histogram("batch_texts", "Texts in a batch", ["model", "device"], buckets=_TEXTS, **options)
        self._in_queue = Histogram(
            "queue_seconds", "Seconds from arrival to the first batch", ["model"], buckets=SECONDS, **options
        )
        self._in_queue_of: dict[str, Histogram] = {}
        self._computed_of: dict[tuple[str, str], tuple[Histogram, Histogram]] = {}
        self._in_engine = Histogram(
            "engine_seconds", "Seconds of a batch on its device", ["model", "device"], buckets=SECONDS, **options
        )
        self._restarts = Counter("engine_restarts", "Engines started again", ["device"], **options)
        self._http_restarts = Counter("http_restarts", "HTTP processes started again", **options)
        self._queue = Gauge("queue_texts", "Texts that wait", **options)
        help_ = "Share of the time until their deadlines that requests of the last ten seconds took, on average"
        self._used = Gauge("target_used_share", help_, **options)
        self._used.set_function(self._used_share)
        self._shares: deque[tuple[float, float, int]] = deque()  # time, sum of shares, number of requests

    def waited(self, key: str, seconds: float) -> None:
        if key not in self._in_queue_of:
            self._in_queue_of[key] = self._in_queue.labels(name_of(key))
        self._in_queue_of[key].observe(seconds)

    def computed(self, key: str, device: str, texts: int, seconds: float) -> None:
        if (key, device) not in self._computed_of:
            labels = name_of(key), device
            self._computed_of[key, device] = self._batch.labels(*labels), self._in_engine.labels(*labels)
        batch, in_engine = self._computed_of[key, device]
        batch.observe(texts)
        in_engine.observe(seconds)

    def took(self, now: float, shares: Sequence[float]) -> None:
        """Note which share of the time to its deadline each request took, after its labels are computed."""
        self._shares.append((now, sum(shares), len(shares)))
        while self._shares[0][0] < now - _USED_SECONDS:
            self._shares.popleft()

    def _used_share(self) -> float:
        since = time.monotonic() - _USED_SECONDS
        last = [(share, count) for at, share, count in self._shares if at >= since]
        return sum(share for share, _ in last) / max(1, sum(count for _, count in last))

    def restarted(self, device: str) -> None:
        self._restarts.labels(device).inc()

    def http_restarted(self) -> None:
        self._http_restarts.inc()

    def show(self, waiting: Callable[[], float], busy: Callable[[], dict[str, float]]) -> None:
        """Show how many texts wait, and the share of time in which each device, by name, computed."""
        self._queue.set_function(waiting)
        self.registry.register(_Busy(busy))

    def page(self) -> bytes:
        return generate_latest(self.registry)


class _Busy:
    def __init__(self, shares: Callable[[], dict[str, float]]) -> None:
        self._shares = shares

    def collect(self) -> Iterable[GaugeMetricFamily]:
        gauge = GaugeMetricFamily(
            "broadsheet_device_busy_share",
            "Share of the last ten seconds in which a device computed",
            labels=["device"],
        )
        for device, share in self._shares().items():
            gauge.add_metric([device], share)
        yield gauge


def name_of(key: str) -> str:
    """Return the model's name from the key by which engines know it."""
    return key.rpartition("@")[0]
