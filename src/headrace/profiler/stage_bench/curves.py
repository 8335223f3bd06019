"""The arithmetic on what was measured: medians, knee, a line through batch costs, and why threads gain little."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from headrace.profiler.stage_bench.stage_run import Measurement, Setting
from headrace.runs.formats.isolation import CurvePoint

#: Throughputs that differ by less count as equal: the knee is the first point this close to the best.
KNEE_SHARE = 0.95
#: Student's t, 97.5 %, by degrees of freedom; the last serves for more of them too, a little too wide.
_T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
#: Of an item's time: less than this is not worth a word.
_LITTLE = 0.25
#: A rise with workers below this counts as none.
_NO_RISE = 1.25
#: CPU seconds of an item: less is mostly the runtime's own 2 to 3 us for a call, and handing it to a process costs more.
_WORTH_SPREADING_SECONDS = 20e-6
#: Cores that threads behind one lock may seem to use together.
_ONE_CORE = 1.1


def curve_point(setting: Setting, repetitions: Sequence[Measurement]) -> CurvePoint | None:
    """Return the point that the repetitions of a setting give; None if no item came through."""
    total = Measurement()
    for one in repetitions:
        total.add(one)
    num_items, run_delay = total.num_items, total.run_delay_seconds
    if num_items == 0:
        return None
    rates = [one.throughput for one in repetitions]
    own_cpu = total.cpu_seconds - total.native_cpu_seconds
    return CurvePoint(
        workers=setting.workers,
        batch_size=setting.batch_size,
        throughput=statistics.median(rates),
        throughput_low=min(rates),
        throughput_high=max(rates),
        cpu=total.cpu_seconds / num_items,
        run_delay=None if run_delay is None else run_delay / num_items,
        blocked=None if run_delay is None else max(0.0, total.wall_seconds - own_cpu - run_delay) / num_items,
        service=total.wall_seconds / (num_items if setting.batch_size is None else total.num_calls),
        num_items=num_items,
    )


def knee(curve: Sequence[CurvePoint]) -> int | None:
    """Return the fewest workers within 5 % of the best throughput; None if it still rose at the end of the curve.

    Args:
        curve: Of one batch size, by growing workers.
    """
    if len(curve) < 2:
        return None
    best = max(point.throughput for point in curve)
    within = next(point.workers for point in curve if point.throughput >= KNEE_SHARE * best)
    return None if within == curve[-1].workers else within


def fit_line(seconds: Mapping[int, float]) -> tuple[float, float, float]:
    """Return a and b of the line a + b*n through batch costs, both >= 0, and its worst relative misfit.

    Args:
        seconds: {batch size: seconds per call}, at least one, all > 0.

    References:
        Least squares of relative errors: a small batch counts as much as a large one.
    """
    sizes = np.array(sorted(seconds), dtype=float)
    costs = np.array([seconds[int(size)] for size in sizes])
    if len(sizes) == 1:
        return 0.0, float(costs[0] / sizes[0]), 0.0
    ones = np.ones_like(costs)
    a, b = np.linalg.lstsq(np.stack([1 / costs, sizes / costs], axis=1), ones, rcond=None)[0]
    if a < 0:  # through the origin
        a, b = 0.0, float(np.sum(sizes / costs) / np.sum((sizes / costs) ** 2))
    elif b < 0:  # the same for every size
        a, b = float(np.sum(1 / costs) / np.sum(1 / costs**2)), 0.0
    return float(a), float(b), float(np.max(np.abs((a + b * sizes) / costs - 1)))


def steady_rate(stamps: Sequence[float], start: float, end: float) -> float | None:
    """Return events per second between two moments; None with fewer than four events or two moments among them.

    The slope of the count over time by least squares. Counting between first and last event would read up to a batch too much
    or too little; the slope is exact for batches at equal intervals.

    Args:
        stamps: Seconds, in any order.
        start: Seconds; events before it do not count.
        end: Seconds; events after it do not count.
    """
    times = np.sort(np.asarray(stamps, dtype=float))
    times = times[(times >= start) & (times <= end)]
    if len(times) < 4 or times[-1] <= times[0]:
        return None
    centred = times - times.mean()
    return float(centred @ np.arange(len(times)) / (centred @ centred))


def ratio_interval(ratios: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a ratio that was measured several times; None with fewer than two.

    Args:
        ratios: All > 0.

    References:
        Student's t on the logarithms: a ratio and its inverse are then equally far from 1.
    """
    if len(ratios) < 2:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    freedom = len(logs) - 1
    half = _T_975.get(freedom, _T_975[10]) * statistics.stdev(logs) / math.sqrt(len(logs))
    centre = statistics.fmean(logs)
    return math.exp(centre - half), math.exp(centre + half)


def describe_scaling(curve: Sequence[CurvePoint], cores: int) -> str:
    """Return why a computing stage gains little from threads, in careful words; empty if it gains or cannot be told.

    Threads that share a lock such as the GIL wait for one another, neither running nor runnable, and together use one core at
    most; threads that lack a core are runnable. So the two can be told apart on a machine that others use too.

    Args:
        curve: Of threads, by growing workers, the first with one.
        cores: Cores that this process may use.
    """
    alone = curve[0] if curve else None
    if alone is None or alone.workers != 1 or not _computes(alone) or (alone.cpu or 0.0) < _WORTH_SPREADING_SECONDS:
        return ""
    most = curve[-1]
    if _waits_for_itself(alone, most):
        waiting = _ratio(most.blocked, most.service)
        return (
            f"{most.workers} threads together use {_cores_used(most):.2f} cores and wait {waiting:.0%} of their time, for one "
            'another: it probably holds the GIL (or another lock); try executor = "process"'
        )
    within = [point for point in curve if 2 <= point.workers <= cores]
    if not within or alone.cpu is None:
        return ""
    best = max(within, key=lambda point: point.throughput)
    rise = best.throughput / alone.throughput
    if rise >= _NO_RISE:
        return ""
    gain = f"{best.workers} threads on {cores} cores do x{rise:.2f} of one"
    if best.run_delay is not None and best.run_delay > _LITTLE * best.service:
        return f"{gain}, but they waited for cores that others used: it cannot be told how it would scale"
    if best.cpu is not None and best.cpu > (1 + _LITTLE) * alone.cpu:
        return f"{gain}, and an item costs x{best.cpu / alone.cpu:.2f} the CPU time: threads get in each other's way"
    return f"{gain}; why could not be told"


def _computes(alone: CurvePoint) -> bool:
    """Return whether one worker spends most of the time that it was given on a core."""
    if alone.cpu is None or alone.run_delay is None:
        return False
    return alone.cpu > 0.5 * (alone.service - alone.run_delay)


def _waits_for_itself(alone: CurvePoint, point: CurvePoint) -> bool:
    """Return whether workers wait for one another: longer than one alone waits, at the same CPU time, on one core at most."""
    if point.workers < 2 or alone.cpu is None or alone.blocked is None or point.cpu is None or point.blocked is None:
        return False
    waits_longer = point.blocked - alone.blocked > _LITTLE * point.service
    return waits_longer and point.cpu <= (1 + _LITTLE) * alone.cpu and _cores_used(point) <= _ONE_CORE


def _cores_used(point: CurvePoint) -> float:
    return point.workers * _ratio(point.cpu, point.service)


def _ratio(part: float | None, whole: float) -> float:
    return (part or 0.0) / whole
