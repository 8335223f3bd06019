"""Whether what was sampled from outside agrees with what was counted inside: resources, CPU clocks, states of threads.

The kernel's clocks, a process beside the run and the run's own spans are three witnesses of the same seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from headrace.diagnose.blocked_split import RUNNING, BlockedSamples, count_samples
from headrace.diagnose.checks import check, not_measured
from headrace.diagnose.evidence import Evidence, StageFacts
from headrace.diagnose.gauges import StateSamples
from headrace.runs.formats.profile import Check, Window

IDENTITY = "running = CPU time + run delay, by samples and by clocks"

#: CPU seconds below which two clocks of them are not compared, and the share by which they may differ: in 60 runs 5 %.
_LEAST_CPU_SECONDS, _CPU_SHARE = 0.5, 0.3
_THREADS_SHARE = 0.05
#: Samples of resources that a mean needs, and the share of the run that they must cover.
_FEWEST_RESOURCES, _COVERED = 6, 0.8
#: Cores that may be missing between what the machine, the run and others used: the sampler's own, and the kernel's hundredths.
_CORES = 0.15
#: Looks at threads from the first on, as a share of those that were taken; in 60 runs 95 % at least.
_LEAST_LOOKS, _FEWEST_LOOKS = 0.5, 20
#: Seconds for which the sampler's process may get no core, or read slowly, where others compute: such looks are not missing.
_KEPT_FROM_LOOKING = 0.5
#: Share of the run before the first look from which on it is said that nothing is known of that part.
_LATE = 0.2
#: Samples of a stage, and clock readings, from which on they are compared.
_FEWEST_STATES, _FEWEST_READINGS = 30, 20
#: By how much the shares of running may differ beside chance: in 60 runs 0.24, where threads ran in bursts.
_RUNNING, _ERRORS = 0.3, 3.0
#: Share of the periods that a CPU quota ends early, from which on it hides time from who samples.
_THROTTLED = 0.05
#: Sampled running time of all workers: not less than this share of what their clocks say (in 60 runs 0.68), and not more by
#: this share of all threads' time (0.1).
_LEAST_RUNNING, _MOST_RUNNING = 0.4, 0.4


def samples(evidence: Evidence) -> Check:
    """Return whether gauges, CPU clocks and thread samples fit the counts of the run and one another."""
    if not evidence.gauges and evidence.states is None and evidence.profiling is None:
        return not_measured("samples", evidence.why_no_profile)
    if evidence.info.summary is None or evidence.info.window:
        return not_measured("samples", "the folder does not hold a whole run")
    found = [*_counts(evidence), *_cores(evidence), *_cpu_clocks(evidence), *_looks(evidence)]
    still = _seconds_still(evidence)
    if not found and still:
        says = (
            f"the run and who samples it stood still for {still:.3g} s (stopped with Ctrl-Z, or frozen with its container): "
            "rates and waits hold that time; profile again"
        )
        return check("samples", "warning", still, 0, says)
    if not found:
        late = _share_before_looks(evidence)
        if late >= _LATE:
            says = (
                f"threads were not looked at in the first {late:.0%} of the run: what they waited for then is not known"
            )
            return check("samples", "warning", late, _LATE, f"{says}; profile a longer run")
        return check("samples", "ok", 0, 0, "what was sampled fits what was counted")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    says = f"{found[0]}{more}: a file is of another run or was changed; profile again, or report this with the folder"
    return check("samples", "failed", len(found), 0, says)


def thread_states(evidence: Evidence, window: Window) -> Check:
    """Return whether threads were found running as often as their clocks say.

    Of each stage, within its services: CPU time and run delay over service. Of all workers together: what their threads' clocks
    counted. A thread that waits for a core counts as running on both sides. Left out are stages whose calls one thread
    carries: its samples are no shares of each call. Who samples is stopped by a CPU quota together with the run, and sees none
    of the time in which that waits for its next period.
    """
    states, profile = evidence.states, evidence.profiling
    if states is None or profile is None:
        return not_measured("thread_states", "no thread states were sampled", IDENTITY)
    samples_of = count_samples(evidence.spans, states, window)
    found = [one for stage in evidence.stages if (one := _compare_stage(evidence, stage, samples_of, window))]
    found += _compare_all(evidence, states)
    if not found:
        return not_measured("thread_states", "too few samples fell within services", IDENTITY)
    worst, says = max(found)
    if worst <= 1.0:
        return check("thread_states", "ok", worst, 1.0, says, IDENTITY)
    says += ": CPU times or thread states are wrong; profile again, and report this with the folder if it stays"
    return check("thread_states", "failed", worst, 1.0, says, IDENTITY)


def _counts(evidence: Evidence) -> Iterator[str]:
    counters = evidence.info.counters
    settled = counters.received  # of each at most one outcome
    for name, most in (("received", counters.received), ("delivered", counters.delivered), ("settled", settled)):
        gauge = evidence.gauges.get("run", name)
        if gauge is not None and (seen := float(gauge.values.max())) > most + counters.lost:
            yield f"{seen:,.0f} jobs were {name} while the run went on, and {most:,} in all"


def _cores(evidence: Evidence) -> Iterator[str]:
    gauges, cores = evidence.gauges, evidence.info.hardware.num_cores
    seen = sum(name == "busy_ratio" and scope.startswith("cpu") for scope, name, _ in gauges.items())
    if 0 < seen < cores:
        yield f"the run says that it may use {cores} cores, and the machine has {seen}"
    profile = evidence.profiling
    busy, own, others = (
        gauges.get(scope, name)
        for scope, name in (
            ("machine", "cpu_busy_cores"),
            ("processes", "cpu_cores"),
            ("machine", "other_cpu_cores"),
        )
    )
    if busy is None or own is None or others is None or profile is None or len(others.values) < _FEWEST_RESOURCES:
        return
    sampler = (profile.helper_cpu_seconds or 0.0) / max(evidence.elapsed_seconds, 1e-9)
    rest = (busy.mean() or 0.0) - (own.mean() or 0.0) - (others.mean() or 0.0)
    if not -_CORES <= rest <= _CORES + sampler:
        yield (
            f"the run used {own.mean():.2f} cores and others {others.mean():.2f}, which are not the {busy.mean():.2f} "
            "that were busy"
        )


def _cpu_clocks(evidence: Evidence) -> Iterator[str]:
    profile = evidence.profiling
    if profile is None or (total := profile.process_cpu_seconds or 0.0) < _LEAST_CPU_SECONDS:
        return
    threads = sum(profile.thread_cpu_seconds.values()) + (profile.native_cpu_seconds or 0.0)
    if profile.thread_cpu_seconds and abs(threads - total) > _THREADS_SHARE * max(threads, total) + 0.05:
        yield f"the threads used {threads:.3g} s of CPU time and their processes {total:.3g} s"
    gauge, elapsed = evidence.gauges.get("processes", "cpu_cores"), profile.elapsed_seconds or 0.0
    if gauge is None or len(gauge.values) < _FEWEST_RESOURCES or not elapsed:
        return
    if gauge.seconds[-1] - gauge.seconds[0] < _COVERED * elapsed:
        return
    sampled = (gauge.mean_of_rate() or 0.0) * elapsed
    if abs(math.log(max(sampled, 1e-9) / total)) > math.log1p(_CPU_SHARE) and abs(sampled - total) > 0.3:
        yield f"the processes used {total:.3g} s of CPU time by their own clocks and {sampled:.3g} s as seen from outside"


def _looks(evidence: Evidence) -> Iterator[str]:
    """Yield what does not fit of the looks at threads: how many there are, and of how many threads.

    The looks are taken by a process that has to start first, which takes seconds where the machine is busy or its disk is:
    those that are missing before its first look are no sign of a wrong file.
    """
    states, profile = evidence.states, evidence.profiling
    if states is None or profile is None or not profile.state_samples_per_second:
        return
    inside = (states.times >= 0) & (states.times <= evidence.elapsed_seconds * 1e9)
    looks = len(np.unique(states.times[inside]))
    looked_at = evidence.elapsed_seconds - _seconds_before_looks(evidence) - _seconds_still(evidence)
    taken = profile.state_samples_per_second * looked_at
    kept = _KEPT_FROM_LOOKING * profile.state_samples_per_second
    if taken > _FEWEST_LOOKS and looks < min(_LEAST_LOOKS * taken, taken - kept):
        yield f"threads were looked at about {taken:,.0f} times, and {looks:,} of these looks lie within the run"
    if looks < _FEWEST_LOOKS or len(evidence.info.plans) > 1:
        return
    for stage in evidence.stages:
        if stage.has_queue and stage.executor == "thread" and stage.workers:
            seen = sum(name.rpartition("-")[0] == stage.name for name in states.thread_names)
            if 0 < seen < stage.workers:
                yield f"{stage.name} had {stage.workers} workers by its settings, and {seen} of its threads were seen"


def _seconds_before_looks(evidence: Evidence) -> float:
    """Return how long the run went on before threads were looked at first; 0 if they never were while it did."""
    states = evidence.states
    if states is None:
        return 0.0
    inside = states.times[(states.times >= 0) & (states.times <= evidence.elapsed_seconds * 1e9)]
    return float(inside.min()) / 1e9 if len(inside) else 0.0


def _share_before_looks(evidence: Evidence) -> float:
    return _seconds_before_looks(evidence) / max(evidence.elapsed_seconds, 1e-9)


def _compare_stage(
    evidence: Evidence, stage: StageFacts, found: BlockedSamples | None, window: Window
) -> tuple[float, str] | None:
    """Return by how much a stage's shares of running differ, in units of what is allowed, and in words."""
    counts = found.counts.get(stage.name, {}) if found else {}
    number = sum(counts.values())
    if stage.executor not in ("thread", "inline") or _station_executor(evidence, stage) != "thread":
        return None
    spans, own = evidence.spans, evidence.stage_rows(stage.name)
    rows = np.flatnonzero(np.isfinite(spans.cpu[own]) & np.isfinite(spans.run_delay[own])) + own.start
    started = spans.started[rows] / 1e9
    rows = rows[(started >= window.from_seconds) & (started <= window.to_seconds)]
    if number < _FEWEST_STATES or len(rows) < _FEWEST_READINGS:
        return None
    shares = spans.weight[rows] / spans.batch_size[rows]
    service = float((spans.ended[rows] - spans.started[rows]) @ shares)
    if service <= 0:
        return None
    sampled = counts.get(RUNNING, 0) / number
    cpu, delay = (float(part[rows] @ shares) for part in (spans.cpu, spans.run_delay))
    most = min(1.0, (cpu + delay) / service)
    least = min(most, cpu / max(service - delay, cpu)) if _is_throttled(evidence) else most
    clocks = min(max(sampled, least), most)
    allowed = _RUNNING + _ERRORS * math.sqrt(max(clocks * (1 - clocks), 0.01) / number)
    shown = f"{most:.0%}" if least == most else f"{least:.0%} to {most:.0%}"
    says = (
        f"{stage.name} was found running in {sampled:.0%} of {number:,} samples of its services, by its clocks {shown}"
    )
    return abs(sampled - clocks) / allowed, says


