"""Whether `run.json` agrees with itself: one fact stands there in several places, written on several ways."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from headrace.diagnose.checks import check, not_measured
from headrace.diagnose.evidence import Evidence
from headrace.runs.formats.profile import Check

_COUNTS = ("received", "delivered", "rejected", "dead_lettered", "retried", "returned", "lost")
#: What rounding may do to a figure that was worked out from others of the file.
_ROUNDING = 1e-3
#: Seconds between readings of two clocks: of a call, and of the run.
_CALL_SECONDS, _RUN_SECONDS = 1e-4, 0.05
#: A model may cost more in the run than at warm-up, where nothing competes, and hardly less: in 77 runs 0.57 times at least.
_LEAST_OF_CURVE = 0.2
#: Calls of a batch size whose median is compared with the curve.
_FEWEST_CALLS = 5


def summary(evidence: Evidence) -> Check:
    """Return whether counts, times and rates of `run.json` say the same wherever they stand."""
    known = evidence.summary
    if not known or not known.get("complete", True):
        return not_measured("summary", "the run did not live to write its counters")
    found = [*_counts(evidence), *_rates(evidence), *_times(evidence), *_curves(evidence)]
    if not found:
        return check("summary", "ok", 0, 0, "counts, times and rates of run.json agree with one another")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    says = f"{found[0]}{more}: run.json contradicts itself; it was changed, or report this with the folder"
    return check("summary", "failed", len(found), 0, says)


def _counts(evidence: Evidence) -> Iterator[str]:
    counters, copied = evidence.info.counters, evidence.summary.get("counters") or {}
    for name in _COUNTS:
        here, there = getattr(counters, name), copied.get(name)
        if there is not None and there != here:
            yield f"{here:,} jobs were {name.replace('_', '-')} by one count and {there:,} by another"
    reasons = evidence.summary.get("reasons")
    failed = counters.rejected + counters.dead_lettered
    if reasons is not None and (explained := sum(one["count"] for one in reasons)) < failed - counters.lost:
        yield f"{failed:,} jobs failed, and reasons are given for {explained:,}"


def _rates(evidence: Evidence) -> Iterator[str]:
    known, elapsed = evidence.summary, evidence.elapsed_seconds
    if elapsed <= 0:
        return
    counters = evidence.info.counters
    rate = known.get("throughput_per_second")
    # Earlier versions counted from the first outcome: their rate is no smaller, and is not compared.
    if rate is not None and _is_current(evidence) and _differ(rate * elapsed, counters.delivered, 1 + counters.lost):
        yield f"{counters.delivered:,} jobs in {elapsed:.3g} s are not {rate:.4g}/s"
    for row in known.get("stages", []):
        name, busy, workers = row["name"], row["busy_seconds"], row["workers"]
        if row.get("utilization_ratio") is not None and _differ(row["utilization_ratio"] * workers * elapsed, busy):
            yield (
                f"{workers} workers of {name} that served {busy:.3g} s in {elapsed:.3g} s are not busy for "
                f"{row['utilization_ratio']:.1%}"
            )
        rate = row.get("throughput_per_second")
        if rate is not None and _is_current(evidence) and _differ(rate * elapsed, row["items"], 1):
            yield f"{row['items']:,} passages of {name} in {elapsed:.3g} s are not {rate:.4g}/s"


def _is_current(evidence: Evidence) -> bool:
    """Return whether the rates are of a headrace that counts from the first arrival: it notes the cost of waking a thread."""
    return evidence.info.handoff is not None


def _times(evidence: Evidence) -> Iterator[str]:
    info, elapsed = evidence.info, evidence.elapsed_seconds
    lasted = elapsed
    if (
        info.ended_monotonic_ns is not None
    ):  # longer than jobs came and went: where none came, or a brake held them back
        lasted = (info.ended_monotonic_ns - info.started_monotonic_ns) / 1e9
        if elapsed > lasted * (1 + _ROUNDING) + _RUN_SECONDS:
            yield f"jobs came and went for {elapsed:.3g} s of a run that lasted {lasted:.3g} s"
    if offset := info.clock_offsets_ns.get(info.host, 0):
        yield f"the run's own clock is {offset / 1e9:.3g} s off itself"
    spans, profile = evidence.spans, evidence.profiling
    if len(spans.started):
        recorded = int(spans.ended.max() - spans.started.min()) / 1e9
        if recorded > elapsed * 1.05 + 0.5:
            yield f"spans were recorded over {recorded:.3g} s, and jobs came and went for {elapsed:.3g} s"
    if profile and profile.elapsed_seconds and profile.elapsed_seconds > max(elapsed, lasted) * 1.05 + 0.5:
        yield f"profiling.json speaks of {profile.elapsed_seconds:.3g} s, and the run took {max(elapsed, lasted):.3g} s"


def _curves(evidence: Evidence) -> Iterator[str]:
    info, spans = evidence.info, evidence.spans
    for stage, curve in info.cost_curves.items():
        own, rows = info.cost_curve_cpu.get(stage, {}), evidence.stage_rows(stage)
        if rows.start < rows.stop and len(info.plans) < 2:  # another Plan's model is warmed up later
            took = sum(sum(seconds) for seconds in curve.values())
            before = (int(spans.started[rows].min()) + spans.origin_ns - info.started_monotonic_ns) / 1e9
            workers = next((one.workers for one in evidence.stages if one.name == stage), None) or 1
            if took > before * workers * 1.1 + _RUN_SECONDS:
                yield f"warming {stage} up took {took:.3g} s by its cost curve, and it began to work after {before:.3g} s"
        for size, seconds in curve.items():
            for wall, cpu in zip(seconds, own.get(size, ()), strict=False):
                if cpu > wall * 1.05 + _CALL_SECONDS:
                    yield (
                        f"a call of {stage} with {size} items took {wall * 1e3:.3g} ms by its cost curve and "
                        f"{cpu * 1e3:.3g} ms of CPU time"
                    )
                    return
        ratios = [ratio for size, seconds in curve.items() if (ratio := _of_curve(evidence, stage, size, seconds))]
        if ratios and max(ratios) < _LEAST_OF_CURVE:
            yield f"calls of {stage} took {max(ratios):.1%} of what its cost curve says, or less"


def _of_curve(evidence: Evidence, stage: str, size: int, seconds: list[float]) -> float | None:
    """Return what a call of a size took in the run, as a share of what it took at warm-up; None with few calls.

    Where the call of warm-up computed more than those of the run, its item was another, and its time says nothing.
    """
    spans, own = evidence.spans, evidence.stage_rows(stage)
    rows = np.flatnonzero(spans.batch_size[own] == size) + own.start
    if len(rows) < _FEWEST_CALLS * size or not seconds:
        return None
    cpu = evidence.info.cost_curve_cpu.get(stage, {}).get(size)
    if cpu and np.isfinite(spans.cpu[rows]).any() and float(np.nanmedian(spans.cpu[rows])) / 1e9 < 0.5 * median(cpu):
        return None
    return float(np.median(spans.ended[rows] - spans.started[rows])) / 1e9 / min(seconds)


def _differ(first: float, second: float, allowed: float = 0.0) -> bool:
    return bool(abs(first - second) > allowed + _ROUNDING * max(abs(first), abs(second)) + 1e-6)
