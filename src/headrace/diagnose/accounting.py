"""One account for each stage: how long it served, how long items waited for it, and what the time was made of.

How this works: counts and sums of the whole run are exact and come from `run.json`; means and percentiles are of the spans that
began in the window. Where workers read their clocks, the account is made of the spans that carry them, so that service =
cpu + run_delay + blocked holds exactly. All members of a batch carry its times: an item's service is its batch's, and where
work is added up each item counts for its share.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from headrace.diagnose.blocked_split import BlockedSamples
from headrace.diagnose.caches import cache_account
from headrace.diagnose.estimates import compute_weighted_mean, distribution
from headrace.diagnose.evidence import Evidence, StageFacts
from headrace.diagnose.span_columns import Array, SpanColumns
from headrace.runs.formats.profile import Batches, BlockedSplit, StageAccount, Window

_MOST_SHAPES = 5
#: Metered spans from which on the account is made of them alone: enough for every percentile that is quoted.
_ENOUGH_METERED = 662


@dataclass(frozen=True, slots=True)
class Cost:
    """Mean seconds per item of a stage, from spans with clock readings; None where those are missing."""

    cpu: float | None
    run_delay: float | None
    blocked: float | None


def stage_accounts(evidence: Evidence, window: Window, samples: BlockedSamples | None) -> tuple[StageAccount, ...]:
    """Return the accounts of all stages, in the order an item meets them."""
    return tuple(_account(evidence, stage, window, samples) for stage in evidence.stages)


def window_rows(spans: SpanColumns, stage: str, window: Window) -> Array:
    """Return the rows of a stage whose service began in the window; all of them if none did."""
    own = spans.of(stage)
    started = spans.started[own] / 1e9
    rows = np.flatnonzero((started >= window.from_seconds) & (started <= window.to_seconds)) + own.start
    return rows if len(rows) else np.arange(own.start, own.stop)


def cpu_demand(spans: SpanColumns, rows: Array) -> float | None:
    """Return the mean CPU seconds per item, a batch's divided among its items; None where it was not measured."""
    rows = rows[np.isfinite(spans.cpu[rows])]
    return compute_weighted_mean(spans.cpu[rows] / spans.batch_size[rows] / 1e9, spans.weight[rows])


def worker_blocked_seconds(spans: SpanColumns, rows: Array) -> float:
    """Return how long workers were blocked, their work done and the next queue full, summed over workers.

    An item's put - ended is not its worker's: a worker that took several items puts them all when the last is done, and those
    of a batch end together. A worker is blocked from an item's end until it is put or until the worker starts on the next,
    whichever is first.
    """
    if not len(rows):
        return 0.0
    order = rows[np.lexsort((spans.ended[rows], spans.started[rows], spans.worker[rows]))]
    until = spans.put[order]
    same = spans.worker[order][1:] == spans.worker[order][:-1]
    until[:-1] = np.where(same, np.minimum(until[:-1], spans.started[order][1:]), until[:-1])
    return float(np.maximum(until - spans.ended[order], 0).sum()) / 1e9


def busy_seconds(spans: SpanColumns, rows: Array, window: Window) -> float:
    """Return the service within a window, summed over workers; a batch counts once."""
    first, last = window.from_seconds * 1e9, window.to_seconds * 1e9
    inside = np.minimum(spans.ended[rows], last) - np.maximum(spans.started[rows], first)
    shares = np.maximum(inside, 0.0) / spans.batch_size[rows]
    return float(shares @ spans.weight[rows]) / 1e9


