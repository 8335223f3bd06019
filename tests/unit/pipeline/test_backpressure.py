"""Bounds hold, nothing waits for itself, failures come back within their budget, and order is kept when asked for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.base.clock import SystemClock
from headrace.base.errors import DeliveryFailed, SettingsError
from headrace.base.plan import Plan, resolve
from headrace.base.policies.retry import RetryPolicy
from headrace.base.records import Job, OutcomeKind
from headrace.delivery.collect import Collect
from headrace.pipeline.bounded_queue import BoundedQueue
from headrace.pipeline.building import Equipment
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import run as execute
from headrace.pipeline.failing import Failing
from headrace.pipeline.item import Item
from headrace.pipeline.ordering import Reorderer
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.runtime import Runtime
from headrace.pipeline.thread_budget import budget
from headrace.testing import FakeClock, FaultyStage, ListSource

Run = Callable[..., Any]


def item_of(value: Any, sequence: int = 0) -> Item:
    """Return an item that carries a value."""
    return Item(Job(str(sequence), value), value, (), sequence=sequence)


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return once the condition holds."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.001)


def putting(queue: BoundedQueue, items: list[Item]) -> threading.Thread:
    """Start a thread that puts items."""
    thread = threading.Thread(target=queue.put, args=(items,), daemon=True)
    thread.start()
    return thread


# --- one queue


def test_bound_in_items() -> None:
    """A producer waits at the bound, and goes on when half of it is free."""
    queue = BoundedQueue(4, 10**9, SystemClock())
    producer = putting(queue, [item_of(n) for n in range(6)])
    wait_until(lambda: queue.state().waiting_producers == 1)
    assert (queue.state().depth, queue.state().peak) == (4, 4)
    queue.take(1)
    assert queue.state().waiting_producers == 1
    queue.take(1)
    producer.join(60)
    assert (queue.state().depth, queue.state().peak) == (4, 4)


def test_bound_in_bytes() -> None:
    """A producer waits at the bound in bytes; one larger item passes when it is alone."""
    queue = BoundedQueue(100, 10, SystemClock())
    queue.put([item_of(b"x" * 6)])
    producer = putting(queue, [item_of(b"y" * 50), item_of(b"z")])
    wait_until(lambda: queue.state().waiting_producers == 1)
    assert queue.state().depth_bytes == 6
    assert len(queue.take(1)) == 1
    wait_until(lambda: queue.state().depth_bytes == 50)
    wait_until(lambda: queue.state().waiting_producers == 1)
    queue.take(1)
    producer.join(60)
    assert queue.state().depth_bytes == 1


def test_closing_lets_producers_and_consumers_go() -> None:
    """Closing wakes everybody; what is in the queue is still handed out, then nothing."""
    queue = BoundedQueue(1, 10**9, SystemClock())
    producer = putting(queue, [item_of(1), item_of(2)])
    wait_until(lambda: queue.state().waiting_producers == 1)
    queue.close()
    producer.join(60)
    assert [item.value for item in queue.take(5)] == [1, 2]
    assert queue.take(5) == []


def test_nobody_takes_more_than_a_fair_share() -> None:
    """A worker leaves the others their part of what is there."""
    queue = BoundedQueue(100, 10**9, SystemClock())
    queue.put([item_of(n) for n in range(10)])
    assert [len(queue.take(64, share=4)) for _ in range(4)] == [3, 2, 2, 1]


# --- a running pipeline


def runtime_of(stages: list[Any], source: Any, plan: dict[str, Any], delivery: Any = None) -> Runtime:
    """Return a runtime that is ready to run."""
    pipeline = Pipeline(source, stages=stages, delivery=delivery or Collect())
    defaults = [stage.defaults() for stage in pipeline.stages]
    resolved = resolve(Plan.from_table({"source": {"wait_seconds": 0.05}, **plan}), defaults, 2)
    return Runtime(pipeline, RunContext(resolved), Equipment(budget(resolved, defaults, 2)))


def test_queues_keep_their_bounds_in_a_run() -> None:
    """However slow the last stage, no queue ever holds more items than its bound."""
    stages = [hr.stage("fast", lambda x: x), hr.stage("mid", lambda x: x), hr.emulated("slow", seconds=0.001)]
    bounds = {"fast": 5, "mid": 3, "slow": 2, "deliver": 1}
    plan = {"stages": {name: {"queue_items": bound, "workers": 2} for name, bound in bounds.items()}}
    runtime = runtime_of(stages, ListSource(range(200)), plan)
    runtime.run()
    peaks = {station.name: station.queue.state().peak for station in runtime.stations}
    assert all(peaks[name] <= bound for name, bound in bounds.items()), peaks
    assert runtime.context.counters.delivered == 200


def test_bytes_in_all_queues_hold_back_receiving() -> None:
    """With room in each queue, nothing more is received while all queues together hold more bytes than the Plan allows."""
    held: list[int] = []

    def look(value: Any) -> Any:
        held.append(sum(station.queue.num_bytes for station in runtime.stations))
        time.sleep(0.001)
        return value

    stages = [hr.stage("first", lambda x: x), hr.stage("look", look)]
    source = {"max_bytes_in_flight": 2000, "receive_batch": 2}
    runtime = runtime_of(stages, ListSource([b"x" * 500] * 60), {"source": source})
    runtime.run()
    assert runtime.context.counters.delivered == 60
    assert max(held) <= 2000 + 2 * 500  # what one more call brings


def test_bytes_hold_back_in_a_run() -> None:
    """Large arrays wait for room in bytes although there is room in items."""
    seen: list[int] = []

    def look(value: Any) -> Any:
        seen.append(runtime.stations[1].queue.state().depth_bytes)
        time.sleep(0.001)
        return value

    stages = [hr.stage("make", lambda n: np.zeros(n, np.uint8)), hr.stage("look", look)]
    plan = {"stages": {"look": {"queue_bytes": 1000, "queue_items": 100, "workers": 1}, "make": {"workers": 3}}}
    runtime = runtime_of(stages, ListSource([400] * 30 + [5000] + [400] * 10), plan)
    runtime.run()
    assert runtime.context.counters.delivered == 41
    assert max(seen) <= 5000
    assert sum(value > 1000 for value in seen) <= 5  # the one that is larger than the bound, and nothing with it


@pytest.mark.parametrize("receivers", [1, 4])
def test_limit_in_flight(run: Run, receivers: int) -> None:
    """Never more jobs are in flight than the Plan allows, however many receive."""
    ran = run(
        [hr.emulated("slow", seconds=0.001)],
        range(120),
        {"source": {"max_in_flight": 7, "receivers": receivers, "wait_seconds": 0.05}},
    )
    assert ran.source.most_in_flight == 7
    assert ran.result.counters.delivered == 120


def test_receivers_do_not_wait_for_one_that_left(run: Run) -> None:
    """Room that a receiver asked for in vain is free again when the source has ended."""
    plan = {"source": {"max_in_flight": 10, "receive_batch": 10, "receivers": 3, "wait_seconds": 0.02}}
    assert run([hr.stage("a", str)], range(25), plan).result.counters.delivered == 25


class Flaky:
    """Fails at random, the same for the same seed."""

    def __init__(self, seed: int, ratio: float) -> None:
        self.random = random.Random(seed)
        self.ratio = ratio
        self.lock = threading.Lock()

    def __call__(self, value: Any) -> Any:
        """Return the value, or raise."""
        with self.lock:
            bad = self.random.random() < self.ratio
        if bad:
            raise OSError("flaky")
        return value


small_plans = st.fixed_dictionaries(
    {
        name: st.fixed_dictionaries(
            {
                "workers": st.integers(1, 3),
                "queue_items": st.integers(1, 2),
                "attempts": st.integers(1, 2),
                "executor": st.sampled_from(["thread", "thread", "inline"]),
                "queue_bytes": st.sampled_from([1, 10**6]),
            }
        )
        for name in ("first", "leaf", "device", "after", "deliver")
    }
)


@pytest.mark.full
@settings(max_examples=25, deadline=None, derandomize=True)
@given(small_plans, st.integers(1, 3), st.booleans(), st.integers(1, 2), st.integers(1, 6), st.integers(0, 9))
def test_no_deadlock_however_small(
    stages_plan: dict[str, Any], batch: int, ordered: bool, receivers: int, in_flight: int, seed: int
) -> None:
    """Whatever is fused, however small the queues, with failures and children: every job ends, once, in order if asked."""
    flaky = Flaky(seed, 0.03)
    stages = [
        hr.stage("first", flaky),
        hr.fan_out("cut", lambda n: hr.Fan([n] * (n % 4), keep=n)),
        hr.stage("leaf", flaky),
        hr.stage("device", lambda values: list(map(flaky, values)), kind="device"),
        hr.join("gather", lambda joined: (joined.keep, len(joined.results))),
        hr.stage("after", flaky),
    ]
    stages_plan["device"]["batch"] = batch
    stages_plan["leaf"]["executor"] = "thread"  # nothing can be fused to a fan-out
    for name in ("cut", "gather"):
        stages_plan[name] = {"queue_items": 1, "workers": 1}
    if ordered:
        receivers = 1
        stages_plan["deliver"]["workers"] = stages_plan["after"]["workers"] = 1
        stages_plan["after"]["executor"] = "thread"
    plan = {
        "stages": stages_plan,
        "run": {"ordered": ordered},
        "source": {"receivers": receivers, "max_in_flight": in_flight, "wait_seconds": 0.02, "receive_batch": 3},
    }
    source, delivery = ListSource(list(range(40))), Collect()
    result = execute(Pipeline(source, stages=stages, delivery=delivery), Plan.from_table(plan))
    ended = source.final(OutcomeKind.DELIVERED) | source.final(OutcomeKind.DEAD_LETTERED)
    assert ended == {str(n) for n in range(40)}
    assert sorted(id_ for id_, _ in delivery.results) == sorted(source.final(OutcomeKind.DELIVERED))
    assert all(value == (int(id_), int(id_) % 4) for id_, value in delivery.results)
    counters = result.counters
    assert counters.received == counters.delivered + counters.dead_lettered + counters.retried


# --- retries


def test_retries_in_the_stage(run: Run) -> None:
    """A stage tries an item as often as the Plan says, then the job goes back to the source."""
    calls: list[Any] = []

    def never(value: Any) -> Any:
        calls.append(value)
        raise OSError("down")

    ran = run([hr.stage("s", never)], ["x"], {"stages": {"s": {"attempts": 3}}}, source={"max_receives": 2})
    assert len(calls) == 6
    kinds = [outcome.kind for outcome in ran.source.outcomes["0"]]
    assert kinds == [OutcomeKind.RETRY, OutcomeKind.DEAD_LETTERED]
    assert "delivery 2 of 2" in ran.reason("0")
    assert ran.result.counters.retried == ran.result.counters.dead_lettered == 1


def test_rejected_is_not_tried_again(run: Run) -> None:
    """An item that is rejected is tried once."""
    ran = run([FaultyStage("s")], ["!reject"], {"stages": {"s": {"attempts": 5}}}, source={"max_receives": 5})
    assert [outcome.kind for outcome in ran.source.outcomes["0"]] == [OutcomeKind.REJECTED]


def test_a_retry_starts_from_what_came_in(run: Run) -> None:
    """A retry of fused stages begins with the value that entered the first of them."""
    tries: list[int] = []

    def second(value: int) -> int:
        tries.append(value)
        if len(tries) == 1:
            raise OSError("once")
        return value

    plan = {"stages": {"first": {"attempts": 2}, "second": {"executor": "inline"}}}
    ran = run([hr.stage("first", lambda x: x + 1), hr.stage("second", second)], [1], plan)
    assert (tries, ran.results) == ([2, 2], {"0": 2})


def test_many_retries_in_place(run: Run) -> None:
    """A stage that the receiver runs may try more often than Python may recurse."""
    calls = iter(range(10**6))

    def late(value: Any) -> Any:
        if next(calls) < 1500:
            raise OSError("not yet")
        return value

    runtime = runtime_of(
        [hr.stage("s", late)], ListSource(["x"]), {"stages": {"s": {"executor": "inline", "attempts": 5000}}}
    )
    runtime.context.random = lambda: 0.0
    runtime.run()
    assert runtime.context.counters.delivered == 1


@given(st.integers(1, 40), st.floats(0, 100), st.floats(0, 1, exclude_max=True))
def test_delays_stay_within_the_budget(attempt: int, elapsed: float, jitter: float) -> None:
    """A delay is full jitter below the exponential limit, and no try begins after the budget."""
    policy = RetryPolicy(max_attempts=30, base_seconds=0.1, max_seconds=5.0, budget_seconds=30.0)
    delay = policy.next_delay(attempt, elapsed, jitter)
    if delay is not None:
        assert 0 <= delay <= min(5.0, 0.1 * 2 ** (attempt - 1))
        assert elapsed + delay <= 30.0
        assert attempt < 30


def test_delays_before_the_source_offers_again_are_spread() -> None:
    """Delays of failed jobs are jittered between zero and a limit that doubles with each delivery, up to a minute."""
    failing = Failing(
        *(0, None, FakeClock(), random.Random(0).random),
        tasks=[""],
        is_ordered=False,
        ends=True,
        end=lambda reason: None,
    )
    for attempt, limit in ((1, 1.0), (3, 4.0), (60, 60.0)):
        item = Item(Job("1", "x", attempt=attempt), "x", ())
        delays = [failing.outcome(item, DeliveryFailed("down")).delay_seconds for _ in range(200)]
        assert 0 <= min(delays) < 0.1 * limit
        assert 0.9 * limit < max(delays) <= limit


# --- order


def test_order_only_when_asked(run: Run) -> None:
    """A slow item holds back those behind it in an ordered run, and only there."""

    def slow_first(value: int) -> int:
        time.sleep(0.5 if value == 0 else 0.0)
        return value

    stages = [hr.stage("s", slow_first)]
    workers = {"stages": {"s": {"workers": 3}}}
    ordered = run(stages, range(60), {**workers, "run": {"ordered": True}})
    assert [id_ for id_, _ in ordered.delivered] == [str(n) for n in range(60)]
    assert run(stages, range(60), workers).delivered[0][0] != "0"


class FlakyDelivery(Collect):
    """Fails the first time for each job, except for every third."""

    default_workers = 4

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep the result, or raise."""
        if job.id not in self.seen and int(job.id) % 3:
            self.seen.add(job.id)
            raise DeliveryFailed("once")
        return super().deliver(job, result)


