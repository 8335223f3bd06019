"""Those who watch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.base.observer import HOOKS, Observer, Observers
from headrace.base.records import DELIVERED, Job, Outcome


class Listener(Observer):
    """Notes what it hears of two hooks."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def job_received(self, jobs: Sequence[Job]) -> None:
        """Note."""
        self.heard.append([job.id for job in jobs])

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Note."""
        self.heard.append((job.id, outcome.kind))


class Broken(Listener):
    """Raises in one hook."""

    error: BaseException = RuntimeError("disk full")

    def job_received(self, jobs: Sequence[Job]) -> None:
        """Note and raise."""
        super().job_received(jobs)
        raise self.error


def test_hooks_are_those_of_observer() -> None:
    """The names of the hooks are the methods of Observer, no more and no fewer."""
    methods = {name for name, value in vars(Observer).items() if callable(value) and not name.startswith("_")}
    assert set(HOOKS) == methods


def test_the_hooks_of_observer_do_nothing() -> None:
    """A subclass may call any of them without an effect."""
    assert all(getattr(Observer(), hook)(*[None] * (2 if hook in _TWO else 1)) is None for hook in HOOKS)


_TWO = ("stage_started", "job_settled")


def test_everybody_who_listens_is_told() -> None:
    """Each observer hears the hooks that it overrides, with their arguments."""
    first, second = Listener(), Listener()
    observers = Observers([first, second])
    observers.notify("job_received", [Job("a", b"")])
    observers.notify("job_settled", Job("a", b""), DELIVERED)
    assert first.heard == second.heard == [["a"], ("a", "delivered")]


def test_unused_hooks_cost_no_call() -> None:
    """A hook that nobody overrides has no listener, and says so beforehand."""
    observers = Observers([Listener(), Observer()])
    assert observers.wants == {hook: hook in ("job_received", "job_settled") for hook in HOOKS}
    assert not any(observers._listeners[hook] for hook in HOOKS if not observers.wants[hook])


def test_nobody_listens() -> None:
    """Without observers no hook is wanted, and to notify does nothing."""
    observers = Observers()
    assert not any(observers.wants.values())
    observers.notify("job_received", [])


@pytest.mark.parametrize("error", [RuntimeError("disk full"), SystemExit("disk full")])
def test_an_observer_that_raises_is_detached(caplog: pytest.LogCaptureFixture, error: BaseException) -> None:
    """It is logged once and not called again; the others hear on, and the thread that called it lives."""
    broken, fine = Broken(), Listener()
    broken.error = error
    observers = Observers([broken, fine])
    with caplog.at_level(logging.ERROR, "headrace"):
        for name in "ab":
            observers.notify("job_received", [Job(name, b"")])
    assert broken.heard == [["a"]]
    assert fine.heard == [["a"], ["b"]]
    (record,) = caplog.records
    assert "job_received" in record.getMessage()
    assert "disk full" in caplog.text
    assert observers.wants["job_received"]


def test_the_last_listener_that_raises_leaves_no_cost(caplog: pytest.LogCaptureFixture) -> None:
    """Once the only listener is detached, the hook is not wanted any more."""
    observers = Observers([Broken()])
    observers.notify("job_received", [])
    assert not observers.wants["job_received"]
    assert observers.wants["job_settled"]
    assert len(caplog.records) == 1


def test_observers_may_come_from_a_generator() -> None:
    """Any iterable of observers will do, also one that can be read only once."""
    assert Observers(listener for listener in [Listener()]).wants == Observers([Listener()]).wants
