"""A receiver of OTLP over HTTP: keeps what OpenTelemetry's own exporter sends, and can be slow or refuse."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

metrics_service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


@dataclass
class Received:
    """What came."""

    url: str = ""
    status: int = 200
    """That it answers with."""
    metrics: list[Any] = field(default_factory=list)
    """Requests of metrics."""
    traces: list[Any] = field(default_factory=list)
    """Requests of traces."""

    def points(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Return the newest (attributes, value) of each series of a metric that only counts."""
        found: dict[tuple[tuple[str, str], ...], tuple[int, float]] = {}
        for metric in self.find_metrics(name):
            for point in metric.sum.data_points or metric.gauge.data_points:
                attributes = tuple(sorted((one.key, one.value.string_value) for one in point.attributes))
                value = point.as_double if point.HasField("as_double") else float(point.as_int)
                found[attributes] = max(found.get(attributes, (0, 0.0)), (point.time_unix_nano, value))
        return [(dict(attributes), value) for attributes, (_, value) in found.items()]

    def find_metrics(self, name: str = "") -> list[Any]:
        """Return the metrics of that name in the order in which they came; all without one."""
        return [
            metric
            for request in self.metrics
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if not name or metric.name == name
        ]

    def spans(self) -> list[Any]:
        """Return all spans."""
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextlib.contextmanager
def receive_otlp() -> Iterator[Received]:
    """Listen on the loopback network; the value is what came so far."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            kind, kept = {
                "/v1/metrics": (metrics_service.ExportMetricsServiceRequest, received.metrics),
                "/v1/traces": (trace_service.ExportTraceServiceRequest, received.traces),
            }[self.path]
            if received.status == 200:
                kept.append(kind.FromString(body))
            self.send_response(received.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