def test_order_with_failures_and_retries(run: Run) -> None:
    """Order holds when items fail, are rejected, are tried again in a stage, and fail to be delivered at first."""
    payloads = ["!raise" if n % 7 == 3 else "!reject" if n % 11 == 5 else "x" for n in range(60)]
    flaky = Flaky(3, 0.3)
    ran = run(
        [FaultyStage("bad"), hr.stage("flaky", flaky)],
        payloads,
        {"stages": {"bad": {"workers": 3}, "flaky": {"workers": 3, "attempts": 9}, "deliver": {"attempts": 3}},
         "run": {"ordered": True}},
        delivery=FlakyDelivery(),
    )  # fmt: skip
    ids = [int(id_) for id_, _ in ran.delivered]
    assert ids == [n for n in range(60) if payloads[n] == "x"]


def test_order_needs_one_worker_of_deliver(run: Run) -> None:
    """More workers for an ordered delivery are refused, because they would overtake one another."""
    with pytest.raises(SettingsError, match=r"stages.deliver.workers = 3 is not possible with run.ordered"):
        run([hr.stage("s", str)], [1], {"run": {"ordered": True}, "stages": {"deliver": {"workers": 3}}})


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_reorderer(order: list[int], failed: set[int]) -> None:
    """Whatever comes in whatever order, what did not fail leaves in sequence, all of it."""
    left: list[int] = []
    reorderer = Reorderer(lambda items: left.extend(item.sequence for item in items))
    items = [item_of(None, sequence) for sequence in range(12)]
    for item in items:
        reorderer.expect(item)
    for sequence in order:
        if sequence in failed:
            reorderer.skip(items[sequence])
            reorderer.skip(items[sequence])
        else:
            reorderer.push([items[sequence]])
    assert left == [n for n in range(12) if n not in failed]
    assert reorderer.held() == 0
