"""`--metrics` and `--otlp` of `run` and `serve`: what happens, for Prometheus and for OpenTelemetry."""

from __future__ import annotations

import argparse
import logging
import socket
from typing import TYPE_CHECKING

from headrace.cli.companions import BesideWorkers, Companion
from headrace.cli.terminal import is_quiet, say

if TYPE_CHECKING:
    from headrace.base.observer import Observer
    from headrace.base.plan import Plan
    from headrace.base.worker_slot import WorkerSlot
    from headrace.monitor.metrics.page import Page
    from headrace.pipeline.definition import Pipeline
    from headrace.pipeline.watching import Watch
    from headrace.serve.queue_api import Watch as QueueWatch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--metrics", metavar="[HOST:]PORT",
        help="answer Prometheus' scrapes at /metrics there; a port alone is of this machine alone, 0 any that is free",
    )  # fmt: skip
    parser.add_argument(
        "--otlp", action="store_true",
        help="give metrics, and a span of each batch and traced job, to the OpenTelemetry SDK of this process (extra otlp)",
    )  # fmt: skip


def open_companion(
    args: argparse.Namespace, pipeline: Pipeline, plan: Plan, slot: WorkerSlot | None
) -> Companion | None:
    """Count into a page of memory: that of the worker slot, or one of this process, which then answers scrapes too."""
    if not (args.metrics or args.otlp):
        return None
    from headrace.monitor.metrics.alone import serve_beside
    from headrace.monitor.metrics.counts import Counts
    from headrace.monitor.metrics.page import Page
    from headrace.monitor.metrics.watch import MetricsWatch

    page: Page = Page() if slot is None else args.metrics_pages[slot.number]
    counts = Counts(page)
    number = slot.number if slot else 0
    watch: Watch = MetricsWatch(counts, number)
    if args.metrics and slot is None:
        watch = serve_beside(watch, page, counts, _listen(args.metrics))
    traces = [_open_otlp(page, number)] if args.otlp else []
    return Companion(observers=traces, watch=watch)


def _open_otlp(page: Page, worker: int) -> Observer:
    """Make the instruments, and return what makes spans."""
    from headrace.monitor.metrics.otlp import BatchTraces, Meters, what_is_missing

    if missing := what_is_missing():
        say(f"headrace: --otlp: {missing}", level=logging.WARNING)
    Meters(page, worker)
    return BatchTraces()


def open_beside_workers(args: argparse.Namespace) -> BesideWorkers | None:
    """Make a page for each worker, and a process that answers scrapes."""
    if not (args.metrics or args.otlp):
        return None
    if args.otlp:
        import headrace.monitor.metrics.otlp  # noqa: F401 - here, or each worker would say that it is not installed
    from headrace.monitor.metrics.beside import MetricsBeside

    beside = MetricsBeside(args.supervise, _listen(args.metrics) if args.metrics else None)
    args.metrics_pages = beside.pages
    return BesideWorkers(
        note_death=lambda death: beside.note_death(death.cause),
        note_child_end=beside.note_child_end,
        close=beside.close,
    )


def open_before_queue(args: argparse.Namespace) -> QueueWatch | None:
    """Return what counts the requests of `headrace serve --queue`; None without `--metrics`."""
    if not args.metrics:
        return None
    from headrace.monitor.metrics.before_queue import count_before_queue
    from headrace.sources.addresses import hide_secrets

    listening, name = _listen(args.metrics), hide_secrets(args.queue)
    return lambda api, refused: count_before_queue(listening, name, api, refused)


def _listen(address: str) -> socket.socket:
    from headrace.monitor.metrics.server import listen, url_of

    listening = listen(address)
    if not is_quiet():
        say(f"headrace: metrics at {url_of(listening)}", level=logging.INFO)
    return listening
