"""Bounded queues: a full one holds back those before it. Against closed forms, a Markov chain and a recursion."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.diagnose.simulator import Program, Station, System, Trace, simulate
from headrace.diagnose.simulator.system import WAIT

UNBOUNDED = 10**9


def waits(times: list[float]) -> list[Program]:
    """Return programs that take these times, on no core."""
    return [((WAIT, time),) for time in times]


def tandem(first: list[float], second: list[float], buffer: int, *, aside: bool = False) -> Trace:
    """Simulate two workers one after the other with room for so many units between them; the first always has jobs."""
    stations = [
        Station(name="first", workers=1, capacity=16, programs=waits(first), hands_on_aside=aside),
        Station(name="second", workers=1, capacity=buffer, programs=waits(second)),
    ]
    return simulate(System(stations=stations, num_jobs=len(first)))


def stationary(rates: dict[tuple[int, int], float], states: int) -> np.ndarray:
    """Return the probabilities of the states of a Markov chain, given its rates {(from, to): per second}."""
    generator = np.zeros((states, states))
    for (source, target), rate in rates.items():
        generator[source, target] += rate
        generator[source, source] -= rate
    equations = np.vstack([generator.T, np.ones(states)])
    return np.linalg.lstsq(equations, np.append(np.zeros(states), 1.0), rcond=None)[0]


@pytest.mark.parametrize("buffer", [1, 2])
def test_tandem_with_blocking_after_service(exponential, buffer):
    """Equal exponential servers with room for b between them do mu (b + 2) / (b + 3).

    The second holds 0 to b + 2 units: in service, in the buffer, and one that is done and keeps the first from going on. All
    numbers are equally likely, and it idles at 0. J. Buzacott, "Automatic transfer lines with buffer stocks", 1967;
    H. Perros, Queueing Networks with Blocking, 1994, 3.
    """
    jobs = 100_000
    trace = tandem(exponential(41, 1.0, jobs), exponential(42, 1.0, jobs), buffer)

    assert trace.throughput == pytest.approx((buffer + 2) / (buffer + 3), rel=0.02)
    assert trace.blocked["first"] == pytest.approx(1 / (buffer + 3), rel=0.02)
    assert trace.starved["second"] == pytest.approx(1 / (buffer + 3), rel=0.02)


def test_tandem_of_unequal_servers(exponential):
    """With rates mu1 and mu2 the number at the second is geometric, r = mu1 / mu2: X = mu2 (1 - p0)."""
    jobs, buffer, ratio = 100_000, 2, 0.7
    trace = tandem(exponential(43, 1 / ratio, jobs), exponential(44, 1.0, jobs), buffer)

    states = ratio ** np.arange(buffer + 3)
    assert trace.throughput == pytest.approx(1 - states[0] / states.sum(), rel=0.02)
    assert trace.full["second"] == pytest.approx(states[-2:].sum() / states.sum(), rel=0.02)


def test_a_full_queue_opens_again_when_half_empty(exponential):
    """With room for 6 a producer that was held back goes on at 3, as the runtime's queue lets it: by its Markov chain."""
    jobs, buffer = 150_000, 6
    trace = tandem(exponential(45, 1.0, jobs), exponential(46, 1.0, jobs), buffer)

    # States 0..7: units at the second while the first works; 8..10: it is held back while 6, 5, 4 are in the queue.
    rates = {(n, n + 1): 1.0 for n in range(buffer + 1)} | {(n + 1, n): 1.0 for n in range(buffer + 1)}
    held = {6: 8, 5: 9, 4: 10}
    rates |= {(buffer + 1, held[6]): 1.0, (held[6], held[5]): 1.0, (held[5], held[4]): 1.0}
    rates[held[4], 5] = 1.0  # one in service, 3 in the queue, and the one that was held back
    shares = stationary(rates, 11)
    assert trace.throughput == pytest.approx(1 - shares[0], rel=0.02)
    assert trace.blocked["first"] == pytest.approx(shares[8:].sum(), rel=0.02)


