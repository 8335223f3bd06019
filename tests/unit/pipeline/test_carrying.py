"""Runs in which one thread carries the calls of a stage's workers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

import headrace as hr
from headrace.base.calls import Call, Pause, run_call
from headrace.base.carrier import Carrier
from headrace.base.deadline import seconds_left
from headrace.base.errors import SettingsError, StageStalled
from headrace.base.plan import Plan, StageDefaults, resolve
from headrace.base.records import Job, OutcomeKind
from headrace.delivery.collect import Collect
from headrace.pipeline import carriage, stall_watch
from headrace.pipeline.bounded_queue import BoundedQueue
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import run as execute
from headrace.pipeline.watching import RunInProgress
from headrace.profiler.profile import profile
from headrace.stages.stage import Stage, StageContext
from headrace.testing import ListSource

Ask = Callable[[Any], Call[Any]]


class Asks(Stage):
    """A stage whose calls are generators made by a function of the value."""

    kind = "io"
    executor = "events"
    may_carry = True

    def __init__(self, ask: Ask, name: str = "ask") -> None:
        super().__init__(name)
        self.ask = ask
        self.threads: set[int] = set()

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return what drives one call, with what lets others drive it."""
        return Carried(self)


class Carried:
    """The stage's callable, and what it offers."""

    def __init__(self, stage: Asks) -> None:
        self.stage = stage

    def __call__(self, value: Any) -> Any:
        """Wait in this thread."""
        return run_call(self.stage.ask(value))

    def carried(self, job: Job, value: Any) -> Call[Any]:
        """Return one call."""
        self.stage.threads.add(threading.get_ident())
        return self.stage.ask(value)


def pause(value: Any) -> Call[Any]:
    """Wait a moment."""
    yield Pause(0.002)
    return value


def until(event: threading.Event, value: Any = None) -> Call[Any]:
    """Wait for an event."""
    while not event.is_set():
        yield Pause(0.002)
    return value


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.002)


def plan_of(**settings: Any) -> dict[str, Any]:
    """Return a Plan for the stage `ask`."""
    return {"stages": {"ask": settings}}


def test_one_thread_carries_the_calls_of_all_workers(run: Callable[..., Any]) -> None:
    """Calls overlap, as many as there are workers, each in a place of its own, and all in one thread."""
    under_way, most = set(), [0]

    def ask(value: int) -> Call[int]:
        under_way.add(value)
        most[0] = max(most[0], len(under_way))
        yield Pause(0.01)
        under_way.remove(value)
        return value * 2

    stage = Asks(ask)
    ran = run([stage], list(range(60)), plan_of(workers=5))
    assert ran.results == {str(number): 2 * number for number in range(60)}
    assert most == [5]
    assert len(stage.threads) == 1
    spans = [span for span in ran.spans if span.stage == "ask"]
    assert {span.thread for span in spans} == {f"ask-{number}" for number in range(5)}
    assert len(spans) == 60
    for place in {span.thread for span in spans}:
        own = sorted((span.started, span.ended) for span in spans if span.thread == place)
        assert all(ended <= started for (_, ended), (started, _) in itertools.pairwise(own))


def test_one_that_fails_fails_alone(run: Callable[..., Any]) -> None:
    """What a call raises, before its first wait, after it, or before there is a call at all, is its item's end."""

    def ask(value: int) -> Call[int]:
        if value == 3:
            raise ValueError("no call comes of it")
        return after(value)

    def after(value: int) -> Call[int]:
        if value == 5:
            raise hr.ItemRejected("refused at once")
        yield Pause(0.001)
        if value == 7:
            raise SystemExit(9)
        return value

    ran = run([Asks(ask)], list(range(20)), plan_of(workers=4, attempts=1))
    assert set(ran.results.values()) == set(range(20)) - {3, 5, 7}
    assert "no call comes of it" in ran.reason("3")
    assert "refused at once" in ran.reason("5")
    assert "SystemExit" in ran.reason("7")
    assert ran.ids(OutcomeKind.REJECTED) == {"5"}
    assert Counter(span.outcome for span in ran.spans if span.stage == "ask") == {"ok": 17, "failed": 2, "rejected": 1}


