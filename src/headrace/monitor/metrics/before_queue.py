"""Metrics of `headrace serve --queue`, where no pipeline runs: requests, what was refused, and the process."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from headrace import __version__
from headrace.base.request_tally import TalliesRequests
from headrace.monitor.metrics.counts import Counts
from headrace.monitor.metrics.exporter import Exporter
from headrace.monitor.metrics.page import Page
from headrace.monitor.metrics.process import look_at_process
from headrace.monitor.metrics.requests import RequestCounts, count_refused
from headrace.monitor.metrics.server import MetricsServer
from headrace.monitor.metrics.table import STATUSES
from headrace.monitor.metrics.watch import LOOK_SECONDS

logger = logging.getLogger("headrace")

_WORKER = ("0",)


@contextlib.contextmanager
def count_before_queue(
    listening: socket.socket, name: str, source: TalliesRequests, refused: Callable[[], Mapping[str, int]]
) -> Iterator[None]:
    """Count and answer scrapes until the block ends.

    Args:
        listening: For scrapes; closed with it.
        name: Of the queue, in the place of a pipeline's.
        source: Of the requests.
        refused: Returns {code: requests that were not let in so far}.
    """
    page = Page()
    page.begin()
    counts, over = Counts(page), threading.Event()
    requests = RequestCounts(counts, source)
    counts.set("headrace_run_info", 1.0, (name, __version__))
    counts.set("headrace_run_start_timestamp_seconds", time.time())
    counts.add("headrace_worker_starts_total")
    for status in STATUSES:  # before they count, or their first increase would not be one
        counts.add("headrace_requests_total", (status,), 0.0)

    def look() -> None:
        page.beat()
        requests.look()
        count_refused(counts, refused())
        look_at_process(counts, _WORKER)

    def look_on() -> None:
        while True:
            try:
                look()
            except Exception as error:
                counts.note_dropped("error")
                logger.warning("a metric cannot be read: %s; the service goes on", error)
            if over.wait(LOOK_SECONDS):
                return

    server = MetricsServer(listening, Exporter([page], [], counts).scrape)
    thread = threading.Thread(target=look_on, name="metrics", daemon=True)
    server.start()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        server.close()
