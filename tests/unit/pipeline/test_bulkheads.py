"""A whole run whose workers wait on several, of which one hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import FetchPostponed
from headrace.base.plan import Plan, resolve
from headrace.base.records import Job
from headrace.delivery.collect import Collect
from headrace.diagnose.counter_checks import exact_counters
from headrace.diagnose.evidence import collect
from headrace.pipeline.building import Equipment
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.runtime import Runtime
from headrace.pipeline.thread_budget import budget
from headrace.runs.reader import read_run
from headrace.sources.jobs import encode_job
from headrace.sources.queue_source import QueueSource
from headrace.stages.stage import Stage, StageContext
from headrace.testing import MemoryQueue


class Ask(Stage):
    """Asks whom the job's id names; `bad` answers when it is let."""

    kind = "io"
    waits_on_many = True

    def __init__(self) -> None:
        super().__init__("ask")
        self.answers = threading.Event()

    def goes_to(self, job: Job, value: Any) -> tuple[str, str]:
        """Return the first word of the value."""
        key = str(value, "utf-8").split()[0] if isinstance(value, bytes) else value.split()[0]
        return key, key

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return what waits for `bad`."""

        def ask(value: Any) -> Any:
            if self.goes_to(Job("", value), value)[0] == "bad":
                assert self.answers.wait(120)
            return value

        return ask


class Deadlock(Collect):
    """Keeps results, and lets `bad` answer once all good ones are there."""

    def __init__(self, stage: Ask, num_good: int) -> None:
        super().__init__()
        self._stage, self._left = stage, num_good

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep it."""
        self._left -= self._stage.goes_to(job, job.payload)[0] == "good"
        if not self._left:
            self._stage.answers.set()
        return super().deliver(job, result)


def runtime_of(queue: MemoryQueue, stage: Ask, delivery: Collect, table: dict[str, Any]) -> Runtime:
    """Return a run over a queue until it is empty."""
    pipeline = Pipeline(QueueSource(queue, drain=True), stages=[stage], delivery=delivery)
    defaults = [one.defaults() for one in pipeline.stages]
    plan = resolve(Plan.from_table({"source": {"wait_seconds": 0.05}, **table}), defaults, 2)
    return Runtime(pipeline, RunContext(plan), Equipment(budget(plan, defaults, 2)))


def names(number: int, bad_every: int) -> list[str]:
    """Return names for `good`, with some for `bad` among them."""
    return [f"{'bad' if index % bad_every == bad_every - 1 else 'good'} {index}" for index in range(number)]


def jobs(number: int, bad_every: int) -> list[bytes]:
    """Return jobs of those names."""
    return [encode_job(name.encode(), id=name) for name in names(number, bad_every)]


@pytest.mark.real_clock
@pytest.mark.parametrize("table", [{}, {"source": {"max_in_flight": 12, "wait_seconds": 0.05}}])
def test_all_others_are_done_while_one_hangs(table: dict[str, Any]) -> None:
    """Good jobs do not wait for the bad ones, which answer only when all good ones are delivered; then those are, too."""
    queue, stage = MemoryQueue(), Ask()
    queue.send(jobs(300, bad_every=10))
    delivery = Deadlock(stage, 270)
    runtime = runtime_of(queue, stage, delivery, {**table, "stages": {"ask": {"workers": 4}}})
    runtime.run()
    assert len({job_id for job_id, _ in delivery.results}) == 300
    assert queue.statistics().dead == 0
    notes = runtime.context.counters.notes
    assert notes["ask.slow_calls"] >= 1
    counters = runtime.context.counters
    assert (counters.retried, counters.returned) == (0, notes["ask.turned_away"])  # they waited, and did not fail
    assert notes["ask.turned_away"] == notes["source.postponed"] > 0


@pytest.mark.real_clock
def test_the_folder_notes_workers_that_were_added(tmp_path: Path) -> None:
    """A run whose workers waited says how many it had at most, and its spans are trusted with them."""
    stage = Ask()
    pipeline = Pipeline(hr.items(names(300, bad_every=10)), stages=[stage], delivery=Deadlock(stage, 270))
    hr.run(pipeline, Plan.from_table({"stages": {"ask": {"workers": 4}}}), output=tmp_path / "run")
    evidence = collect(read_run(tmp_path / "run"))
    ask = next(one for one in evidence.stages if one.name == "ask")
    assert ask.workers == 4
    assert ask.most_workers is not None
    assert 4 < len(set(evidence.spans.worker[evidence.stage_rows("ask")])) <= ask.most_workers <= 8
    assert exact_counters(evidence).status == "ok"