def test_what_fails_is_tried_again(run: Callable[..., Any]) -> None:
    """Tries count as they do with threads, and each has a span."""
    tries: Counter[int] = Counter()

    def ask(value: int) -> Call[int]:
        tries[value] += 1
        yield Pause(0.001)
        if value % 5 == 0 and tries[value] < 3:
            raise OSError("not yet")
        return value

    ran = run([Asks(ask)], list(range(10)), plan_of(workers=4, attempts=3))
    assert sorted(ran.results.values()) == list(range(10))
    assert tries == {number: 3 if number % 5 == 0 else 1 for number in range(10)}
    assert len([span for span in ran.spans if span.stage == "ask"]) == 14


def test_a_full_queue_holds_nothing_up_but_places(run: Callable[..., Any]) -> None:
    """While the next stage takes nothing, calls under way come to their end; no more begin than there are places."""
    begun, ended, seen = set(), set(), []

    def ask(value: int) -> Call[int]:
        begun.add(value)
        yield Pause(0.005 if value < 2 else 0.1)
        ended.add(value)
        return value

    def work(value: int) -> int:
        if not seen:
            wait_until(lambda: len(ended) >= 6)  # one here, one in the queue: the others wait in their places
            seen.append(len(begun))
        return value

    stages = [Asks(ask), hr.stage("work", work)]
    plan = {"stages": {"ask": {"workers": 4}, "work": {"workers": 1, "queue_items": 1}}}
    ran = run(stages, list(range(40)), plan)
    assert sorted(ran.results.values()) == list(range(40))
    assert seen == [6]


def test_results_flow_through_queues_of_one(run: Callable[..., Any]) -> None:
    """Two stages that carry, with the smallest queues between, lose nothing and come to their end."""
    stages = [Asks(pause, "ask"), Asks(pause, "again"), hr.stage("work", lambda value: value)]
    plan = {"stages": {name: {"workers": 3, "queue_items": 1} for name in ("ask", "again", "work")}}
    ran = run(stages, list(range(200)), plan)
    assert sorted(ran.results.values()) == list(range(200))


def test_one_thread_carries_all_stages(run: Callable[..., Any]) -> None:
    """Also one that comes after a stage with workers of its own."""
    first, last = Asks(pause, "ask"), Asks(pause, "again")
    ran = run([first, hr.stage("work", lambda value: value), last], list(range(50)), plan_of(workers=3))
    assert sorted(ran.results.values()) == list(range(50))
    assert len(first.threads) == 1
    assert first.threads == last.threads