def _is_throttled(evidence: Evidence) -> bool:
    """Return whether a CPU quota stopped the run in more than few of its periods."""
    gauge = evidence.gauges.get("machine", "throttled_ratio")
    return gauge is not None and (gauge.mean() or 0.0) >= _THROTTLED


def _station_executor(evidence: Evidence, stage: StageFacts) -> str:
    return next((one.executor for one in evidence.stages if one.name == stage.station), stage.executor)


def _compare_all(evidence: Evidence, states: StateSamples) -> list[tuple[float, str]]:
    """Return the same of all workers: seconds found running, and those of their clocks."""
    profile = evidence.profiling
    roles = profile.thread_cpu_seconds if profile else {}
    inside = (states.times >= 0) & (states.times <= evidence.elapsed_seconds * 1e9)
    looks = len(np.unique(states.times[inside]))
    if looks < _FEWEST_LOOKS or RUNNING not in states.state_names:
        sampled = 0.0
    else:
        sampled = float((states.state[inside] == states.state_names.index(RUNNING)).sum()) / looks
    cpu = roles.get("workers", 0.0) + roles.get("worker processes", 0.0)
    seconds = evidence.elapsed_seconds - _seconds_still(evidence)
    # What the clocks counted is of the whole run: looks at its last part alone are not to be compared with that.
    is_part = _share_before_looks(evidence) >= _LATE
    if looks < _FEWEST_LOOKS or cpu < _LEAST_CPU_SECONDS or seconds <= 0 or is_part:
        return []
    threads = inside.sum() / looks
    cores = cpu / seconds
    says = f"{sampled:.2f} of {threads:.3g} workers were found running on average, by their clocks at least {cores:.2f}"
    too_few = (cores - sampled) / ((1 - _LEAST_RUNNING) * cores)
    waiting = _run_delay_cores(evidence, seconds)
    if waiting is None:
        return [(too_few, says)]
    return [(too_few, says), ((sampled - cores - waiting) / (_MOST_RUNNING * threads), says)]


def _run_delay_cores(evidence: Evidence, seconds: float) -> float | None:
    """Return how many threads waited for a core on average in so long, by the spans that noted it; None if none did."""
    spans = evidence.spans
    rows = np.flatnonzero(np.isfinite(spans.run_delay))
    if not len(rows):
        return None
    shares = spans.weight / spans.batch_size
    noted = float(shares[rows].sum() / shares.sum())
    return float(spans.run_delay[rows] @ shares[rows]) / 1e9 / noted / seconds


def _seconds_still(evidence: Evidence) -> float:
    """Return for how long the run and its sampler were stopped."""
    gauge = evidence.gauges.get("processes", "cpu_cores")
    return 0.0 if gauge is None else gauge.seconds_without()
