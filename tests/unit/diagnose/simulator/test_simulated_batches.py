"""Batches, devices and locks against closed forms and a recursion."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from headrace.base.policies.batching import BatchingPolicy
from headrace.diagnose.simulator import Program, Receivers, Station, System, Trace, simulate
from headrace.diagnose.simulator.system import CPU, GIVE, TAKE, WAIT

UNBOUNDED = 10**9


def device(largest: int, cost: Callable[[int], float], max_wait: float = 0.0, **settings: object) -> Station:
    """Return a device that takes batches; cost gives seconds for a size."""

    def program(size: int, first: int) -> Program:
        return ((WAIT, cost(size)),)

    policy = BatchingPolicy(max_size=largest, max_wait_ns=round(max_wait * 1e9))
    given = {"workers": 1, "capacity": UNBOUNDED, **settings}
    return Station(name="device", batching=policy, batch_program=program, **given)


def fed(station: Station, gaps: list[float]) -> Trace:
    """Simulate a station whose jobs come one by one."""
    arrivals = list(itertools.accumulate(gaps))
    return simulate(System(stations=[station], num_jobs=len(gaps), arrivals=arrivals))


@pytest.mark.full
@pytest.mark.parametrize("largest", [1, 4, 16])
def test_a_saturated_device_does_n_in_a_plus_b_n(largest):
    """Full batches of n at a + b n seconds give n / (a + b n) a second."""
    station = device(largest, lambda size: 0.008 + 0.001 * size, capacity=64)
    trace = simulate(System(stations=[station], num_jobs=largest * 1000))

    assert trace.throughput == pytest.approx(largest / (0.008 + 0.001 * largest), rel=0.01)
    assert trace.batch_mean["device"] == pytest.approx(largest, rel=0.01)


@pytest.mark.parametrize("largest", [1, 2, 8])
def test_wait_for_batches_that_start_with_what_is_there(exponential, largest):
    """Random arrivals, batches of up to K whatever their size: n wait with probability C r^n, (l + m) r = l + m r^(K + 1).

    N. Bailey, "On queueing processes with bulk service", 1954; K = 1 is M/M/1.
    """
    jobs, rate = 60_000, 0.6 * largest
    services = exponential(72, 1.0, jobs)
    calls = itertools.count()
    trace = fed(device(largest, lambda size: services[next(calls)]), exponential(71, 1 / rate, jobs))

    root = smallest_root(rate, largest)
    scale = 1 / (1 / rate + 1 / (1 - root))  # C, from all probabilities together with C / rate of an idle device
    waiting = scale * root / (1 - root) ** 2
    assert trace.wait["device"] == pytest.approx(waiting / rate, rel=0.02)
    assert trace.starved["device"] == pytest.approx(scale / rate, rel=0.02, abs=0.002)


def smallest_root(rate: float, largest: int) -> float:
    """Return the root within 0 and 1 of rate + r^(K + 1) = (rate + 1) r, with services of mean 1."""
    coefficients = np.zeros(largest + 2)
    coefficients[[0, -2, -1]] = 1.0, -(rate + 1), rate
    return float(
        min(root.real for root in np.roots(coefficients) if abs(root.imag) < 1e-9 and 0 < root.real < 1 - 1e-9)
    )


def test_batches_follow_a_recursion(exponential):
    """Job by job: a free device takes what is there, at most 5, and is busy for 0.3 + 0.2 n."""
    jobs = 5000
    gaps = exponential(73, 0.3, jobs)
    trace = fed(device(5, lambda size: 0.3 + 0.2 * size), gaps)

    arrivals = np.cumsum(gaps)
    done, free, first = np.zeros(jobs), 0.0, 0
    while first < jobs:
        begins = max(free, arrivals[first])
        size = min(5, int(np.searchsorted(arrivals, begins, side="right")) - first)
        free = begins + 0.3 + 0.2 * size
        done[first : first + size] = free
        first += size
    assert trace.done == pytest.approx(done, rel=1e-12)


def test_an_idle_device_waits_for_company():
    """With jobs every 10 ms and a wait of 35 ms, batches are of 4 and go 35 ms after their first."""
    trace = fed(device(16, lambda size: 0.001, max_wait=0.035), [0.01] * 4000)

    assert trace.batch_mean["device"] == pytest.approx(4, rel=0.01)
    assert trace.latencies.max() == pytest.approx(0.036, rel=1e-6)
    assert trace.latencies.mean() == pytest.approx(0.021, rel=0.01)


def test_units_of_another_shape_end_a_batch():
    """Shapes that come in runs of three make batches of three, whatever the largest is."""
    shapes = [unit // 3 % 2 for unit in range(3000)]
    trace = simulate(System(stations=[device(8, lambda size: 0.01, shapes=shapes, capacity=64)], num_jobs=3000))

    assert trace.batch_mean["device"] == pytest.approx(3, rel=0.01)
    assert trace.throughput == pytest.approx(300, rel=0.01)


@pytest.mark.parametrize(("places", "rate"), [(1, 50), (2, 100), (4, 200)])
def test_a_device_that_workers_share(places, rate):
    """Four workers that need a device for 20 ms of each unit get its places' rate."""
    programs: list[Program] = [((TAKE, 0), (WAIT, 0.02), (GIVE, 0))] * 2000
    station = Station(name="process", workers=4, capacity=16, programs=programs)
    trace = simulate(System(stations=[station], num_jobs=2000, resources=[places]))

    assert trace.throughput == pytest.approx(rate, rel=0.01)
    assert trace.resource_seconds[0] == pytest.approx(2000 * 0.02, rel=1e-9)


