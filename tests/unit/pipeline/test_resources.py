"""What models share: nobody has more than there is, and whoever came first goes first."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.base.clock import SystemClock
from headrace.base.errors import SettingsError
from headrace.base.policies.batching import BatchingPolicy
from headrace.base.records import Job
from headrace.engines.onnx_engine import OnnxOptions
from headrace.pipeline.bounded_queue import BoundedQueue
from headrace.pipeline.item import Item
from headrace.pipeline.resources import Claim, Resources

Run = Callable[..., Any]


def take_in_thread(resources: Resources, uses: dict[str, int], name: str, order: list[str]) -> threading.Thread:
    """Take in a thread of its own, which notes when it has what it wants; return once it has or waits."""
    begun = threading.Event()

    def take() -> None:
        begun.set()
        resources.take(uses)
        order.append(name)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert begun.wait(60)
    wait_until(lambda: name in order or len(resources._waiting) > 0)
    return thread


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.001)


def test_nobody_overtakes_who_waits_for_the_same() -> None:
    """A small one does not go before a large one that came first; one that wants something else does."""
    resources, order = Resources({"gpu": 2, "disk": 1}), list[str]()
    resources.take({"gpu": 1})
    large = take_in_thread(resources, {"gpu": 2}, "large", order)
    small = threading.Thread(target=lambda: (resources.take({"gpu": 1}), order.append("small")), daemon=True)
    small.start()
    wait_until(lambda: len(resources._waiting) == 2)
    take_in_thread(resources, {"disk": 1}, "disk", order).join(60)
    assert order == ["disk"]
    resources.give({"gpu": 1})
    large.join(60)
    assert order == ["disk", "large"]
    resources.give({"gpu": 2})
    small.join(60)
    assert order == ["disk", "large", "small"]


def test_never_more_than_there_is() -> None:
    """Of several resources at once, taken in whatever order, nobody has too much, and nobody waits for ever."""
    amounts = {"a": 3, "b": 2}
    resources, lock, used, most = Resources(amounts), threading.Lock(), {"a": 0, "b": 0}, {"a": 0, "b": 0}

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(200):
            uses = {name: rng.randint(1, amounts[name]) for name in rng.sample(["a", "b"], rng.randint(1, 2))}
            with Claim(resources, uses):
                with lock:
                    for name, amount in uses.items():
                        used[name] += amount
                        most[name] = max(most[name], used[name])
                with lock:
                    for name, amount in uses.items():
                        used[name] -= amount

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert all(most[name] <= amounts[name] for name in amounts)
    assert resources._left == amounts


def test_a_claim_is_taken_once() -> None:
    """Within one that is held, and given back once."""
    resources = Resources({"gpu": 1})
    claim = Claim(resources, {"gpu": 1})
    claim.take()
    with claim:
        assert claim.is_held
    assert resources._left == {"gpu": 1}
    claim.give()
    assert resources._left == {"gpu": 1}


def test_a_batch_grows_while_another_has_the_device() -> None:
    """What comes while a worker waits for the device goes with the batch that it waits to run."""
    resources = Resources({"gpu": 1})
    queue, taken = BoundedQueue(100, 10**6, SystemClock()), list[int]()
    claim = Claim(resources, {"gpu": 1})
    resources.take({"gpu": 1})

    def work() -> None:
        items, _, _ = queue.take_batch(BatchingPolicy(max_size=8), lambda: False, claim)
        taken.append(len(items))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    queue.put([Item(Job("x", 0), 0, ())])
    wait_until(lambda: len(resources._waiting) == 1)
    queue.put([Item(Job("x", 0), 0, ()) for _ in range(4)])
    resources.give({"gpu": 1})
    worker.join(60)
    assert taken == [5]
    assert claim.is_held


def test_a_worker_that_finds_nothing_gives_the_device_back() -> None:
    """Another worker of the queue took what it waited for; then the queue is closed."""
    resources = Resources({"gpu": 1})
    queue = BoundedQueue(100, 10**6, SystemClock())
    claim = Claim(resources, {"gpu": 1})
    resources.take({"gpu": 1})
    ended = list[int]()
    worker = threading.Thread(
        target=lambda: ended.append(len(queue.take_batch(BatchingPolicy(), lambda: False, claim)[0])), daemon=True
    )
    worker.start()
    queue.put([Item(Job("x", 0), 0, ())])
    wait_until(lambda: len(resources._waiting) == 1)
    assert len(queue.take(1)) == 1
    resources.give({"gpu": 1})
    wait_until(lambda: queue.state().waiting_consumers == 1)
    assert resources._left == {"gpu": 1}
    queue.close()
    worker.join(60)
    assert ended == [0]


class Calls:
    """Counts calls that are under way at the same time, over all models."""

    def __init__(self) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now -= 1


class Emulated(hr.Module):
    """Calls an emulated model, and counts."""

    input = hr.ArrayInput()

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def load(self, context: Any) -> None:
        """Open it."""
        self.model = context.open_model()

    def process(self, batch: Any) -> Any:
        """Return its answers."""
        with self._calls:
            return self.model(batch)


def share_a_device(run: Run, number: int, workers: int) -> int:
    """Run two tasks whose models share a device that takes so many calls; return how many there were at most."""
    calls = Calls()
    plan = {
        "resources": {"device": number},
        "model": {
            "engine": "emulated",
            "uses": {"device": 1},
            "instances": workers,
            "options": {"launch_seconds": 0.002, "item_seconds": 0.0002},
        },
    }
    tasks = ["faces", "plates"] * 100
    ran = run(
        None, [1.0] * 200, plan, modules={"faces": Emulated(calls), "plates": Emulated(calls)}, source={"tasks": tasks}
    )
    assert len(ran.delivered) == 200
    return calls.most


@pytest.mark.parametrize(("number", "workers"), [(1, 2), (3, 2)])
def test_two_tasks_share_a_device(run: Run, number: int, workers: int) -> None:
    """Never more calls at a time than it takes, over both tasks and all their workers; and as many as it takes."""
    assert share_a_device(run, number, workers) == number


def test_what_processes_cannot_share(run: Run) -> None:
    """Resources are of one process; a stage that runs in others says so before anything runs."""
    plan = {
        "resources": {"gpu": 1},
        "stages": {"a": {"executor": "process"}},
        "model": {"engine": "emulated", "uses": {"gpu": 1}},
    }
    with pytest.raises(
        SettingsError, match=r"stages\.a\.executor = 'process' is not possible where .* uses resources \(gpu\)"
    ):
        run([hr.stage("a", list, kind="device")], [1], plan)


class Placed(Emulated):
    """Says on which device its worker's model is."""

    def process(self, batch: Any) -> Any:
        """Return its number for each input."""
        with self._calls:
            self.model(batch)
        return [self.model._options.device] * len(batch)