def _account(evidence: Evidence, stage: StageFacts, window: Window, samples: BlockedSamples | None) -> StageAccount:
    spans = evidence.spans
    rows = window_rows(spans, stage.name, window)
    cost_rows = _find_metered(spans, rows)
    service = (spans.ended[cost_rows] - spans.started[cost_rows]) / 1e9
    cost = _cost(spans, cost_rows, service)
    depth = evidence.gauges.get(f"stage:{stage.name}", "queue_depth") if stage.has_queue else None
    depth = depth and depth.between(window.from_seconds, window.to_seconds)
    mean_depth = _mean_depth(evidence, stage, window)
    weights = spans.weight[rows]
    return StageAccount(
        name=stage.name,
        kind=stage.kind,
        executor=stage.executor,
        station=stage.station,
        work=next((info.work for info in evidence.info.stages if info.name == stage.name), ""),
        workers=stage.workers,
        items=stage.items,
        failed=stage.failed,
        num_spans=len(spans.row[spans.of(stage.name)]),
        service=distribution(service, spans.weight[cost_rows]),
        queue_wait=distribution((spans.dequeued[rows] - spans.arrived[rows]) / 1e9, weights),
        setup=compute_weighted_mean((spans.started[rows] - spans.dequeued[rows]) / 1e9, weights),
        blocked_put=_measure_blocked_put(evidence, stage, rows),
        cpu=cost.cpu,
        run_delay=cost.run_delay,
        blocked=cost.blocked,
        blocked_split=split_blocked(cost, stage.name, stage.executor, samples),
        cpu_demand=cpu_demand(spans, rows),
        busy_seconds=_busy(evidence, stage),
        utilization=_utilization(evidence, stage, window),
        throughput=_throughput(evidence, stage, rows, window),
        bytes_in=compute_weighted_mean(spans.bytes_in[rows].astype(float), weights),
        bytes_out=compute_weighted_mean(spans.bytes_out[rows].astype(float), weights),
        # The sampler is a thread of the process that it watches and sees some moments more often than others.
        queue_depth_mean=depth.mean() if mean_depth is None and depth else mean_depth,
        queue_depth_max=float(depth.values.max()) if depth and len(depth.values) else _max_depth(evidence, stage, rows),
        queue_capacity=stage.queue_capacity if stage.has_queue else None,
        batches=_batches(evidence, stage),
        shapes=_shapes(spans, spans.of(stage.name)),
        cache=cache_account(evidence, stage),
    )


def _find_metered(spans: SpanColumns, rows: Array) -> Array:
    """Return the rows that carry clock readings, or all where hardly any do."""
    metered = rows[np.isfinite(spans.cpu[rows])]
    return metered if len(metered) >= min(_ENOUGH_METERED, len(rows) / 2) and len(metered) else rows


def _cost(spans: SpanColumns, rows: Array, service: Array) -> Cost:
    cpu, run_delay, weights = spans.cpu[rows] / 1e9, spans.run_delay[rows] / 1e9, spans.weight[rows]
    has_cpu, has_all = np.isfinite(cpu), np.isfinite(cpu) & np.isfinite(run_delay)
    mean_cpu = compute_weighted_mean(cpu[has_cpu], weights[has_cpu])
    mean_delay = compute_weighted_mean(run_delay[has_all], weights[has_all])
    blocked = compute_weighted_mean((service - cpu - run_delay)[has_all], weights[has_all])
    return Cost(mean_cpu, mean_delay, None if blocked is None else max(0.0, blocked))


def split_blocked(cost: Cost, stage: str, executor: str, samples: BlockedSamples | None) -> BlockedSplit | None:
    """Return a stage's blocked seconds per item by what was waited for; None where they are not known."""
    if cost.blocked is None:
        return None
    if samples is None:
        return BlockedSplit(unknown=cost.blocked)
    if executor == "events" and stage in samples.lone:
        return samples.split_carried(stage, cost.blocked, (cost.cpu or 0.0) + (cost.run_delay or 0.0))
    return samples.split(stage, cost.blocked)


def _measure_blocked_put(evidence: Evidence, stage: StageFacts, rows: Array) -> float | None:
    row = stage.summary
    if evidence.is_complete:
        return worker_blocked_seconds(evidence.spans, rows) / len(rows) if len(rows) else None
    if row is None or row["blocked_ratio"] is None or not stage.items or not row["workers"]:
        return None
    return float(row["blocked_ratio"] * row["workers"] * evidence.summary["elapsed_seconds"] / stage.items)


