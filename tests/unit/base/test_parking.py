"""Threads that wait are called exactly, and no call is lost."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.base.parking import Parking


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.001)


def start(*targets: Callable[[], object]) -> list[threading.Thread]:
    """Start a thread for each."""
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    """Wait until all have left."""
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_as_many_are_called_as_were_asked_for() -> None:
    """A call wakes the thread that waits longest, and counts it until it has come."""
    guard, came = threading.Lock(), list[str]()
    parking = Parking(guard)

    def wait(name: str) -> None:
        with guard:
            assert parking.wait()
            came.append(name)

    threads = start(lambda: wait("first"))
    wait_until(lambda: len(parking) == 1)
    threads += start(lambda: wait("second"))
    wait_until(lambda: len(parking) == 2)
    threads += start(lambda: wait("third"))
    wait_until(lambda: len(parking) == 3)
    with guard:
        parking.call()
        assert (len(parking), parking.num_called) == (2, 1)
    wait_until(lambda: came == ["first"])
    assert parking.num_called == 0
    with guard:
        parking.call_all()
        assert (len(parking), parking.num_called) == (0, 2)
    join(threads)
    assert parking.num_called == 0


def test_calling_where_nobody_waits_does_nothing() -> None:
    """A call is not kept for those who come later."""
    guard = threading.Lock()
    parking = Parking(guard)
    with guard:
        parking.call(3)
        parking.call(-1)
        assert parking.wait(0.0) is False


def test_a_wait_whose_time_is_over_leaves_nothing_behind() -> None:
    """After a wait in vain the same thread waits again, in another place as well."""
    guard = threading.Lock()
    first, second = Parking(guard), Parking(guard)
    with guard:
        for parking in (first, second, first):
            assert parking.wait(0.001) is False
            assert (len(parking), parking.num_called) == (0, 0)


@pytest.mark.parametrize("seconds", [None, 0.0005], ids=["until called", "with time limits"])
def test_nothing_is_lost_among_many(seconds: float | None) -> None:
    """Producers call once for each thing, consumers wait with and without time limits, and all things arrive once."""
    guard, things, got = threading.Lock(), deque[int](), list[int]()
    parking = Parking(guard)
    num_each, num_producers, closed = 400, 4, list[bool]()

    def produce(first: int) -> None:
        for number in range(first, first + num_each):
            with guard:
                things.append(number)
                parking.call()
            if random.random() < 0.1:
                time.sleep(random.random() * 0.001)

    def consume() -> None:
        while True:
            with guard:
                while not things and not closed:
                    parking.wait(seconds)
                if not things:
                    return
                got.append(things.popleft())
            if random.random() < 0.1:
                time.sleep(random.random() * 0.001)

    consumers = start(*[consume] * 6)
    join(start(*[lambda first=first: produce(first * num_each) for first in range(num_producers)]))
    with guard:
        closed.append(True)
        parking.call_all()
    join(consumers)
    assert sorted(got) == list(range(num_producers * num_each))
    assert (len(parking), parking.num_called) == (0, 0)


class Interrupted(BaseException):
    """What a signal handler raises."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Has a signal handler raise in the main thread, which runs this test."""

    def handle(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("called", [False, True])
def test_a_handler_that_raises_ends_a_wait_in_order(interrupt: Callable[[], None], called: bool) -> None:
    """Called or not, and however often it raises, nobody is left in the list, and the guard is the waiter's to give up."""
    guard, held = threading.Lock(), threading.Event()
    parking = Parking(guard)

    def disturb() -> None:
        wait_until(lambda: len(parking) == 1)
        with guard:
            parking.call(called)
            for _ in range(3):
                interrupt()
                time.sleep(0.02)  # the waiter wants the guard now
            held.set()

    threads = start(disturb)
    with pytest.raises(Interrupted), guard:
        parking.wait()
    assert held.is_set()
    assert (guard.locked(), len(parking), parking.num_called) == (False, 0, 0)
    join(threads)
    with guard:
        assert parking.wait(0.001) is False  # its own lock is not left open


def test_a_handler_that_raises_just_after_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has its lock already, and nobody would give it a second time."""

    class Own:
        """As the lock of a thread in which a handler raises before the interpreter goes on."""

        def __init__(self, lock: threading.Lock) -> None:
            self.acquire = lock.acquire
            self.lock = self
            self._lock = lock

        def release(self) -> None:
            """Let the thread go on, and raise there."""

            def acquire_and_raise(**options: Any) -> None:
                self.acquire = self._lock.acquire
                self._lock.acquire(**options)
                raise Interrupted

            self.acquire = acquire_and_raise
            self._lock.release()

    guard, lock = threading.Lock(), threading.Lock()
    parking, own = Parking(guard), Own(lock)
    lock.acquire()
    monkeypatch.setattr("headrace.base.parking._own", own)
    own.acquire = lambda **options: (parking.call(), own.acquire(**options))  # called as soon as it waits
    with pytest.raises(Interrupted), guard:
        parking.wait()
    assert (guard.locked(), lock.locked(), len(parking), parking.num_called) == (False, True, 0, 0)
