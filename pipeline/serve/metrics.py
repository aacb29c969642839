"""What the server counts, in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_TEXTS = tuple(4**i for i in range(9))


class Metrics:
    """Keys of models are NAME@GENERATION; labels have the name alone, so that a reload does not begin a new series."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"namespace": "broadsheet", "registry": self.registry}
        self._requests = Counter("requests", "Requests to classify, by HTTP status", ["model", "status"], **options)
        self._texts = Counter("texts", "Texts that were answered", ["model"], **options)
        self._shed = Counter("shed_requests", "Requests refused with a 503", ["model"], **options)
        self._batch = Histogram("batch_texts", "Texts in a batch", ["model", "device"], buckets=_TEXTS, **options)
        self._in_queue = Histogram(
            "queue_seconds", "From a request's arrival to its first batch", ["model"], buckets=_SECONDS, **options
        )
        self._in_engine = Histogram(
            "engine_seconds", "Of a batch on its device", ["model", "device"], buckets=_SECONDS, **options
        )
        self._in_request = Histogram(
            "request_seconds", "From a request's first byte to its answer", ["model"], buckets=_SECONDS, **options
        )
        self._restarts = Counter("engine_restarts", "Engines started again", ["device"], **options)
        self._queue = Gauge("queue_texts", "Texts that wait", **options)

    def answered(self, model: str, status: int, texts: int, seconds: float) -> None:
        self._requests.labels(model, str(status)).inc()
        if status == 200:
            self._texts.labels(model).inc(texts)
            self._in_request.labels(model).observe(seconds)
        elif status == 503:
            self._shed.labels(model).inc()

    def waited(self, key: str, seconds: float) -> None:
        self._in_queue.labels(name_of(key)).observe(seconds)

    def computed(self, key: str, device: str, texts: int, seconds: float) -> None:
        self._batch.labels(name_of(key), device).observe(texts)
        self._in_engine.labels(name_of(key), device).observe(seconds)

    def restarted(self, device: str) -> None:
        self._restarts.labels(device).inc()

    def show_queue(self, texts: Callable[[], float]) -> None:
        self._queue.set_function(texts)

    def show_busy(self, shares: Callable[[], dict[str, float]]) -> None:
        """shares: of each device, by its name."""
        self.registry.register(_Busy(shares))

    def page(self) -> bytes:
        return generate_latest(self.registry)


class _Busy:
    def __init__(self, shares: Callable[[], dict[str, float]]) -> None:
        self._shares = shares

    def collect(self) -> Iterable[GaugeMetricFamily]:
        found = GaugeMetricFamily(
            "broadsheet_device_busy_share",
            "Share of the last ten seconds in which a device computed",
            labels=["device"],
        )
        for device, share in self._shares().items():
            found.add_metric([device], share)
        yield found


def name_of(key: str) -> str:
    """The model's name in the key by which engines know it."""
    return key.rpartition("@")[0]