def _busy(evidence: Evidence, stage: StageFacts) -> float | None:
    if stage.summary is not None:
        return float(stage.summary["busy_seconds"])
    own, spans = evidence.stage_rows(stage.name), evidence.spans
    service = (spans.ended[own] - spans.started[own]) / spans.batch_size[own] / 1e9
    return float(service @ spans.weight[own]) if len(service) else None


def _utilization(evidence: Evidence, stage: StageFacts, window: Window) -> float | None:
    width = window.to_seconds - window.from_seconds
    if evidence.is_complete and stage.workers and width > 0 and stage.items:
        own = evidence.stage_rows(stage.name)
        busy = busy_seconds(evidence.spans, np.arange(own.start, own.stop), window)
        return min(1.0, busy / (width * stage.workers))  # those in the places of others that wait come on top
    ratio = stage.summary["utilization_ratio"] if stage.summary else None
    return None if ratio is None else float(ratio)


def _throughput(evidence: Evidence, stage: StageFacts, rows: Array, window: Window) -> float | None:
    """Return items per second of the window; where not every passage has a span, of the run."""
    width = window.to_seconds - window.from_seconds
    if evidence.is_complete and stage.items and width > 0:
        return len(rows) / width
    return stage.items / evidence.elapsed_seconds if stage.items and evidence.elapsed_seconds > 0 else None


def _mean_depth(evidence: Evidence, stage: StageFacts, window: Window) -> float | None:
    """Return the mean depth of a queue: time waited in the window over its length; None unless all items have spans."""
    width = window.to_seconds - window.from_seconds
    if not (evidence.is_complete and stage.has_queue and stage.items and width > 0):
        return None
    own, spans = evidence.stage_rows(stage.name), evidence.spans
    first, last = window.from_seconds * 1e9, window.to_seconds * 1e9
    waited = np.minimum(spans.dequeued[own], last) - np.maximum(spans.arrived[own], first)
    return float(np.maximum(waited, 0.0).sum()) / 1e9 / width


def _max_depth(evidence: Evidence, stage: StageFacts, rows: Array) -> float | None:
    if not (evidence.is_complete and stage.has_queue and len(rows)):
        return None
    return float(evidence.spans.queue_depth[rows].max())


def _batches(evidence: Evidence, stage: StageFacts) -> Batches | None:
    own, spans = evidence.stage_rows(stage.name), evidence.spans
    sizes, reasons = _batch_sizes(spans, own)
    row: dict[str, Any] = (stage.summary or {}).get("batches") or {}
    count = int(row["count"]) if row else sum(sizes.values())
    if not count:
        return None
    members = sum(size * number for size, number in sizes.items())
    curve = evidence.info.cost_curves.get(stage.name, {})
    return Batches(
        num_batches=count,
        mean_size=float(row["mean_size"]) if row else members / count,
        sizes=sizes,
        release_reasons=dict(row["release_reasons"]) if row else reasons,
        cost_curve={size: median(seconds) for size, seconds in sorted(curve.items()) if seconds},
    )


def _batch_sizes(spans: SpanColumns, own: slice) -> tuple[dict[int, int], dict[str, int]]:
    """Return {batch size: batches} and {release reason: batches}; each member stands for its share of a batch."""
    batched = spans.batch_id[own] >= 0
    size, reason = spans.batch_size[own][batched], spans.reason[own][batched]
    shares = spans.weight[own][batched] / size
    by_size = np.bincount(size, shares) if len(size) else np.empty(0)
    by_reason = np.bincount(reason + 1, shares) if len(reason) else np.empty(0)
    sizes = {int(value): round(float(by_size[value])) for value in np.flatnonzero(by_size >= 0.5)}
    reasons = {
        spans.reason_names[code - 1]: round(float(by_reason[code])) for code in np.flatnonzero(by_reason) if code
    }
    return sizes, reasons


def _shapes(spans: SpanColumns, own: slice) -> dict[str, int]:
    codes = spans.shape[own]
    known = codes >= 0
    if not known.any():
        return {}
    counts = np.bincount(codes[known], spans.weight[own][known])
    frequent = np.argsort(-counts, kind="stable")[:_MOST_SHAPES]
    return {spans.shape_names[code]: round(float(counts[code])) for code in frequent if counts[code] > 0}
