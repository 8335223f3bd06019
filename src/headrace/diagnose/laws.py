"""Checks by operational laws: what was sampled from outside must agree with what spans and counters say.

References:
    J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9(3), 1961.
    P. J. Denning and J. P. Buzen, "The operational analysis of queueing network models", Computing Surveys 10(3), 1978.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.diagnose.accounting import window_rows
from headrace.diagnose.checks import check, not_measured
from headrace.diagnose.estimates import compute_weighted_mean, standard_error
from headrace.diagnose.evidence import Evidence, StageFacts
from headrace.diagnose.gauges import Gauge
from headrace.diagnose.span_checks import chance_of_sample
from headrace.diagnose.span_columns import Array, SpanColumns
from headrace.diagnose.steady_state import completions
from headrace.runs.formats.profile import Check, CheckStatus, CpuAccount, StageAccount, Window

LITTLE = "Little's law, L = X R; Little 1961"
UTILIZATION = "Utilization law, U = X D; Denning and Buzen 1978"
FORCED_FLOW = "Forced flow law, X_i = V_i X; Denning and Buzen 1978"
FLOW_BALANCE = "Flow balance, arrivals = completions + in flight; Denning and Buzen 1978"

#: Why laws of whole runs are not checked on a part of one.
WINDOW = "the folder holds some time of a run: what was inside when it begins and ends has no outcome here"
_SHARE = 0.05
_ITEMS = 0.5
_ERRORS = 3.0
#: Cores that a reading of the processes' clocks may be off: they are read a little before the run begins and after it ends.
_CLOCK_CORES = 0.05
#: Samples below which a mean is not held against anything.
_FEWEST_SAMPLES = 20
#: Share of a stretch of time that its samples must cover.
_COVERED = 0.9
#: Up to this many times what is allowed, a difference is a warning and not a failure. The sampler is a thread of the process
#: that it watches: it comes when others let go of the interpreter lock, and those moments are not like all others. Measured
#: with two workers in pure Python on two cores: 11 % of the workers too few, 3 % of the queue too many.
_BIAS = 3.0
#: Seconds that a thread may keep the interpreter lock while another wants it (`sys.getswitchinterval`).
_SWITCH_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class _Comparison:
    what: str
    sampled: float
    expected: float
    allowed: float
    """Largest difference allowed."""

    may_exceed: bool = False
    """More may be sampled than is expected."""

    @property
    def excess(self) -> float:
        difference = self.expected - self.sampled
        return (max(0.0, difference) if self.may_exceed else abs(difference)) / self.allowed

    def relative(self, value: float) -> float:
        return value / max(self.sampled, self.expected, 1e-12)


@dataclass(frozen=True, slots=True)
class _Edge:
    """A stage and those that it gets its items from; none: the source."""

    before: tuple[StageFacts, ...]
    stage: StageFacts
    is_among_children: bool
    """Between a fan-out and its join."""

    @property
    def sent(self) -> int:
        """How many items the stages before let through."""
        return sum(stage.items - stage.failed for stage in self.before)


def littles_law(evidence: Evidence) -> Check:
    """Return whether mean queue lengths, as sampled, are arrival rates times mean waits, as counted.

    Of the whole run, which begins and ends empty: then the law holds exactly and needs no steady state. Allowed are 5 %, half
    an item, three standard errors of the sampled mean, or the items that come while a thread waits for the interpreter lock,
    whichever is most; three times as much is a failure.
    """
    if not evidence.elapsed_seconds:
        return not_measured("littles_law", "nothing was measured", LITTLE)
    if evidence.info.window:
        return not_measured("littles_law", WINDOW, LITTLE)
    found = [_queue_comparison(evidence, stage) for stage in evidence.stages if stage.has_queue]
    comparisons = [one for one in (*found, _whole_comparison(evidence)) if one is not None]
    if not comparisons:
        return not_measured("littles_law", _why_not_sampled(evidence, "queues"), LITTLE)
    worst = max(comparisons, key=lambda one: one.excess)
    says = (
        f"{worst.what}: {worst.sampled:.3g} items sampled, {worst.expected:.3g} by rate times time"
        f" ({len(comparisons)} compared, this one agrees least)"
    )
    return _worst("littles_law", worst, says, "the queue depths or the items' times are wrong", LITTLE)


def utilization_law(evidence: Evidence, window: Window) -> Check:
    """Return whether workers were found busy as often as their spans say.

    In the window, allowing 5 % of the workers or three standard errors; three times as much is a failure. A worker is busy
    from taking items until the last of them has ended. Workers with a process of their own are also busy handing items over,
    which no span holds: there only more busy time in spans than was sampled is wrong.
    """
    comparisons = []
    for stage in evidence.stages:
        if stage.has_queue and stage.workers:
            comparison = _busy_comparison(evidence, stage, window)
            if comparison is not None:
                comparisons.append(comparison)
    if not comparisons:
        why = (
            "only some jobs were recorded, and this needs every span of a worker"
            if evidence.is_sampled
            else _why_not_sampled(evidence, "workers")
        )
        return not_measured("utilization_law", why, UTILIZATION)
    worst = max(comparisons, key=lambda one: one.excess)
    says = (
        f"{worst.what}: {worst.sampled:.3g} workers found busy, {worst.expected:.3g} by spans"
        f" ({len(comparisons)} compared, this one agrees least)"
    )
    return _worst("utilization_law", worst, says, "spans are missing or their times are wrong", UTILIZATION)


def _why_not_sampled(evidence: Evidence, what: str) -> str:
    if not evidence.gauges and evidence.profiling is None:
        return evidence.why_no_profile
    return f"fewer than {_FEWEST_SAMPLES} samples of the {what} were taken; profile a longer run"


def cores_law(throughput: float | None, stages: Sequence[StageAccount], cpu: CpuAccount | None, jobs: int) -> Check:
    """Return whether the run needs no more cores than there are, at most 5 % more.

    That is so of the throughput times the CPU demand of a job, and of the CPU time that its processes used.

    Args:
        throughput: Jobs delivered per second.
        stages: With their CPU demands.
        cpu: Of the processes; None where it was not measured.
        jobs: How many came to an end, however: what all passages are divided among.
    """
    demands = [stage.cpu_demand * stage.items for stage in stages if stage.cpu_demand is not None]
    if cpu is None or throughput is None or not demands or not jobs:
        return not_measured("cores_law", "CPU time or throughput was not measured", UTILIZATION)
    demand = sum(demands) / jobs
    used, limit = throughput * demand / cpu.num_cores, 1 + _SHARE + cpu.uncertain_share
    says = (
        f"{throughput:.4g} jobs a second x {demand * 1e3:.3g} ms of CPU a job = {throughput * demand:.3g} of "
        f"{cpu.num_cores:g} cores"
    )
    by_clocks = cpu.total_seconds / max(cpu.elapsed_seconds, 1e-9)
    if used <= limit and by_clocks > limit * cpu.num_cores + _CLOCK_CORES:
        used, says = by_clocks / cpu.num_cores, f"the processes used {by_clocks:.3g} of {cpu.num_cores:g} cores"
    elif used <= limit:
        return check("cores_law", "ok", used, limit, says, UTILIZATION)
    says += ": more than there are; the throughput, the CPU times or the number of cores is wrong"
    return check("cores_law", "failed", used, limit, says, UTILIZATION)


def flow_balance(evidence: Evidence) -> Check:
    """Return whether what came in is what went out, by exact counters; while a run goes on the rest is in flight."""
    counters = evidence.info.counters
    if evidence.info.window:
        return not_measured("flow_balance", WINDOW, FLOW_BALANCE)
    if evidence.info.summary is None:
        return not_measured(
            "flow_balance",
            "the run did not live to write its counters; let it end, or stop it with Ctrl-C",
            FLOW_BALANCE,
        )
    parts = {
        name: getattr(counters, name)
        for name in ("delivered", "rejected", "dead_lettered", "retried", "returned", "lost")
    }
    missing = counters.received - sum(parts.values())
    counted = (
        ", ".join(f"{value:,} {name.replace('_', '-')}" for name, value in parts.items() if value) or "none settled"
    )
    says = f"{counters.received:,} jobs received, {counted}"
    if missing:
        says += f": {abs(missing):,} {'have no outcome' if missing > 0 else 'outcomes too many'}; report this as a bug"
    return check("flow_balance", "failed" if missing else "ok", abs(missing), 0, says, FLOW_BALANCE)


def forced_flow(evidence: Evidence) -> Check:
    """Return whether each stage was passed as often as the stages before it let items through, by exact counters.

    What goes well in one stage is what the next one gets: all of it ends well or failed there, or was given up on the way (the
    run stopped, a lease or a deadline ran out, a sibling failed). Between a fan-out and its join the number of children is
    free, but the join gets what the fan-out let through. Jobs whose results were kept by a run before go straight to the
    delivery, and jobs that bring their bytes go past the downloads.
    """
    if evidence.info.window:
        return not_measured("forced_flow", WINDOW, FORCED_FLOW)
    if evidence.info.summary is None or not evidence.stages:
        return not_measured("forced_flow", "the run did not live to write its counters", FORCED_FLOW)
    worst, worst_says = 0, "each stage got what the one before it let through"
    edges = _edges(evidence.stages)
    given_up, taken_up = _count_given_up(evidence), _count_taken_up(evidence, edges)
    downloads = {stage.name for stage in evidence.info.stages or () if stage.work == "download"}
    past_fetch: int | None = None  # not known of a route: how many jobs take it is not counted
    for edge in edges:
        sent = edge.sent
        if not edge.before:
            sent = evidence.info.counters.received - taken_up
        stage = edge.stage
        if stage.name in downloads and not edge.before:
            past_fetch = max(0, sent - stage.items)
            sent -= past_fetch
        elif any(one.name in downloads for one in edge.before):
            if past_fetch is None:
                continue
            sent += past_fetch
        if edge.before and stage.role == "deliver":
            sent += taken_up
        excess = stage.items - stage.failed - sent
        # Of one job that is given up all children are, however many.
        missing = 0 if given_up and edge.is_among_children else sent - stage.items - given_up
        if max(excess, missing) > worst:
            worst = max(excess, missing)
            origin = " and ".join(one.name for one in edge.before) or "the source"
            worst_says = (
                f"{origin} let {sent:,} items through, {stage.name} has {stage.items:,} passages, {stage.failed:,} of them "
                f"failed: {worst:,} {'too many' if worst == excess else 'missing'}; report this as a bug"
            )
    return check("forced_flow", "failed" if worst else "ok", worst, 0, worst_says, FORCED_FLOW)


def _worst(name: str, worst: _Comparison, says: str, meaning: str, source: str) -> Check:
    value, limit = worst.relative(abs(worst.sampled - worst.expected)), worst.relative(worst.allowed)
    text = f"{says}, {value:.1%} apart where {limit:.1%} are allowed"
    status: CheckStatus = "failed"
    if worst.excess <= 1:
        status = "ok"
    elif worst.excess <= _BIAS:
        status = "warning"
        text += (
            ": as much as a sampler can be wrong that has to wait for the interpreter lock; profile longer to be sure"
        )
    else:
        text += f": {meaning}; profile again, and report this if it stays"
    return check(name, status, value, limit, text, source)


def _queue_comparison(evidence: Evidence, stage: StageFacts) -> _Comparison | None:
    gauge = _restrict(evidence.gauges.get(f"stage:{stage.name}", "queue_depth"), 0.0, evidence.elapsed_seconds)
    wait = _mean_wait(evidence, stage)
    if gauge is None or wait is None:
        return None
    rate = stage.items / evidence.elapsed_seconds
    return _items(f"queue of {stage.name}", gauge, rate * wait, rate * _gil_wait_seconds(evidence))


def _gil_wait_seconds(evidence: Evidence) -> float:
    """Return how long a thread waits for the interpreter lock about, by how many were found waiting for it; 0 if not sampled.

    The sampler of queues is such a thread, and so is each that takes items out of them. When the lock gets free, either may
    come first: items that wait for no more than that are not met, or always.
    """
    states = evidence.states
    if states is None or "gil" not in states.state_names:
        return 0.0
    looks = len(np.unique(states.times))
    return _SWITCH_SECONDS * float((states.state == states.state_names.index("gil")).sum()) / looks


def _mean_wait(evidence: Evidence, stage: StageFacts) -> float | None:
    """Return the mean wait of all items, seconds: exact from `run.json`, else from spans if none is missing."""
    if stage.summary is not None:
        mean = stage.summary["queue_wait_seconds"]["mean"]
        return None if mean is None else float(mean)
    own, spans = evidence.stage_rows(stage.name), evidence.spans
    if not evidence.is_complete:
        return None
    return compute_weighted_mean((spans.dequeued[own] - spans.arrived[own]) / 1e9, spans.weight[own])


def _whole_comparison(evidence: Evidence) -> _Comparison | None:
    gauge = _restrict(evidence.gauges.get("run", "in_flight"), 0.0, evidence.elapsed_seconds)
    counters, mean = evidence.info.counters, evidence.summary.get("latency_seconds", {}).get("mean")
    if gauge is None or mean is None or counters.delivered < (1 - _SHARE) * counters.received:
        return None  # the latency of jobs that failed is not summed up
    return _items("the whole pipeline", gauge, counters.received * float(mean) / evidence.elapsed_seconds)


def _items(what: str, gauge: Gauge, expected: float, unseen: float = 0.0) -> _Comparison:
    """Compare items.

    Args:
        what: Where they are.
        gauge: As sampled.
        expected: By rate times time.
        unseen: Items that come and go while the sampler waits for the interpreter lock.
    """
    sampled = gauge.mean() or 0.0
    error = standard_error(gauge.values, gauge.durations()) or 0.0
    return _Comparison(what, sampled, expected, max(_SHARE * max(sampled, expected), _ITEMS, _ERRORS * error, unseen))


def _busy_comparison(evidence: Evidence, stage: StageFacts, window: Window) -> _Comparison | None:
    gauge = evidence.gauges.get(f"stage:{stage.name}", "busy_workers")
    gauge = _restrict(gauge, window.from_seconds, window.to_seconds)
    if gauge is None or evidence.is_sampled or not stage.workers:
        return None
    expected = _busy_workers(evidence, stage, window)
    if expected is None:
        return None
    # Samples that never met a rare state have no spread: what chance alone makes of so many is the least error.
    workers = stage.most_workers or stage.workers
    busy = min(1.0, expected / workers)
    chance = math.sqrt(workers * busy * (1 - busy) / len(gauge.values))
    error = max(chance, standard_error(gauge.values, gauge.durations()) or 0.0)
    allowed = max(_SHARE * workers, _ERRORS * error)
    may_exceed = stage.executor == "process"
    return _Comparison(f"workers of {stage.name}", gauge.mean() or 0.0, expected, allowed, may_exceed)


def _busy_workers(evidence: Evidence, stage: StageFacts, window: Window) -> float | None:
    """Return the mean number of busy workers of a station by spans; passages without spans count like those that have some."""
    spans = evidence.spans
    width = window.to_seconds - window.from_seconds
    of_station = [one.name for one in evidence.stages if one.station == stage.name]
    parts = [spans.of(name) for name in of_station]
    rows = np.concatenate([np.arange(part.start, part.stop) for part in parts])
    if not len(rows) or width <= 0:
        return None
    if evidence.is_complete:
        return union_seconds(spans, rows, window.from_seconds, window.to_seconds) / width
    done = completions(evidence)
    settled = done.rate(window.from_seconds, window.to_seconds)
    rate = settled * stage.items / done.total if settled and stage.summary else None
    inside = np.concatenate([window_rows(spans, name, window) for name in of_station])
    passages = len(window_rows(spans, stage.name, window))
    return rate * union_seconds(spans, inside, 0.0, math.inf) / passages if rate and passages else None


def union_seconds(spans: SpanColumns, rows: Array, first: float, last: float) -> float:
    """Return for how long workers had taken items and not ended them, between two moments, summed over workers.

    Items that a worker took together overlap and count once.
    """
    begin = np.clip(spans.dequeued[rows] / 1e9, first, last)
    end = np.clip(spans.ended[rows] / 1e9, first, last)
    worker = spans.worker[rows]
    order = np.lexsort((begin, worker))
    begin, end, worker = begin[order], end[order], worker[order]
    # Workers one after the other on one axis, so that one running maximum serves all.
    apart = worker * (float(end.max()) - float(begin.min()) + 1.0)
    reached = np.maximum.accumulate(end + apart)
    before = np.concatenate([[-math.inf], reached[:-1]])
    return float(np.maximum(end + apart - np.maximum(begin + apart, before), 0.0).sum())


def _restrict(gauge: Gauge | None, first: float, last: float) -> Gauge | None:
    part = gauge.between(first, last) if gauge else None
    if part is None or len(part.values) < _FEWEST_SAMPLES:
        return None
    return part if part.seconds[-1] - part.seconds[0] >= _COVERED * (last - first) else None


def _edges(stages: Sequence[StageFacts]) -> list[_Edge]:
    """Return each stage with those that it gets its items from.

    A job goes through the stages of its own route and those that all routes share. How many jobs take each route is not
    counted, so nothing is known of where shared stages hand over to a route.
    """
    names = sorted({stage.route for stage in stages if stage.route})
    if not names:
        return [_Edge((), stages[0], False), *_edges_of_route(stages)]
    routes = [[stage for stage in stages if stage.route == name] for name in names]
    edges = [edge for route in routes for edge in _edges_of_route(route)]
    last = max(number for number, stage in enumerate(stages) if stage.route)
    if stages[last + 1 :]:
        edges += [
            _Edge(tuple(route[-1] for route in routes), stages[last + 1], False),
            *_edges_of_route(stages[last + 1 :]),
        ]
    return edges


def _edges_of_route(route: Sequence[StageFacts]) -> list[_Edge]:
    edges, fans = [], []
    for before, stage in itertools.pairwise(route):
        if before.role == "fan_out":
            fans.append(before)
        if stage.role == "join" and fans:
            edges.append(_Edge((fans.pop(),), stage, bool(fans)))
        elif before.role != "fan_out":
            edges.append(_Edge((before,), stage, bool(fans)))
    return edges


def _count_given_up(evidence: Evidence) -> int:
    """Return how many items may have been given up between two stages."""
    counters = evidence.info.counters
    return counters.rejected + counters.dead_lettered + counters.retried + counters.returned + counters.lost


def _count_taken_up(evidence: Evidence, edges: Sequence[_Edge]) -> int:
    """Return how many jobs were delivered from a result that was kept: those beyond what the stage before let through.

    Spans bound the number: the first of such a job is in the delivery.
    """
    edge = next((edge for edge in edges if edge.before and edge.stage.role == "deliver"), None)
    if edge is None:
        return 0
    spans, own = evidence.spans, evidence.stage_rows(edge.stage.name)
    job = spans.root.astype(np.int64) * (int(spans.attempt.max(initial=0)) + 1) + spans.attempt
    _, first = np.unique(job[own], return_index=True)
    is_first = ~np.isin(job[own][first], job[: own.start])
    seen = float(spans.weight[own][first][is_first].sum())
    if not seen:
        return 0
    return max(0, min(edge.stage.items - edge.stage.failed - edge.sent, round(seen + chance_of_sample(spans))))
