"""The same series, and a span for each batch and each traced job, for the OpenTelemetry SDK that the user has configured.

How this works: only `opentelemetry-api` is used here. Where metrics go, how often, and which traces are kept, is the SDK's
business: the one of `opentelemetry-instrument`, or one that the pipeline's module sets. Series are observable instruments: the
SDK asks for them when it exports, and nothing is done until then. A histogram is three of them, `NAME_count`, `NAME_sum` and
`NAME_bucket` with the attribute `le`, because the API observes no histograms, and to record each value would cost 5 us.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace import __version__
from headrace.base.errors import MissingExtra
from headrace.base.log_events import trace_id
from headrace.base.observer import Observer
from headrace.base.records import Job, Outcome, OutcomeKind, Span
from headrace.monitor.metrics.gather import Gatherer, Histogram, Values
from headrace.monitor.metrics.page import Page
from headrace.monitor.metrics.table import SERIES, Kind, Series

try:
    from opentelemetry import metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise MissingExtra("--otlp", "otlp") from error

logger = logging.getLogger("headrace")

_UNITS = {"seconds": "s", "bytes": "By"}
#: An SDK asks for one instrument after another: what was gathered this short a time ago is shown to all.
_FRESH_SECONDS = 0.2
#: Jobs of a batch that its span links to, and traced jobs that are remembered.
_MOST_LINKS, _MOST_JOBS = 64, 10_000


def what_is_missing() -> str:
    """Return what keeps metrics or traces from going anywhere; empty: an SDK is configured for both."""
    kinds = {"metrics": metrics.get_meter_provider(), "traces": trace.get_tracer_provider()}
    # The API has classes of its own for what stands there until an SDK is configured.
    missing = [
        name for name, provider in kinds.items() if any(part in type(provider).__name__ for part in ("Proxy", "NoOp"))
    ]
    if not missing:
        return ""
    return (
        f"no OpenTelemetry SDK is configured for {' and '.join(missing)} in this process, so these go nowhere: start the "
        "command with `opentelemetry-instrument` (package opentelemetry-distro), or set a provider in the pipeline's module"
    )


class Meters:
    """The instruments of one process.

    Args:
        page: What they show.
        worker: Number of the worker slot; an attribute of each value, since workers have the same resource.
    """

    def __init__(self, page: Page, worker: int) -> None:
        self._gatherer = Gatherer([page])
        self._worker = str(worker)
        self._lock = threading.Lock()
        self._found: Mapping[str, Values] = {}
        self._found_at = 0.0
        meter = metrics.get_meter("headrace", __version__)
        for series in SERIES.values():
            self._add(meter, series)

    def _add(self, meter: Any, series: Series) -> None:
        unit = _UNITS.get(series.unit, f"{{{series.unit}}}" if series.unit else "1")
        name, meaning = series.name.removesuffix("_total"), series.meaning
        if series.kind is Kind.GAUGE:
            meter.create_observable_gauge(name, [lambda options: self._numbers(series)], unit, meaning)
        elif series.kind is Kind.COUNTER:
            meter.create_observable_counter(name, [lambda options: self._numbers(series)], unit, meaning)
        else:
            buckets, counts, sums = (
                lambda options, part=part: self._parts(series, part) for part in ("bucket", "count", "sum")
            )
            meter.create_observable_counter(f"{name}_bucket", [buckets], "1", meaning)
            meter.create_observable_counter(f"{name}_count", [counts], "1", meaning)
            meter.create_observable_counter(f"{name}_sum", [sums], unit, meaning)

    def _numbers(self, series: Series) -> Iterator[Any]:
        for labels, value in self._gather().get(series.name, {}).items():
            if not isinstance(value, Histogram):
                yield metrics.Observation(value, self._attributes(series, labels))

    def _parts(self, series: Series, part: str) -> Iterator[Any]:
        for labels, value in self._gather().get(series.name, {}).items():
            if not isinstance(value, Histogram):
                continue
            attributes = self._attributes(series, labels)
            if part != "bucket":
                yield metrics.Observation(value.total if part == "sum" else sum(value.counts), attributes)
                continue
            below = 0.0
            for bound, count in zip([*map(repr, series.buckets), "+Inf"], value.counts, strict=True):
                below += count
                yield metrics.Observation(below, {**attributes, "le": bound})

    def _attributes(self, series: Series, labels: Sequence[str]) -> dict[str, str]:
        return {"worker": self._worker, **dict(zip(series.label_names, labels, strict=True))}

    def _gather(self) -> Mapping[str, Values]:
        with self._lock:
            now = time.monotonic()
            if now - self._found_at > _FRESH_SECONDS:
                self._found, self._found_at = self._gatherer.gather(), now
            return self._found


class BatchTraces(Observer):
    """Makes a span of each batch, with links to its traced jobs, and one of each traced job, from its coming to its end.

    A job is traced if its attribute `traceparent` says whose trace it belongs to. The SDK's sampler decides which of them
    are kept.
    """

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("headrace", __version__)
        self._propagator = TraceContextTextMapPropagator()
        # Those that ended stay until others need their room: spans of batches are made after their jobs have ended.
        self._jobs: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def job_received(self, jobs: Sequence[Job]) -> None:
        """Remember whose trace jobs belong to."""
        for job in jobs:
            if trace_id(job.attributes):
                context = self._propagator.extract({"traceparent": job.attributes["traceparent"]})
                with self._lock:
                    self._jobs[job.id] = context, time.time_ns()
                    if len(self._jobs) > _MOST_JOBS:
                        self._jobs.popitem(last=False)

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Make spans of batches."""
        batches: dict[tuple[str, int], list[Span]] = {}
        for span in spans:
            if span.batch_id is not None:
                batches.setdefault((span.stage, span.batch_id), []).append(span)
        for (stage, _), members in batches.items():
            self._trace_batch(stage, members)

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Make the span of a traced job."""
        found = self._jobs.get(job.id)
        if found is None:
            return
        context, came_ns = found
        attributes = {"headrace.job.id": job.id, "headrace.outcome": outcome.kind.value, "headrace.task": job.task}
        span = self._tracer.start_span("headrace job", context, trace.SpanKind.CONSUMER, attributes, start_time=came_ns)
        if outcome.kind is not OutcomeKind.DELIVERED:
            span.set_status(trace.Status(trace.StatusCode.ERROR, outcome.reason[:300]))
        span.end()

    def _trace_batch(self, stage: str, members: Sequence[Span]) -> None:
        first = members[0]
        jobs = [self._jobs.get(member.parent_id or member.unit_id) for member in members[:_MOST_LINKS]]
        links = [
            trace.Link(trace.get_current_span(job[0]).get_span_context(), {"headrace.job.id": member.unit_id})
            for member, job in zip(members, jobs, strict=False)
            if job is not None
        ]
        to_unix_ns = time.time_ns() - time.monotonic_ns()
        attributes: dict[str, str | int] = {
            "headrace.stage": stage,
            "headrace.batch.size": first.batch_size or len(members),
            "headrace.batch.release_reason": first.release_reason or "",
            "headrace.plan_id": first.plan_id,
        }
        span = self._tracer.start_span(
            f"{stage} batch", None, trace.SpanKind.INTERNAL, attributes, links, start_time=first.started + to_unix_ns
        )
        if any(member.outcome == "failed" for member in members):
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        span.end(first.ended + to_unix_ns)
