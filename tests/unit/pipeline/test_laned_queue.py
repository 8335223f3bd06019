"""The queue that gives each server and receiver a lane of its own; on a clock that stands still."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headrace.base.policies.shares import Call
from headrace.base.records import Job
from headrace.pipeline.item import Item
from headrace.pipeline.laned_queue import LanedQueue, addressed_by
from headrace.testing import FakeClock


class Bench:
    """A queue whose items go where the first word of their id says."""

    def __init__(self, capacity: int = 100, workers: int = 2, capacity_bytes: int = 10**6) -> None:
        self.clock = FakeClock()
        self.turned_away: list[tuple[str, float]] = []
        self.queue = LanedQueue(
            capacity,
            capacity_bytes,
            self.clock,
            workers,
            addressed_by(lambda job, _: (job.id.split()[0], "group")),
            lambda item, seconds: self.turned_away.append((item.id, seconds)),
            lambda item: item.job.may_wait,
        )

    def put(self, *ids: str, size: int = 1, keeps: bool = True) -> None:
        """Put items, one by one."""
        for id_ in ids:
            job = Job(id_, b"x" * size)
            job.may_wait = keeps
            self.queue.put([Item(job, job.payload, ())])

    def take(self, limit: int = 1, before: Call | None = None) -> tuple[list[str], Any]:
        """Take, and return ids and the call."""
        items, call = self.queue.take_for(limit, before)
        return [item.id for item in items], call

    def answer(self, *keys: str, times: int = 8) -> None:
        """Let keys become known for answering."""
        for key in keys * times:
            self.put(key)
            _, call = self.take()
            call.ended, call.is_answered = self.clock.now_ns() / 1e9, True
            self.queue.end(call)

    def hang(self, key: str, number: int) -> list[Call]:
        """Let calls of a key turn out to be slow."""
        self.put(*[key] * number)
        calls = [self.take()[1] for _ in range(number)]
        self.clock.advance(2.0)
        self.queue.look()
        return calls


def test_lanes_take_turns() -> None:
    """One that has sent a hundred comes no more often than one that has sent two; each lane keeps its order."""
    bench = Bench(workers=10)
    bench.answer("a", "b", times=1)
    bench.put("a 1", "a 2", "a 3", "a 4", "b 1", "b 2")
    taken = []
    for _ in range(6):
        ids, call = bench.take()
        taken += ids
        bench.queue.end(call)
    assert taken == ["a 1", "b 1", "a 2", "b 2", "a 3", "a 4"]


def test_a_worker_takes_for_one_at_a_time() -> None:
    """Several items at once are all for the same, so that none waits behind another's server."""
    bench = Bench(workers=1)
    bench.answer("a", "b", times=1)
    bench.put("a 1", "a 2", "b 1", "a 3")
    ids, call = bench.take(limit=10)
    assert ids == ["a 1", "a 2", "a 3"]
    assert bench.take(10, call)[0] == ["b 1"]


def test_others_are_served_while_one_hangs() -> None:
    """With all workers waiting for one, its items stay where they are, and those of others are given out."""
    bench = Bench(workers=2)
    bench.answer("good", "bad")
    bench.hang("bad", 2)
    bench.put("bad 1", "good 1", "bad 2", "good 2")
    assert [bench.take()[0] for _ in range(2)] == [["good 1"], ["good 2"]]
    assert (bench.queue.num_slow, bench.queue.num_parked()) == (2, 2)


def test_a_full_lane_turns_away() -> None:
    """One that hangs fills its part of the queue; what comes beyond is told to come later, and nobody waits to put it."""
    bench = Bench(capacity=8, workers=2)
    bench.answer("good", "bad")
    bench.hang("bad", 2)
    bench.put(*(f"bad {number}" for number in range(10)))
    parked = bench.queue.num_parked()
    assert 1 <= parked <= 4
    assert len(bench.turned_away) == 10 - parked
    bench.clock.advance(60.0)
    bench.put("good 1", "bad 99")
    assert bench.turned_away[-1] == ("bad 99", 60.0)
    assert bench.take()[0] == ["good 1"]


def test_bytes_are_bounded_too() -> None:
    """What is parked holds no more than half of the bytes."""
    bench = Bench(capacity=100, workers=2, capacity_bytes=1000)
    bench.answer("good", "bad")
    bench.hang("bad", 2)
    for number in range(10):
        bench.put(f"bad {number}", size=200)
    assert bench.queue.num_bytes <= 500
    assert bench.turned_away


def test_a_source_that_cannot_keep_a_job_is_not_given_it_back() -> None:
    """Its job waits in the queue like any other."""
    bench = Bench(capacity=8, workers=2)
    bench.answer("good", "bad")
    bench.hang("bad", 2)
    for number in range(8):
        bench.put(f"bad {number}", keeps=False)
    assert bench.turned_away == []
    assert bench.queue.state().depth == 8


