"""Two tasks share one device behind one door: who is asked for too much makes nobody else wait."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import headrace as hr
from headrace.base.plan import Plan
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Measuring
from headrace.pipeline.execute import run as execute
from headrace.pipeline.watching import RunInProgress
from headrace.serve.door import Ended, Refused, Work
from headrace.serve.front_door import FrontDoor
from headrace.serve.reply import Reply
from headrace.serve.source import RequestSource
from headrace.serve.wait_judge import WaitJudge
from headrace.testing import ListSource

_ANSWERS, _BATCH = 600, 4
_OPEN = {"asked for much": 120, "asked for little": 2 * _BATCH}


class Slow(hr.Module):
    """Takes 2 ms for a batch."""

    input = hr.BytesInput()

    def process(self, batch: Sequence[Any]) -> list[int]:
        """Return the sizes."""
        time.sleep(0.002)
        return [len(value) for value in batch]


class Clients:
    """So many requests of each task are open all the time: whoever is answered asks again, until there are enough answers."""

    def __init__(self, door: FrontDoor) -> None:
        self.answered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.enough = threading.Event()
        self._door = door
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Ask for the first time."""
        for task, num in _OPEN.items():
            for _ in range(num):
                self._ask(task)

    def _ask(self, task: str) -> None:
        def on_end(ended: Ended) -> None:
            with self._lock:
                self.answered[task] += not ended.code
                is_enough = self.answered.total() >= _ANSWERS
            if is_enough:
                self.enough.set()
            else:
                self._ask(task)

        if isinstance(self._door.submit(Work(payload=b"x", on_end=on_end, task=task)), Refused):
            self.refused[task] += 1


@contextmanager
def service() -> Iterator[FrontDoor]:
    """Run a pipeline of two tasks whose models share a device, and give its door."""
    modules = {task: Slow() for task in _OPEN}
    source = RequestSource()
    judge = WaitJudge(source)
    door = FrontDoor(source, judge=judge)
    is_open, stop = threading.Event(), threading.Event()
    open_door = source.on_ready
    source.on_ready = lambda: (open_door(), is_open.set())
    pipeline = Pipeline(ListSource([]), modules=modules, delivery=Reply()).replace_source(source)
    plan = Plan.from_table(
        {
            "resources": {"device": 1},
            "models": {task: {"uses": {"device": 1}} for task in modules},
            "stages": {f"{task}.process": {"batch": _BATCH} for task in modules},
            "serve": {"max_requests": 100},
            "run": {"warm_up": False},
        }
    )

    @contextmanager
    def watch(run: RunInProgress) -> Iterator[None]:
        door.follow(run.plan.serve, len(modules))
        judge.watch(run)
        yield

    options: dict[str, Any] = {"stop": stop, "watch": watch, "measuring": Measuring(brakes=False)}
    thread = threading.Thread(target=execute, args=(pipeline, plan), kwargs=options, daemon=True)
    thread.start()
    assert is_open.wait(60)
    try:
        yield door
    finally:
        stop.set()
        thread.join(60)


def test_a_task_that_is_asked_for_much_leaves_the_others_their_turn() -> None:
    """With fifteen times as many open requests it gets half of the device; in one line the other would have a sixteenth."""
    with service() as door:
        clients = Clients(door)
        clients.begin()
        assert clients.enough.wait(120)
    assert clients.answered["asked for little"] >= 0.3 * clients.answered.total()


def test_it_leaves_them_room_inside() -> None:
    """Of 100 requests inside one task may have 75: what it asks for beyond is refused, and the other's is not."""
    with service() as door:
        clients = Clients(door)
        clients.begin()
        assert clients.enough.wait(120)
    assert clients.refused["asked for much"] > 0
    assert clients.refused["asked for little"] == 0
