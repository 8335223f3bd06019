"""What was sampled over time, thinned to what a chart can show, with units; and throughput and queue depths over time."""

from __future__ import annotations

import itertools
import math

import numpy as np

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.gauges import Gauge
from headrace.diagnose.span_columns import Array
from headrace.diagnose.steady_state import Completions
from headrace.runs.formats.profile import Point, Series
from headrace.runs.resource_files import NAMES

MOST_POINTS = 300
_MOST_BINS = 120
_FEWEST_PER_BIN = 5
#: Counters since the start: drawn as the throughput that they give.
_CUMULATIVE = {"received", "settled", "delivered"}


def all_series(evidence: Evidence, delivered: Completions) -> tuple[Series, ...]:
    """Return everything that changes over time."""
    found = [throughput_series(delivered)]
    for scope, name, gauge in evidence.gauges.items():
        if name not in _CUMULATIVE:
            found.append(_series(scope, name, NAMES.get(name, "count"), gauge))
    sampled = {(one.scope, one.name) for one in found if one is not None}
    found += [
        _queue_depth(evidence, stage.name)
        for stage in evidence.stages
        if stage.has_queue and (f"stage:{stage.name}", "queue_depth") not in sampled and evidence.is_complete
    ]
    return tuple(one for one in found if one is not None)


def throughput_series(done: Completions) -> Series | None:
    """Return jobs delivered per second over time; None if too few were."""
    end = done.last_seconds
    num_bins = min(_MOST_BINS, int(done.total // (_FEWEST_PER_BIN * done.batch)))
    if done.is_sampled:
        num_bins = min(num_bins, len(done.seconds) // 2)
    if num_bins < 2 or end <= 0:
        return None
    edges = np.linspace(0.0, end, num_bins + 1)
    rates = np.diff(done.at(edges)) / np.diff(edges)
    return _series("run", "throughput", "items/s", Gauge((edges[1:] + edges[:-1]) / 2, rates))


def thin(seconds: Array, values: Array, most: int = MOST_POINTS) -> tuple[Point, ...]:
    """Return at most so many points of a series that keep its extremes: the least and the greatest of each stretch of time.

    Args:
        seconds: float64, growing.
        values: float64.
        most: At least 2.
    """
    count = len(values)
    if count > most:
        edges = np.linspace(0, count, most // 2 + 1).astype(int)
        picked = [
            low + extreme
            for low, high in itertools.pairwise(edges)
            for extreme in {int(np.argmin(values[low:high])), int(np.argmax(values[low:high]))}
        ]
        chosen = np.array(sorted(picked))
        seconds, values = seconds[chosen], values[chosen]
    return tuple(Point(at, value) for at, value in zip(seconds.tolist(), values.tolist(), strict=True))


def _series(scope: str, name: str, unit: str, gauge: Gauge) -> Series | None:
    mean = gauge.mean()
    if mean is None or not math.isfinite(mean):
        return None
    points = thin(gauge.seconds, gauge.values)
    return Series(scope=scope, name=name, unit=unit, mean=mean, maximum=float(gauge.values.max()), points=points)


def _queue_depth(evidence: Evidence, stage: str) -> Series | None:
    """Return the depth of a queue that nobody sampled: items that had arrived and not been taken, exact when shown."""
    spans, own = evidence.spans, evidence.stage_rows(stage)
    arrived, dequeued = spans.arrived[own], spans.dequeued[own]
    if not len(arrived):
        return None
    edges = np.linspace(0, int(dequeued.max()) + 1, MOST_POINTS)
    inside = [np.histogram(times, edges)[0] for times in (arrived, dequeued)]
    depth = np.concatenate([[0.0], np.cumsum(inside[0] - inside[1])])
    return _series(f"stage:{stage}", "queue_depth", "items", Gauge(edges / 1e9, depth))