def test_room_that_is_gone_meanwhile_holds_nothing_up(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may put into a queue after room was found in it; the thread that would empty it does not wait for that."""
    monkeypatch.setattr(BoundedQueue, "find_room", lambda queue, items, bell: len(items))
    stages = [Asks(pause, "ask"), Asks(pause, "again")]
    plan = {"stages": {name: {"workers": 8, "queue_items": 1} for name in ("ask", "again")}}
    ran = run(stages, list(range(100)), plan)
    assert sorted(ran.results.values()) == list(range(100))


def test_children_are_carried(run: Callable[..., Any]) -> None:
    """Between a fan-out and its join."""
    stages = [
        hr.fan_out("cut", lambda value: hr.Fan([value * 10 + number for number in range(3)])),
        Asks(pause),
        hr.join("join", lambda joined: sum(joined.results)),
    ]
    ran = run(stages, list(range(30)), plan_of(workers=4, queue_items=2))
    assert ran.results == {str(number): 30 * number + 3 for number in range(30)}


def test_what_came_too_late_is_not_begun_and_what_hangs_is_cut(run: Callable[..., Any]) -> None:
    """A deadline holds in the queue; within a call `seconds_left` tells it."""
    told = []

    def ask(value: int) -> Call[int]:
        told.append(seconds_left())
        yield Pause(0.01)
        told.append(seconds_left())
        return value

    class Urgent(ListSource):
        def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
            jobs = super().receive(limit, wait_seconds)
            for job in jobs or ():
                job.deadline_ns = time.monotonic_ns() + (
                    -1 if job.id == "1" else int(60e9) if job.id == "2" else int(1e15)
                )
            return jobs

    source = Urgent([0, 1, 2])
    result = execute(Pipeline(source, stages=[Asks(ask)]), Plan.from_table(plan_of(workers=1)))
    assert result.counters.delivered == 2
    assert source.final(OutcomeKind.REJECTED) == {"1"}
    assert all(left is not None and left > 0 for left in told)
    assert len([left for left in told if left is not None and left <= 60]) == 2


def test_nothing_is_done_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle thread waits once, until something comes."""
    waits = []

    class Counting(Carrier):
        def wait(self, seconds: float | None) -> Any:
            waits.append(seconds)
            return super().wait(seconds)

    monkeypatch.setattr(carriage, "Carrier", Counting)
    stage, source, stop = Asks(pause), ListSource([1, 2, 3], endless=True), threading.Event()
    delivery = Collect()
    pipeline, plan = Pipeline(source, stages=[stage], delivery=delivery), Plan.from_table(plan_of(workers=2))
    run = threading.Thread(target=lambda: execute(pipeline, plan, stop=stop))
    run.start()
    wait_until(lambda: len(delivery.results) == 3)
    time.sleep(0.1)
    before = len(waits)
    time.sleep(0.5)
    assert len(waits) == before
    stop.set()
    run.join()


def test_a_call_that_hangs_is_cancelled_and_its_place_goes_on(run: Callable[..., Any]) -> None:
    """It is given up with a reason, it puts away what it has, and all others are done."""
    put_away = []

    def ask(value: int) -> Call[int]:
        if value == 3:
            try:
                yield from until(threading.Event())
            finally:
                put_away.append(value)
        yield Pause(0.001)
        return value

    ran = run([Asks(ask)], list(range(50)), {**plan_of(workers=2), "run": {"stall_seconds": 0.3}})
    assert sorted(ran.results.values()) == [number for number in range(50) if number != 3]
    assert put_away == [3]
    assert "run.stall_seconds = 0.3" in ran.reason("3")
    assert ran.ids(OutcomeKind.DEAD_LETTERED) == {"3"}


def test_a_thread_that_hangs_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that does not let go of the thread holds up all the others: the run says so and ends."""
    monkeypatch.setattr(stall_watch, "_CANCEL_SECONDS", 0.3)
    lets_go = threading.Event()

    def ask(value: int) -> Call[int]:
        yield Pause(0.001)
        if value == 3:
            lets_go.wait(60)
        return value

    plan = Plan.from_table({**plan_of(workers=2), "run": {"stall_seconds": 0.3}})
    source = ListSource(list(range(20)))
    with pytest.raises(StageStalled, match="it carries the calls of all workers"):
        execute(Pipeline(source, stages=[Asks(ask)]), plan)
    lets_go.set()
    assert source.in_flight == []


def test_the_call_that_hangs_is_blamed_and_not_those_that_it_holds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls of all stages stand still with their thread; those of the stage before began earlier."""
    monkeypatch.setattr(stall_watch, "_CANCEL_SECONDS", 0.5)
    lets_go, first_waits = threading.Event(), threading.Event()

    def ask(value: int) -> Call[int]:
        if value:
            first_waits.set()
            yield from until(lets_go)
        return value

    def hang(value: int) -> Call[int]:
        while not first_waits.is_set():
            yield Pause(0.001)
        lets_go.wait(60)
        return value

    plan = Plan.from_table({**plan_of(workers=2), "run": {"stall_seconds": 0.5}})
    with pytest.raises(StageStalled, match=r"^0 took longer .* in stage again, .* it carries the calls of all workers"):
        execute(Pipeline(ListSource([0, 1]), stages=[Asks(ask), Asks(hang, "again")]), plan)
    lets_go.set()


def test_calls_are_cancelled_when_everything_is_given_back() -> None:
    """After the grace period calls under way end at once, and their jobs go back."""
    put_away, stop = [], threading.Event()

    def ask(value: int) -> Call[int]:
        try:
            yield from until(threading.Event())
        finally:
            put_away.append(value)

    source = ListSource(list(range(6)), endless=True)
    plan = Plan.from_table({**plan_of(workers=3), "run": {"grace_seconds": 0.1}})
    begun: threading.Timer = threading.Timer(0.3, stop.set)
    begun.start()
    result = execute(Pipeline(source, stages=[Asks(ask)]), plan, stop=stop)
    assert result.interrupted
    assert source.in_flight == []
    assert result.counters.returned == 6
    assert len(put_away) == 3


def test_an_instrument_is_not_passed_by() -> None:
    """What is wrapped is called in threads, also where the wrapper copies the attributes of what it wraps."""
    seen: Counter[str] = Counter()

    class Count:
        def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(call, updated=("__dict__",), assigned=())
            def counted(*arguments: Any) -> Any:
                seen[stage] += 1
                return call(*arguments)

            return counted

    stage = Asks(pause)
    result = execute(
        Pipeline(ListSource(list(range(30))), stages=[stage]),
        Plan.from_table(plan_of(workers=3)),
        instruments=[Count()],
    )
    assert result.counters.delivered == 30
    assert seen["ask"] == 30
    assert not stage.threads


def test_a_share_for_each_host() -> None:
    """Calls to one that hangs take their share of the places, and more places are made; all others are done."""
    answers = threading.Event()

    class Shared(Asks):
        waits_on_many = True

        def goes_to(self, job: Job, value: Any) -> tuple[str, str]:
            return value.split()[0], value.split()[0]

    def ask(value: str) -> Call[Any]:
        yield from until(answers) if value.startswith("bad") else pause(value)
        return value

    class Answers(Collect):
        def deliver(self, job: Job, result: Any) -> bool:
            done = super().deliver(job, result)
            if sum(value.startswith("good") for _, value in list(self.results)) == 270:
                answers.set()
            return done

    values = [f"{'bad' if number % 10 == 9 else 'good'} {number}" for number in range(300)]
    stage, delivery = Shared(ask), Answers()
    source = hr.items(values, max_receives=1)
    result = execute(Pipeline(source, stages=[stage], delivery=delivery), Plan.from_table(plan_of(workers=4)))
    assert sorted(value for _, value in delivery.results) == sorted(values)
    assert result.counters.notes["ask.slow_calls"] >= 1
    assert len(stage.threads) == 1


DEFAULTS = [
    StageDefaults(name="ask", kind="io", executor="events", may_carry=True),
    StageDefaults(name="work", kind="cpu"),
    StageDefaults(name="deliver", kind="io", executor="events", may_carry=True),
]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({}, ["events", "thread", "events"]),
        ({"stages": {"work": {"executor": "inline"}}}, ["thread", "inline", "events"]),
        ({"stages": {"ask": {"executor": "thread"}}}, ["thread", "thread", "events"]),
        ({"run": {"ordered": True}}, ["events", "thread", "thread"]),
        ({"stages": {"deliver": {"executor": "inline"}}}, ["events", "thread", "inline"]),
    ],
)
def test_threads_where_one_cannot_carry(table: dict[str, Any], expected: Sequence[str]) -> None:
    """Where others would hold up the calls, the resolved Plan says `thread`; a stage that nothing carries refuses `events`."""
    resolved = resolve(Plan.from_table(table), DEFAULTS, 2)
    assert [stage.executor for stage in resolved.stages.values()] == expected


