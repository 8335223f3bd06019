"""Threads that take turns on the cores, and who gets the GIL then."""

from __future__ import annotations

import pytest

from headrace.diagnose.simulator import Program, Station, System, Trace, simulate
from headrace.diagnose.simulator.system import CPU, GIL, WAIT, Receivers

UNBOUNDED = 10**9
SLICE = 0.001


def run(*stations: Station, jobs: int, cores: float, slice_seconds: float = SLICE) -> Trace:
    """Simulate a pipeline in which all jobs are there from the start."""
    return simulate(
        System(
            stations=stations,
            num_jobs=jobs,
            cores=cores,
            receivers=Receivers(jobs_per_call=jobs),
            slice_seconds=slice_seconds,
        )
    )


def station(workers: int, programs: list[Program], name: str = "work") -> Station:
    """Return a station with room for everything."""
    return Station(name=name, workers=workers, capacity=UNBOUNDED, programs=programs)


def test_two_threads_on_one_core_take_turns() -> None:
    """3.5 ms each in slices of 1 ms: the first ends half a millisecond before the other, which is alone then."""
    trace = run(station(2, [((CPU, 0.0035),)] * 2), jobs=2, cores=1)
    assert sorted(trace.done) == pytest.approx([0.0065, 0.007])
    assert trace.delay_seconds == pytest.approx(0.0065)


def test_who_wakes_up_waits_for_a_core_until_a_slice_ends() -> None:
    """A thread that computes for 20 ms keeps its only core for a slice when another one wakes up, and then lets it in."""
    programs: list[Program] = [((CPU, 0.020),), ((WAIT, 0.0105), (CPU, 0.0001))]
    trace = run(station(2, programs), jobs=2, cores=1)
    assert trace.done[1] == pytest.approx(0.0106, abs=SLICE)
    assert trace.done[0] == pytest.approx(0.0201)


def test_a_free_core_is_taken_at_once() -> None:
    """As many threads as cores never wait for one another."""
    trace = run(station(4, [((CPU, 0.01),)] * 8), jobs=8, cores=4)
    assert sorted(trace.done) == pytest.approx([0.01] * 4 + [0.02] * 4)
    assert trace.delay_seconds == pytest.approx(0.0, abs=1e-9)


def test_threads_without_the_gil_take_it_before_who_was_woken_for_it() -> None:
    """Two threads keep it for 1.6 ms and sleep 0.5 ms, four come back for it after each 0.16 ms of C code, on two cores.

    Threads like these did 335 units of 16 calls a second on an AMD EPYC (two cores). Handed on in turn they do half of that.
    """
    calls: Program = ((GIL, 40e-6), *(((CPU, 157e-6), (GIL, 5e-6)) * 16))
    holds: Program = ((GIL, 1.6e-3), (WAIT, 0.5e-3))
    count = 300

    def rate(slice_seconds: float) -> float:
        jobs = 4 * count
        trace = simulate(
            System(
                stations=[station(4, [calls] * jobs, "calls"), station(2, [holds] * jobs, "holds")],
                num_jobs=jobs,
                routes=[[0], [1]],
                route_of=[0 if job < count else 1 for job in range(jobs)],
                cores=2.0,
                receivers=Receivers(jobs_per_call=jobs),
                slice_seconds=slice_seconds,
            )
        )
        return count / float(trace.done[:count].max())

    assert rate(0.0) < 0.6 * 335
    assert rate(0.0014) == pytest.approx(335, rel=0.25)


def test_who_keeps_the_gil_is_made_to_give_it_up_after_a_switch_interval() -> None:
    """One thread computes with it for 40 ms, another asks for it for a moment: it has to wait for 5 ms, and no longer."""
    programs: list[Program] = [((GIL, 0.040),), ((WAIT, 0.001), (GIL, 0.0001))]
    trace = run(station(2, programs), jobs=2, cores=2)
    assert trace.done[1] == pytest.approx(0.0061, abs=1e-4)
    assert trace.done[0] == pytest.approx(0.0401, abs=2e-4)
