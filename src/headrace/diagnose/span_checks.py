"""Checks that need nothing but the spans: their clocks, their sums, and whether they are all there."""

from __future__ import annotations

import itertools

import numpy as np

from headrace.base.statistics import samples_needed
from headrace.diagnose.checks import check, not_measured
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.span_columns import Array, SpanColumns
from headrace.runs.formats.profile import Check, Distribution
from headrace.runs.formats.profiling import FILE as PROFILING_FILE
from headrace.runs.resource_files import STATES_FILE

IDENTITY = "wall = cpu + run delay + blocked; Linux, Documentation/scheduler/sched-stats.rst"
EARLY_STOPPING = "MLPerf LoadGen, early stopping at 99 % confidence"

_IDENTITY_LIMIT = 0.05
#: The clocks of a passage are read one after the other, ns.
_READING_NS = 1_000
_LOST_LIMIT = 0.01
#: Standard errors by which a sample may stand for less than there was.
_ERRORS = 4.0
_DISORDER_LIMIT = 0.001
#: Looks at the threads' states from which on there must be a file of them.
_FEWEST_LOOKS = 20
#: Offsets between hosts are known about this well, ns.
_HOST_TOLERANCE_NS = 1_000_000


def clock_order(evidence: Evidence) -> Check:
    """Return whether time only goes forward: within a span, from one stage of an item to the next, and in each worker.

    The times of a span are of one clock, and a worker does one thing at a time: a single span that runs backwards, or that
    begins before its worker has ended the one before, is a failure. Worker processes share their host's clock, so that stages
    are held to the nanosecond too; between hosts a millisecond is allowed. Of steps between stages a few are a warning; more
    than 0.1 % are a failure, because waits and services are then wrong.
    """
    spans = evidence.spans
    if not len(spans):
        return not_measured("clock_order", "there are no spans")
    if spans.unknown_hosts:
        hosts = ", ".join(spans.unknown_hosts)
        says = f"the clock offset of {hosts} is not known: add it to clock_offsets_ns in run.json and analyse again"
        return check("clock_order", "failed", None, 0.0, says)
    within = _find_disordered_rows(spans) | _find_overlaps(evidence)
    between, example = _find_disordered_steps(spans)
    count = int(within.sum()) + between
    if not count:
        return check("clock_order", "ok", 0.0, _DISORDER_LIMIT, f"{len(spans):,} spans are in the order of time")
    row = int(np.flatnonzero(within)[0]) if within.any() else example
    where = (
        f"{spans.unit_ids[int(spans.unit[row])]} in {spans.stage_names[spans.stage[row]]}, process {spans.process[row]}"
    )
    says = (
        f"{int(within.sum()):,} spans run backwards or overlap in one worker and {between:,} begin before the stage before "
        "them ended, of "
        f"{len(spans):,}; the first is {where}: "
        "a process's clock or an offset in clock_offsets_ns is wrong; profile again with correct clocks"
    )
    share = count / len(spans)
    is_wrong = bool(within.any()) or share > _DISORDER_LIMIT
    return check("clock_order", "failed" if is_wrong else "warning", share, _DISORDER_LIMIT, says)


#: Mean of what a stage's spans may be over for having lost the core between reading one clock and the next.
_BETWEEN_CLOCKS_NS = 50_000


def span_identity(spans: SpanColumns) -> Check:
    """Return whether in each stage CPU time and run-queue delay fit into the wall time that they were measured in.

    What is left over is blocked time; less than nothing left, beyond 5 %, means that a clock is wrong.
    """
    metered = np.isfinite(spans.cpu)
    if not metered.any():
        return not_measured("span_identity", "no span has CPU time; use headrace profile", IDENTITY)
    service = (spans.ended - spans.started).astype(np.float64)
    used = spans.cpu + np.nan_to_num(spans.run_delay) - _READING_NS
    count = len(spans.stage_names)
    wall = np.bincount(spans.stage[metered], service[metered], count)
    over = np.bincount(spans.stage[metered], np.maximum(used, 0.0)[metered], count) - wall
    share = np.divide(over, wall, out=np.where(over > 0, np.inf, -1.0), where=wall > 0)
    # In a stage of some microseconds the core may be lost between two clocks: that much is no wrong clock.
    share[over <= _BETWEEN_CLOCKS_NS * np.bincount(spans.stage[metered], minlength=count)] = -1.0
    worst = int(np.argmax(share))
    value = max(0.0, float(share[worst]))
    name = spans.stage_names[worst]
    if value <= _IDENTITY_LIMIT:
        says = f"CPU time and run-queue delay fit into the wall time of every stage (worst: {name}, {value:.1%} over)"
        return check("span_identity", "ok", value, _IDENTITY_LIMIT, says, IDENTITY)
    says = (
        f"{name} shows {value:.1%} more CPU time and run-queue delay than wall time: a clock is wrong; profile again, and "
        "report this with the folder if it stays"
    )
    return check("span_identity", "failed", value, _IDENTITY_LIMIT, says, IDENTITY)


def sample_counts(latency: Distribution) -> Check:
    """Return whether the latencies suffice for the 99th percentile."""
    needed = samples_needed(99)
    count = latency.num_samples
    if count >= needed:
        says = f"{count:,} latencies: every percentile up to p99 can be quoted"
        return check("sample_counts", "ok", count, needed, says, EARLY_STOPPING)
    short = ", ".join(f"p{one.percent:g} needs {one.num_needed}" for one in latency.percentiles if one.value is None)
    says = f"{count:,} latencies are too few to quote every percentile: {short}; profile more items"
    return check("sample_counts", "warning", count, needed, says, EARLY_STOPPING)


