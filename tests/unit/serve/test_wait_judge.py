"""What the door refuses because it could not be answered in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.base.records import DELIVERED, Outcome, OutcomeKind
from headrace.delivery.collect import Collect
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.warm_up import CostCurve
from headrace.serve.door import Ended, Refused, Work
from headrace.serve.front_door import FrontDoor
from headrace.serve.source import RequestJob, RequestSource
from headrace.serve.wait_judge import WaitJudge
from headrace.testing import FakeClock, ListSource


@dataclass
class Run:
    """What the judge sees of a run with a device that takes batches of 10 in 100 ms."""

    waiting: int = 0
    warm_ups: list[CostCurve] = field(default_factory=list)
    plan: Plan = field(
        default_factory=lambda: Plan.from_table(
            {"stages": {"process": {"batch": 10, "workers": 1}}, "serve": {"deadline_seconds": 0.5}}
        )
    )

    @property
    def pipeline(self) -> Pipeline:
        """One without tasks."""
        stages = [hr.stage("process", list, kind="device")]
        return Pipeline(ListSource([]), stages=stages, delivery=Collect())

    def num_waiting(self, task: str) -> int:
        """Items in queues."""
        return self.waiting

    def warm(self) -> None:
        """Measure the device."""
        self.warm_ups.append(CostCurve("process", {1: [0.02, 0.02], 10: [0.1, 0.1]}))


@dataclass
class Bench:
    """A door with its judge, and what was heard."""

    clock: FakeClock = field(default_factory=FakeClock)
    run: Run = field(default_factory=Run)
    ended: list[Ended] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the door."""
        self.source = RequestSource(self.clock)
        judge = WaitJudge(self.source, self.clock)
        self.door = FrontDoor(self.source, judge=judge, clock=self.clock)
        self.door.follow(self.run.plan.serve)
        judge.watch(self.run)
        self.source.receive(1, 0.0)

    def ask(self, **fields: Any) -> Any:
        """Bring work to the door."""
        return self.door.submit(Work(payload=b"x", on_end=self.ended.append, **fields))

    def fill(self, num: int, **fields: Any) -> None:
        """Let in what is not refused, as before the device was measured."""
        for _ in range(num):
            assert not isinstance(self.ask(**fields), Refused)

    def jobs(self) -> list[RequestJob]:
        """Jobs that the run has received by now."""
        return self.source.receive(1_000, 0.0)


def test_what_cannot_be_in_time_is_refused() -> None:
    """With 60 inside an answer takes 600 ms, and requests have 500: they may come again in 100 ms."""
    bench = Bench()
    bench.fill(60)
    bench.run.warm()
    refused = bench.ask()
    assert isinstance(refused, Refused)
    assert (refused.status, refused.code) == (429, "serve.busy")
    assert refused.retry_after_seconds == pytest.approx(0.1)
    assert refused.reason.startswith("an answer takes up to 0.6 s now, and its deadline is in 0.5 s")
    assert not isinstance(bench.ask(deadline_ns=bench.clock.now_ns() + 10**9), Refused)


def test_once_work_is_refused_heads_are_looked_at() -> None:
    """A head is refused as its work would be, and counted like it; after a tenth of a second without refusals nobody looks."""
    bench = Bench()
    bench.fill(60)
    bench.run.warm()
    assert not bench.door.is_refusing
    refused = bench.ask()
    assert bench.door.is_refusing
    foreseen = bench.door.foresee(Work(payload=b"", on_end=bench.ended.append))
    assert (foreseen.status, foreseen.code) == (refused.status, refused.code) == (429, "serve.busy")
    assert bench.door.refused == {"serve.busy": 2}
    bench.clock.advance(0.2)
    assert not bench.door.is_refusing


def test_a_head_that_may_be_let_in_costs_nobody_a_place() -> None:
    """With nothing inside all is left to the second look, which lets in whoever brings work."""
    bench = Bench()
    bench.run.warm()
    assert bench.door.foresee(Work(payload=b"", on_end=bench.ended.append)) is None
    assert bench.source.num_open == 0
    assert not bench.door.refused


