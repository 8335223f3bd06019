"""Predicts what a change of a recorded run would do, with an interval, and says when it cannot.

The prediction is the measured throughput times the ratio of two simulations, changed and as recorded. `prediction_interval`
says how far the ratio may be off. Where the answer depends on what the recorded run cannot know (`assumptions`), the interval
reaches to what would come otherwise. The interval of the throughput adds how well the recorded one is known. A run whose
replay is 40 % off is refused, as diagnosis refuses it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from headrace.base.formatting import pluralize
from headrace.base.statistics import percentile
from headrace.base.units import format_duration
from headrace.diagnose.assumptions import Assumption, assumptions, likely_change, other_ratio
from headrace.diagnose.bounds import bound_ratio
from headrace.diagnose.memory_need import predict_memory
from headrace.diagnose.prediction_interval import USUAL_ERROR, interval, nine_in_ten, times_as_wide
from headrace.diagnose.replay import Replay, Simulated
from headrace.diagnose.replay.plans import check_costs, not_simulated
from headrace.diagnose.replay.structure import group_stages
from headrace.diagnose.whatif_measured import measured_ratio
from headrace.runs.formats.prediction import Change, PredictedMetric, PredictionDocument, TrackRecord
from headrace.runs.formats.profile import Estimate
from headrace.runs.run_folder import headrace_version

#: Simulations of resampled jobs that an interval is made of.
_RESAMPLED = 12
#: Jobs simulated for a latency: twice what p99 needs; and where each takes many events, what it needs.
_LATENCY_JOBS, _LEAST_LATENCY_JOBS = 1500, 700
#: With a deadline: times as many, as most may be turned away, and so many deadlines long at least.
_TIMES_JOBS, _DEADLINES = 3, 15
#: What would come if an assumption did not hold is told from here on, as a logarithm.
_MATTERS = math.log(1.05)
#: Above this share of run delay in CPU work, latencies depend on what others do next, and are refused.
MOST_RUN_DELAY = 0.10
#: Below so many threads of other programs, what a run waited for a core can be its own doing, which is simulated.
_FEW_OTHERS = 0.1
#: Within this, as a logarithm, nine in ten pipelines that ran as fast as they could gave the rate of their recording again, a
#: minute later and without a recorder: 43 pipelines drawn from fresh seeds on three machines, `benchmarks.truth.apart`,
#: benchmarks/results/runs_apart_intel-xeon-207-2c_20261129.md.
_RUNS_APART = 0.42
#: From this share of the rate at which jobs come all of them are done.
_ALL_COME = 0.95
#: Above this utilization of any resource latency depends on how long the overload lasts.
_MOST_UTILIZATION = 0.97


def predict(replay: Replay, change: Change, record: TrackRecord | None = None) -> PredictionDocument:
    """Return what a change would do to a recorded run.

    Args:
        replay: The run.
        change: What is done otherwise.
        record: How earlier predictions did; it makes the interval.

    Raises:
        SettingsError: If the change names what is not there, or is impossible.
        CannotReplay: If it lies beyond what was measured.
    """
    record = record or TrackRecord(num=0)
    replay.check_understood()
    likely = likely_change(replay, change)
    base, after, plan = replay.simulate(), replay.simulate(likely), replay.change_plan(change)
    document = replay.document
    check_costs(replay.plan, plan, change, replay.demands.stages)
    granted = assumptions(replay, change)
    ratio, doubts = _reach(replay, change, granted, _interval(replay, likely, change.kinds, record))
    ratio = _scale(ratio, _correct_arrivals(replay, likely))
    if (measured := measured_ratio(document.experiment, change)) is not None:
        ratio, doubts = measured[0], [measured[1]]
    return PredictionDocument(
        created_unix_seconds=time.time(),
        headrace_version=headrace_version(),
        run=document.run,
        pipeline=document.pipeline,
        plan_id=document.plan_id,
        change=change,
        says=in_words(change),
        plan=plan.as_table(),
        throughput=_throughput(replay, change, ratio),
        latency_p50=_latency(replay, likely, after, 50),
        latency_p99=_latency(replay, likely, after, 99),
        goodput=_goodput(replay, likely),
        cpu_per_item=_cpu(replay, base, after),
        memory=predict_memory(replay, change),
        bound_ratio=bound_ratio(replay, change),
        naive_ratio=naive_ratio(replay, change),
        limit_after=limit_in_words(after),
        simulated_base=base.throughput,
        record=record,
        widened=times_as_wide(change.kinds, record),
        assumes=tuple(one.says for one in granted),
        warnings=(*doubts, *_warnings(replay, change)),
        is_emulated=document.is_emulated,
    )


def in_words(change: Change) -> str:
    """Return a change as people say it."""
    parts = [*change.settings]
    parts += [f"{stage} {factor:g} times as fast" for stage, factor in change.speedups.items()]
    parts += [f"without {stage}" for stage in change.drop]
    parts += [f"{share:.0%} of {stage} from a cache" for stage, share in change.cache_hits.items()]
    parts += [f"one in {number} items of {stage}" for stage, number in change.every.items()]
    parts += [
        f"{stage} on the device, {format_duration(seconds)} an item" for stage, seconds in change.on_device.items()
    ]
    parts += [f"another cost curve of {stage}" for stage in change.cost_curves]
    if change.cores is not None:
        parts.append(f"{change.cores:g} cores")
    if change.devices is not None:
        parts.append(pluralize(change.devices, "device"))
    if change.arrival_rate is not None:
        parts.append(f"{change.arrival_rate:g} jobs per second")
    if change.deadline_seconds is not None:
        parts.append(f"a deadline of {format_duration(change.deadline_seconds)}")
    if change.quiet:
        parts.append("without other programs")
    return ", ".join(parts) or "nothing changed"


def naive_ratio(replay: Replay, change: Change) -> float | None:
    """Return the ratio that stage timers give: workers over mean wall time, the least of all stations.

    It takes waiting for a core or for the GIL for work, and is shown as a warning of how far off that is.
    """
    walls = {stage.name: stage.service.mean or 0.0 for stage in replay.document.stages}
    sizes = {stage.name: stage.batches.mean_size if stage.batches else 1.0 for stage in replay.document.stages}
    jobs = max(1, int(replay.document.counters.get("delivered", 0)))
    visits = {stage.name: stage.items / jobs for stage in replay.document.stages}

    def rate(at: Change) -> float:
        plan = replay.change_plan(at)
        rates = []
        for group in group_stages(replay.demands.stages, plan):
            settings = plan.stages[group[0].name]
            workers = plan.source.receivers if settings.executor == "inline" else settings.workers or 1
            seconds = sum(
                walls[stage.name] / sizes[stage.name] * visits[stage.name] / at.speedups.get(stage.name, 1.0)
                for stage in group
                if stage.name not in at.drop
            )
            if seconds > 0:
                rates.append(workers / seconds)
        return min(rates, default=0.0)

    before = rate(Change())
    return rate(change) / before if before > 0 else None


def limit_in_words(after: Simulated) -> str:
    """Return which resource of a simulated run is the busiest, in words."""
    if not after.utilization:
        return "nothing"
    name, share = max(after.utilization.items(), key=lambda pair: pair[1])
    kind, _, which = name.partition(":")
    what = {
        "cores": "the cores",
        "gil": "the GIL",
        "receiving": "receiving",
        "workers": f"the workers of {which}",
        "device": f"the device of {which}",
    }[kind]
    if share < 0.8:
        return f"nothing is short: the busiest are {what}, {share:.0%} of the time"
    return f"{what}, busy {share:.0%} of the time"


def _interval(replay: Replay, change: Change, kinds: Sequence[str], record: TrackRecord) -> Estimate:
    mid = replay.ratio(change)
    logs = [math.log(replay.ratio(change, seed=seed, resampled=True)) for seed in range(1, _RESAMPLED + 1)]
    times = times_as_wide(kinds, record)
    return interval(mid, logs, replay.misfit, kinds=kinds, noise=replay.throughput_error, times=times)


def _reach(
    replay: Replay, change: Change, granted: Sequence[Assumption], ratio: Estimate
) -> tuple[Estimate, list[str]]:
    """Return the interval so that it holds what comes if an assumption is wrong, and how to find out."""
    low, high, doubts = ratio.low, ratio.high, []
    for one in granted:
        other = other_ratio(replay, change, one)
        if other is None or abs(math.log(other / ratio.mid)) < _MATTERS:
            continue
        # Of the other way no more is known than of this one.
        low, high = min(low, other * ratio.low / ratio.mid), max(high, other * ratio.high / ratio.mid)
        doubts.append(f"x{other:.3g} if it is not so that {one.says}; {one.learn}")
    return Estimate(low, ratio.mid, high), doubts


def _correct_arrivals(replay: Replay, change: Change) -> float:
    """Return what to multiply a simulated ratio by where jobs come by themselves: 1 where the replay gives back the run.

    What a simulation gets wrong is how many jobs could be done, not how many come: where fewer come, that is the throughput.
    """
    rate = change.arrival_rate
    if rate is None or replay.is_open:
        return 1.0
    could = replay.ratio(msgspec.structs.replace(change, arrival_rate=None, deadline_seconds=None))
    return min(rate / replay.throughput, could) / min(rate / replay.simulate().throughput, could)


def _scale(ratio: Estimate, factor: float) -> Estimate:
    return Estimate(ratio.low * factor, ratio.mid * factor, ratio.high * factor)


def _throughput(replay: Replay, change: Change, ratio: Estimate) -> PredictedMetric:
    """Return the rate: its interval is the ratio's, widened by how well the recorded run's own rate is known.

    Where a run that was as fast as it could be is to have as many jobs as come, what two such runs differ by is all in the
    ratio, and nothing of it in the rate to come.
    """
    base, mid = replay.throughput, replay.throughput * ratio.mid
    predicted = _widen(ratio, nine_in_ten(_RESAMPLED) * replay.throughput_error)
    if change.arrival_rate is not None and not replay.is_open and mid >= _ALL_COME * change.arrival_rate:
        ratio = _widen(ratio, _RUNS_APART)
    return PredictedMetric(base=base, predicted=Estimate(base * predicted.low, mid, base * predicted.high), ratio=ratio)


def _widen(ratio: Estimate, by: float) -> Estimate:
    """Return an interval that holds another error as well, a logarithm that does not depend on those it holds."""
    below, above = (
        math.exp(math.hypot(math.log(side), by)) for side in (ratio.mid / ratio.low, ratio.high / ratio.mid)
    )
    return Estimate(ratio.mid / below, ratio.mid, ratio.mid * above)


def _latency(replay: Replay, change: Change, after: Simulated, percent: float) -> PredictedMetric:
    measured = replay.document.latency.percentile(percent)
    reason = _why_no_latency(replay, change, after)
    jobs = _latency_jobs(replay, change)
    found = percentile([] if reason else replay.simulate(change, num_jobs=jobs).latencies, percent)
    if reason or found.value is None:
        refused = reason or f"p{percent:g} needs {found.num_needed} jobs"
        return PredictedMetric(base=measured, predicted=None, ratio=None, refused=refused)
    values = [
        percentile(replay.simulate(change, seed=seed, num_jobs=jobs, resampled=True).latencies, percent).value
        for seed in range(1, _RESAMPLED + 1)
    ]
    logs = [math.log(value) for value in values if value]
    spread = nine_in_ten(_RESAMPLED) * float(np.std(logs, ddof=1)) if len(logs) > 1 else 0.0
    mid = found.value
    model = math.log1p(max(USUAL_ERROR, _latency_error(replay, percent, measured)))
    width = math.exp(math.hypot(spread, model, math.log1p(replay.misfit)))
    predicted = Estimate(mid / width, mid, mid * width)
    ratio = None
    if measured and replay.is_open:
        ratio = Estimate(predicted.low / measured, mid / measured, predicted.high / measured)
    return PredictedMetric(base=measured, predicted=predicted, ratio=ratio)


def _goodput(replay: Replay, change: Change) -> PredictedMetric | None:
    """Return the jobs per second that are answered by the deadline; None where there is none."""
    deadline = change.deadline_seconds
    if deadline is None:
        return None
    jobs = _latency_jobs(replay, change)
    simulated = replay.simulate(change, num_jobs=jobs)
    mid = simulated.trace.goodput(deadline)
    if mid == 0:
        return PredictedMetric(base=None, predicted=None, ratio=None, refused="nothing is answered by that deadline")
    again = [
        replay.simulate(change, seed=seed, num_jobs=jobs, resampled=True).trace.goodput(deadline)
        for seed in range(1, _RESAMPLED + 1)
    ]
    spread = nine_in_ten(_RESAMPLED) * float(np.std(np.log([max(one, mid / 10) for one in again]), ddof=1))
    width = math.exp(math.hypot(spread, USUAL_ERROR, math.log1p(replay.misfit)))
    return PredictedMetric(base=None, predicted=Estimate(mid / width, mid, mid * width), ratio=None)


def _latency_jobs(replay: Replay, change: Change | None = None) -> int:
    if change is None or change.deadline_seconds is None:
        return replay.affordable(_LATENCY_JOBS, _LEAST_LATENCY_JOBS)
    rate = change.arrival_rate or replay.throughput
    wanted = max(_TIMES_JOBS * _LATENCY_JOBS, math.ceil(_DEADLINES * change.deadline_seconds * rate))
    return replay.affordable(wanted, _TIMES_JOBS * _LEAST_LATENCY_JOBS)


def _latency_error(replay: Replay, percent: float, measured: float | None) -> float:
    """Return how far the simulated latency of the run as recorded is from the measured one, as a share; 0 if not known.

    Where jobs were read as fast as possible both are time in full queues, and say nothing of other rates.
    """
    simulated = percentile(replay.simulate(num_jobs=_latency_jobs(replay)).latencies, percent).value
    if not replay.is_open or not measured or not simulated:
        return 0.0
    return max(simulated / measured, measured / simulated) - 1


def _why_no_latency(replay: Replay, change: Change, after: Simulated) -> str:
    share = replay.document.environment.run_delay_share
    is_own = replay.machine.others < _FEW_OTHERS and replay.explains_delay
    if share is not None and share > MOST_RUN_DELAY and not is_own:
        return (
            f"threads waited {share:.0%} of their CPU work for a core (at most {MOST_RUN_DELAY:.0%}): latency depends on what "
            "the other threads and programs do next; profile on a quiet machine, or with fewer workers than cores"
        )
    if change.arrival_rate is None and not replay.is_open:
        return (
            "the source gives jobs as fast as they are taken, so latency is time in full queues; say how many come: "
            "--arrival-rate 100/s"
        )
    busiest = max(after.utilization.values(), default=0.0)
    if busiest > _MOST_UTILIZATION and change.deadline_seconds is None:
        return (
            f"{limit_in_words(after)}: jobs come as fast as they can be done or faster, and latency grows for as long as that "
            "lasts; ask for a lower --arrival-rate, or say by when answers are wanted: --deadline 1s"
        )
    return ""


def _cpu(replay: Replay, base: Simulated, after: Simulated) -> PredictedMetric:
    """Return the CPU time per job, of all that the processes used; as simulated where that was not measured."""
    ratio = after.cpu_per_job / base.cpu_per_job if base.cpu_per_job > 0 else 1.0
    account, jobs = replay.document.cpu, int(replay.document.counters.get("delivered", 0))
    measured = account.total_seconds / jobs if account is not None and jobs else None
    predicted = after.cpu_per_job if measured is None else measured * ratio
    return PredictedMetric(
        base=measured,
        predicted=Estimate(predicted, predicted, predicted),
        ratio=Estimate(ratio, ratio, ratio),
    )


def _warnings(replay: Replay, change: Change) -> tuple[str, ...]:
    found = []
    if replay.document.distrust:
        found.append(f"the run is not trusted: {'; '.join(replay.document.distrust)}")
    if replay.document.unchecked:
        found.append(
            f"whether the run's figures are right could not be checked: {'; '.join(replay.document.unchecked)}"
        )
    found += [f"not all of the run could be read: {problem}" for problem in replay.document.problems]
    if abs(replay.misfit) > 0.15:
        found.append(
            f"as recorded the simulator gives {replay.simulate().throughput:.4g}/s and {replay.throughput:.4g}/s were measured "
            f"({replay.misfit:+z.0%}): it does not understand this run well, and the interval is as wide"
        )
    if replay.machine.others > 0.5 and not change.quiet:
        found.append(
            f"other programs wanted about {replay.machine.others:.1f} cores during the run, and are taken to go on doing so"
        )
    found += _idle_devices(replay, change)
    inline = {name: stage.executor for name, stage in replay.plan.stages.items() if stage.executor == "inline"}
    plan = replay.change_plan(change)
    left_out = not_simulated(replay.plan, plan)
    if left_out:
        found.append(
            f"not simulated, and taken to change nothing: {', '.join(left_out)}; prove it with headrace compare"
        )
    found += [
        f"{name} ran inline; with workers of its own it is taken to run in threads"
        for name in inline
        if name in plan.stages and plan.stages[name].executor == "thread"
    ]
    if plan.decode.scale != replay.plan.decode.scale:
        found.append(
            "the cost of decoding at another scale is estimated from bytes and pixels; prove it with headrace compare"
        )
    for name, stage in plan.stages.items():
        before = replay.plan.stages.get(name)
        if before is not None and stage.executor == "process" and before.executor != "process":
            found.append(f"{name} in processes: what moving items costs is estimated; prove it with headrace compare")
    return tuple(found)


def _idle_devices(replay: Replay, change: Change) -> list[str]:
    """Return a warning for each stage whose workers cannot keep all devices busy: each makes one call at a time."""
    plan, found = replay.change_plan(change), []
    for group in group_stages(replay.demands.stages, plan):
        settings = plan.stages[group[0].name]
        key = "source.receivers" if settings.executor == "inline" else f"{group[0].name}.workers"
        workers = plan.source.receivers if settings.executor == "inline" else settings.workers or 1
        if change.devices and workers < change.devices and any(stage.is_exclusive for stage in group):
            found.append(
                f"{pluralize(workers, 'worker')} of {group[0].name}, each with one call at a time, cannot keep "
                f"{pluralize(change.devices, 'device')} busy; ask for both: --set {key}={change.devices}"
            )
    return found