def test_what_is_parked_does_not_keep_out_the_others() -> None:
    """A queue that slow items fill beyond its half takes others again as soon as those it had are gone."""
    bench = Bench(capacity=8, workers=2)
    bench.answer("good", times=1)
    bench.put("bad 1", "bad 2")
    assert [bench.take()[0] for _ in range(2)] == [["bad 1"], ["bad 2"]]
    bench.put("bad 3", "bad 4", "bad 5", "bad 6", "bad 7", "good 1", "good 2", "good 3", keeps=False)
    producer = threading.Thread(target=bench.put, args=("good 4",))
    producer.start()
    while not bench.queue.state().waiting_producers:
        time.sleep(0.001)
    bench.clock.advance(2.0)
    bench.queue.look()
    call = None
    for name in ("good 1", "good 2"):
        ids, call = bench.take(before=call)
        assert ids == [name]
    producer.join(60)
    assert not producer.is_alive()


def test_what_came_before_its_lane_was_slow_makes_room() -> None:
    """Of a queue that slow items fill the newest of them go, down to what such items may take."""
    bench = Bench(capacity=8, workers=2)
    bench.answer("good", times=1)
    bench.put("bad 1", "bad 2")
    assert [bench.take()[0] for _ in range(2)] == [["bad 1"], ["bad 2"]]
    for name in ("good 1", *(f"bad {number}" for number in range(3, 10))):
        bench.clock.advance(0.001)
        bench.put(name)
    bench.clock.advance(2.0)
    bench.queue.look()
    assert [id_ for id_, _ in bench.turned_away] == ["bad 9", "bad 8", "bad 7"]
    bench.put("good 2")
    assert bench.take(limit=2)[0] == ["good 1", "good 2"]


def test_the_newest_are_given_back_whatever_their_lane() -> None:
    """What is taken out again is what came last, of those that may go."""
    bench = Bench(workers=10)
    for name in ("a 1", "b 1", "a 2", "c 1", "b 2"):
        bench.clock.advance(0.001)
        bench.put(name)
    gone = bench.queue.remove_newest(2, lambda item: item.id != "b 2")
    assert [item.id for item in gone] == ["c 1", "a 2"]
    assert bench.queue.state().depth == bench.queue.num_bytes == 3
    taken = []
    for _ in range(3):
        ids, call = bench.take()
        taken += ids
        bench.queue.end(call)
    assert taken == ["a 1", "b 1", "b 2"]


def test_of_those_put_together_the_last_is_the_newest() -> None:
    """They have one time of arrival, and still an order."""
    bench = Bench()
    jobs = [Job(name, b"x") for name in ("a 1", "a 2", "b 3")]
    bench.queue.put([Item(job, job.payload, ()) for job in jobs])
    gone = bench.queue.remove_newest(2, lambda item: True)
    assert [item.id for item in gone] == ["b 3", "a 2"]


def test_a_closed_queue_gives_everything_out() -> None:
    """At the end nothing is kept back for anybody."""
    bench = Bench(workers=1)
    bench.answer("good", "bad")
    bench.hang("bad", 1)
    bench.put("bad 1", "bad 2")
    bench.queue.close()
    assert [bench.take()[0] for _ in range(3)] == [["bad 1"], ["bad 2"], []]


def test_an_answer_lets_a_waiting_worker_begin() -> None:
    """A worker that waits because its lane has no place goes on when one is given back."""
    bench = Bench(workers=1)
    bench.answer("good", "bad")
    (call,) = bench.hang("bad", 1)
    bench.put("bad 1")
    taken: list[str] = []
    worker = threading.Thread(target=lambda: taken.extend(bench.take()[0]))
    worker.start()
    bench.queue.end(call)
    worker.join(30)
    assert taken == ["bad 1"]


@pytest.mark.parametrize("answer", [None, ("a",), ([], "a"), SystemExit(3)])
def test_who_cannot_say_where_an_item_goes(answer: Any) -> None:
    """An item goes nowhere in particular if its stage raises, or returns something else than two texts."""

    def goes_to(job: Any, value: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    assert addressed_by(goes_to)(Item(Job("1", "x"), 0, ())) == ("", "")


def test_room_that_was_found_is_not_waited_for_and_lets_no_slow_lane_in() -> None:
    """Who may not wait goes beyond the bound where others took the room meanwhile; what goes to a slow lane has its share."""
    bench = Bench(capacity=4)
    bench.answer("good", "bad")
    bench.hang("bad", 2)
    items = [Item(Job(f"{key} {number}", b"x"), b"x", ()) for key in ("good", "bad") for number in range(6)]
    for item in items:
        item.job.may_wait = True
    bench.queue.put(items, has_room=True)
    away = [id_ for id_, _ in bench.turned_away]
    assert away
    assert all(id_.startswith("bad") for id_ in away)
    assert bench.queue.state().depth == len(items) - len(away)
