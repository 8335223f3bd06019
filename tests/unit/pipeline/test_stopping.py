"""How a run ends: drained, stopped twice, broken or never begun; every job is settled, once."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import HeadraceError, ItemRejected
from headrace.base.observer import Observer, Observers
from headrace.base.plan import Plan, resolve
from headrace.base.records import Counters, Job, OutcomeKind
from headrace.delivery.collect import Collect
from headrace.pipeline.building import Equipment
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.group import Group
from headrace.pipeline.item import Item
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.runtime import Runtime
from headrace.pipeline.thread_budget import budget
from headrace.sources.jobs import encode_job
from headrace.sources.queue_source import QueueSource
from headrace.stages.stage import Stage, StageContext
from headrace.testing import FakeClock, FaultyStage, ListSource, MemoryQueue

Run = Callable[..., Any]


def runtime_of(
    stages: list[Any],
    source: Any,
    plan: dict[str, Any] | None = None,
    delivery: Any = None,
    observers: Sequence[Observer] = (),
) -> Runtime:
    """Return a runtime that is ready to run."""
    pipeline = Pipeline(source, stages=stages, delivery=delivery or Collect())
    defaults = [stage.defaults() for stage in pipeline.stages]
    resolved = resolve(Plan.from_table({"source": {"wait_seconds": 0.05}, **(plan or {})}), defaults, 2)
    context = RunContext(resolved, observers=Observers(observers))
    return Runtime(pipeline, context, Equipment(budget(resolved, defaults, 2)))


def started(runtime: Runtime) -> threading.Thread:
    """Run it in a thread."""
    thread = threading.Thread(target=runtime.run, daemon=True)
    thread.start()
    return thread


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return once the condition holds."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.001)


def adds_up(counters: Counters) -> bool:
    """Return whether every delivery received ended in one way."""
    ends = counters.delivered + counters.rejected + counters.dead_lettered
    return counters.received == ends + counters.retried + counters.returned + counters.lost


def kinds(source: ListSource) -> set[OutcomeKind]:
    """Return how jobs ended."""
    return {outcome.kind for outcomes in source.outcomes.values() for outcome in outcomes}


# --- stop


def test_stop_drains() -> None:
    """After one stop nothing is received any more, and everything received is delivered."""
    source = ListSource(range(100_000), endless=True)
    runtime = runtime_of([hr.emulated("s", seconds=0.001)], source)
    thread = started(runtime)
    wait_until(lambda: len(source.outcomes) > 20)
    runtime.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert source.in_flight == []
    assert kinds(source) == {OutcomeKind.DELIVERED}
    assert runtime.context.counters.delivered == runtime.context.counters.received < 100_000
    assert runtime.interrupted


def test_what_the_grace_period_does_not_suffice_for_is_returned() -> None:
    """After the grace period the rest goes back to the source, with the reason, and the run ends."""
    gate = threading.Event()
    source = ListSource(range(50), endless=True)
    plan = {"run": {"grace_seconds": 0.2}, "stages": {"s": {"workers": 1}}}
    runtime = runtime_of([hr.stage("s", lambda n: gate.wait(100) if n > 3 else n)], source, plan)
    thread = started(runtime)
    wait_until(lambda: len(source.outcomes) == 4)
    runtime.stop()
    thread.join(60)
    assert not thread.is_alive()
    gate.set()
    assert source.in_flight == []
    assert kinds(source) == {OutcomeKind.DELIVERED, OutcomeKind.RETURNED}
    assert "stopped" in source.outcomes["4"][0].reason
    assert adds_up(runtime.context.counters)


def test_an_event_ends_a_run_in_a_thread() -> None:
    """Where signals are not heard, `stop` drains: what was received is delivered, and nothing else is received."""
    source, stop, results = ListSource(range(100_000), endless=True), threading.Event(), []
    pipeline = Pipeline(source, stages=[hr.emulated("s", seconds=0.001)], delivery=Collect())
    thread = threading.Thread(target=lambda: results.append(hr.run(pipeline, stop=stop)), daemon=True)
    thread.start()
    wait_until(lambda: len(source.outcomes) > 20)
    stop.set()
    thread.join(60)
    [result] = results
    assert result.interrupted
    assert source.in_flight == []
    assert kinds(source) == {OutcomeKind.DELIVERED}
    assert result.counters.delivered == result.counters.received < 100_000


def test_an_event_ends_a_profile_within_asyncio(tmp_path: Path) -> None:
    """`asyncio.to_thread` runs it beside an event loop, whose shutdown sets the event."""
    source, stop = ListSource(range(100_000), endless=True), threading.Event()
    pipeline = Pipeline(source, stages=[hr.emulated("s", seconds=0.001)], delivery=Collect())

    async def serve() -> hr.Result:
        running = asyncio.create_task(asyncio.to_thread(hr.profile, pipeline, output=tmp_path / "run", stop=stop))
        while len(source.outcomes) < 20:
            await asyncio.sleep(0.001)
        stop.set()
        return await running

    result = asyncio.run(serve())
    assert result.interrupted
    assert kinds(source) == {OutcomeKind.DELIVERED}


def test_a_run_that_was_stopped_before_it_began_receives_nothing() -> None:
    """An event that is set already is as good as one that is set later."""
    source, stop = ListSource(range(10), endless=True), threading.Event()
    stop.set()
    result = hr.run(Pipeline(source, stages=[hr.stage("s", abs)], delivery=Collect()), stop=stop)
    assert result.interrupted
    assert (result.counters.received, source.outcomes) == (0, {})


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("sleeper", ["first", "second", "deliver"])
def test_second_stop_is_prompt(sleeper: str, ordered: bool) -> None:
    """A second stop returns everything at once, whatever sleeps, however full the queues."""
    gate, asleep = threading.Event(), threading.Event()

    class Sleepy(Collect):
        def deliver(self, job: Job, result: Any) -> bool:
            """Sleep if asked."""
            sleep_in("deliver")
            return super().deliver(job, result)

    def sleep_in(name: str) -> None:
        if name == sleeper:
            asleep.set()
            gate.wait(100)

    def stage(name: str) -> Stage:
        return hr.stage(name, lambda value: sleep_in(name) or value)

    source = ListSource(range(5000), endless=True)
    plan = {
        "stages": {name: {"queue_items": 2, "workers": 1} for name in ("first", "second", "deliver")},
        "run": {"grace_seconds": 60, "ordered": ordered},
    }
    runtime = runtime_of([stage("first"), stage("second")], source, plan, Sleepy())
    thread = started(runtime)
    asleep.wait(60)
    wait_until(lambda: source.most_in_flight >= 3)
    runtime.stop()
    runtime.stop()
    assert source.in_flight == []  # returned before `stop` comes back
    thread.join(25)
    assert not thread.is_alive()
    gate.set()
    assert kinds(source) == {OutcomeKind.RETURNED}
    assert adds_up(runtime.context.counters)


def test_second_stop_ends_children() -> None:
    """A second stop kills children at once; none is started anew, and nothing is left."""
    source = ListSource(["x", *["!hang"] * 8], endless=True)
    plan = {"stages": {"p": {"executor": "process", "workers": 2}}, "run": {"grace_seconds": 60}}
    runtime = runtime_of([FaultyStage("p")], source, plan)
    thread = started(runtime)
    wait_until(lambda: "0" in source.outcomes, 30)
    runtime.stop()
    runtime.stop()
    thread.join(25)
    assert not thread.is_alive()
    assert source.in_flight == []
    assert "worker_restarts" not in runtime.context.counters.notes
    wait_until(lambda: not any(name.startswith(f"headrace-{os.getpid()}-") for name in os.listdir("/dev/shm")))


@pytest.mark.parametrize("seed", range(6))
def test_stopping_at_any_moment_settles_all(seed: int) -> None:
    """Whenever the two stops come, no job stays unsettled and none is settled twice."""
    source = ListSource(range(100_000), endless=True)
    plan = {"source": {"receivers": 3, "wait_seconds": 0.05}, "stages": {"s": {"queue_items": 3}}}
    runtime = runtime_of([hr.stage("s", lambda n: n)], source, plan)
    thread = started(runtime)
    wait_until(lambda: len(source.outcomes) > 50 * seed)
    runtime.stop()
    runtime.stop()
    thread.join(60)
    assert not thread.is_alive()
    wait_until(lambda: source.in_flight == [])
    assert all(len(outcomes) == 1 for outcomes in source.outcomes.values())
    assert adds_up(runtime.context.counters)


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_signals_stop(signals: list[signal.Signals]) -> None:
    """SIGTERM and Ctrl-C drain, a second one gives back; the handlers from before are restored."""
    gate = threading.Event()
    source = ListSource(range(10), endless=True)
    handlers = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    runtime = runtime_of([hr.stage("s", lambda n: gate.wait(100) if len(signals) > 1 else n)], source)

    def send() -> None:
        wait_until(lambda: source.most_in_flight > 0)
        for number in signals:
            os.kill(os.getpid(), number)
            time.sleep(0.05)  # two signals of one number at once are one

    thread = threading.Thread(target=send)
    thread.start()
    runtime.run()
    thread.join()
    gate.set()
    assert runtime.interrupted
    assert source.in_flight == []
    assert (OutcomeKind.RETURNED in kinds(source)) == (len(signals) > 1)
    assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == handlers


def test_signals_while_the_last_results_are_written() -> None:
    """Two signals during a slow flush at the end do not make the run wait for itself."""
    writing = threading.Event()

    class SlowFlush(Collect):
        flush_items = 1000
        flush_seconds = 1000.0

        def deliver(self, job: Job, result: Any) -> bool:
            """Keep it for the flush."""
            super().deliver(job, result)
            return False

        def flush(self) -> None:
            """Take long."""
            writing.set()
            time.sleep(0.3)

    source = ListSource(range(3))
    source.ends = False
    runtime = runtime_of([hr.stage("s", str)], source, {"run": {"grace_seconds": 0.1}}, SlowFlush())

    def send() -> None:
        wait_until(lambda: runtime.context.counters.received == 3)
        os.kill(os.getpid(), signal.SIGTERM)
        writing.wait(60)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)

    thread = threading.Thread(target=send)
    thread.start()
    runtime.run()
    thread.join()
    assert source.in_flight == []


# --- breaking


class Broken(ListSource):
    """A source whose `tend` breaks after the first job."""

    def tend(self) -> None:
        """Raise."""
        if self.outcomes:
            raise RuntimeError("tend broke")


class Unsettled(ListSource):
    """A source that breaks when it is told of a delivery."""

    def _lend(self, id_: str, payload: Any, task: str, attempt: int) -> Job:
        job = super()._lend(id_, payload, task, attempt)
        settle = job._settle

        def break_once(settled: Job, outcome: Any) -> None:
            settle(settled, outcome)
            if outcome.kind is OutcomeKind.DELIVERED:
                raise RuntimeError("settle broke")

        job._settle = break_once
        return job


class NoReceive(ListSource):
    """A source that cannot be read."""

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Raise."""
        raise RuntimeError("receive broke")