def test_what_waited_to_be_read_for_too_long_is_refused() -> None:
    """Its second of waiting is ours: 429, and not 504, as with more patience than ours it would have been answered."""
    bench = Bench()
    bench.run.warm()
    bench.clock.advance(1.0)
    refused = bench.ask(received_ns=bench.clock.now_ns() - 10**9)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.code) == (429, "serve.busy")
    assert refused.reason.startswith("it waited for longer than its deadline allows before it was read")


def test_what_was_just_refused_answers_for_what_has_no_more_time() -> None:
    """Within a millisecond; who has more time, or goes first, is judged for itself."""
    bench = Bench()
    bench.fill(60)
    bench.run.warm()
    bench.ask()
    now = bench.clock.now_ns()

    def foresee(milliseconds: int, priority: int = 1) -> Refused | None:
        return bench.door.foresee(
            Work(payload=b"", on_end=bench.ended.append, deadline_ns=now + milliseconds * 10**6, priority=priority)
        )

    first = foresee(300)
    assert first is not None
    assert foresee(200) is first
    assert foresee(100, priority=0) is None
    assert foresee(400) is not first
    assert foresee(5_000) is None


def test_a_service_that_stops_reads_no_bodies() -> None:
    """Whatever the judge thinks."""
    bench = Bench()
    bench.source.stop()
    assert bench.door.is_refusing
    refused = bench.door.foresee(Work(payload=b"", on_end=bench.ended.append))
    assert refused is not None
    assert (refused.status, refused.code) == (503, "serve.stopping")


def test_a_plan_may_let_everything_in() -> None:
    """Then what is late is late."""
    bench = Bench(run=Run(plan=Plan.from_table({"serve": {"admission": "all", "deadline_seconds": 0.5}})))
    bench.fill(60)
    bench.run.warm()
    assert not isinstance(bench.ask(), Refused)


def test_who_goes_first_waits_only_for_those_who_do() -> None:
    """With 60 of priority 1 inside one of priority 0 is let in; with 60 of its own it is not."""
    bench = Bench()
    bench.fill(60)
    bench.run.warm()
    assert not isinstance(bench.ask(priority=0), Refused)
    others = Bench()
    others.fill(60, priority=0)
    others.run.warm()
    assert isinstance(others.ask(priority=0), Refused)


def test_answers_that_take_longer_than_expected_close_the_door() -> None:
    """Those that were let in behind 30 others took a second: now nobody is let in behind 30."""
    bench = Bench()
    bench.run.warm()
    bench.run.waiting = 20
    bench.fill(30)
    jobs = bench.jobs()
    bench.clock.advance(1.0)
    for job in jobs:
        job.settle(DELIVERED)
    assert len(bench.ended) == 30
    bench.run.waiting = 0
    while not isinstance(bench.ask(), Refused):
        pass
    assert bench.source.num_open < 30


@pytest.mark.parametrize("reason", ["decode: item 1: decode.corrupt: no image", "process: failed"])
def test_what_failed_says_nothing_of_how_long_answers_take(reason: str) -> None:
    """However long it took."""
    bench = Bench()
    bench.run.warm()
    bench.run.waiting = 20
    bench.fill(30)
    jobs = bench.jobs()
    bench.clock.advance(1.0)
    for job in jobs:
        job.settle(Outcome(OutcomeKind.REJECTED, reason))
    assert not any(isinstance(bench.ask(), Refused) for _ in range(30))


def test_who_went_away_is_not_waited_for() -> None:
    """Sixty clients that leave make room for others."""
    bench = Bench()
    tickets = [bench.ask() for _ in range(60)]
    bench.run.warm()
    assert isinstance(bench.ask(), Refused)
    for ticket in tickets:
        ticket.cancel()
    assert bench.source.num_open == 0
    assert not isinstance(bench.ask(), Refused)


def test_the_time_of_warming_up_is_no_answers() -> None:
    """Requests that came while models were loaded took ten seconds; that says nothing."""
    bench = Bench()
    bench.fill(30)
    jobs = bench.jobs()
    bench.clock.advance(10.0)
    bench.run.warm()
    bench.fill(1)
    for job in jobs:
        job.settle(DELIVERED)
    assert not any(isinstance(bench.ask(), Refused) for _ in range(20))
