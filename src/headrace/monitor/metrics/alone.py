"""Metrics of a run without a supervisor: counts in the run's own memory, and answers scrapes in threads of its process.

hr.run(pipeline, **count_and_serve("9400"))
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from headrace.monitor.metrics.counts import Counts
from headrace.monitor.metrics.exporter import Exporter
from headrace.monitor.metrics.page import Page
from headrace.monitor.metrics.server import MetricsServer, listen
from headrace.monitor.metrics.watch import MetricsWatch
from headrace.pipeline.watching import RunInProgress, Watch


def count_and_serve(address: str) -> dict[str, Any]:
    """Return the option `watch` of `headrace.run`, for one run, which then answers scrapes at /metrics.

    Args:
        address: HOST:PORT, or a port of this machine alone.

    Raises:
        SettingsError: If it cannot be listened on.
    """
    page = Page()
    counts = Counts(page)
    return {"watch": serve_beside(MetricsWatch(counts), page, counts, listen(address))}


def serve_beside(watch: Watch, page: Page, counts: Counts, listening: socket.socket) -> Watch:
    """Return a watch that answers scrapes as long as the run lasts; it closes the socket."""

    @contextlib.contextmanager
    def serving(run: RunInProgress) -> Iterator[None]:
        server = MetricsServer(listening, Exporter([page], [], counts).scrape)
        try:
            with watch(run):
                server.start()
                yield
        finally:
            server.close()

    return serving
