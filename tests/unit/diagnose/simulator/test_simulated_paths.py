"""Order, retries, fan-out, routes, conservation, and that a simulation can be repeated."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest

from headrace.base.policies.batching import BatchingPolicy
from headrace.diagnose.simulator import Program, Retry, Station, System, Trace, simulate
from headrace.diagnose.simulator.system import CPU, GIL, WAIT

UNBOUNDED = 10**9


def waits(times: list[float]) -> list[Program]:
    """Return programs that take these times, on no core."""
    return [((WAIT, time),) for time in times]


def test_ordered_release_waits_for_the_slowest_before(exponential):
    """Job by job, a unit leaves when it and all received before it are done."""
    jobs = 5000
    gaps, services = exponential(81, 0.4, jobs), exponential(82, 1.0, jobs)
    stations = [
        Station(name="work", workers=4, capacity=UNBOUNDED, programs=waits(services)),
        Station(name="deliver", workers=1, capacity=UNBOUNDED, programs=waits([0.0] * jobs), ordered=True),
    ]
    arrivals = list(itertools.accumulate(gaps))
    trace = simulate(System(stations=stations, num_jobs=jobs, arrivals=arrivals))

    free, ends = [0.0] * 4, []
    for arrival, service in zip(arrivals, services, strict=True):
        ends.append(max(free[0], arrival) + service)
        heapq.heapreplace(free, ends[-1])
    assert trace.done == pytest.approx(np.maximum.accumulate(ends), rel=1e-12)


def test_a_retry_costs_its_try_and_its_pause():
    """A unit that fails twice takes three tries and two pauses, and others are served meanwhile."""
    retries = {0: [Retry(((WAIT, 0.1),), 1.0), Retry(((WAIT, 0.1),), 2.0)]}
    station = Station(name="fetch", workers=1, capacity=4, programs=waits([0.2, 0.5]), retries=retries)
    trace = simulate(System(stations=[station], num_jobs=2))

    assert trace.done == pytest.approx([0.1 + 1.0 + 0.1 + 2.0 + 0.2, 0.1 + 0.5])


def test_retries_take_capacity():
    """If each third unit needs a second try, a saturated worker does 3 in 4 services."""
    jobs = 3000
    retries = {unit: [Retry(((WAIT, 0.01),), 0.05)] for unit in range(0, jobs, 3)}
    station = Station(name="fetch", workers=1, capacity=16, programs=waits([0.01] * jobs), retries=retries)

    assert simulate(System(stations=[station], num_jobs=jobs)).throughput == pytest.approx(75, rel=0.01)


@pytest.mark.parametrize(("chunk", "fails_at"), [(1, 0.003), (4, 0.005)])
def test_a_failed_unit_leaves_its_neighbours_alone(chunk, fails_at):
    """Of units taken at once only the one that failed comes back; the others go on."""
    retries = {2: [Retry(((WAIT, 0.001),), 1.0)]}
    programs = waits([0.001] * 8)
    station = Station(name="fetch", workers=1, capacity=8, programs=programs, retries=retries, chunk=chunk)
    trace = simulate(System(stations=[station], num_jobs=8))

    assert trace.done.argmax() == 2
    assert trace.done[2] == pytest.approx(fails_at + 1.0 + 0.001)
    assert np.delete(trace.done, 2).max() == pytest.approx(0.008)


def test_a_failed_unit_of_a_batch_comes_back_alone():
    """A device takes one unit and then three, of which one fails: the other two go on, and the one is taken again."""
    station = Station(
        name="process",
        workers=1,
        capacity=8,
        batching=BatchingPolicy(max_size=4),
        batch_program=lambda size, unit: ((WAIT, 0.01),),
        retries={1: [Retry((), 0.5)]},
    )
    trace = simulate(System(stations=[station], num_jobs=4))

    assert trace.done == pytest.approx([0.01, 0.02 + 0.5 + 0.01, 0.02, 0.02])


def fanned(children: list[int], workers: int, *, in_flight: int | None = 1) -> Trace:
    """Simulate jobs cut into crops of 10 ms each, which come together again."""
    total = sum(children)
    jobs = len(children)
    stations = [
        Station(name="crop", workers=1, capacity=16, programs=[()] * jobs, children=children),
        Station(name="process", workers=workers, capacity=16, programs=waits([0.01] * total)),
        Station(name="join", workers=1, capacity=16, programs=[()] * jobs, joins=True),
    ]
    return simulate(System(stations=stations, num_jobs=jobs, max_in_flight=in_flight))


@pytest.mark.parametrize(("children", "workers", "rounds"), [(1, 1, 1), (4, 1, 4), (4, 4, 1), (5, 2, 3), (0, 1, 0)])
def test_a_job_waits_for_all_of_its_children(children, workers, rounds):
    """Alone in the pipeline a job of c crops takes ceil(c / workers) services."""
    assert fanned([children] * 50, workers).latencies == pytest.approx(0.01 * rounds)


def test_fan_out_takes_its_share_of_a_saturated_stage():
    """Jobs of 1, 2, 6 and 0 crops need 2.25 services of 10 ms each on average; two workers do 2 / 22.5 ms."""
    assert fanned([1, 2, 6, 0] * 1000, 2, in_flight=None).throughput == pytest.approx(2 / 0.0225, rel=0.01)


def test_jobs_go_by_their_own_way():
    """Of three stations each kind of job visits its own two."""
    jobs = 300
    stations = [Station(name=name, workers=1, capacity=16, programs=waits([0.01] * jobs)) for name in ("a", "b", "c")]
    route_of = [unit % 2 for unit in range(jobs)]
    trace = simulate(System(stations=stations, num_jobs=jobs, routes=[[0, 2], [1, 2]], route_of=route_of))

    busy = [trace.workers_busy[name] * trace.elapsed for name in ("a", "b", "c")]
    assert busy == pytest.approx([1.5, 1.5, 3.0])


def test_children_stay_on_the_route_of_what_they_were_cut_from():
    """Of two kinds of jobs one is cut into three: each child goes on where its job would."""
    jobs = 100
    route_of = [unit % 2 for unit in range(jobs)]
    children = [3 * (1 - route) for route in route_of]
    stations = [
        Station(name="cut", workers=1, capacity=16, programs=waits([0.01] * jobs), children=children),
        Station(name="piece", workers=1, capacity=16, programs=waits([0.01] * sum(children))),
        Station(name="vote", workers=1, capacity=16, programs=waits([0.01] * jobs), joins=True),
        Station(name="other", workers=1, capacity=16, programs=waits([0.01] * jobs)),
    ]
    trace = simulate(System(stations=stations, num_jobs=jobs, routes=[[0, 1, 2], [3]], route_of=route_of))

    busy = [trace.workers_busy[station.name] * trace.elapsed for station in stations]
    assert busy == pytest.approx([0.5, 1.5, 0.5, 0.5])


def mixed(seed: int) -> System:
    """Return a pipeline with a little of everything."""
    jobs = 3000
    random = np.random.default_rng(seed)
    times = random.lognormal(-5, 1, (jobs, 4))
    programs = [
        [((WAIT, float(a)), (CPU, float(b) / 8)) for a, b, _, _ in times],
        [((CPU, float(c) / 4), (GIL, float(d) / 16)) for _, _, c, d in times],
        [((GIL, float(a) / 16), (WAIT, float(d) / 2)) for a, _, _, d in times],
    ]
    stations = [
        Station(name=name, workers=workers, capacity=capacity, programs=part)
        for name, workers, capacity, part in zip(
            ("fetch", "decode", "deliver"), (8, 4, 4), (32, 5, 3), programs, strict=True
        )
    ]
    return System(stations=stations, num_jobs=jobs, cores=2.0, max_in_flight=40)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_laws_hold_in_a_mixed_pipeline(seed):
    """Work is conserved, utilizations are X S, shares of workers' time are whole, and no bound is broken."""
    system = mixed(seed)
    trace = simulate(system)
    cpu = [
        sum(amount for program in one.programs for kind, amount in program if kind in (CPU, GIL))
        for one in system.stations
    ]
    gil = sum(amount for one in system.stations for program in one.programs for kind, amount in program if kind == GIL)

    assert trace.cpu_seconds == pytest.approx(sum(cpu), rel=1e-9)
    assert trace.gil_seconds >= gil * (1 - 1e-9)  # it is kept for longer where its holder has part of a core
    assert sum(cpu) / system.cores <= trace.elapsed
    for station in system.stations:
        demand = sum(amount for program in station.programs for _, amount in program)
        busy = trace.workers_busy[station.name] * station.workers * trace.elapsed
        assert busy >= demand * (1 - 1e-9)
        shares = trace.workers_busy[station.name] + trace.starved[station.name] + trace.blocked[station.name]
        assert shares == pytest.approx(1.0, rel=1e-9)
    inside = trace.latencies.sum() / trace.elapsed  # Little: jobs inside on average
    assert inside <= 40 * (1 + 1e-9)
    assert trace.throughput * trace.latencies.mean() == pytest.approx(inside, rel=0.02)


def test_the_same_system_gives_the_same_trace():
    """Repeated, a simulation gives each time the same, to the last digit."""
    first, second = simulate(mixed(4)), simulate(mixed(4))

    assert np.array_equal(first.done, second.done)
    assert first.queue_mean == second.queue_mean


def test_no_jobs_take_no_time():
    """A pipeline without jobs is done at once."""
    trace = simulate(System(stations=[Station(name="work", workers=1, capacity=1, programs=[])], num_jobs=0))

    assert trace.done.size == 0
    assert trace.throughput == 0.0


def test_units_that_need_nothing_do_not_nest():
    """A hundred thousand units that take no time pass without exhausting the stack."""
    jobs = 100_000
    stations = [Station(name=name, workers=1, capacity=jobs, programs=[()] * jobs) for name in ("one", "two")]

    assert simulate(System(stations=stations, num_jobs=jobs)).elapsed == pytest.approx(0.0, abs=1e-9)