def test_a_stage_that_computes_refuses() -> None:
    """The error says what would do."""
    with pytest.raises(SettingsError, match=r"stages\.work\.executor = 'events'.*thread, process or inline"):
        resolve(Plan.from_table({"stages": {"work": {"executor": "events"}}}), DEFAULTS, 2)


def test_what_calls_cost_adds_up(tmp_path: Path) -> None:
    """The CPU time of the spans is no more than the thread used, and most of what calls burnt is in it."""

    def ask(value: int) -> Call[int]:
        yield Pause(0.001)
        ends = time.thread_time() + 0.002
        while time.thread_time() < ends:
            pass
        return value

    pipeline = Pipeline(hr.items(list(range(100))), stages=[Asks(ask)], delivery=Collect())
    profile(pipeline, Plan.from_table(plan_of(workers=8)), output=tmp_path / "run")
    table = pyarrow.dataset.dataset(tmp_path / "run" / "spans").to_table()
    rows = [row for row in table.to_pylist() if row["stage"] == "ask"]
    cpu = [row["cpu"] for row in rows if row["cpu"] is not None]
    assert len(cpu) == 100
    assert sum(cpu) >= 0.9 * 100 * 2_000_000
    assert all(row["cpu"] <= row["ended"] - row["started"] for row in rows)


