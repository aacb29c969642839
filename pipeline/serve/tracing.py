"""OpenTelemetry traces: a request's span, below that of its client, and below it the span of each of its batches.

Traces are off, and free, unless OpenTelemetry's own variables ask for them. Its packages are imported only then.
"""

from __future__ import annotations

import os
import time
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from ..errors import install
from .settings import log

if TYPE_CHECKING:
    from .requests import Batch

_ASKS = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def open_traces(is_told: bool = False) -> Traces | None:
    """Open traces if the variables ask for them. Return None if they do not, or if the packages are missing.

    With `is_told`, the log has a warning about missing packages.
    """
    given = os.environ
    names = [name.strip() for name in given.get("OTEL_TRACES_EXPORTER", "otlp").split(",")]
    is_off = "none" in names or given.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_off or not any(given.get(name) for name in _ASKS):
        return None
    exporters = {entry.name: entry for entry in entry_points(group="opentelemetry_traces_exporter")}
    protocol = next((given[name] for name in _PROTOCOLS if given.get(name)), "http/protobuf")
    names = ["otlp_proto_" + protocol.partition("/")[0] if name == "otlp" else name for name in names]
    missing = [name for name in names if name not in exporters]
    if missing:
        reason = f"there is no exporter {missing[0]}: {install('traces')}"
        if is_told:
            log.warning("no traces", extra={"fields": {"reason": reason}})
        return None
    return Traces([exporters[name].load()() for name in names])


class Traces:
    """Records spans, which a thread of OpenTelemetry's sends to the `exporters`."""

    def __init__(self, exporters: list[Any]) -> None:
        from opentelemetry import propagate, trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
            os.environ.setdefault("OTEL_SERVICE_NAME", "broadsheet")
        provider = TracerProvider()
        for exporter in exporters:
            provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer, self._trace, self._extract = provider.get_tracer("broadsheet"), trace, propagate.extract

    def begin(self, scope: Any) -> Any:
        """Start the span of a request, whose headers may name a parent."""
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method, path = scope["method"], scope["path"]
        about = {"http.request.method": method, "url.path": path, "url.scheme": scope["scheme"]}
        kind = self._trace.SpanKind.SERVER
        return self._tracer.start_span(f"{method} {path}", self._extract(carrier), kind, about)

    def carried(self, span: Any) -> str:
        """Return the identity of a span, for `add_batch`; empty if the span is not recorded."""
        context = span.get_span_context()
        return f"{context.trace_id:x}-{context.span_id:x}" if span.is_recording() else ""

    def end(self, span: Any, status: int, model: str, texts: int) -> None:
        told = {"http.response.status_code": status, "broadsheet.model": model, "broadsheet.texts": texts}
        span.set_attributes(told)
        if status >= 500:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    def add_batch(self, batch: Batch, device: str, began: float, seconds: float) -> None:
        """Add a span for each request of a batch, which took `seconds` on a device.

        `began` is by the monotonic clock.
        """
        trace = self._trace
        offset = time.time_ns() - time.monotonic_ns()
        about: dict[str, Any] = {"broadsheet.device": device, "broadsheet.batch.texts": batch.texts}
        about |= {"broadsheet.batch.requests": len(batch.pieces), "broadsheet.device.seconds": seconds}
        for request, first, last in batch.pieces:
            if request.trace:
                ids = (int(part, 16) for part in request.trace.split("-"))
                parent = trace.NonRecordingSpan(
                    trace.SpanContext(*ids, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
                )
                of_request = {"broadsheet.texts": last - first, "broadsheet.queue.seconds": began - request.arrived}
                span = self._tracer.start_span(
                    "batch",
                    trace.set_span_in_context(parent),
                    attributes=about | of_request,
                    start_time=offset + round(1e9 * began),
                )
                span.end()
