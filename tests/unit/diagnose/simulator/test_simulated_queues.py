"""Open queues against closed forms (within 2 %) and against recursions on the same jobs (to the last digits)."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest

from headrace.diagnose.simulator import Program, Receivers, Station, System, Trace, simulate
from headrace.diagnose.simulator.system import WAIT

UNBOUNDED = 10**9


def waits(times: list[float]) -> list[Program]:
    """Return programs that take these times, on no core."""
    return [((WAIT, time),) for time in times]


def run_queue(gaps: list[float], services: list[float], workers: int = 1) -> Trace:
    """Simulate one unbounded queue."""
    station = Station(name="queue", workers=workers, capacity=UNBOUNDED, programs=waits(services))
    arrivals = list(itertools.accumulate(gaps))
    return simulate(System(stations=[station], num_jobs=len(gaps), arrivals=arrivals))


@pytest.mark.full
@pytest.mark.parametrize(("load", "jobs"), [(0.5, 100_000), (0.8, 300_000)])
def test_wait_and_latency_of_m_m_1(exponential, load, jobs):
    """With random arrivals and services a job waits S rho / (1 - rho) (Kleinrock 1975, 3.2)."""
    trace = run_queue(exponential(1, 1 / load, jobs), exponential(2, 1.0, jobs))

    assert trace.wait["queue"] == pytest.approx(load / (1 - load), rel=0.02)
    assert trace.latencies.mean() == pytest.approx(1 / (1 - load), rel=0.02)
    assert trace.queue_mean["queue"] == pytest.approx(load**2 / (1 - load), rel=0.02)
    assert trace.starved["queue"] == pytest.approx(1 - load, rel=0.02)


def test_distribution_of_m_m_1(exponential):
    """Latency in M/M/1 is exponential: its median and 90th percentile are those of mean S / (1 - rho)."""
    trace = run_queue(exponential(1, 2.0, 100_000), exponential(2, 1.0, 100_000))

    assert np.quantile(trace.latencies, [0.5, 0.9]) == pytest.approx(-2.0 * np.log([0.5, 0.1]), rel=0.02)


@pytest.mark.parametrize(("load", "jobs"), [(0.5, 50_000), (0.8, 150_000)])
def test_wait_of_m_d_1(exponential, load, jobs):
    """Services that never vary halve the wait (Pollaczek and Khinchine; Kleinrock 1975, 5.6)."""
    trace = run_queue(exponential(3, 1 / load, jobs), [1.0] * jobs)

    assert trace.wait["queue"] == pytest.approx(load / (2 * (1 - load)), rel=0.02)


def test_wait_of_m_g_1(exponential):
    """Wait grows with the second moment of the service: lambda E[S^2] / 2 (1 - rho), here for two kinds of jobs."""
    jobs, load = 100_000, 0.6
    services = [0.5, 0.5, 0.5, 2.5] * (jobs // 4)
    np.random.default_rng(0).shuffle(services)
    trace = run_queue(exponential(4, 1 / load, jobs), services)

    second_moment = (3 * 0.5**2 + 2.5**2) / 4
    assert trace.wait["queue"] == pytest.approx(load * second_moment / (2 * (1 - load)), rel=0.02)


@pytest.mark.parametrize("workers", [3, 10])
def test_wait_of_m_m_c(exponential, erlang_c, workers):
    """With c workers the wait is Erlang's: C(c, a) S / (c - a), at a load of 80 % of each."""
    jobs, load = 150_000, 0.8 * workers
    trace = run_queue(exponential(5, 1 / load, jobs), exponential(6, 1.0, jobs), workers)

    wait = erlang_c(workers, load) / (workers - load)
    assert trace.latencies.mean() == pytest.approx(1 + wait, rel=0.02)
    assert trace.workers_busy["queue"] == pytest.approx(0.8, rel=0.02)


def test_one_worker_follows_lindley(exponential):
    """Job by job, the latency is that of Lindley's recursion."""
    gaps, services = exponential(7, 1.1, 20_000), exponential(8, 1.0, 20_000)
    trace = run_queue(gaps, services)

    expected, free = [], 0.0
    for arrival, service in zip(itertools.accumulate(gaps), services, strict=True):
        free = max(free, arrival) + service
        expected.append(free)
    assert trace.done == pytest.approx(np.array(expected), rel=1e-12)


def test_workers_follow_kiefer_and_wolfowitz(exponential):
    """Job by job, whoever is free first takes the next one."""
    gaps, services = exponential(9, 0.3, 20_000), exponential(10, 1.0, 20_000)
    trace = run_queue(gaps, services, workers=4)

    free = [0.0] * 4
    expected = []
    for arrival, service in zip(itertools.accumulate(gaps), services, strict=True):
        expected.append(max(free[0], arrival) + service)
        heapq.heapreplace(free, expected[-1])
    assert trace.done == pytest.approx(np.array(expected), rel=1e-12)


def test_receiving_limits_at_jobs_per_call_over_its_time():
    """A broker that gives 2 jobs per call of 50 ms feeds at most 40 a second, and two receivers twice that."""
    station = Station(name="queue", workers=8, capacity=UNBOUNDED, programs=waits([0.001] * 4000))

    for num in (1, 2):
        receivers = Receivers(num=num, call_seconds=0.05, jobs_per_call=2)
        trace = simulate(System(stations=[station], num_jobs=4000, receivers=receivers))
        assert trace.throughput == pytest.approx(40 * num, rel=0.01)
        assert trace.receivers_busy == pytest.approx(1.0, rel=0.01)


def test_load_above_capacity_is_served_at_capacity(exponential):
    """Jobs that come twice as fast as they can be done leave at the workers' rate and wait ever longer."""
    trace = run_queue(exponential(11, 0.25, 20_000), exponential(12, 1.0, 20_000), workers=2)

    assert trace.throughput == pytest.approx(2.0, rel=0.02)
    assert trace.latencies[-1000:].mean() > 10 * trace.latencies[:1000].mean()
