"""Machines behind what they share: their sum, the limits, starts, interruptions, and what nobody put in."""

import pytest

from headrace.diagnose.simulator.fleet import Fleet, FleetTrace, Shared, simulate_fleet


def run(machines: int, *, receiver: float | None = None, **settings: float) -> FleetTrace:
    """Simulate machines of 100 jobs a second for ten minutes."""
    shared = () if receiver is None else (Shared(name="receiver", jobs_per_second=receiver),)
    return simulate_fleet(Fleet(machines=machines, jobs_per_second=100.0, seconds=600.0, shared=shared, **settings))  # type: ignore[arg-type]


def test_without_limits_machines_add_up() -> None:
    """One does 60,000 jobs in ten minutes, and seven do seven times as many: but for what is on its way at the end."""
    assert run(1).done == pytest.approx(60_000, rel=0.002)
    assert run(7).done == pytest.approx(7 * 60_000, rel=0.002)


@pytest.mark.parametrize(("machines", "rate"), [(1, 100), (2, 200), (3, 250), (4, 250), (40, 250)])
def test_a_receiver_ends_it(machines: int, rate: float) -> None:
    """250 calls a second do for two and a half machines; those beyond stand still for as much of their time."""
    trace = run(machines, receiver=250.0)
    assert trace.done / 600 == pytest.approx(rate, rel=0.01)
    assert trace.busy["receiver"] == pytest.approx(rate / 250, rel=0.01)
    assert trace.held_seconds / (machines * 600) == pytest.approx(1 - rate / (100 * machines), abs=0.01)


def test_a_spread_keeps_the_mean() -> None:
    """Where the rate of a second varies by more than its mean, no time below 0 makes machines faster."""
    assert run(2, spread=1.5).done == pytest.approx(2 * 60_000, rel=0.06)


def test_starting_is_no_work() -> None:
    """A machine that takes 150 of 600 seconds to come does three quarters."""
    trace = run(2, start_seconds=150.0)
    assert trace.done == pytest.approx(2 * 45_000, rel=0.01)
    assert trace.starting_seconds == pytest.approx(300.0)


def test_models_come_one_after_the_other_through_a_store() -> None:
    """Ten machines whose model takes a store 20 seconds wait 20 to 200 seconds: 1,100 together."""
    store = Shared(name="store", jobs_per_second=1e9, seconds_per_start=20.0)
    trace = simulate_fleet(Fleet(machines=10, jobs_per_second=100.0, seconds=600.0, shared=(store,)))
    assert trace.starting_seconds == pytest.approx(1100.0)


def test_interruptions_cost_the_start_and_the_jobs_inside() -> None:
    """What each interruption takes is counted: a start of 30 seconds, and 50 jobs that are done again."""
    trace = run(20, interruptions_per_second=1 / 300, start_seconds=30.0, lost_jobs=50.0)
    assert 20 < trace.interruptions < 70
    assert 0 < trace.again <= 50 * trace.interruptions
    worked = 20 * 600 - trace.starting_seconds
    assert trace.done == pytest.approx(100 * worked - trace.again, rel=0.02)


def test_no_machine_is_at_two_places() -> None:
    """Starting and standing still are parts of the machines' time, and what is left is work, also with everything together."""
    trace = run(9, receiver=300.0, interruptions_per_second=1 / 100, start_seconds=20.0, lost_jobs=30.0, spread=0.5)
    rest = 9 * 600 - trace.starting_seconds - trace.held_seconds
    assert rest > 0
    assert trace.done + trace.again == pytest.approx(100 * rest, rel=0.05)


def test_interrupted_before_it_worked() -> None:
    """Machines that are taken away before they are up do nothing, and lose nothing."""
    trace = run(3, interruptions_per_second=1.0, start_seconds=500.0)
    assert trace.done == trace.again == 0
    assert trace.starting_seconds == pytest.approx(3 * 600)


def test_it_is_the_same_each_time() -> None:
    """The same description gives the same answer, and another seed another one."""
    settings = {"interruptions_per_second": 1 / 100, "spread": 0.3}
    assert run(3, **settings) == run(3, **settings)
    assert run(3, **settings).done != run(3, seed=1, **settings).done


def test_a_hundred_machines_for_an_hour_are_few_events() -> None:
    """Jobs are passed in portions: 36 million take some hundred thousand events."""
    trace = simulate_fleet(Fleet(machines=100, jobs_per_second=100.0))
    assert trace.done == pytest.approx(36e6, rel=0.002)
    assert trace.num_events < 1_000_000
