"""Shared cores and the GIL against closed forms (within 2 %) and a slow simulation of another make."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from headrace.diagnose.simulator import Program, Station, System, Trace, simulate
from headrace.diagnose.simulator.system import CPU, GIL, SPREAD, WAIT

UNBOUNDED = 10**9
MANY = 400
"""Workers: no job waits for one."""


def work(times: list[float]) -> list[Program]:
    """Return programs that need these times of a core."""
    return [((CPU, time),) for time in times]


def share_cores(
    gaps: list[float], programs: list[Program], cores: float, others: float = 0.0, threads: int = 1
) -> Trace:
    """Simulate jobs of which each has a worker at once and only cores are scarce."""
    station = Station(name="work", workers=MANY, capacity=UNBOUNDED, programs=programs, threads=threads)
    arrivals = list(itertools.accumulate(gaps))
    return simulate(System(stations=[station], num_jobs=len(gaps), arrivals=arrivals, cores=cores, others=others))


def saturated(*stations: Station, jobs: int, cores: float, max_in_flight: int | None = None) -> Trace:
    """Simulate a pipeline that always has jobs."""
    return simulate(System(stations=stations, num_jobs=jobs, cores=cores, max_in_flight=max_in_flight))


def two_kinds(count: int) -> list[float]:
    """Return times of mean 1 of which one in ten is 10 times as long as the others: standard deviation 1.4."""
    short = 10 / (9 + 10)
    times = np.where(np.arange(count) % 10 == 0, 10 * short, short)
    return [float(time) for time in np.random.default_rng(0).permutation(times)]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["fixed", "exponential", "two kinds"])
@pytest.mark.parametrize(("load", "jobs"), [(0.5, 60_000), (0.7, 150_000)])
def test_response_of_a_shared_core_depends_on_the_mean_alone(exponential, kind, load, jobs):
    """M/G/1 with processor sharing responds in S / (1 - rho), whatever the distribution (Kleinrock 1976, 4.4)."""
    times = {"fixed": [1.0] * jobs, "exponential": exponential(21, 1.0, jobs), "two kinds": two_kinds(jobs)}[kind]
    trace = share_cores(exponential(22, 1 / load, jobs), work(times), cores=1)

    assert trace.latencies.mean() == pytest.approx(1 / (1 - load), rel=0.02)


def test_response_on_a_shared_core_is_in_proportion_to_the_work(exponential):
    """A job of x seconds takes x / (1 - rho) on average: long ones do not hold up short ones."""
    jobs, load = 100_000, 0.5
    times = two_kinds(jobs)
    trace = share_cores(exponential(23, 1 / load, jobs), work(times), cores=1)

    is_long = np.array(times) > 1
    for chosen in (is_long, ~is_long):
        assert trace.latencies[chosen].mean() == pytest.approx(np.array(times)[chosen].mean() / (1 - load), rel=0.02)


@pytest.mark.full
def test_three_shared_cores_hold_as_many_jobs_as_m_m_3(exponential, erlang_c):
    """Exponential work on 3 shared cores and 3 workers with a queue are the same birth-death chain."""
    jobs, load = 150_000, 2.4
    trace = share_cores(exponential(24, 1 / load, jobs), work(exponential(25, 1.0, jobs)), cores=3)

    assert trace.latencies.mean() == pytest.approx(1 + erlang_c(3, load) / (3 - load), rel=0.02)


def test_another_program_takes_its_fair_share(exponential):
    """With one other thread k jobs advance at k / (k + 1): states p(n) = (n + 1) rho^n (1 - rho)^2, mean 2 rho / (1 - rho)."""
    jobs, load = 100_000, 0.5
    trace = share_cores(exponential(26, 1 / load, jobs), work(exponential(27, 1.0, jobs)), cores=1, others=1)

    assert trace.latencies.mean() == pytest.approx(2 / (1 - load), rel=0.02)


def test_shared_cores_agree_with_a_simulation_step_by_step(exponential):
    """Waits and work in turn, on 2.5 cores: each job ends when a loop over all jobs at every event says so."""
    jobs = 2000
    gaps = exponential(28, 0.8, jobs)
    phases = np.array([exponential(seed, mean, jobs) for seed, mean in ((29, 1.0), (30, 0.5), (31, 0.8))]).T
    programs = [((CPU, float(a)), (WAIT, float(b)), (CPU, float(c))) for a, b, c in phases]
    trace = share_cores(gaps, programs, cores=2.5)

    assert trace.done == pytest.approx(step_by_step(gaps, phases, 2.5), rel=1e-9)


def step_by_step(gaps: list[float], phases: np.ndarray, cores: float) -> np.ndarray:
    """Return when each job ends: every event looks at every job there is."""
    arrivals = np.cumsum(gaps)
    done = np.zeros(len(gaps))
    running: dict[int, float] = {}  # work left of the first or the last phase
    waiting: dict[int, float] = {}  # when the wait between them ends
    is_last: set[int] = set()
    now, coming = 0.0, 0
    while coming < len(gaps) or running or waiting:
        speed = min(1.0, cores / len(running)) if running else 1.0
        events = [now + left / speed for left in running.values()] + list(waiting.values())
        then = min([*events, *([arrivals[coming]] if coming < len(gaps) else [])])
        running = {job: left - (then - now) * speed for job, left in running.items()}
        now = then
        if coming < len(gaps) and arrivals[coming] <= now:
            running[coming] = phases[coming, 0]
            coming += 1
        for job in [job for job, left in running.items() if left <= 1e-12]:
            del running[job]
            if job in is_last:
                done[job] = now
            else:
                waiting[job] = now + phases[job, 1]
        for job in [job for job, until in waiting.items() if until <= now]:
            del waiting[job]
            is_last.add(job)
            running[job] = phases[job, 2]
    return done


def test_used_cores_are_the_demands(exponential):
    """Work is conserved: core seconds used are those of the programs, and no core idles while two jobs want it."""
    jobs = 5000
    times = exponential(32, 0.01, jobs)
    stations = [Station(name=name, workers=4, capacity=16, programs=work(times)) for name in ("one", "two")]
    trace = saturated(*stations, jobs=jobs, cores=2)

    assert trace.cpu_seconds == pytest.approx(2 * sum(times), rel=1e-9)
    assert trace.elapsed == pytest.approx(sum(times), rel=0.01)


@pytest.mark.parametrize(("workers", "rate"), [(1, 1.0), (2, 2.0), (4, 2.0)])
def test_workers_in_c_fill_the_cores_and_no_more(workers, rate):
    """Work of d seconds on 2 cores gives min(workers, 2) / d."""
    station = Station(name="work", workers=workers, capacity=16, programs=work([0.01] * 4000))

    assert saturated(station, jobs=4000, cores=2).throughput == pytest.approx(rate / 0.01, rel=0.001)


def test_a_call_spread_over_threads_keeps_as_many_cores_busy():
    """A call that keeps 4 threads busy for 10 ms takes 10 ms on 4 cores, and 20 ms on 2; what is not spread needs one."""
    programs = [((SPREAD, 0.01),)] * 1000
    station = Station(name="work", workers=1, capacity=16, programs=programs, threads=4)

    assert saturated(station, jobs=1000, cores=4).throughput == pytest.approx(100, rel=0.001)
    assert saturated(station, jobs=1000, cores=2).throughput == pytest.approx(50, rel=0.001)
    alone = Station(name="work", workers=1, capacity=16, programs=work([0.01] * 1000), threads=4)
    assert saturated(alone, jobs=1000, cores=1).throughput == pytest.approx(100, rel=0.001)


@pytest.mark.parametrize("workers", [1, 4])
def test_python_stages_share_one_gil(workers):
    """Two stages of pure Python on 8 cores give 1 / (g1 + g2), however many threads they have."""
    first, second = [((GIL, 0.004),)] * 4000, [((GIL, 0.006),)] * 4000
    trace = saturated(
        Station(name="first", workers=workers, capacity=16, programs=first),
        Station(name="second", workers=workers, capacity=16, programs=second),
        jobs=4000,
        cores=8,
    )

    assert trace.throughput == pytest.approx(100, rel=0.001)
    assert trace.gil_seconds == pytest.approx(40, rel=1e-9)
    assert trace.cpu_seconds == pytest.approx(40, rel=1e-9)


def test_code_without_the_gil_runs_beside_python():
    """On 8 cores, 8 threads that need g of Python and c of C do 1 / g as long as c <= 7 g."""
    programs: list[Program] = [((GIL, 0.002), (CPU, 0.01))] * 4000
    trace = saturated(Station(name="both", workers=8, capacity=16, programs=programs), jobs=4000, cores=8)

    assert trace.throughput == pytest.approx(500, rel=0.01)


def test_who_needs_the_gil_for_a_moment_waits_a_switch_interval():
    """Beside a thread that never lets go, each request of the GIL costs the switch interval (Beazley, PyCon 2010)."""
    requests = 10
    brief: Program = ((WAIT, 0.003), (GIL, 0.0002)) * requests
    endless: Program = ((GIL, 10.0),)
    trace = simulate(
        System(
            stations=[
                Station(name="endless", workers=1, capacity=4, programs=[endless, ()]),
                Station(name="brief", workers=1, capacity=4, programs=[(), brief]),
            ],
            routes=[[0], [1]],
            route_of=[0, 1],
            num_jobs=2,
            cores=8,
        )
    )

    assert trace.latencies[1] == pytest.approx(requests * (0.003 + 0.005 + 0.0002), rel=1e-9)
    assert trace.latencies[0] == pytest.approx(10.0 + requests * 0.0002, rel=1e-9)


def test_python_threads_take_turns_of_a_switch_interval():
    """Two threads that both compute in Python swap every 5 ms, so that a short job ends after about twice its work."""
    programs: list[Program] = [((GIL, 1.0),), ((GIL, 0.1),)]
    station = Station(name="python", workers=2, capacity=4, programs=programs)
    trace = saturated(station, jobs=2, cores=2)

    assert trace.latencies[1] == pytest.approx(0.2, abs=0.0051)
    assert trace.latencies[0] == pytest.approx(1.1, rel=1e-9)


def test_a_gil_on_a_busy_core_is_held_for_longer():
    """The GIL's holder gets its share of the cores only: one core, Python and C in turn give 1 / (g + c)."""
    trace = saturated(
        Station(name="python", workers=2, capacity=16, programs=[((GIL, 0.004),)] * 3000),
        Station(name="c", workers=2, capacity=16, programs=[((CPU, 0.006),)] * 3000),
        jobs=3000,
        cores=1,
    )

    assert trace.throughput == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("jobs_inside", [1, 2, 4, 16])