@pytest.mark.parametrize(
    ("source", "message"), [(Broken, "tend broke"), (Unsettled, "settle broke"), (NoReceive, "receive broke")]
)
def test_broken_thread_ends_the_run(source: type[ListSource], message: str) -> None:
    """A thread of the runtime that breaks ends the run with its error; nothing hangs and every job is settled."""
    jobs = source(range(500), endless=True)
    runtime = runtime_of([hr.emulated("s", seconds=0.001)], jobs)
    with pytest.raises(RuntimeError, match=message):
        runtime.run()
    wait_until(lambda: jobs.in_flight == [])
    assert jobs.closed


def test_broken_hand_over_of_the_only_batch_ends_the_run() -> None:
    """When handing on breaks and no further batch comes, the run ends with the error all the same."""
    jobs = Unsettled(range(3), endless=True)
    plan = {"stages": {"d": {"batch": 4}, "deliver": {"executor": "inline"}}}
    with pytest.raises(RuntimeError, match="settle broke"):
        runtime_of([hr.stage("d", list, kind="device")], jobs, plan).run()
    assert jobs.in_flight == []


class CannotOpen(Stage):
    """Raises when opened."""

    def __init__(self, error: Exception, *, executor: Any = "thread") -> None:
        super().__init__("s")
        self.error = error
        self.executor = executor

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Raise."""
        raise self.error


@pytest.mark.parametrize("executor", ["thread", "inline"])
def test_opening_error_comes_before_the_first_job(executor: str) -> None:
    """A stage that cannot open ends the run with its name and cause, before any job is received."""
    source = ListSource(range(10))
    with pytest.raises(HeadraceError, match="stage s could not be opened: OSError: no weights") as caught:
        runtime_of([CannotOpen(OSError("no weights"), executor=executor)], source).run()
    assert isinstance(caught.value.__cause__, OSError)
    assert (source.most_in_flight, source.closed) == (0, True)


def test_failing_load_of_a_module() -> None:
    """An error in a module's `load` is told the same way."""

    class NoWeights(hr.Module):
        input = hr.ArrayInput()

        def load(self, context: Any) -> None:
            """Raise."""
            raise FileNotFoundError("weights.bin")

        def process(self, batch: Any) -> Any:
            """Never called."""

    source = ListSource([1])
    pipeline = Pipeline(source, module=NoWeights())
    with pytest.raises(HeadraceError, match=r"stage process could not be opened: FileNotFoundError: weights.bin"):
        hr.run(pipeline)
    assert source.most_in_flight == 0