def test_a_thread_that_hands_on_is_two_more_places(exponential):
    """Where results are handed on aside, one waits to enter the queue and one beside it: X = mu (b + 4) / (b + 5)."""
    jobs, buffer = 100_000, 1
    trace = tandem(exponential(47, 1.0, jobs), exponential(48, 1.0, jobs), buffer, aside=True)

    assert trace.throughput == pytest.approx((buffer + 4) / (buffer + 5), rel=0.02)
    assert trace.blocked["first"] == pytest.approx(1 / (buffer + 5), rel=0.02)


@pytest.mark.parametrize("buffers", [(1, 1), (2, 5), (7, 3)])
def test_a_line_follows_its_recursion(exponential, buffers):
    """Job by job, three stations hand on when the recursion for blocking after service says so.

    Unit n leaves when it is done, if unit n - b has begun at the next station; else when the queue is half empty.
    """
    jobs = 5000
    services = [exponential(50 + number, mean, jobs) for number, mean in enumerate((0.9, 1.0, 0.8))]
    capacities = (16, *buffers)
    stations = [
        Station(name=str(number), workers=1, capacity=capacity, programs=waits(times))
        for number, (capacity, times) in enumerate(zip(capacities, services, strict=True))
    ]
    trace = simulate(System(stations=stations, num_jobs=jobs))

    begun = np.zeros((3, jobs))
    left = np.zeros((3, jobs))
    for unit in range(jobs):
        came = 0.0
        for number in range(3):
            begun[number, unit] = max(came, left[number, unit - 1] if unit else 0.0)
            left[number, unit] = begun[number, unit] + services[number][unit]
            if number < 2:
                left[number, unit] = entry(left[number, unit], begun[number + 1], unit, buffers[number])
            came = left[number, unit]
    assert trace.done == pytest.approx(left[2], rel=1e-12)


def entry(done: float, begun: np.ndarray, unit: int, buffer: int) -> float:
    """Return when a unit that is done enters a queue, given when those before it were taken out."""
    if unit < buffer or begun[unit - buffer] <= done:
        return done
    return float(begun[unit - 1 - buffer // 2])


def test_several_producers_share_the_room(exponential):
    """Four workers before one that is twice as slow as all of them together: X is its rate, and they are blocked for half."""
    jobs = 20_000
    stations = [
        Station(name="many", workers=4, capacity=16, programs=waits(exponential(60, 1.0, jobs))),
        Station(name="one", workers=1, capacity=8, programs=waits([0.5] * jobs)),
    ]
    trace = simulate(System(stations=stations, num_jobs=jobs))

    assert trace.throughput == pytest.approx(2.0, rel=0.02)
    assert trace.blocked["many"] == pytest.approx(0.5, rel=0.02)
    assert trace.workers_busy["many"] == pytest.approx(0.5, rel=0.02)
    assert trace.workers_busy["one"] == pytest.approx(1.0, rel=0.001)


@pytest.mark.parametrize("jobs_inside", [1, 3, 8])
def test_jobs_in_flight_limit_a_closed_line(exponential, jobs_inside):
    """N jobs among two equal exponential servers: X = mu N / (N + 1), and Little's law R = N / X.

    M. Reiser, S. Lavenberg, "Mean-value analysis of closed multichain queueing networks", 1980.
    """
    jobs = 80_000
    stations = [
        Station(name=name, workers=1, capacity=UNBOUNDED, programs=waits(exponential(seed, 1.0, jobs)))
        for name, seed in (("first", 61), ("second", 62))
    ]
    trace = simulate(System(stations=stations, num_jobs=jobs, max_in_flight=jobs_inside))

    assert trace.throughput == pytest.approx(jobs_inside / (jobs_inside + 1), rel=0.02)
    assert trace.latencies.mean() == pytest.approx(jobs_inside + 1, rel=0.02)
