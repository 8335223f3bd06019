"""The view of a run in progress."""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

import headrace as hr
from headrace.base.records import DELIVERED, Job, Outcome, OutcomeKind, QueueStatistics, StageStatistics
from headrace.cli.live import LiveView, _roughly
from headrace.pipeline.item import Item, StageTiming
from headrace.pipeline.summary import Summary
from headrace.pipeline.work_notes import WorkNote
from headrace.testing.clock import FakeClock

SECOND = 10**9


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """Return True."""
        return True


class Scene:
    """A run of two stations of which tests move the clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.summary = Summary(clock=self.clock)
        self.num_jobs = 0

    def stages(self) -> Sequence[StageStatistics]:
        """Return fetch with a queue half full, and process."""
        return [StageStatistics("fetch", 2, 1, 5, 0, 10, 0), StageStatistics("process", 1, 1, 10, 0, 10, 2)]

    def work(self, stage: str, seconds: float) -> None:
        """Note a passage through a stage that has just ended."""
        now = self.clock.now_ns()
        start = now - int(seconds * SECOND)
        arrivals = [(Item(Job("1", b""), b"", ()), start, 0)]
        timings = [[StageTiming(0, start, now, 0, 0, None)]]
        self.summary.read_notes([WorkNote([hr.stage(stage, str)], "t", 1, start, arrivals, timings, [now])])

    def settle(self, kind: OutcomeKind = OutcomeKind.DELIVERED) -> None:
        """Receive and settle one job at once."""
        job = Job(str(self.num_jobs), b"")
        self.num_jobs += 1
        self.summary.job_received([job])
        self.summary.job_settled(job, DELIVERED if kind is OutcomeKind.DELIVERED else Outcome(kind, "x"))
        self.summary.digest()

    def view(self, total: int | None = None, stream: io.StringIO | None = None) -> LiveView:
        """Return a view of this run."""
        return LiveView(self.summary, self.stages, total, stream=stream or io.StringIO())


@pytest.fixture
def scene() -> Scene:
    """A run that has just begun."""
    return Scene()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal that can move its cursor."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_a_log_gets_a_plain_line(scene: Scene) -> None:
    """Where stderr is not a terminal a whole line without control characters is written, the last at the end."""
    stream = io.StringIO()
    with scene.view(stream=stream):
        scene.settle()
        scene.settle(OutcomeKind.REJECTED)
    [line] = stream.getvalue().splitlines()
    assert line.startswith("headrace: 2 received, 1 delivered, 1 rejected; ")
    assert line.isprintable()


def test_a_run_that_received_nothing_has_no_last_line(scene: Scene) -> None:
    """A run that fails before its first job leaves the word to its error."""
    stream = io.StringIO()
    with scene.view(stream=stream):
        pass
    assert stream.getvalue() == ""


def test_a_dumb_terminal_gets_plain_lines(scene: Scene, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that cannot move its cursor is written to like a log."""
    monkeypatch.setenv("TERM", "dumb")
    with scene.view(stream=terminal):
        scene.settle()
    assert "\x1b" not in terminal.getvalue()
    assert terminal.getvalue().startswith("headrace: 1 received")


def test_rates_now_and_on_average(scene: Scene) -> None:
    """The rate now is that of the last ten seconds, the mean that of the whole run."""
    view = scene.view()
    scene.settle()
    for _ in range(20):  # one every two seconds, then four a second
        view.plain_line()
        scene.clock.advance(2.0)
        scene.settle()
    for _ in range(10):
        view.plain_line()
        scene.clock.advance(1.0)
        for _ in range(4):
            scene.settle()
    assert "4/s now, 1.22/s on average" in view.plain_line()


def test_time_to_go_when_the_total_is_known(scene: Scene) -> None:
    """With ten of forty done in ten seconds about half a minute is to go."""
    scene.settle(OutcomeKind.RETRY)
    view = scene.view(total=40)
    view.plain_line()
    scene.clock.advance(10.0)
    for _ in range(10):
        scene.settle()
    assert "10 of 40 delivered" in view.plain_line()
    assert "10.0 s elapsed, about 30 s to go" in view.plain_line()


def test_no_time_to_go_at_the_end(scene: Scene) -> None:
    """A run may end before its limit, for want of jobs: then nothing is to go."""
    stream = io.StringIO()
    with scene.view(total=40, stream=stream):
        scene.clock.advance(10.0)
        scene.settle()
    assert "1 of 40 delivered" in stream.getvalue()
    assert "to go" not in stream.getvalue()