def run_on(run: Run, devices: list[int], **plan: Any) -> tuple[Any, int]:
    """Run 60 items over emulated devices; return what came of it, and how many calls there were at a time at most."""
    calls = Calls()
    model = {"engine": "emulated", "devices": devices, "options": {"launch_seconds": 0.005}, **plan}
    ran = run(None, [1.0] * 60, {"model": model}, modules={"faces": Placed(calls)}, source={"tasks": ["faces"] * 60})
    return ran, calls.most


def test_each_device_has_its_own_copy_and_takes_one_call_at_a_time(run: Run) -> None:
    """Calls run side by side on different devices alone, and the spans say on which each batch was."""
    ran, most = run_on(run, [3, 7])
    assert most == 2
    assert set(ran.results.values()) == {3, 7}
    spans = [span for span in ran.spans if span.stage == "faces.process"]
    assert {span.thread for span in spans} == {"faces.process-0 device 3", "faces.process-1 device 7"}
    assert all(span.thread.endswith(f" {ran.results[span.unit_id]}") for span in spans)


def test_an_engine_of_one_device_refuses_several(run: Run) -> None:
    """Before anything runs; and so does the CPU, which is one device."""
    with pytest.raises(
        SettingsError, match=r"devices = \[0, 1\] of the model of faces.process .* the engine openvino "
    ):
        run_on(run, [0, 1], engine="openvino", options={})
    with pytest.raises(SettingsError, match=r"device = 1 is not possible; allowed: only 0 with provider"):
        OnnxOptions(device=1)
