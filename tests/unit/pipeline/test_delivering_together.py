"""Results that come together are delivered together; each has its own outcome and its share of the time."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.base.clock import SystemClock
from headrace.base.errors import DeliveryFailed, DeliveryRejected
from headrace.base.metering import Metering
from headrace.base.plan import Plan, resolve
from headrace.base.protocols import Delivery
from headrace.base.records import Job
from headrace.pipeline.definition import DeliverStage
from headrace.pipeline.item import Item
from headrace.pipeline.opening import GroupSpec, open_group


class Together:
    """Notes what it was asked to deliver at once."""

    flush_items = 1
    flush_seconds = 0.0
    default_workers = 1

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.down = 0
        """Calls that are still to fail as a whole."""

    def open(self, context: Any) -> None:
        """Nothing to make ready."""

    def deliver(self, job: Job, result: Any) -> bool:
        """Deliver one."""
        (outcome,) = self.deliver_many([(job, result)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def deliver_many(self, results: Sequence[tuple[Job, Any]]) -> list[bool | Exception]:
        """Deliver all but those that are bad."""
        self.calls.append([job.id for job, _ in results])
        if self.down:
            self.down -= 1
            raise DeliveryFailed("the disk is full")
        return [DeliveryRejected("bad") if result == "bad" else True for _, result in results]

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing to release."""


class OneByOne(Together):
    """Has another `deliver`, which what it inherited knows nothing of."""

    def deliver(self, job: Job, result: Any) -> bool:
        """Deliver one, in its own way."""
        return True


class Passing:
    """An instrument that does nothing."""

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that does the same."""
        return lambda *arguments: call(*arguments)


def deliver(delivery: Delivery, *items: Item, instruments: tuple[Any, ...] = ()) -> tuple[Item, ...]:
    """Run items through the worker of a delivery."""
    stage = DeliverStage(delivery)
    plan = resolve(Plan(), [stage.defaults()], 2)
    spec = GroupSpec((stage,), plan, 0, 1, 1, instruments)
    open_group(spec, SystemClock(), Metering(on=True)).group.run(items, None)
    return items


def item(name: str, value: Any = 1, deadline_ns: int | None = None) -> Item:
    """Return an item that waits to be delivered."""
    return Item(Job(name, b"", deadline_ns=deadline_ns), value, ())


def test_what_comes_together_is_delivered_together() -> None:
    """With one call, in order."""
    delivery = Together()
    items = deliver(delivery, item("a"), item("b"), item("c"))
    assert delivery.calls == [["a", "b", "c"]]
    assert [(one.value, one.error) for one in items] == [(True, None)] * 3


def test_each_has_its_share_of_the_time() -> None:
    """What they took together counts once: one begins where the one before it ends."""
    items = deliver(Together(), item("a"), item("b"), item("c"))
    timings = [timing for one in items for timing in one.timings]
    assert len(timings) == 3
    assert [timing.started for timing in timings[1:]] == [timing.ended for timing in timings[:-1]]
    assert max(timing.ended - timing.started for timing in timings) - min(t.ended - t.started for t in timings) <= 1
    assert all(timing.cpu is not None and timing.outcome == "ok" for timing in timings)


def test_a_bad_one_fails_alone() -> None:
    """The others are delivered."""
    first, bad, last = deliver(Together(), item("a"), item("b", "bad"), item("c"))
    assert (first.error, last.error) == (None, None)
    assert isinstance(bad.error, DeliveryRejected)
    assert [one.timings[0].outcome for one in (first, bad, last)] == ["ok", "rejected", "ok"]


def test_if_that_fails_each_is_tried_by_itself() -> None:
    """So that each has its own outcome; what was tried counts as a passage."""
    delivery = Together()
    delivery.down = 2
    first, second = deliver(delivery, item("a"), item("b"))
    assert delivery.calls == [["a", "b"], ["a"], ["b"]]
    assert isinstance(first.error, DeliveryFailed)
    assert (second.value, second.error) == (True, None)
    assert [[timing.outcome for timing in one.timings] for one in (first, second)] == [["failed"] * 2, ["failed", "ok"]]


@pytest.mark.parametrize(
    ("kind", "far", "instruments"), [(OneByOne, None, ()), (Together, 1 << 62, ()), (Together, None, (Passing(),))]
)
def test_one_by_one(kind: type[Together], far: int | None, instruments: tuple[Any, ...]) -> None:
    """Where `deliver` was replaced, a job has a deadline, or an instrument wants to see each call."""
    delivery = kind()
    items = deliver(delivery, item("a"), item("b", deadline_ns=far), instruments=instruments)
    assert all(len(call) == 1 for call in delivery.calls)
    assert [(one.value, one.error) for one in items] == [(True, None)] * 2


def test_a_run_locks_its_file_less_than_once_per_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick items are written as they come: together."""
    locks: list[int] = []
    flock = fcntl.flock

    def counted(file: Any, how: int) -> None:
        if how == fcntl.LOCK_EX:
            locks.append(how)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", counted)
    path = tmp_path / "out.jsonl"
    same = hr.stage("same", lambda value: value)
    hr.run(hr.Pipeline(hr.items(range(2000)), stages=[same], delivery=hr.jsonl(path)))
    found = [msgspec.json.decode(line)["result"] for line in path.read_bytes().splitlines()]
    assert sorted(found) == list(range(2000))
    assert len(locks) < 1000
