"""Whether the spans agree with what was counted exactly while the run went on.

`run.json` holds exact counts and sums of each stage, made of the same passages as the spans and on another way. What a file
lost is `lost_spans`; here it is what a file has too much of, or has otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.diagnose.checks import check, not_measured
from headrace.diagnose.evidence import Evidence, StageFacts
from headrace.diagnose.span_checks import chance_of_sample, is_left_out_on_purpose
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.profile import Check

#: Shares by which spans and counters may differ: passages, those that failed, service. Lost spans are allowed the first, too.
_ITEMS, _FAILED, _BUSY = 0.01, 0.01, 0.05
#: Service that is not compared by shares, seconds: of all passages, and of one on average.
_LEAST_BUSY, _LEAST_MEAN = 0.01, 1e-5


def exact_counters(evidence: Evidence) -> Check:
    """Return whether spans have as many passages, failures, batches, workers and seconds as were counted, under known Plans.

    Of a sample of jobs only passages are compared, with what chance allows.
    """
    if evidence.info.summary is None or not evidence.info.summary.get("complete", True) or not len(evidence.spans):
        why = "there are no spans" if evidence.info.summary else "the run did not live to write its counters"
        return not_measured("exact_counters", why)
    found = [_surplus(evidence), _find_unknown_plan(evidence)]
    for stage in evidence.stages:
        found += [*_compare_workers(evidence, stage), *_compare_passages(evidence, stage)]
    worst = max(found, key=lambda one: one[0])
    if worst[0] <= 1.0:
        return check("exact_counters", "ok", worst[0], 1.0, "spans agree with the exact counters of the run")
    says = f"{worst[1]}: the files of the run were changed, or written twice; profile again, or report this with the folder"
    return check("exact_counters", "failed", worst[0], 1.0, says)


def _surplus(evidence: Evidence) -> tuple[float, str]:
    """Return by how much the spans stand for more passages than there were, in units of what is allowed."""
    counted, shown = sum(stage.items for stage in evidence.stages), float(evidence.spans.weight.sum())
    allowed = max(1.0, _ITEMS * counted)
    if is_left_out_on_purpose(evidence):
        allowed = max(allowed, chance_of_sample(evidence.spans))
    return (shown - counted) / allowed, f"spans stand for {shown:,.0f} passages and {counted:,} were counted"


def _find_unknown_plan(evidence: Evidence) -> tuple[float, str]:
    """Return whether spans name a Plan that the run did not have."""
    unknown = set(evidence.spans.table["plan_id"].unique().to_pylist()) - set(evidence.info.plans)
    return 2.0 * bool(unknown), f"spans name the Plan {min(unknown, default='')}, which the run did not have"


def _compare_workers(evidence: Evidence, stage: StageFacts) -> Iterator[tuple[float, str]]:
    """Yield by how much the workers of one stage differ, in units of what is allowed, and in words."""
    row, spans, own = stage.summary, evidence.spans, evidence.stage_rows(stage.name)
    if row is None or not stage.workers or not row["workers"] or len(evidence.info.plans) > 1:
        return  # another Plan may have other workers
    yield (
        2.0 * (stage.workers != row["workers"]),
        f"{stage.name} had {row['workers']} workers by the counters, {stage.workers} by its settings",
    )
    seen, most = len(np.unique(spans.worker[own])), stage.most_workers or stage.workers
    may_change = stage.executor == "process"  # a process that ended is replaced
    yield 2.0 * (seen > most and not may_change), f"{seen} workers of {stage.name}, which had at most {most}"


def _compare_passages(evidence: Evidence, stage: StageFacts) -> Iterator[tuple[float, str]]:
    """Yield the same of its failures, batches and times; only where every passage has its span."""
    row, spans, own = stage.summary, evidence.spans, evidence.stage_rows(stage.name)
    if row is None or not evidence.is_complete or not stage.items or own.start == own.stop:
        return
    failed = float((~spans.is_ok[own]).sum())
    off = abs(failed - stage.failed) / max(1.0, _FAILED * stage.items)
    yield off, f"{failed:,.0f} spans of {stage.name} failed, and {stage.failed:,} passages were counted"
    service = spans.ended[own] - spans.started[own]
    busy, counted = float((service / spans.batch_size[own]).sum()) / 1e9, float(row["busy_seconds"])
    off = abs(busy - counted) / max(_LEAST_BUSY, _BUSY * counted)
    yield off, f"{stage.name} served {busy:.3g} s by its spans, and {counted:.3g} s were counted"
    yield _compare_means(f"{stage.name} served an item", service, row["service_seconds"]["mean"])
    if stage.has_queue:
        waits = spans.dequeued[own] - spans.arrived[own]
        yield _compare_means(f"an item waited for {stage.name}", waits, row["queue_wait_seconds"]["mean"])
    if row.get("batches"):
        formed = len(np.unique(np.stack([spans.process[own], spans.batch_id[own]]), axis=1).T)
        count = int(row["batches"]["count"])
        off = abs(formed - count) / max(1.0, _ITEMS * count)
        yield off, f"spans of {stage.name} were in {formed:,} batches, and {count:,} were counted"


def _compare_means(what: str, nanoseconds: Array, counted: float | None) -> tuple[float, str]:
    mean = float(nanoseconds.mean()) / 1e9
    if counted is None:
        return 0.0, ""
    off = abs(mean - counted) / max(_LEAST_MEAN, _BUSY * counted)
    return off, f"{what} for {mean:.3g} s on average by the spans, and {counted:.3g} s by the counters"
