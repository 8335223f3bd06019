"""Levers: what an experiment changes of a running pipeline, and that all is undone."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import headrace as hr
from headrace.base.plan import Plan
from headrace.pipeline.execute import run
from headrace.pipeline.levers import Lever, Levers
from headrace.pipeline.watching import RunInProgress
from headrace.testing import ListSource


def watch_that(change: Callable[[RunInProgress], object]) -> Any:
    """Return a watch that changes something before the run begins."""

    @contextlib.contextmanager
    def watch(progress: RunInProgress) -> Iterator[None]:
        change(progress)
        yield

    return watch


def pipeline_of(count: int, work: Callable[[Any], Any]) -> hr.Pipeline:
    """Return one stage over so many items."""
    return hr.Pipeline(
        ListSource([str(number).encode() for number in range(count)]), stages=[hr.stage("work", work, kind="io")]
    )


def test_parked_workers_take_nothing_and_leave_at_the_end() -> None:
    """With one of four workers let work, its thread alone runs the stage; the run ends although three are parked."""
    names = set()

    def work(value: Any) -> Any:
        names.add(threading.current_thread().name)
        return value

    plan = Plan().with_settings(["work.workers=4", "work.executor=thread"])
    result = run(
        pipeline_of(40, work), plan, watch=watch_that(lambda progress: progress.levers.of_stations[0].let_work(1))
    )
    assert result.counters.delivered == 40
    assert names == {"work-0"}


def test_spare_workers_work_while_they_are_let_and_then_leave() -> None:
    """A spare worker takes items once the lever lets it, and its thread is gone after the run."""
    names, both = set(), threading.Barrier(2)

    def work(value: Any) -> Any:
        names.add(threading.current_thread().name)
        if value in (b"0", b"1"):
            both.wait(60)  # the first two are under way together: the spare one has one of them
        return value

    begun = threading.Event()

    def add(progress: RunInProgress) -> None:
        def spare() -> None:
            assert progress.begun.wait(60)
            station = next(one for one in progress.adjustable() if one.lever.name == "work")
            assert station.add_spares is not None
            station.add_spares(1)
            station.lever.let_work(2)
            begun.set()

        threading.Thread(target=spare, daemon=True).start()

    plan = Plan().with_settings(["work.workers=1", "work.executor=thread"])
    result = run(pipeline_of(30, work), plan, watch=watch_that(add))
    assert result.counters.delivered == 30
    assert names == {"work-0", "work-1"}
    assert "work-1" not in {thread.name for thread in threading.enumerate()}


def test_batches_are_no_larger_than_the_lever_says() -> None:
    """A device whose Plan has batches of 8 gets 2 at most."""
    sizes = []

    def process(batch: list[Any]) -> list[Any]:
        sizes.append(len(batch))
        return batch

    source = ListSource([str(number).encode() for number in range(20)])
    pipeline = hr.Pipeline(source, stages=[hr.stage("process", process, kind="device")])
    plan = Plan().with_settings(["process.batch=8", "run.warm_up=false"])

    def change(progress: RunInProgress) -> None:
        progress.levers.of_stations[0].most_items = 2

    run(pipeline, plan, watch=watch_that(change))
    assert sum(sizes) == 20
    assert max(sizes) <= 2


def test_stopping_a_run_ends_its_levers() -> None:
    """Once a run is stopped nothing is parked and nothing can be parked; that somebody stopped it is known."""
    stop, kept = threading.Event(), []

    def work(value: Any) -> Any:
        stop.set()
        return value

    def change(progress: RunInProgress) -> None:
        kept.append(progress.levers)
        progress.levers.of_stations[0].let_work(1)

    plan = Plan().with_settings(["work.workers=2", "work.executor=thread"])
    run(pipeline_of(1000, work), plan, stop=stop, watch=watch_that(change))
    levers = kept[0]
    levers.of_stations[0].let_work(1)
    assert levers.is_over
    assert levers.of_stations[0].most_workers is None


def test_a_run_whose_source_ends_was_not_stopped() -> None:
    """The levers of a run that comes to its end are over, and nobody stopped it."""
    kept: list[Levers] = []
    run(pipeline_of(3, lambda value: value), watch=watch_that(lambda progress: kept.append(progress.levers)))
    assert kept[0].is_over
    assert not kept[0].is_stopped


def test_what_is_owed_is_slept() -> None:
    """Many small debts come to one sleep of at least their sum, less what cannot be slept exactly."""
    lever = Lever("work")
    lever.delay_seconds = 0.0005
    began = time.monotonic()
    for _ in range(40):
        lever.pause(1)
    assert time.monotonic() - began >= 0.017


def test_after_the_end_spare_workers_leave_and_others_go_on() -> None:
    """At the end a worker of the Plan goes on to see that its queue is closed; a spare one leaves."""
    lever = Lever("work")
    lever.expect_spares(2, 1)
    lever.let_work(1)
    lever.end()
    assert lever.wait_turn(1)
    assert not lever.wait_turn(2)
