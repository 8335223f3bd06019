"""The pauses of the threads beside the items, and the bell that wakes the thread that called `run`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace as hr
from headrace.pipeline.bell import Bell
from headrace.pipeline.end_signals import EndSignals
from headrace.pipeline.execute import run as execute
from headrace.pipeline.punctuality import Punctuality
from headrace.pipeline.rest import Rest
from headrace.sources.jobs import encode_job
from headrace.testing import MemoryQueue


class Scene:
    """A run of which tests move the clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.is_empty = True
        self.rest = Rest(lambda: self.is_empty, lambda: self.seconds)


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Call a function in a thread; return the thread and where its answer goes."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(function()), daemon=True)
    thread.start()
    return thread, answers


def test_threads_rest_once_nothing_was_in_flight_for_a_second() -> None:
    """While jobs are in flight, and a second longer, a pause is a tick; then it is a rest."""
    scene = Scene()
    assert not scene.rest.pause()
    scene.is_empty = False
    scene.seconds = 10.0
    assert not scene.rest.pause()
    scene.is_empty = True
    scene.seconds = 10.9
    assert not scene.rest.pause()
    scene.seconds = 11.0
    assert scene.rest.pause(loan_seconds=0.1)


def test_jobs_wake_all_who_rest() -> None:
    """However many threads rest, all of them go on when jobs come, and no thread rests then."""
    scene = Scene()
    scene.seconds = 5.0
    resting = [in_thread(scene.rest.pause) for _ in range(3)]
    for thread, answers in resting:
        while thread.is_alive() and not answers:
            scene.rest.stir()
            thread.join(0.01)
        thread.join(60)
        assert answers == [True]
    assert not scene.rest.pause()


def test_a_run_that_closes_rests_no_more() -> None:
    """Whoever rests wakes, and later pauses end at once."""
    scene = Scene()
    scene.seconds = 5.0
    thread, answers = in_thread(scene.rest.pause)
    scene.rest.end()
    thread.join(60)
    assert len(answers) == 1
    assert scene.rest.is_over
    assert not scene.rest.pause()


def test_a_bell_that_rang_before_is_heard() -> None:
    """Rung twice it is heard once; unheard it stays silent."""
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(60)
    assert not bell.wait(0.001)


@pytest.fixture
def usr1() -> Iterator[EndSignals]:
    """Signals of a run that SIGUSR1 ends."""
    signals = EndSignals([signal.SIGUSR1])
    with signals.heard():
        yield signals


def test_a_signal_wakes_who_waits(usr1: EndSignals) -> None:
    """A signal to the process, which the main thread takes, ends its wait: nobody need look again and again."""
    timer = threading.Timer(0.01, os.kill, [os.getpid(), signal.SIGUSR1])
    timer.start()
    assert usr1.bell.wait(60)
    timer.join(60)
    assert usr1.num == 1


def test_a_rest_is_no_late_heartbeat() -> None:
    """The time that a heartbeat rested is not counted as a gap."""
    punctuality = Punctuality()
    punctuality.tended(0.0, 0.0, 30.0)
    punctuality.rested()
    punctuality.tended(29.0, 29.0, 30.0)
    punctuality.tended(31.0, 31.0, 30.0)
    assert punctuality.tending().longest_gap_seconds == 2.0


def test_jobs_after_a_rest_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that rests whenever nothing is in flight takes up work, acks it and ends when it is stopped."""
    monkeypatch.setattr("headrace.pipeline.rest._QUIET_AFTER_SECONDS", 0.0)
    queue, stop, done = MemoryQueue(), threading.Event(), threading.Event()
    ids: list[str] = []

    class Once(hr.Observer):
        def job_settled(self, job: hr.Job, outcome: hr.Outcome) -> None:
            """Note it."""
            ids.append(job.id)
            done.set()

    def send() -> None:
        """Send a job each time when the one before was done."""
        for number in range(3):
            queue.send([encode_job(b"x", id=str(number))])
            assert done.wait(60)
            done.clear()
        stop.set()

    thread, _ = in_thread(send)
    result = execute(hr.Pipeline(hr.queue(queue), stages=[hr.stage("a", str)]), stop=stop, observers=[Once()])
    thread.join(60)
    assert result.counters.delivered == len(ids) == 3
    assert queue.statistics().visible == queue.statistics().in_flight == 0