def test_machine_repairman(exponential, jobs_inside):
    """N jobs that wait Z and then need the one core for S: X = (1 - p0) / S, p0 by the birth-death chain.

    The closed network of Denning and Buzen, "The operational analysis of queueing network models", 1978, with its bounds
    X <= min(N / (Z + S), 1 / S).
    """
    think, service, jobs = 1.0, 0.25, 60_000
    pairs = zip(exponential(33, think, jobs), exponential(34, service, jobs), strict=True)
    programs: list[Program] = [((WAIT, wait), (CPU, cpu)) for wait, cpu in pairs]
    station = Station(name="both", workers=jobs_inside, capacity=16, programs=programs)
    trace = saturated(station, jobs=jobs, cores=1)

    states = [math.perm(jobs_inside, n) * (service / think) ** n for n in range(jobs_inside + 1)]
    assert trace.throughput == pytest.approx((1 - states[0] / sum(states)) / service, rel=0.02)
    assert trace.throughput <= min(jobs_inside / (think + service), 1 / service) * 1.02


def test_each_handing_over_of_the_gil_takes_as_long_as_waking_up():
    """Two threads of 4 ms of Python in turn, 1 ms to wake up each time: 200/s instead of 250."""
    station = Station(name="python", workers=2, capacity=16, programs=[((GIL, 0.004),)] * 2000)
    trace = simulate(System(stations=[station], num_jobs=2000, cores=2, wake_seconds=0.001))

    assert trace.throughput == pytest.approx(200, rel=0.001)
    alone = Station(name="python", workers=1, capacity=16, programs=[((GIL, 0.004),)] * 2000)
    trace = simulate(System(stations=[alone], num_jobs=2000, cores=2, wake_seconds=0.001))
    assert trace.throughput == pytest.approx(250, rel=0.001), "who is alone waits for nobody"


@pytest.mark.parametrize(("workers", "throughput"), [(1, 100), (2, 160), (4, 160)])
def test_work_takes_longer_only_while_all_cores_are_wanted(workers, throughput):
    """10 ms of CPU at a slowdown of 1.25 on two cores: 10 ms for one thread, 12.5 ms of a core for two or more."""
    station = Station(name="work", workers=workers, capacity=16, programs=[((CPU, 0.010),)] * 4000)
    trace = simulate(System(stations=[station], num_jobs=4000, cores=2, slowdown=1.25))

    assert trace.throughput == pytest.approx(throughput, rel=0.002)
    assert trace.cpu_seconds == pytest.approx(4000 * (0.010 if workers == 1 else 0.0125), rel=0.002)
