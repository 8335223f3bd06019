"""When a live stream is tried again."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from headrace.sources import live_stream
from headrace.sources.frames import choose
from headrace.sources.live_stream import LiveStream

CHOICE = choose(every=1, fps=None, keyframes=False, size=None, region=None, motion=None)


class Waiting:
    """Passes the time at once, and keeps (absence, pause) of each pause."""

    def __init__(self, until: float) -> None:
        self.now, self.until = 100.0, 100.0 + until
        self.pauses: list[tuple[float, float]] = []
        self.freed: list[float] = []

    def is_set(self) -> bool:
        """Return whether enough was seen."""
        return self.now >= self.until

    def wait(self, seconds: float) -> None:
        """Let them pass."""
        self.pauses.append((self.now - 100.0, seconds))
        self.now += seconds


def pauses(monkeypatch: pytest.MonkeyPatch, *, until: float, frames_each: int = 0, stays: bool = True) -> Waiting:
    """Return the longest pauses of a stream whose connections fail at once, after so many frames."""
    waiting = Waiting(until)
    monkeypatch.setattr(live_stream, "time", SimpleNamespace(monotonic=lambda: waiting.now))
    monkeypatch.setattr(live_stream, "random", SimpleNamespace(uniform=lambda least, most: most))
    stream = LiveStream(
        "gate", "tcp://127.0.0.1:1", CHOICE, options={}, offer=lambda frame, reason: None, ended=lambda: None,
        stays=stays, patience=3.0, device=None, turns=threading.Semaphore(1), freed=lambda: waiting.freed.append(waiting.now),
    )  # fmt: skip
    monkeypatch.setattr(stream, "_closing", waiting)

    def fail() -> tuple[float, str]:
        stream._number += frames_each
        if frames_each:
            stream._note_live()
        return 0.0, "refused"

    monkeypatch.setattr(stream, "_try_connection", fail)
    stream._read()
    return waiting


def test_what_a_connection_had_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each one, before the pause."""
    found = pauses(monkeypatch, until=110.0)
    assert len(found.freed) == len(found.pauses) > 3


def test_a_short_absence_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause is longer than a quarter of the absence, or 0.1 s; nor than 2 s, so that a long absence is asked seldom."""
    found = pauses(monkeypatch, until=60.0).pauses
    assert all(pause <= max(0.1, away / 4) for away, pause in found)
    assert max(pause for _, pause in found) == 2.0
    assert len(found) < 60


def test_one_that_breaks_off_soon_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pictures come and each connection breaks off at once, pauses grow all the same."""
    found = pauses(monkeypatch, until=20.0, frames_each=1).pauses
    assert [pause for _, pause in found[:6]] == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0, 2.0])


def test_one_that_may_end_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five tries are spread over seconds where a stream is given up after them."""
    found = pauses(monkeypatch, until=60.0, stays=False).pauses
    assert [pause for _, pause in found] == pytest.approx([0.2, 0.4, 0.8, 1.6])


def test_each_outage_of_a_stream_that_was_well_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a second one within a minute; of one that breaks off again and again once a minute is enough."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(live_stream, "time", SimpleNamespace(monotonic=lambda: clock.now))
    stream = LiveStream(
        "gate", "tcp://127.0.0.1:1", CHOICE, options={}, offer=lambda frame, reason: None, ended=lambda: None,
        stays=True, patience=3.0, device=None, turns=threading.Semaphore(1), freed=lambda: None,
    )  # fmt: skip
    for now, notes in (
        (0.0, "came"),
        (5.0, "lost"),
        (6.0, "lost"),
        (8.0, "came"),
        (9.0, "lost"),
        (10.0, "came"),
        (40.0, "lost"),
    ):
        clock.now = now
        stream._note_live() if notes == "came" else stream._note_lost("it ended")
    told = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[1].strip()[:13] for text in told] == ["gate does not", "gate is back ", "gate does not"]
