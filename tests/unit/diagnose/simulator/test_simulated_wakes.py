"""What waking a worker that sleeps costs, by counting: at low rates each hop wakes somebody, under load hardly any does."""

from __future__ import annotations

import pytest

from headrace.diagnose.simulator import Program, Station, System, Trace, simulate
from headrace.diagnose.simulator.system import CPU, GIL

PRICE = 0.0001
WORK = 0.001


def line(*works: float, jobs: int, gap: float | None = None, price: float = PRICE) -> Trace:
    """Simulate stations of one worker each, whose work needs a core for so long; all jobs are there unless they come."""
    stations = [
        Station(name=f"s{number}", workers=1, capacity=16, programs=[((CPU, work),)] * jobs)
        for number, work in enumerate(works)
    ]
    arrivals = None if gap is None else [gap * number for number in range(jobs)]
    return simulate(System(stations=stations, num_jobs=jobs, cores=8, arrivals=arrivals, handoff_seconds=price))


def test_each_hop_of_a_lone_job_costs_a_wake() -> None:
    """Two stations that sleep between jobs: two wakes for each job, half of each on either side, within its latency."""
    jobs = 100
    trace = line(WORK, WORK, jobs=jobs, gap=0.1)
    assert trace.num_wakes == 2 * jobs
    unpaid = PRICE  # by the last wakers, who have nothing to do any more
    assert trace.cpu_seconds == pytest.approx(jobs * (2 * WORK + 2 * PRICE) - unpaid, rel=1e-6)
    assert trace.latencies[50] == pytest.approx(2 * WORK + 2 * PRICE, rel=1e-6)


def test_who_is_never_idle_is_not_woken() -> None:
    """The second station is the slower one: its queue is full, and after the first job nobody sleeps."""
    assert line(WORK, 2 * WORK, jobs=200).num_wakes <= 3


def test_who_waits_for_each_unit_is_woken_for_each() -> None:
    """The second station is the faster one, and sleeps whenever it has done what came."""
    jobs = 200
    trace = line(2 * WORK, WORK, jobs=jobs)
    assert jobs - 2 <= trace.num_wakes <= jobs + 2
    assert trace.throughput == pytest.approx(1 / (2 * WORK + PRICE / 2), rel=0.01)


def test_without_a_price_wakes_cost_nothing() -> None:
    """Nothing is counted, and no time goes by."""
    trace = line(WORK, WORK, jobs=50, gap=0.1, price=0.0)
    assert trace.num_wakes == 0
    assert trace.latencies[20] == pytest.approx(2 * WORK, rel=1e-6)


def _two_python_stations(price: float) -> Trace:
    programs: list[Program] = [((GIL, WORK),)] * 200
    stations = [Station(name=name, workers=1, capacity=200, programs=programs) for name in "ab"]
    return simulate(
        System(
            stations=stations, routes=[[0], [1]], route_of=[number % 2 for number in range(200)], num_jobs=200, cores=8,
            handoff_seconds=price,
        )
    )  # fmt: skip


def test_a_thread_keeps_the_gil_from_unit_to_unit() -> None:
    """Two threads of pure Python, 200 ms of work in all: the GIL changes hands each switch interval of 5 ms, not each unit."""
    trace = _two_python_stations(price=1e-9)
    assert 36 <= trace.num_wakes <= 46
    assert trace.gil_seconds == pytest.approx(0.2, rel=0.001)