def lost_spans(evidence: Evidence) -> Check:
    """Return whether the spans are all there, or those that were to be recorded.

    Above 1 % lost a run is not trusted: what was lost is not like the rest, because disks fill up under load. Where jobs were
    left out on purpose, those that were recorded must stand for as many passages as were counted, but for chance.
    """
    written, lost = len(evidence.spans), evidence.info.lost_spans
    says_sampled = ""
    if evidence.info.summary is not None:
        lost = max(lost, _count_missing_spans(evidence))
    if is_left_out_on_purpose(evidence):
        says_sampled = "; others were left out on purpose: counters are exact, spans a sample"
    if not written and not lost:
        return not_measured("lost_spans", "there are no spans")
    share = lost / (written + lost)
    says = f"{written:,} spans are there, {lost:,} were lost ({share:.1%}){says_sampled}"
    if share > _LOST_LIMIT:
        says += ": means and percentiles are of what was left; free space on the disk and profile again"
        return check("lost_spans", "failed", share, _LOST_LIMIT, says)
    return check("lost_spans", "warning" if lost else "ok", share, _LOST_LIMIT, says)


def run_folder(evidence: Evidence) -> Check:
    """Return whether the run folder is whole; where a file is missing that the run wrote, not everything could be checked."""
    if missing := _find_missing_file(evidence):
        return not_measured(
            "run_folder", f"{missing} is missing: it was removed or could not be written; profile again"
        )
    problems = evidence.problems
    if not problems:
        return check("run_folder", "ok", 0, 0, "the run folder is whole")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return check("run_folder", "warning", len(problems), 0, f"{problems[0]}{more}")


def _find_missing_file(evidence: Evidence) -> str:
    """Return the file that a profiled run must have and this one has not; empty if it has all."""
    profile = evidence.profiling
    if evidence.info.summary is None or evidence.info.window:
        return ""
    if profile is None:
        was_profiled = bool(evidence.gauges) or evidence.states is not None or np.isfinite(evidence.spans.cpu).any()
        return PROFILING_FILE if was_profiled else ""
    looks = (profile.state_samples_per_second or 0.0) * evidence.elapsed_seconds
    return STATES_FILE if evidence.states is None and looks > _FEWEST_LOOKS else ""


def is_left_out_on_purpose(evidence: Evidence) -> bool:
    """Return whether only some jobs were recorded during some of the run."""
    profile = evidence.profiling
    return evidence.is_sampled or (profile is not None and any(change.every > 1 for change in profile.sampling))


def _count_missing_spans(evidence: Evidence) -> int:
    """Return how many spans are missing, by the exact counts of passages; of a sample, those that chance does not explain."""
    spans = evidence.spans
    passages = sum(stage.items for stage in evidence.stages)
    missing = passages - float(spans.weight.sum())
    if not is_left_out_on_purpose(evidence):
        return max(0, round(missing))
    lost_share = max(0.0, missing - chance_of_sample(spans)) / passages if passages else 0.0
    return round(len(spans) * lost_share / (1 - lost_share)) if lost_share < 1 else passages


def chance_of_sample(spans: SpanColumns) -> float:
    """Return by how many passages a sample of jobs may be off what it stands for, by chance.

    A job is recorded as a whole, with the chance 1 / weight, so that the variance of what they stand for is w (w - 1) a job.
    """
    per_job = np.bincount(spans.root, minlength=1).astype(np.float64)
    weight = np.ones(len(per_job))
    weight[spans.root] = spans.weight
    return _ERRORS * float(np.sqrt((per_job**2 * weight * (weight - 1)).sum()))


def _find_disordered_rows(spans: SpanColumns) -> Array:
    """Return which spans run backwards."""
    order = (spans.arrived, spans.dequeued, spans.started, spans.ended, spans.put)
    wrong = np.zeros(len(spans), bool)
    for before, after in itertools.pairwise(order):
        wrong |= after < before
    return wrong


def _find_overlaps(evidence: Evidence) -> Array:
    """Return which spans began before their worker had ended the one before.

    Left out are batches, whose members share their times; stages of devices, where one call may be begun before the one before
    has ended; and stages whose calls one thread carries.
    """
    spans, found = evidence.spans, np.zeros(len(evidence.spans), bool)
    for stage in evidence.stages:
        own = evidence.stage_rows(stage.name)
        if stage.executor not in ("thread", "process") or stage.kind == "device" or (spans.batch_id[own] >= 0).any():
            continue
        order = np.lexsort((spans.started[own], spans.worker[own])) + own.start
        before, after = order[:-1], order[1:]
        found[after] |= (spans.worker[before] == spans.worker[after]) & (spans.started[after] < spans.ended[before])
    return found


def _find_disordered_steps(spans: SpanColumns) -> tuple[int, int]:
    """Return how many spans arrived before the same item's stage before had ended, and the row of one of them."""
    stages = len(spans.stage_names)
    attempts = int(spans.attempt.max()) + 1
    key = (spans.unit.astype(np.int64) * attempts + spans.attempt) * stages + spans.stage
    order = np.argsort(key, kind="stable")
    before, after = order[:-1], order[1:]
    same = (key[before] // stages == key[after] // stages) & (spans.stage[before] != spans.stage[after])
    allowed = np.where(spans.host[before] == spans.host[after], 0, _HOST_TOLERANCE_NS)
    wrong = same & spans.is_ok[before] & (spans.arrived[after] < spans.ended[before] - allowed)
    found = np.flatnonzero(wrong)
    return len(found), int(after[found[0]]) if len(found) else 0
