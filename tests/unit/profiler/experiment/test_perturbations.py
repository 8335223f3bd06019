"""Which perturbations are planned, in which order they come, and that each is undone."""

from __future__ import annotations

import pytest

from headrace.pipeline.levers import Adjustable, Levers
from headrace.profiler.experiment.burners import Burners, hold_core, hold_gil
from headrace.profiler.experiment.native_threads import Library, one_thread
from headrace.profiler.experiment.perturbations import Planned, is_its_turn, plan_perturbations


def station(levers: Levers, name: str, workers: int = 4, batch: int = 1, may_delay: bool = True) -> Adjustable:
    """Return a station with these workers."""
    return Adjustable(
        lever=levers.add(name, lambda: None), stages=(name,), num_workers=workers, max_batch=batch, has_workers=True,
        may_delay=may_delay, is_last=False, add_spares=lambda count: None,
    )  # fmt: skip


def plan(levers: Levers, stations: list[Adjustable], utilization: dict[str, float]) -> dict[str, Planned]:
    """Return what is planned, by name."""
    found = plan_perturbations(
        stations, levers, utilization, 100.0, num_receivers=1, num_cores=2, native_seconds=0.0
    )  # fmt: skip
    return {one.name: one for one in found}


def test_only_busy_stations_are_delayed() -> None:
    """A station that is idle half of the time has room for what a delay adds."""
    levers = Levers()
    stations = [station(levers, "fetch"), station(levers, "idle")]
    names = plan(levers, stations, {"fetch": 0.97, "idle": 0.2})
    assert "delay:fetch" in names
    assert "delay:idle" not in names
    assert {"gil", "cores"} <= names.keys()


def test_the_source_is_asked_where_nobody_is_always_busy() -> None:
    """Behind a station whose workers never rest, jobs wait: the source is not the limit."""
    levers = Levers()
    stations = [station(levers, "fetch")]
    assert "receiving" not in plan(levers, stations, {"fetch": 0.97})
    assert "receiving" in plan(levers, stations, {"fetch": 0.6})


def test_a_delay_adds_half_of_what_a_worker_has_for_an_item() -> None:
    """With 4 workers at 100/s an item has 40 ms of one, and the delay is 20 ms; afterwards it is 0."""
    levers = Levers()
    stations = [station(levers, "fetch")]
    planned = plan(levers, stations, {"fetch": 1.0})["delay:fetch"]
    with planned.enter():
        assert stations[0].lever.delay_seconds == pytest.approx(0.020)
    assert stations[0].lever.delay_seconds == 0.0


def test_fewer_workers_are_an_amount_of_more_per_item() -> None:
    """3 of 4 workers leave each item a third more to ask of them."""
    levers = Levers()
    stations = [station(levers, "fetch")]
    planned = plan(levers, stations, {"fetch": 1.0})["fewer:fetch"]
    with planned.enter():
        assert stations[0].lever.most_workers == 3
    assert planned.amount == pytest.approx(1 / 3)
    assert stations[0].lever.most_workers is None


@pytest.mark.parametrize("name", ["delay:device", "fewer:device", "more:device", "batch:device", "receiving"])
def test_an_error_in_the_midst_undoes_the_change(name: str) -> None:
    """Whatever ends a stretch, the levers are as before."""
    levers = Levers()
    stations = [station(levers, "device", batch=8)]
    planned = plan(levers, stations, {"device": 0.8})[name]
    with pytest.raises(RuntimeError), planned.enter():
        raise RuntimeError
    lever = stations[0].lever
    assert (lever.delay_seconds, lever.most_items, lever.most_workers) == (0.0, None, None)
    assert levers.receiving.delay_seconds == 0.0


def test_what_is_asked_next_depends_on_the_answers() -> None:
    """More workers are tried at the limit alone; the GIL once no stage is it; the receivers once nothing inside is."""
    levers = Levers()
    planned = plan(levers, [station(levers, "fetch")], {"fetch": 0.8})
    assert is_its_turn(planned["more:fetch"], {"delay:fetch": True})
    assert not is_its_turn(planned["gil"], {"delay:fetch": True})
    assert is_its_turn(planned["gil"], {"delay:fetch": None}) is None
    assert is_its_turn(planned["gil"], {"delay:fetch": False})
    assert is_its_turn(planned["receiving"], {"delay:fetch": False, "gil": None, "cores": False}) is None
    assert not is_its_turn(planned["receiving"], {"delay:fetch": False, "gil": True, "cores": False})
    assert is_its_turn(planned["receiving"], {"delay:fetch": False, "gil": False, "cores": False})


def test_an_idle_pipeline_is_asked_at_its_source_first() -> None:
    """Where all workers rest half of the time the receivers come first; once they are the limit nothing else is asked."""
    levers = Levers()
    planned = plan(levers, [station(levers, "fetch")], {"fetch": 0.1})
    assert planned["receiving"].turn == "first"
    for answer, is_next in ((None, None), (True, False), (False, True)):
        assert [is_its_turn(planned[name], {"receiving": answer}) for name in ("gil", "cores")] == [is_next] * 2
    assert plan(levers, [station(levers, "busy")], {"busy": 0.6})["receiving"].turn == "last"


def test_stations_that_cannot_be_delayed_are_asked_by_fewer_workers() -> None:
    """Where one thread carries the calls, fewer places come first."""
    levers = Levers()
    planned = plan(levers, [station(levers, "fetch", may_delay=False)], {"fetch": 1.0})
    assert "delay:fetch" not in planned
    assert planned["fewer:fetch"].turn == "first"
    assert is_its_turn(planned["gil"], {"fewer:fetch": None}) is None


def test_blas_gets_its_threads_back_after_an_error() -> None:
    """Each library has the number of before, whatever happens meanwhile."""
    threads = {"a": 16, "b": 4}

    def library(name: str) -> Library:
        return Library(name, lambda: threads[name], lambda count: threads.update({name: count}))

    seen = {}

    def fail() -> None:
        seen.update(threads)
        raise RuntimeError

    with pytest.raises(RuntimeError), one_thread([library("a"), library("b")]):
        fail()
    assert seen == {"a": 1, "b": 1}
    assert threads == {"a": 16, "b": 4}


@pytest.mark.parametrize("work", [hold_gil, hold_core])
def test_burners_are_gone_when_their_context_is_left(work: object) -> None:
    """No thread burns on."""
    burners = Burners(hold_gil if work is hold_gil else hold_core, 2, 0.3)
    with burners:
        pass
    assert not any(thread.is_alive() for thread in burners._threads)
