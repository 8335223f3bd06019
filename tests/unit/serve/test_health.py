"""When a service says that it is ready: what proves it, and what does not."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headrace.serve import health as health_module
from headrace.serve.door import Ended, Refused, Work
from headrace.serve.front_door import State
from headrace.serve.health import Health


class Door:
    """Open; answers at once, refuses, or fails what comes."""

    state = State.OPEN

    def __init__(self) -> None:
        self.asked_at: list[float] = []
        self.refused: Refused | None = None
        self.code = ""

    @property
    def num_asked(self) -> int:
        """How many items came."""
        return len(self.asked_at)

    def submit(self, work: Work) -> Any:
        """Answer or refuse."""
        self.asked_at.append(time.monotonic())
        if self.refused is None:
            work.on_end(Ended("own", 1, code=self.code))
        return self.refused or self

    def cancel(self) -> None:
        """Do nothing."""


class Run:
    """What health sees of a run."""

    warm_ups = ()
    lasts = lasts_late = 0.0

    def longest_calls(self) -> tuple[float, float]:
        """How long calls last."""
        return self.lasts, self.lasts_late


class Clock:
    """Stands for the module `time`."""

    seconds = 0

    def monotonic(self) -> float:
        """Return the seconds."""
        return float(self.seconds)


class Service:
    """Health over such a door, and when a request was answered."""

    def __init__(self) -> None:
        self.door = Door()
        self.answered_at: dict[str, float] = {}
        self.health = Health(self.door, {"": b"item"}, answered_at=self.answered_at.get)

    def answer(self) -> None:
        """Answer a request."""
        self.answered_at[""] = time.monotonic()


@pytest.fixture
def service() -> Service:
    """A service that was ready once."""
    service = Service()
    assert "no item has gone through" in service.health.why_not_ready()
    assert service.health._probe("")
    assert service.health.why_not_ready() == ""
    return service


def test_what_is_busy_is_ready(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too much comes, what the service tries itself with is refused like the rest; answers prove as much."""
    service.door.refused = Refused(429, "serve.busy", "full")
    monkeypatch.setattr(health_module, "_PROOF_SECONDS", 0.05)
    monkeypatch.setattr(health_module, "_PROBE_SECONDS", 0.02)
    time.sleep(0.1)
    assert not service.health._probe("")
    assert service.health.why_not_ready() == "nothing has gone through the pipeline of late"
    service.answer()
    assert service.health.why_not_ready() == ""
    time.sleep(0.1)
    assert service.health.why_not_ready() != ""


def test_answers_prove_nothing_before_the_first_probe() -> None:
    """A service whose probe fails says so, whatever else it answers."""
    service = Service()
    service.door.code = "serve.failed"
    service.answer()
    assert not service.health._probe("")
    assert service.health.why_not_ready().startswith("the probe failed")


def test_while_requests_are_answered_none_is_sent(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would take a request's place; once none is answered any more, the service tries itself again."""
    monkeypatch.setattr(health_module, "_PROBE_SECONDS", 0.05)
    monkeypatch.setattr(health_module, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(health_module, "_FIRST_SECONDS", 0.01)
    with service.health:
        give_up_at = time.monotonic() + 30
        for _ in range(40):
            service.answer()
            time.sleep(0.005)
        assert service.door.num_asked == 1, "the first one"
        while service.door.num_asked == 1:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)


@pytest.mark.parametrize("was_ready", [False, True])
def test_what_fails_is_tried_again_ever_more_rarely(
    was_ready: bool, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is an item that the log and the totals name; before the service was ready for the first time too."""
    monkeypatch.setattr(health_module, "_FIRST_SECONDS", 0.0001)
    monkeypatch.setattr(health_module, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(health_module, "_PROBE_SECONDS", 0.04)
    if not was_ready:
        service = Service()
    service.door.code = "serve.failed"
    service.door.asked_at.clear()
    with service.health:
        while service.door.num_asked < 6:
            time.sleep(0.01)
    at = service.door.asked_at
    for later, sooner, pause in zip(at[1:], at, (0.01, 0.02, 0.04, 0.04, 0.04), strict=False):
        assert later - sooner >= pause


def test_what_hangs_for_long_is_given_up(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody does that; what lasts long and comes to an end is not. A second passes from one look to the next."""
    monkeypatch.setattr(health_module, "_PROBE_SECONDS", 0.001)
    monkeypatch.setattr(health_module, "_FIRST_SECONDS", 0.001)
    run, clock, given_up = Run(), Clock(), threading.Event()
    monkeypatch.setattr(health_module, "time", clock)
    heard: list[tuple[int, str]] = []

    def look() -> tuple[float, float]:
        clock.seconds += 1
        return 5.0 if clock.seconds > 100 or clock.seconds % 10 else 0.0, 0.0

    def give_up(why: str) -> None:
        heard.append((clock.seconds, why))
        given_up.set()

    monkeypatch.setattr(run, "longest_calls", look)
    service.health.watch(run)
    service.health.on_hung = give_up
    with service.health:
        assert given_up.wait(30)
    when, why = heard[0]
    assert when == 121
    assert "a call of a stage lasts 5.0 s by now" in why


def test_what_takes_long_now_and_then_gets_a_minute_more(service: Service) -> None:
    """Such as a model in a process of its own, which may have to be started again."""
    run = Run()
    service.health.watch(run)
    run.lasts_late = 50.0
    assert service.health.why_not_live() == ""
    run.lasts_late = 70.0
    assert "lasts 70.0 s by now; more than 62.0 s" in service.health.why_not_live()


def test_a_probe_proves_something_even_if_nothing_can_be_learned_from_it() -> None:
    """A result of a kind that nobody thought of does not keep a service from being ready."""
    learned: list[Any] = []

    def learn(task: str, result: Any) -> None:
        learned.append(result)
        raise RuntimeError("of the user's own result")

    health = Health(Door(), {"": b"photograph"}, on_proof=learn)
    assert health._probe("")
    assert learned == [1]