def test_each_stage_pays_for_its_own_calls(tmp_path: Path) -> None:
    """One stage burns a core and one only waits, in one thread."""

    def burn(value: int) -> Call[int]:
        yield Pause(0.001)
        ends = time.thread_time() + 0.005
        while time.thread_time() < ends:
            pass
        return value

    pipeline = Pipeline(hr.items(list(range(60))), stages=[Asks(burn), Asks(pause, "again")], delivery=Collect())
    profile(pipeline, Plan.from_table(plan_of(workers=8)), output=tmp_path / "run")
    rows = pyarrow.dataset.dataset(tmp_path / "run" / "spans").to_table().to_pylist()
    cpu = {name: sum(row["cpu"] for row in rows if row["stage"] == name) for name in ("ask", "again")}
    assert cpu["ask"] >= 0.9 * 60 * 5_000_000
    assert cpu["again"] <= 0.2 * cpu["ask"]


def test_calls_that_end_while_no_clock_is_read_have_no_cost(tmp_path: Path) -> None:
    """A profile reads the clocks in some blocks only; in the others nothing is known, which is not zero."""
    runs: list[RunInProgress] = []

    def ask(value: int) -> Call[int]:
        runs[0].metering.on = value < 10
        yield Pause(0.001)
        return value

    def watch(progress: RunInProgress) -> contextlib.AbstractContextManager[None]:
        runs.append(progress)
        return contextlib.nullcontext()

    pipeline = Pipeline(hr.items(list(range(30))), stages=[Asks(ask)], delivery=Collect())
    execute(pipeline, Plan.from_table(plan_of(workers=1)), output=tmp_path / "run", watch=watch)
    table = pyarrow.dataset.dataset(tmp_path / "run" / "spans").to_table()
    rows = sorted((row for row in table.to_pylist() if row["stage"] == "ask"), key=lambda row: row["started"])
    assert all(row["cpu"] for row in rows[1:10])
    assert [row["cpu"] for row in rows[11:]] == [None] * 19


