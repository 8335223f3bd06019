"""What closes a recording is called once and to its end, whatever a signal's handler raises meanwhile."""

from __future__ import annotations

import threading
import time

import pytest

from headrace.train.undisturbed import call_undisturbed


class Killed(RuntimeError):
    """As PyTorch's handler raises it."""


def test_what_a_call_raises_is_raised() -> None:
    """As if it had been called here."""
    with pytest.raises(ZeroDivisionError):
        call_undisturbed(lambda: 1 / 0)


def test_without_a_further_thread_it_is_called_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is about to end, or the limit on threads is reached."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    calls: list[str] = []
    call_undisturbed(lambda: calls.append(threading.current_thread().name))
    assert calls == [threading.current_thread().name]


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_handler_that_raises_where_the_thread_begins(has_begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call, which has ended before its error is raised; whoever makes it."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if has_begun:
            start(thread)
        raise Killed("DataLoader worker (pid 1) is killed by signal: Killed.")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    calls: list[int] = []

    def call() -> None:
        time.sleep(0.05)
        calls.append(1)

    with pytest.raises(Killed):
        call_undisturbed(call)
    assert calls == [1]


def test_a_handler_that_raises_while_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call comes to its end; then the error is raised."""
    wait, raised, calls = threading.Event.wait, [Killed("first"), Killed("second")], []

    def disturbed(event: threading.Event, timeout: float | None = None) -> bool:
        if raised and threading.current_thread() is threading.main_thread() and begun.is_set():
            raise raised.pop(0)
        return wait(event, timeout)

    begun = threading.Event()

    def call() -> None:
        begun.set()
        time.sleep(0.1)
        calls.append(1)

    monkeypatch.setattr(threading.Event, "wait", disturbed)
    with pytest.raises(Killed):
        call_undisturbed(call)
    assert calls == [1]