def test_a_lock_around_work_is_amdahls_law():
    """With 4 ms of 10 under one lock, 8 workers on 8 cores do 1 / 4 ms."""
    programs: list[Program] = [((CPU, 0.006), (TAKE, 0), (CPU, 0.004), (GIVE, 0))] * 4000
    station = Station(name="work", workers=8, capacity=16, programs=programs)
    trace = simulate(System(stations=[station], num_jobs=4000, resources=[1], cores=8))

    assert trace.throughput == pytest.approx(250, rel=0.01)


def test_a_device_within_the_receiver():
    """Receivers that run batches of 4 of what they take, 10 at a time, do 10 in 4 + 4 + 2: three calls each."""

    def program(size: int, first: int) -> Program:
        return ((WAIT, 0.01),)

    station = Station(name="deliver", workers=1, capacity=16, programs=[()] * 2000)
    receivers = Receivers(jobs_per_call=10, batch=4, batch_program=program)
    trace = simulate(System(stations=[station], num_jobs=2000, receivers=receivers))

    assert trace.throughput == pytest.approx(10 / 0.03, rel=0.01)


def sharing(workers: int, amount: int, capacity: int, jobs: int = 400) -> Trace:
    """Simulate two devices' stages of one route each, which claim one resource."""
    stations = [
        dataclasses.replace(
            device(4, lambda size: 0.004 + 0.001 * size, capacity=64, workers=workers), name=name, claims=[(0, amount)]
        )
        for name in ("faces", "plates")
    ]
    system = System(
        stations=stations,
        num_jobs=jobs,
        routes=[[0], [1]],
        route_of=[number % 2 for number in range(jobs)],
        resources=(capacity,),
        resource_names=("uses gpu:faces,plates",),
    )
    return simulate(system)


@pytest.mark.parametrize(
    ("workers", "amount", "capacity", "at_once"), [(1, 1, 1, 1), (2, 1, 1, 1), (2, 1, 3, 3), (2, 2, 3, 1), (1, 1, 4, 2)]
)
def test_stations_that_claim_one_resource(workers: int, amount: int, capacity: int, at_once: int) -> None:
    """So many calls at a time as fit into it, or as there are workers, over both; each station has its half."""
    trace = sharing(workers, amount, capacity)

    assert trace.throughput == pytest.approx(at_once * 4 / 0.008, rel=0.05)
    assert trace.resource_seconds[0] == pytest.approx(100 * 0.008 * amount, rel=0.02)
    ends = [trace.done[first::2].max() for first in (0, 1)]
    assert ends[0] == pytest.approx(ends[1], rel=0.05)


def test_batches_grow_while_another_has_the_device() -> None:
    """A batch is taken when the device is free: what came while the other had it goes with it."""
    stations = [
        dataclasses.replace(device(8, lambda size: 0.1), name=name, claims=[(0, 1)]) for name in ("first", "second")
    ]
    system = System(
        stations=stations,
        num_jobs=5,
        arrivals=[0.0, 0.01, 0.02, 0.03, 0.04],
        routes=[[0], [1]],
        route_of=[0, 1, 1, 1, 1],
        resources=(1,),
        resource_names=("uses gpu:first,second",),
    )
    trace = simulate(system)

    assert trace.batch_mean["second"] == 4
    np.testing.assert_allclose(trace.done, [0.1, 0.2, 0.2, 0.2, 0.2], atol=1e-6)


def test_ends_in_a_burst_are_counted_over_the_whole():
    """Eight decoders leave a device on two cores a ninth of them, until all is queued: the end tells no rate.

    An item takes 5 + 2 ms of CPU, so that two cores do 286 a second at most.
    """
    decode = Station(name="decode", workers=8, capacity=16, programs=[((CPU, 0.005),)] * 300)
    policy = BatchingPolicy(max_size=32, max_wait_ns=5_000_000)
    process = Station(
        name="device", workers=1, capacity=UNBOUNDED, batching=policy,
        batch_program=lambda size, first: ((CPU, 0.002 * size),),
    )  # fmt: skip
    trace = simulate(System(stations=[decode, process], num_jobs=300, cores=2.0))

    assert trace.throughput > 1.25 * 286
    assert trace.comes_in_a_burst
    assert trace.whole_rate == pytest.approx(286, rel=0.15)
    longer = simulate(System(stations=[decode], num_jobs=300, cores=2.0))
    assert not longer.comes_in_a_burst