def test_no_time_to_go_without_a_total(scene: Scene) -> None:
    """Where nobody knows how many will come, nothing is guessed."""
    scene.settle()
    scene.clock.advance(10.0)
    assert "to go" not in scene.view().plain_line()


def test_the_slowest_station_is_named(scene: Scene) -> None:
    """The station with the least time to spare is named, by busy time over its workers, not by busy time alone."""
    scene.settle()
    view = scene.view()
    view.plain_line()
    scene.clock.advance(10.0)
    scene.work("fetch", 9.0)
    scene.work("process", 8.0)
    assert "slowest process (80 % busy)" in view.plain_line()


def test_fused_stages_count_for_their_station(scene: Scene) -> None:
    """Work in a stage that shares a station with the one before it keeps that station's workers busy."""
    scene.settle()
    view = scene.view()
    view.plain_line()
    scene.clock.advance(10.0)
    scene.work("fetch", 10.0)
    scene.work("decode", 9.0)
    scene.work("process", 8.0)
    assert "slowest fetch (95 % busy)" in view.plain_line()


def test_a_terminal_shows_queues_and_is_left_clean(scene: Scene, terminal: Terminal) -> None:
    """In a terminal every station has its queue's bar, and the view is erased at the end."""
    scene.settle()
    with scene.view(total=3, stream=terminal):
        pass
    shown = terminal.getvalue()
    assert "1 of 3 delivered" in shown
    assert "██████░░░░░░     5/10" in shown
    assert "████████████    10/10" in shown
    assert shown.rstrip("\r\n").endswith("\x1b[2K")


def test_log_lines_appear_above_the_view(scene: Scene, terminal: Terminal) -> None:
    """A handler that writes to the terminal is lent to the view and given back."""
    handler = logging.StreamHandler(terminal)
    logger = logging.getLogger("headrace")
    logger.addHandler(handler)
    try:
        with scene.view(stream=terminal):
            assert handler.stream is not terminal
            logger.warning("watch out")
        assert handler.stream is terminal
    finally:
        logger.removeHandler(handler)
    assert "watch out" in terminal.getvalue()


def test_a_view_that_fails_does_not_end_the_run(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """An error while drawing is logged, and the run goes on."""

    def broken() -> Sequence[StageStatistics]:
        raise OSError("no terminal")

    with LiveView(scene.summary, broken, stream=io.StringIO()):
        scene.settle()
    assert "the run goes on" in caplog.text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (5.14, "5 s"), (200, "3 min"), (7_810, "2 h 10 min"), (345_000, "4 days")],
)
def test_what_is_left_is_said_without_digits_that_nobody_knows(seconds: float, said: str) -> None:
    """Seconds, minutes, hours or days."""
    assert _roughly(seconds) == said


def test_a_queue_is_asked_what_waits_in_it(scene: Scene) -> None:
    """With 10 jobs done in 10 seconds and 600 in the queue it is about 10 minutes, however the queue grew until then."""
    asked = threading.Event()

    def ask() -> QueueStatistics:
        if not asked.is_set():
            asked.set()
            return QueueStatistics(600, 0, 0, 0, None)
        raise OSError("away")

    scene.summary.ask_source = ask
    view = scene.view()
    scene.settle()
    view.plain_line()
    with view:
        assert asked.wait(10)
        scene.clock.advance(10.0)
        for _ in range(10):
            scene.settle()
        line = view.plain_line()
    assert "600 waiting in the queue" in line
    assert "about 10 min to go" in line


@pytest.mark.parametrize("columns", ["40", "60", "120"])
def test_a_narrow_terminal_shows_whole_lines(
    scene: Scene, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """Counts go on in the next line and stations say less: nothing is cut off, and every station is there."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    scene.settle(OutcomeKind.REJECTED)
    with scene.view(total=1_000_000, stream=terminal):
        pass
    shown = terminal.getvalue()
    lines = re.split("[\r\n]+", re.sub("\x1b[^a-zA-Z]*[a-zA-Z]", "", shown))
    assert max(map(len, lines)) <= int(columns)
    assert "1 rejected" in " ".join(lines)
    assert "0 of 1,000,000" in " ".join(lines)
    assert all(
        any(line.startswith(stage) and line.endswith("busy") for line in lines) for stage in ("fetch  ", "process")
    )
    assert "\x1b[33m" not in shown


def test_while_nothing_comes_the_time_is_that_of_the_view(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's own clock begins with the first job."""
    now = 100.0
    monkeypatch.setattr("headrace.cli.live.time", SimpleNamespace(monotonic=lambda: now))
    view = scene.view()
    now = 140.0
    assert view.plain_line().endswith("; nothing came for 40.0 s")
    scene.settle()
    assert "nothing came" not in view.plain_line()
