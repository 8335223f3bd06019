"""Items that hang: the run goes on without their thread, or ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import StageStalled
from headrace.base.policies.stalls import StallPolicy
from headrace.base.records import OutcomeKind
from headrace.pipeline.stall_watch import StallWatch
from headrace.pipeline.worker import Worker
from headrace.sources.jobs import encode_job
from headrace.testing import MemoryQueue

pytestmark = pytest.mark.real_clock

HANG = threading.Event()
PLAN = {"run": {"stall_seconds": 0.3}}


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    """At the end, let threads that hang come back."""
    HANG.clear()
    yield
    HANG.set()


def hang_on_bad(value: Any) -> Any:
    """Hang on an item called bad."""
    if "bad" in str(value):
        HANG.wait(60)
    return value


def test_an_item_that_hangs_is_given_up(run: Callable[..., Any]) -> None:
    """Its thread is left behind and replaced, its neighbours are delivered, and the reason names the settings."""
    stages = [hr.stage("work", hang_on_bad, kind="cpu")]
    ran = run(stages, ["a", "bad 1", "b", "bad 2", "c", "d"], {**PLAN, "stages": {"work": {"workers": 1}}})
    assert sorted(ran.results.values()) == ["a", "b", "c", "d"]
    assert ran.ids(OutcomeKind.DEAD_LETTERED) == {"1", "3"}
    assert "took longer than run.stall_seconds = 0.3 and its thread was left behind" in ran.reason("1")
    assert 'stages.work.executor = "process"' in ran.reason("1")


def test_neighbours_in_hand_are_not_blamed(tmp_path: Path) -> None:
    """Of items that a worker took together only the one that hangs by itself is given up."""
    for number in range(300):
        (tmp_path / f"{number:03d}{'-bad' * (number == 280)}.txt").touch()
    collected = hr.collect()
    source = hr.folder(tmp_path, patterns=["*.txt"])
    stages = [hr.stage("work", hang_on_bad, kind="cpu")]
    # Quick items are taken several at a time once their pace is known.
    plan = hr.Plan.from_table({**PLAN, "stages": {"work": {"workers": 1}}, "source": {"receive_batch": 64}})
    result = hr.run(hr.Pipeline(source, stages=stages, delivery=collected), plan)
    assert (result.counters.delivered, result.counters.dead_lettered) == (299, 1)
    assert result.counters.returned > 1  # they were in hand beside it
    assert len({name for name, _ in collected.results}) == 299


def test_a_thread_that_comes_back_is_not_heard(run: Callable[..., Any]) -> None:
    """What a thread that was left behind still returns goes nowhere, and it takes no more items."""
    come_back = threading.Event()

    def work(value: str) -> str:
        if value == "bad":
            come_back.wait(60)
        elif value == "last":
            come_back.set()
            time.sleep(0.2)
        return value

    payloads = ["bad", *["a"] * 50, "last"]
    ran = run([hr.stage("work", work, kind="cpu")], payloads, {**PLAN, "stages": {"work": {"workers": 1}}})
    assert sorted(ran.results.values()) == sorted(payloads[1:])
    assert ran.ids(OutcomeKind.DEAD_LETTERED) == {"0"}


def test_the_next_items_of_a_worker_that_came_back_are_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the verdict and the replacing a worker may come back and take others, which nobody gives up."""
    worker = Worker(SimpleNamespace(), "work-0")  # type: ignore[arg-type]
    # Replacing it or giving up its items would need what is not there.
    stations: Any = [SimpleNamespace(workers=[worker], carrying=None)]
    nobody: Any = None
    watch = StallWatch(stations, 1.0, hr.queue(MemoryQueue()), nobody, nobody)
    judge = StallPolicy.find_stalled
    verdicts = []

    def judge_slowly(policy: StallPolicy, now: float, hands: Any) -> list[Any]:
        verdicts.append(judge(policy, now, hands))
        worker.hand = (2, [SimpleNamespace(id="innocent")])  # type: ignore[list-item]
        return verdicts[-1]

    worker.hand = (1, [SimpleNamespace(id="hung")])  # type: ignore[list-item]
    watch.look(0.0)
    monkeypatch.setattr(StallPolicy, "find_stalled", judge_slowly)
    watch.look(2.0)
    assert verdicts == [[worker]]
    assert not worker.is_left_behind


@pytest.mark.parametrize(
    ("kind", "plan", "why"),
    [
        ("device", {}, "it holds the device"),
        ("cpu", {"stages": {"work": {"executor": "inline"}}}, "it receives"),
    ],
)
def test_a_hang_that_nobody_can_go_on_without(tmp_path: Path, kind: str, plan: dict[str, Any], why: str) -> None:
    """The run ends with an error that says why; resumed, the one that hangs is tried alone, and given up in the end."""
    for name in ("a", "bad", "c", "d"):
        (tmp_path / f"{name}.txt").touch()

    def work(value: Any) -> Any:
        names = [str(one) for one in value] if kind == "device" else str(value)
        hang_on_bad(names)
        return names

    def go(**options: Any) -> hr.Result:
        source = hr.folder(tmp_path, patterns=["*.txt"], max_receives=2)
        stages = [hr.stage("work", work, kind=kind)]  # type: ignore[arg-type]
        pipeline = hr.Pipeline(source, stages=stages, delivery=hr.jsonl(tmp_path / "out.jsonl"))
        return hr.run(pipeline, hr.Plan.from_table({**PLAN, **plan}), **options)

    with pytest.raises(StageStalled, match=f"bad.txt took longer than run.stall_seconds = 0.3 in stage work, .*{why}"):
        go()
    with pytest.raises(StageStalled):
        go(resume=True)
    result = go(resume=True)
    assert result.before is not None
    assert list(result.before.given_up_now) == ["bad.txt"]
    assert (tmp_path / "out.jsonl").read_text().count("\n") == 3


def test_a_hang_over_a_queue_says_what_becomes_of_its_jobs() -> None:
    """Nothing is resumed there: the jobs come back by themselves."""
    queue = MemoryQueue()
    queue.send([encode_job(b"bad", id="bad")])
    stages = [hr.stage("work", lambda batch: hang_on_bad(["bad"] * len(batch)), kind="device")]
    pipeline = hr.Pipeline(hr.queue(queue, drain=True), stages=stages, delivery=hr.collect())
    with pytest.raises(StageStalled, match=r"comes back there, .*start the run again") as raised:
        hr.run(pipeline, hr.Plan.from_table(PLAN))
    assert "--resume" not in str(raised.value)


def test_too_many_that_hang(run: Callable[..., Any]) -> None:
    """Threads that are left behind keep their memory: beyond a bound the run ends."""
    stages = [hr.stage("work", hang_on_bad, kind="cpu")]
    plan = {**PLAN, "stages": {"work": {"workers": 20}}}
    with pytest.raises(StageStalled, match="16 were left behind already"):
        run(stages, ["bad"] * 40, plan)


def test_no_limit(run: Callable[..., Any]) -> None:
    """With 0 an item may take as long as it takes."""

    def slow(value: int) -> int:
        time.sleep(1.5)
        return value

    ran = run([hr.stage("work", slow, kind="cpu")], [1], {"run": {"stall_seconds": 0}})
    assert ran.results == {"0": 1}
