"""The whole path of one slow item: nearest the 99th percentile of latency, or the slowest where that cannot be quoted."""

from __future__ import annotations

import numpy as np

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.span_columns import Array, SpanColumns
from headrace.runs.formats.profile import Distribution, ItemPath, PathSpan, Window

#: Spans above which only the slowest of an item's children is shown.
_MOST_SPANS = 60


def slow_item(evidence: Evidence, window: Window, latency: Distribution) -> ItemPath | None:
    """Return the path of a slow item that was delivered in the window; None if none was."""
    jobs, spans = evidence.jobs, evidence.spans
    ended = jobs.ended / 1e9
    inside = jobs.is_delivered & (ended >= window.from_seconds) & (ended <= window.to_seconds)
    candidates = np.flatnonzero(inside if inside.any() else jobs.is_delivered)
    if not len(candidates):
        return None
    latencies = jobs.latency_seconds()[candidates]
    wanted = latency.percentile(99)
    index = int(np.argmax(latencies) if wanted is None else np.argmin(np.abs(latencies - wanted)))
    job = candidates[index]
    rows = np.flatnonzero((spans.root == jobs.root[job]) & (spans.attempt == jobs.attempt[job]))
    rows = _choose_rows(spans, rows)
    order = np.lexsort((spans.started[rows], spans.stage[rows], spans.arrived[rows]))
    arrived = int(jobs.arrived[job])
    return ItemPath(
        unit_id=str(spans.unit_ids[int(jobs.root[job])]),
        latency=float(latencies[index]),
        percentile=100 * float((latencies <= latencies[index]).mean()),
        spans=tuple(_path_span(spans, int(row), arrived) for row in rows[order]),
    )


def _choose_rows(spans: SpanColumns, rows: Array) -> Array:
    """Return the item's own rows and, of many children, those of the one that held it up: the last to end."""
    if len(rows) <= _MOST_SPANS:
        return rows
    is_child = spans.is_child[rows]
    children = rows[is_child]
    if not len(children):
        return rows[:_MOST_SPANS]
    last = spans.unit[children[int(np.argmax(spans.put[children]))]]
    kept: Array = rows[~is_child | (spans.unit[rows] == last)]
    return kept[:_MOST_SPANS]


def _path_span(spans: SpanColumns, row: int, arrived: int) -> PathSpan:
    def since(times: Array) -> float:
        return (int(times[row]) - arrived) / 1e9

    def seconds(times: Array) -> float | None:
        return None if np.isnan(times[row]) else float(times[row]) / 1e9

    return PathSpan(
        stage=spans.stage_names[spans.stage[row]],
        unit_id=str(spans.unit_ids[int(spans.unit[row])]),
        worker=spans.thread_names[spans.thread[row]],
        process=int(spans.process[row]),
        arrived=since(spans.arrived),
        dequeued=since(spans.dequeued),
        started=since(spans.started),
        ended=since(spans.ended),
        put=since(spans.put),
        cpu=seconds(spans.cpu),
        run_delay=seconds(spans.run_delay),
        outcome=str(spans.table["outcome"][int(spans.row[row])]),
        batch_size=int(spans.batch_size[row]) if spans.batch_id[row] >= 0 else None,
    )