class Random:
    """A pipeline of random structure, made again for each run."""

    def __init__(self, seed: int) -> None:
        self._random = draw = random.Random(seed)
        self.count = draw.randint(20, 60)
        self.has_fan = draw.random() < 0.4
        self.num_asks = draw.randint(1, 3)
        self.bad = {number: draw.randint(1, 4) for number in range(self.count) if draw.random() < 0.15}
        self.refused = {number for number in range(self.count) if draw.random() < 0.05}
        self.pauses = [draw.choice([0.0, 0.0005, 0.002, 0.01]) for _ in range(draw.randint(1, 4))]
        self.hosts = draw.randint(1, 4) if draw.random() < 0.5 else 0
        names = ["cut", "join", "work", "deliver", *(f"ask{index}" for index in range(self.num_asks))]
        sizes = {name: {"workers": draw.randint(1, 6), "queue_items": draw.choice([1, 2, 8, 64])} for name in names}
        if not self.has_fan:
            del sizes["cut"], sizes["join"]
        for name in names[4:]:
            sizes[name]["attempts"] = draw.randint(1, 3)
        ordered = draw.random() < 0.3
        if ordered:
            sizes["deliver"]["workers"] = 1
        self.max_receives = draw.randint(1, 3)
        source = {"receive_batch": draw.choice([1, 5, 20]), "wait_seconds": 0.05}
        if draw.random() < 0.3:
            source["max_in_flight"] = draw.randint(1, 20)
        self.table = {"stages": sizes, "source": source, "run": {"ordered": ordered, "brake_after": 0}}

    def stages(self) -> list[Stage]:
        """Return the stages, with none of their tries behind them."""
        tries: Counter[tuple[int, Any]] = Counter()
        asks = [self._ask(index, tries) for index in range(self.num_asks)]
        work = hr.stage("work", lambda value: value)
        if not self.has_fan:
            return [*asks, work]
        cut = hr.fan_out("cut", lambda value: hr.Fan([(value, number) for number in range(value % 4)]))
        return [cut, *asks, work, hr.join("join", lambda joined: joined.results)]

    def _ask(self, index: int, tries: Counter[tuple[int, Any]]) -> Asks:
        def ask(value: Any) -> Call[Any]:
            number = value[0] if self.has_fan else value
            tries[index, value] += 1
            pause = self.pauses[hash((number, index)) % len(self.pauses)]
            if pause:
                yield Pause(pause)
            if number in self.refused:
                raise hr.ItemRejected("refused")
            # The first child fails as often as the others together, so that their order does not matter.
            if tries[index, value] < self.bad.get(number, 0) and index == 0 and (not self.has_fan or value[1] == 0):
                raise OSError("not yet")
            return value

        stage = Asks(ask, f"ask{index}")
        if self.hosts:
            stage.waits_on_many = True
            stage.goes_to = lambda job, value: (f"host{hash(value) % self.hosts}", "all")  # type: ignore[method-assign]
        return stage

    def run(self, executor: str) -> tuple[Any, ...]:
        """Run it once and return all that is to be the same with every executor."""
        table = {**self.table, "stages": {name: dict(one) for name, one in self.table["stages"].items()}}
        for index in range(self.num_asks):
            table["stages"][f"ask{index}"]["executor"] = executor
        source, delivery = ListSource(list(range(self.count)), max_receives=self.max_receives), Collect()
        result = execute(Pipeline(source, stages=self.stages(), delivery=delivery), Plan.from_table(table))
        assert source.in_flight == []
        kinds = {id_: [outcome.kind for outcome in outcomes] for id_, outcomes in source.outcomes.items()}
        if table["run"]["ordered"]:  # what came again is last, whenever that was
            order = [int(id_) for id_, _ in delivery.results if len(kinds[id_]) == 1]
            assert order == sorted(order)
        results = sorted(delivery.results, key=lambda one: int(one[0]))
        return results, kinds, {**dataclasses.asdict(result.counters), "notes": None}


def check_random(seed: int) -> None:
    """Run a random pipeline both ways, and compare."""
    pipeline = Random(seed)
    assert pipeline.run("events") == pipeline.run("thread")


@pytest.mark.parametrize("seed", range(8))
def test_events_and_threads_come_to_the_same(seed: int) -> None:
    """Random pipelines with retries, refusals, fan-outs, order, small queues and hosts: the same results and outcomes."""
    check_random(seed)


@pytest.mark.parametrize(
    "first",
    [pytest.param(8, marks=pytest.mark.full), *(pytest.param(one, marks=pytest.mark.slow) for one in (24, 40, 56))],
)
def test_more_events_and_threads_come_to_the_same(first: int) -> None:
    """The same for more of them."""
    for seed in range(first, first + 16):
        check_random(seed)