def test_delivery_that_cannot_open_closes_the_source() -> None:
    """When the delivery cannot open, the source that was opened is closed."""

    class NoFolder(Collect):
        def open(self, context: Any) -> None:
            """Raise."""
            raise OSError("read-only")

    source = ListSource([1])
    with pytest.raises(OSError, match="read-only"):
        runtime_of([hr.stage("s", str)], source, delivery=NoFolder()).run()
    assert source.closed


def test_delivery_that_cannot_close_is_told() -> None:
    """An error while the delivery closes ends the run with it, and the source is closed all the same."""

    class NoEnd(Collect):
        def close(self) -> None:
            """Raise."""
            raise OSError("full disk")

    source = ListSource([1])
    with pytest.raises(OSError, match="full disk"):
        runtime_of([hr.stage("s", str)], source, delivery=NoEnd()).run()
    assert source.closed


class Touchy(Observer):
    """Raises in every hook."""

    def __init__(self) -> None:
        self.calls = 0

    def stage_finished(self, spans: Any) -> None:
        """Raise."""
        self.calls += 1
        raise ValueError("observer broke")

    def job_settled(self, job: Any, outcome: Any) -> None:
        """Raise."""
        raise ValueError("observer broke")


def test_observer_that_raises_is_detached(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """An observer that raises is logged and asked no more; items and other observers go on."""
    touchy = Touchy()
    ran = run([hr.stage("s", str)], range(50), {"stages": {"s": {"workers": 1}}}, observers=[touchy])
    assert ran.result.counters.delivered == 50
    assert touchy.calls <= 2  # the workers of s and deliver may both have been on their way
    assert len(ran.spans) == 100
    assert "is detached" in caplog.text


# --- on a queue


def queue_of(count: int, visibility_seconds: float = 30.0, **job: Any) -> MemoryQueue:
    """Return a queue with jobs."""
    queue = MemoryQueue(visibility_seconds=visibility_seconds)
    queue.send([encode_job(b"x" * (n + 1), id=f"job-{n}", **job) for n in range(count)])
    return queue


def test_stopped_worker_gives_back_to_the_queue() -> None:
    """What a stopped worker had not done can be received by others at once."""
    gate = threading.Event()
    queue = queue_of(30)
    runtime = runtime_of([hr.stage("s", lambda x: gate.wait(100))], QueueSource(queue))
    thread = started(runtime)
    wait_until(lambda: queue.statistics().in_flight > 2)
    runtime.stop()
    runtime.stop()
    thread.join(25)
    assert not thread.is_alive()
    gate.set()
    state = queue.statistics()
    assert (state.visible, state.in_flight) == (30, 0)


def test_retries_through_the_queue_end_in_the_dead_letters() -> None:
    """A job that always fails comes back through the queue, then lies in the dead letters with reason and delivery."""
    queue = queue_of(3)

    def fail_long(value: bytes) -> int:
        if len(value) == 2:
            raise ValueError("two")
        return len(value)

    runtime = runtime_of([hr.stage("s", fail_long)], QueueSource(queue, drain=True, max_receives=2))
    runtime.context.random = lambda: 0.0
    runtime.run()
    (letter,) = queue.peek(5, dead=True)
    assert letter.reason.startswith("s: item job-1: ValueError: two")
    assert letter.receive_count == 2
    counters = runtime.context.counters
    assert (counters.received, counters.delivered, counters.retried, counters.dead_lettered) == (4, 2, 1, 1)


def test_deadline_passed(run: Run) -> None:
    """A job whose deadline has passed is rejected before more work is put into it."""
    queue = queue_of(1, deadline=time.time() - 5)
    runtime = runtime_of([hr.stage("s", len)], QueueSource(queue, drain=True))
    runtime.run()
    assert runtime.context.counters.rejected == 1
    (letter,) = queue.peek(1, dead=True)
    assert "deadline.passed: the job's deadline passed" in letter.reason


def test_a_result_that_is_late_is_not_delivered() -> None:
    """Also where the delivery runs in the worker of the stage that took too long."""
    clock, delivered = FakeClock(), []
    stages = [hr.stage("s", len), hr.stage("deliver", len)]
    group = Group(stages, [lambda value: clock.advance(2.0), delivered.append], clock, 1)
    item = Item(Job("job-1", b"", deadline_ns=clock.now_ns() + 10**9), b"", ())
    group.run([item], None)
    assert delivered == []
    assert str(item.error) == "deliver: item job-1: deadline.passed: the job's deadline passed 1.000 s ago"


def test_lost_loan_is_counted_once() -> None:
    """Work on a job whose loan ran out is dropped, and counted as lost and as nothing else, also with many children."""
    source = ListSource(range(3))

    def lose(number: int) -> hr.Fan:
        if number == 1:
            next(job for job in source.in_flight if job.id == "1").lost = True
        return hr.Fan([number] * 5)

    stages = [hr.fan_out("cut", lose), hr.stage("leaf", lambda x: x), hr.join("j", lambda j: len(j.results))]
    runtime = runtime_of(stages, source, {"stages": {"leaf": {"workers": 4}}})
    runtime.run()
    assert (runtime.context.counters.delivered, runtime.context.counters.lost, runtime.context.counters.returned) == (
        2,
        1,
        0,
    )
    assert adds_up(runtime.context.counters)


def test_a_last_look_finds_everything_settled_and_the_workers_there() -> None:
    """What is called before closing sees exact counters, and threads whose clocks can still be read; what began is told."""
    runtime = runtime_of([hr.stage("double", lambda value: value * 2)], ListSource([b"a", b"b", b"c"]))
    seen: list[tuple[int, bool, list[int]]] = []

    def look() -> None:
        alive = {thread.native_id for thread in threading.enumerate()}
        numbers = [place.thread_id for place in runtime.worker_threads() if place.thread_id in alive]
        seen.append((runtime.context.counters.delivered, runtime.begun.is_set(), numbers))

    runtime.before_closing.append(look)
    assert not runtime.begun.is_set()
    runtime.run()
    ((delivered, begun, numbers),) = seen
    assert (delivered, begun) == (3, True)
    assert numbers
    assert len(runtime.receivers_cpu_seconds) == 1


def test_what_failed_is_let_go() -> None:
    """What a failed stage had in its hands is freed at once, without the collector, also where the error is in a variable."""

    class Large:
        """What a stage computes."""

    seen: list[weakref.ref[Large]] = []

    def stage(value: int) -> None:
        large = Large()
        seen.append(weakref.ref(large))
        error = ItemRejected("no") if value % 2 else ValueError("not now")
        raise error

    runtime = runtime_of(
        [hr.stage("stage", stage)],
        ListSource(range(20)),
        {"stages": {"stage": {"attempts": 2}}, "run": {"brake_after": 0}},
    )
    gc.disable()
    try:
        runtime.run()
        alive = [large for large in seen if large() is not None]
    finally:
        gc.enable()
    assert len(seen) >= 20
    assert alive == []
