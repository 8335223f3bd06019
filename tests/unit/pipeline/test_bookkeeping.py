"""Spans wait for their turn: acks and heartbeats never wait for spans, nor do results that are written."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import headrace as hr
from headrace.base.observer import Observer, Observers
from headrace.base.plan import Plan
from headrace.base.records import Job, Span
from headrace.pipeline.bookkeeping import Bookkeeper
from headrace.pipeline.item import Item, StageTiming
from headrace.pipeline.punctuality import Punctuality
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.work_notes import WorkNote
from headrace.testing import ListSource

Run = Callable[..., Any]


class Tended:
    """Waits until a source was tended some times more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        self._changed = threading.Condition()
        monkeypatch.setattr(ListSource, "tend", self._tend)

    def _tend(self, _: Any = None) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, times: int = 3) -> None:
        """Wait for it; fails if it does not happen."""
        with self._changed:
            until = self._count + times
            assert self._changed.wait_for(lambda: self._count >= until, timeout=20)


class Waits(Observer):
    """Takes its time over the first spans, until others had their turn."""

    def __init__(self, tended: Tended) -> None:
        self._tended = tended
        self.num_spans = 0
        self.has_waited = threading.Event()

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Keep whoever brings spans busy."""
        if not self.num_spans:
            self._tended.wait()
            self.has_waited.set()
        self.num_spans += len(spans)


def test_heartbeats_come_while_spans_are_made(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long spans take, acks are sent and loans are extended meanwhile."""
    watching = Waits(Tended(monkeypatch))

    def work(number: int) -> int:
        assert number == 0 or watching.has_waited.wait(60)
        return number

    ran = run([hr.stage("a", work)], range(20), observers=[watching])
    assert len(ran.delivered) == 20
    assert watching.num_spans == 40


def test_heartbeats_come_while_results_are_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes its time over results holds up no heartbeat."""
    tended = Tended(monkeypatch)

    class Slow:
        flush_items, flush_seconds, default_workers = 1000, 0.0, 1

        def open(self, context: Any) -> None:
            """Nothing to do."""

        def deliver(self, job: Job, result: Any) -> bool:
            """Keep it for the next flush."""
            return False

        def flush(self) -> None:
            """Be as slow as it takes."""
            tended.wait()
            flushed.append(True)

        def close(self) -> None:
            """Nothing to do."""

    flushed: list[bool] = []
    ran = run([hr.stage("a", str)], range(5), delivery=Slow())
    assert flushed
    assert ran.result.counters.delivered == 5


def test_heartbeats_come_while_ordered_results_wait_for_room(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is given up lets go of those behind it, more than the next queue holds: nobody who must not wait does."""
    tended = Tended(monkeypatch)
    hangs = threading.Event()
    delivered: list[str] = []

    class Slow:
        flush_items, flush_seconds, default_workers = 1, 0.0, 1

        def open(self, context: Any) -> None:
            """Nothing to do."""

        def deliver(self, job: Job, result: Any) -> bool:
            """Be as slow as it takes."""
            delivered.append(job.id)
            tended.wait()
            return True

        def flush(self) -> None:
            """Nothing to do."""

        def close(self) -> None:
            """Nothing to do."""

    plan = {
        "run": {"ordered": True, "stall_seconds": 0.2},
        "stages": {"a": {"workers": 2}, "deliver": {"queue_items": 1}},
    }
    try:
        run([hr.stage("a", lambda x: hangs.wait(60) if x == 0 else x)], range(8), plan, delivery=Slow())
    finally:
        hangs.set()
    assert delivered == [str(number) for number in range(1, 8)]