@pytest.mark.real_clock
@pytest.mark.parametrize("most", [12, None])
def test_a_list_puts_aside_what_would_hold_up_the_others(most: int | None) -> None:
    """All good ones of a list are delivered while the bad ones hang; then those are, each once, in one try."""
    stage = Ask()
    delivery = Deadlock(stage, 270)
    texts = names(300, bad_every=10)
    pipeline = Pipeline(hr.items(texts, max_receives=1), stages=[stage], delivery=delivery)
    source = {"wait_seconds": 0.05} if most is None else {"wait_seconds": 0.05, "max_in_flight": most}
    result = hr.run(pipeline, Plan.from_table({"source": source, "stages": {"ask": {"workers": 4}}}))
    assert sorted(value for _, value in delivery.results) == sorted(texts)
    assert result.counters.dead_lettered == 0
    notes = result.counters.notes
    assert notes["ask.turned_away"] == notes["source.postponed"] > 0


class LeftAlone(Stage):
    """Says of `bad` that it is left alone."""

    def open(self, context: StageContext) -> Callable[[str], str]:
        """Return what answers for the others."""

        def answer(value: str) -> str:
            if value.startswith("bad"):
                raise FetchPostponed("left alone")
            return value

        return answer


@pytest.mark.real_clock
@pytest.mark.parametrize(("ordered", "num_bad_tries"), [(False, 3), (True, 2)])
def test_a_list_with_a_host_that_is_gone_ends(ordered: bool, num_bad_tries: int) -> None:
    """Its items come again at the end, and then have their tries; in an ordered run they have those alone."""
    tried: list[str] = []

    class Noting(LeftAlone):
        def open(self, context: StageContext) -> Callable[[str], str]:
            answer = super().open(context)
            return lambda value: tried.append(value) or answer(value)

    delivery = Collect()
    source = hr.items(["bad 1", "good 2", "good 3"], max_receives=2)
    pipeline = Pipeline(source, stages=[Noting("ask")], delivery=delivery)
    result = hr.run(pipeline, Plan.from_table({"source": {"wait_seconds": 0.05}, "run": {"ordered": ordered}}))
    assert (len(delivery.results), result.counters.dead_lettered) == (2, 1)
    assert tried.count("bad 1") == num_bad_tries


@pytest.mark.real_clock
def test_what_a_list_leaves_to_the_end_may_fail_to_the_last() -> None:
    """However many of a host that is gone come in a row at the end: each has its end, and the run is not said to fail."""
    delivery = Collect()
    source = hr.items(names(400, bad_every=4), max_receives=1)
    pipeline = Pipeline(source, stages=[LeftAlone("ask")], delivery=delivery)
    plan = {"source": {"wait_seconds": 0.05, "max_in_flight": 8}, "stages": {"ask": {"attempts": 1}}}
    result = hr.run(pipeline, Plan.from_table(plan))
    assert (len(delivery.results), result.counters.dead_lettered) == (300, 100)
    assert not result.ended_early
    assert "run.nothing_succeeded" not in result.counters.notes


@pytest.mark.real_clock
def test_a_stop_gives_back_what_is_parked() -> None:
    """What waits for one that hangs goes back to the queue when the grace is over; nothing is lost."""
    queue, stage = MemoryQueue(), Ask()
    queue.send(jobs(100, bad_every=2))

    class Stopping(Collect):
        def deliver(self, job: Job, result: Any) -> bool:
            if not self.results:
                runtime.stop()
            return super().deliver(job, result)

    delivery = Stopping()  # one that stops twice gives back at once, and may deliver what it gave back
    table = {"stages": {"ask": {"workers": 2}}, "run": {"grace_seconds": 0.1}}
    runtime = runtime_of(queue, stage, delivery, table)
    runtime.run()
    stage.answers.set()
    state = queue.statistics()
    assert len(delivery.results) + state.visible + state.delayed == 100
    assert state.in_flight == state.dead == 0


@pytest.mark.real_clock
def test_what_hangs_is_seen() -> None:
    """The state of the stage tells how many calls take long and how many items wait for those."""
    queue, stage = MemoryQueue(), Ask()
    queue.send(jobs(60, bad_every=3))
    seen: list[tuple[int, int]] = []

    class Watching(Deadlock):
        def deliver(self, job: Job, result: Any) -> bool:
            seen.extend((one.slow, one.parked) for one in runtime.statistics() if one.name == "ask")
            return super().deliver(job, result)

    runtime = runtime_of(queue, stage, Watching(stage, 40), {"stages": {"ask": {"workers": 2}}})
    runtime.run()
    assert max(slow for slow, _ in seen) > 0
    assert runtime.statistics()[0].slow == runtime.statistics()[0].parked == 0


def test_in_order_nothing_is_turned_away() -> None:
    """A run that keeps the order has no lanes: one that hangs holds up those behind it whatever is done."""
    queue, stage = MemoryQueue(), Ask()
    runtime = runtime_of(queue, stage, hr.collect(), {"run": {"ordered": True}})
    assert all(station.bulkheads is None for station in runtime.stations)
