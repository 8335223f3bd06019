"""Waiting for writes to a file, and what a queue in a file makes of it."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.sources.file_watch import FileWatch, Looks
from headrace.sources.sqlite_queue import SqliteQueue


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An empty file."""
    path = tmp_path / "file"
    path.touch()
    return path


@pytest.fixture
def watch(file: Path) -> Iterator[FileWatch]:
    """The watch of that file."""
    watch = FileWatch(file)
    yield watch
    watch.close()


def test_a_write_ends_a_wait(file: Path, watch: FileWatch) -> None:
    """A write during the wait is told, one before it too, and each once."""
    threading.Timer(0.01, file.write_bytes, [b"x"]).start()
    assert watch.wait(60)
    file.write_bytes(b"y")
    assert watch.wait(60)
    assert watch.wait(0.0) is False


def test_one_thread_waits(file: Path, watch: FileWatch) -> None:
    """A second thread is sent away at once, and a watch that is closed wakes the first."""
    answers: list[bool | None] = []
    first = threading.Thread(target=lambda: answers.append(watch.wait(60)))
    first.start()
    while not watch._in_use.locked():
        pass
    assert watch.wait(0.0) is None
    watch.close()
    first.join(60)
    assert answers == [False]
    assert watch.wait(60) is None
    watch.close()


def test_two_threads_close_it(file: Path) -> None:
    """Only one of them does, whatever moment the other comes at; neither touches a file that is another's by then."""

    class Slow(FileWatch):
        """Lets another thread run between the look at whether it is closed and what follows."""

        _closed = False

        @property
        def _is_closed(self) -> bool:
            closed = self._closed
            time.sleep(0.01)
            return closed

        @_is_closed.setter
        def _is_closed(self, value: bool) -> None:
            self._closed = value

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            before = sorted(os.listdir("/proc/self/fd"))
            watch = Slow(file)
            for closing in [threads.submit(watch.close) for _ in range(4)]:
                closing.result(60)
            assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """It cannot be watched, and leaves nothing open."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="inotify_add_watch"):
        FileWatch(tmp_path / "none")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class Closed(threading.Event):
    """Notes pauses instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Note how long."""
        self.waited.append(timeout or 0.0)
        return False


def test_looks_follow_a_write(file: Path, watch: FileWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a write there is a look at once, one after the first pause, and for a while more after growing pauses."""
    heard: list[float] = []
    waits = iter([True, False, False, False, False, False, False, True])
    monkeypatch.setattr(watch, "wait", lambda seconds: heard.append(seconds) or next(waits))
    closed = Closed()
    looks = Looks(watch, 0.002, 0.05, 1.0)
    looks.wait(closed, 60.0)
    watch.written_at = time.monotonic()
    monkeypatch.setattr("headrace.sources.file_watch._SETTLE_SECONDS", 3600.0)
    for _ in range(6):
        looks.wait(closed, 60.0)
    assert closed.waited == [0.002]
    assert heard == [1.0, 0.004, 0.008, 0.016, 0.032, 0.05]
    watch.written_at = -3600.0
    looks.wait(closed, 0.5)
    assert heard[-1] == 0.5


@pytest.mark.parametrize("kind", ["watched", "not to be watched", "tells nothing"])
def test_a_queue_hears_of_messages_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A message that another process sends ends a long poll, whatever the file system tells of it."""

    def refuse(*_: Any) -> None:
        raise OSError("no more watches")

    def say_nothing(watch: FileWatch, seconds: float) -> bool:
        if unsent:  # while the other one waits
            theirs.send([unsent.pop()])
        return False

    unsent: list[bytes] = []
    if kind == "not to be watched":
        monkeypatch.setattr(FileWatch, "__init__", refuse)
    if kind == "tells nothing":
        monkeypatch.setattr(FileWatch, "wait", say_nothing)
    ours, theirs = SqliteQueue(tmp_path / "q.db"), SqliteQueue(tmp_path / "q.db")
    for number in range(3):
        unsent.append(b"%d" % number)
        if kind != "tells nothing" or ours._watch is None:
            threading.Timer(0.02, lambda: theirs.send([unsent.pop()])).start()
        [message] = ours.receive(10, wait_seconds=60 if number else 1)
        assert message.body == b"%d" % number
        ours.ack([message.receipt])
    assert (ours._watch is not None) == (kind == "watched")
    ours.close()
    theirs.close()


def test_a_message_that_becomes_due_is_received(tmp_path: Path) -> None:
    """Nobody writes when a delay is over: the long poll ends all the same, and goes on watching."""
    queue = SqliteQueue(tmp_path / "q.db")
    queue.send([b"x"], delay_seconds=0.05)
    assert [message.body for message in queue.receive(10, wait_seconds=60)] == [b"x"]
    assert queue._watch is not None
    queue.close()


def test_what_is_due_by_itself_does_not_end_a_watch(tmp_path: Path) -> None:
    """A message that was sent to be there later comes without a write; the watch told all there was to tell."""
    queue = SqliteQueue(tmp_path / "q.db")
    for seconds in (0.05, 0.3):
        queue.send([b"later"], delay_seconds=seconds)
        queue._watch.wait(0.0)  # type: ignore[union-attr]
        queue._watch.written_at = -3600.0  # type: ignore[union-attr]
        [message] = queue.receive(1, wait_seconds=60)
        queue.ack([message.receipt])
        assert queue._watch is not None
    queue.close()