class Counting(Observer):
    """Counts spans."""

    def __init__(self) -> None:
        self.num_spans = 0

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Count them."""
        self.num_spans += len(spans)


def context_of(*observers: Observer) -> RunContext:
    """Return the context of a run that these observe."""
    return RunContext(Plan(), observers=Observers(observers))


def passage(num_items: int) -> WorkNote:
    """Return what a worker did with some items in one stage."""
    items = [Item(Job(str(number), b""), b"", ()) for number in range(num_items)]
    timings = [[StageTiming(0, 1, 2, 0, 0, None)] for _ in items]
    return WorkNote([hr.stage("a", str)], "a-0", 1, 1, [(item, 0, 0) for item in items], timings, [3] * num_items)


def test_only_so_many_spans_wait() -> None:
    """Workers that outrun the bookkeeper wait for it: what waits is bounded in spans, and every span is made."""
    counting = Counting()
    books = Bookkeeper(context_of(counting))
    most, over = 0, threading.Event()

    def work() -> None:
        for _ in range(2_000):
            books.note(passage(50))
        over.set()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    while not over.is_set() or books.num_waiting:
        most = max(most, books.num_waiting)
        books.report(0.0)
    worker.join()
    assert counting.num_spans == 100_000
    assert most < 1_000


def test_a_worker_waits_only_so_long() -> None:
    """Where an observer hangs, workers go on, if slowly."""
    books = Bookkeeper(context_of(Counting()))
    books.note(passage(50))
    books.report(None)
    for _ in range(books._most + 3):
        books.note(passage(1))
    assert books.num_waiting == books._most + 3


def test_a_report_ends_in_time() -> None:
    """Spans that come as fast as they are made keep nobody for ever: a report ends after its time."""
    context = context_of()
    books = Bookkeeper(context)

    class Feeding(Observer):
        def stage_finished(self, spans: Sequence[Span]) -> None:
            """Bring one for each that goes."""
            books.note(passage(48))

    context.observers = Observers([Feeding()])
    books.note(passage(48))
    began = time.monotonic()
    assert not books.report(0.01)
    assert time.monotonic() - began < 10
    assert books.num_waiting == 1


def test_a_pause_near_half_of_the_loan_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Heartbeats every second of loans of 30 s are fine; a pause of 9 s is told with its length and what to do."""
    punctuality = Punctuality()
    with caplog.at_level(logging.WARNING, "headrace"):
        for second in (0.0, 1.0, 2.0):
            punctuality.tended(second, second + 0.1, 30.0)
        assert (punctuality.warning(), caplog.messages) == (None, [])
        punctuality.tended(11.0, 11.5, 30.0)
    assert caplog.messages == [punctuality.warning()]
    assert "paused for 9 s, and a loan lasts 30 s" in caplog.messages[0]
    tending = punctuality.tending()
    assert (tending.calls, tending.longest_gap_seconds, tending.longest_call_seconds) == (4, 9.0, 0.5)


def test_pauses_that_are_no_worse_are_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """A run that is late again and again says so once, and once more where it gets worse by half."""
    punctuality = Punctuality()
    with caplog.at_level(logging.WARNING, "headrace"):
        for second in (0.0, 10.0, 20.5, 31.5, 47.5):
            punctuality.tended(second, second, 30.0)
    assert [message.split(",")[0] for message in caplog.messages] == [
        "acks and heartbeats paused for 10 s",
        "acks and heartbeats paused for 16 s",
    ]


def test_a_source_that_lends_nothing_is_never_late() -> None:
    """A list waits for nobody."""
    punctuality = Punctuality()
    punctuality.tended(0.0, 0.0, None)
    punctuality.tended(1000.0, 1000.0, None)
    assert punctuality.warning() is None


def test_the_run_folder_says_how_punctual_heartbeats_were(run: Run, tmp_path: Any) -> None:
    """`tending` in run.json has how often they came, and the longest time between two."""
    from headrace.runs.reader import read_run

    run([hr.stage("a", str)], range(5), output=tmp_path / "run")
    tending = read_run(tmp_path / "run").info.tending
    assert tending.calls > 0
    assert tending.longest_call_seconds < 60 > tending.longest_gap_seconds
