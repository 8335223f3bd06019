"""Where the latency of a job goes: waiting for a worker, for the device, for a batch; work; waiting for room.

How this works: a job's latency runs from its first arrival to its last outcome. Of each of its own spans, arrived to started is
waiting, started to ended is work, ended to put is waiting for room. At a device, waiting ends in two parts: until the worker
that took the batch was free again, and from then on until the batch began. What is left of the latency lies between its own
spans: what a fan-out cut from it, or an order to be kept. So the parts of each job add up to its latency.
"""

from __future__ import annotations

import numpy as np

from headrace.base.request_tally import ANSWER_MICROSECONDS, ANSWERS
from headrace.diagnose.estimates import compute_weighted_mean
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.diagnosis import LatencyPart, LatencyPartKind
from headrace.runs.formats.profile import Window

#: Slow jobs are the slowest tenth.
_SLOW_PERCENT = 90
#: Parts below this share of the latency, of all jobs and of slow ones, are left out.
_LEAST_SHARE = 0.005


def find_latency_parts(evidence: Evidence, window: Window) -> tuple[LatencyPart, ...]:
    """Return the parts of the latency of the jobs delivered in a window, the largest first; empty without such jobs."""
    jobs = evidence.jobs
    ended = jobs.ended / 1e9
    inside = np.flatnonzero(jobs.is_delivered & (ended >= window.from_seconds) & (ended <= window.to_seconds))
    if not len(inside):
        return ()
    latency, weight = jobs.latency_seconds()[inside], jobs.weight[inside]
    is_slow = latency >= np.percentile(latency, _SLOW_PERCENT)
    outside = _measure_outside(evidence)
    total = (compute_weighted_mean(latency, weight) or 0.0) + (outside or 0.0)
    slow_total = (compute_weighted_mean(latency[is_slow], weight[is_slow]) or 0.0) + (outside or 0.0)
    found = [] if outside is None else [_part(None, "request", outside, outside, total, slow_total)]
    left = latency.copy()
    for (stage, kind), seconds in _by_stage(evidence, inside).items():
        left -= seconds
        mean = compute_weighted_mean(seconds, weight) or 0.0
        slow = compute_weighted_mean(seconds[is_slow], weight[is_slow]) or 0.0
        found.append(_part(stage, kind, mean, slow, total, slow_total))
    rest = compute_weighted_mean(left, weight) or 0.0
    slow_rest = compute_weighted_mean(left[is_slow], weight[is_slow]) or 0.0
    found.append(_part(None, "between", max(0.0, rest), max(0.0, slow_rest), total, slow_total))
    found = [one for one in found if max(one.share, one.slow_share) >= _LEAST_SHARE]
    return tuple(sorted(found, key=lambda one: -one.seconds))


def _part(
    stage: str | None, kind: LatencyPartKind, seconds: float, slow: float, total: float, slow_total: float
) -> LatencyPart:
    return LatencyPart(
        stage=stage,
        kind=kind,
        seconds=seconds,
        share=seconds / total if total > 0 else 0.0,
        slow_seconds=slow,
        slow_share=slow / slow_total if slow_total > 0 else 0.0,
    )


def _measure_outside(evidence: Evidence) -> float | None:
    """Return the mean seconds between a request's first byte and its job's arrival; None where jobs are no requests."""
    notes = evidence.info.counters.notes
    answers, inside = notes.get(ANSWERS, 0), evidence.summary.get("latency_seconds", {}).get("mean")
    if not answers or inside is None:
        return None
    return max(0.0, notes.get(ANSWER_MICROSECONDS, 0) / 1e6 / answers - float(inside))


def _by_stage(evidence: Evidence, inside: Array) -> dict[tuple[str, LatencyPartKind], Array]:
    """Return {(stage, what it does meanwhile): seconds of each of these jobs}, in the order of the stages."""
    spans, jobs = evidence.spans, evidence.jobs
    attempts = int(max(spans.attempt.max(initial=0), jobs.attempt.max(initial=0))) + 1
    keys = jobs.root[inside].astype(np.int64) * attempts + jobs.attempt[inside]
    order = np.argsort(keys)
    found: dict[tuple[str, LatencyPartKind], Array] = {}
    for stage in evidence.stages:
        own = spans.of(stage.name)
        rows = np.arange(own.start, own.stop)[~spans.is_child[own]]
        key = spans.root[rows].astype(np.int64) * attempts + spans.attempt[rows]
        place = np.minimum(np.searchsorted(keys[order], key), len(keys) - 1)
        is_known = keys[order][place] == key
        rows, job = rows[is_known], order[place[is_known]]
        for kind, seconds in _split(evidence, rows, is_device=stage.kind == "device").items():
            found[stage.name, kind] = np.bincount(job, seconds, minlength=len(keys))
    return found


def _split(evidence: Evidence, rows: Array, *, is_device: bool) -> dict[LatencyPartKind, Array]:
    """Return {what a span's item does: seconds of each of these spans}."""
    spans = evidence.spans
    arrived, started = spans.arrived[rows], spans.started[rows]
    parts: dict[LatencyPartKind, Array] = {
        "work": spans.ended[rows] - started,
        "room": spans.put[rows] - spans.ended[rows],
    }
    if is_device:
        free = np.clip(_free_since(evidence, rows), arrived, started)
        parts |= {"device": free - arrived, "batch": started - free}
    else:
        parts |= {"workers": started - arrived}
    return {kind: np.maximum(ns, 0) / 1e9 for kind, ns in parts.items()}


def _free_since(evidence: Evidence, rows: Array) -> Array:
    """Return when the worker of each span had ended the batch before; 0 where that was its first."""
    spans = evidence.spans
    free = np.zeros(len(rows), np.int64)
    for worker in np.unique(spans.worker[rows]):
        own = np.flatnonzero(spans.worker[rows] == worker)
        ends = np.unique(spans.ended[rows[own]])
        before = np.searchsorted(ends, spans.started[rows[own]], side="right") - 1
        free[own] = np.where(before >= 0, ends[np.maximum(before, 0)], 0)
    return free
