"""The arithmetic of the stage benchmark, on made-up measurements."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from headrace.profiler.stage_bench.curves import (
    curve_point,
    describe_scaling,
    fit_line,
    knee,
    ratio_interval,
    steady_rate,
)
from headrace.profiler.stage_bench.stage_run import Setting


def test_times_of_a_point_add_up_to_its_service(measured: Callable) -> None:
    """Service is CPU, run delay and blocked time per item, over all repetitions together."""
    point = curve_point(
        Setting(1, None), [measured(), measured(num_items=300, num_calls=300, wall_seconds=3.0, throughput=100.0)]
    )
    assert point is not None
    assert point.service == pytest.approx(4.0 / 400)
    assert (point.cpu, point.run_delay) == (pytest.approx(1.0 / 400), pytest.approx(0.2 / 400))
    assert point.cpu + point.run_delay + point.blocked == pytest.approx(point.service)
    assert point.num_items == 400


def test_throughput_is_the_median_with_its_range(measured: Callable) -> None:
    """One repetition that was disturbed moves the range and not the value."""
    point = curve_point(Setting(1, None), [measured(throughput=rate) for rate in (100.0, 20.0, 104.0)])
    assert (point.throughput, point.throughput_low, point.throughput_high) == (100.0, 20.0, 104.0)


def test_a_device_is_served_by_the_batch(measured: Callable) -> None:
    """Service is seconds per batch, CPU seconds per item."""
    point = curve_point(Setting(1, 4), [measured(num_items=400, num_calls=100, wall_seconds=2.0)])
    assert point.service == pytest.approx(0.02)
    assert point.cpu == pytest.approx(0.5 / 400)


def test_threads_of_libraries_are_cpu_and_no_service(measured: Callable) -> None:
    """The CPU time of a pool counts as CPU, and is not taken from the time in which the caller was blocked."""
    point = curve_point(Setting(1, None), [measured(cpu_seconds=1.3, native_cpu_seconds=0.8)])
    assert point.cpu == pytest.approx(0.013)
    assert point.blocked == pytest.approx(0.01 - 0.005 - 0.001)


def test_without_run_delay_blocked_is_not_known(measured: Callable) -> None:
    """One repetition without it makes both None, never 0."""
    point = curve_point(Setting(1, None), [measured(), measured(run_delay_seconds=None)])
    assert point.run_delay is None
    assert point.blocked is None


def test_no_item_no_point(measured: Callable) -> None:
    """A stage in which every item fails has no point."""
    assert curve_point(Setting(1, None), [measured(num_items=0, num_failed=100, throughput=0.0)]) is None


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({1: 100, 2: 200, 4: 200}, 2),
        ({1: 100, 2: 200, 4: 400}, None),
        ({1: 100, 2: 192, 4: 200}, 2),
        ({1: 100, 2: 189, 4: 200}, None),
        ({1: 200, 2: 190, 4: 120}, 1),
        ({1: 100}, None),
        ({}, None),
    ],
)
def test_the_knee_is_the_fewest_workers_within_five_percent(
    point: Callable, rates: dict[int, float], expected: int | None
) -> None:
    """None where the best is only reached at the end of the curve, or where there is no curve."""
    assert knee([point(workers, float(rate)) for workers, rate in rates.items()]) == expected


def test_a_line_is_found_exactly() -> None:
    """The line a + b*n is given back with no misfit."""
    a, b, misfit = fit_line({size: 0.0136 + 0.034 * size for size in (1, 2, 4, 8)})
    assert (a, b, misfit) == (pytest.approx(0.0136), pytest.approx(0.034), pytest.approx(0.0, abs=1e-9))


@pytest.mark.parametrize(
    ("costs", "expected"),
    [({1: 0.01, 2: 0.03, 4: 0.07}, "a"), ({1: 0.04, 2: 0.03, 4: 0.02}, "b")],
)
def test_neither_part_of_a_line_is_negative(costs: dict[int, float], expected: str) -> None:
    """Where the best line would cost less than nothing somewhere, the part is 0 and the misfit is told."""
    a, b, misfit = fit_line(costs)
    assert {"a": a, "b": b}[expected] == 0.0
    assert a + b > 0
    assert misfit > 0.1


def test_one_batch_size_is_all_per_item() -> None:
    """Without a second size nothing can be said of a launch cost."""
    assert fit_line({4: 0.02}) == (0.0, 0.005, 0.0)


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_the_rate_of_batches_is_exact(batch: int) -> None:
    """Batches at equal intervals give exactly batch over interval, whichever part of them is looked at."""
    stamps = np.repeat(np.arange(40) * 0.1, batch)
    assert steady_rate(stamps, 0.35, 3.05) == pytest.approx(batch / 0.1)


def test_the_rate_leaves_out_what_is_outside() -> None:
    """A slow start and a fast end do not count."""
    stamps = [*np.arange(0, 1, 0.5), *np.arange(1, 2, 0.01), *np.arange(2, 3, 0.001)]
    assert steady_rate(stamps, 1.0, 1.995) == pytest.approx(100)


@pytest.mark.parametrize("stamps", [[], [1.0, 1.1, 1.2], [1.0] * 10])
def test_too_few_events_give_no_rate(stamps: list[float]) -> None:
    """Three events, or many at one moment, are no rate."""
    assert steady_rate(stamps, 0.0, 2.0) is None


def test_the_interval_of_a_ratio() -> None:
    """By hand for three: the mean logarithm and 4.303 standard errors; nothing can be said of one."""
    low, high = ratio_interval([1.0, 2.0, 4.0])
    half = 4.303 * math.log(2) / math.sqrt(3)
    assert (low, high) == (pytest.approx(2 * math.exp(-half)), pytest.approx(2 * math.exp(half)))
    assert ratio_interval([2.0]) is None


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    """In 93 to 97 of 100 draws of three noisy ratios."""
    draws = np.exp(np.random.default_rng(7).normal(math.log(1.3), 0.1, (2000, 3)))
    held = [low <= 1.3 <= high for low, high in map(ratio_interval, draws.tolist())]
    assert 0.93 < np.mean(held) < 0.97


def test_a_lock_is_told_from_missing_cores(point: Callable) -> None:
    """Threads that wait for one another hold a lock; threads that are runnable lack cores."""
    alone = point(1, 100.0, cpu=0.0099, run_delay=0.0001, blocked=0.0)
    locked = point(4, 100.0, cpu=0.0099, run_delay=0.001, blocked=0.029)
    crowded = point(2, 105.0, cpu=0.0099, run_delay=0.009, blocked=0.0001)
    assert "probably holds the GIL" in describe_scaling([alone, locked], 2)
    assert "cores that others used" in describe_scaling([alone, crowded], 2)


def test_a_lock_is_seen_on_a_machine_that_others_use(point: Callable) -> None:
    """Half a core stolen from one thread, which then also rises with threads, does not hide that they share one core."""
    alone = point(1, 50.0, cpu=0.010, run_delay=0.010, blocked=0.0)
    most = point(4, 80.0, cpu=0.010, run_delay=0.010, blocked=0.030)
    assert "0.80 cores" in describe_scaling([alone, most], 2)


def test_threads_that_gain_are_not_spoken_of(point: Callable) -> None:
    """A stage that releases the GIL doubles on two cores."""
    alone = point(1, 100.0, cpu=0.0099, run_delay=0.0, blocked=0.0001)
    two = point(2, 195.0, cpu=0.0101, run_delay=0.0001, blocked=0.0001)
    four = point(4, 195.0, cpu=0.0101, run_delay=0.0101, blocked=0.0003)
    assert describe_scaling([alone, two, four], 2) == ""


def test_a_stage_that_waits_is_not_accused(point: Callable) -> None:
    """Only what computes can hold a lock by computing."""
    curve = [point(workers, 100.0, cpu=0.0001, run_delay=0.0, blocked=workers / 100 - 0.0001) for workers in (1, 2, 4)]
    assert describe_scaling(curve, 2) == ""


def test_a_stage_that_hardly_works_is_given_no_advice(point: Callable) -> None:
    """Threads that take turns at 3 microseconds an item hold the GIL too, but a process would cost more than it saves."""
    alone = point(1, 333_333.0, cpu=3e-6, run_delay=0.0, blocked=0.0)
    most = point(4, 333_333.0, cpu=3e-6, run_delay=0.0, blocked=9e-6)
    assert describe_scaling([alone, most], 2) == ""


def test_more_cpu_per_item_is_named(point: Callable) -> None:
    """Threads that slow one another down on their cores are told so."""
    alone = point(1, 100.0, cpu=0.01, run_delay=0.0, blocked=0.0)
    two = point(2, 110.0, cpu=0.018, run_delay=0.0, blocked=0.0)
    assert "x1.80 the CPU time" in describe_scaling([alone, two], 2)
