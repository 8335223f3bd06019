"""Lines reach a file that may block, and nobody waits for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator

import pytest

from headrace.monitor.log.line_writer import MOST_WAITING, LineWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The two ends of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def _writer(descriptor: int) -> LineWriter:
    return LineWriter(descriptor, lambda number: b"%d lost\n" % number)


@pytest.mark.parametrize("has_thread", [True, False])
def test_lines_arrive_in_order(pipe: tuple[int, int], has_thread: bool) -> None:
    """By a thread or without one."""
    writer = _writer(pipe[1])
    if has_thread:
        writer.start()
    for number in range(100):
        writer.put(b"%d\n" % number)
    writer.close()
    assert os.read(pipe[0], 65_536) == b"".join(b"%d\n" % number for number in range(100))


@pytest.mark.parametrize("has_thread", [True, False])
def test_who_has_lines_never_waits_for_the_reader(pipe: tuple[int, int], has_thread: bool) -> None:
    """A reader that never reads: memory is bounded, and once it reads it learns how many lines were lost."""
    writer = _writer(pipe[1])
    if has_thread:
        writer.start()
    line, number = b"x" * 1_023 + b"\n", 3_000
    for _ in range(number):
        writer.put(line)
    got: list[bytes] = []

    def read() -> None:
        while not b"".join(got[-2:]).endswith(b" lost\n"):
            got.append(os.read(pipe[0], 1 << 20))

    reader = threading.Thread(target=read)
    reader.start()
    writer.close(30.0)
    reader.join()
    kept = b"".join(got).count(line)
    assert MOST_WAITING <= kept < number
    assert b"".join(got).endswith(b"%d lost\n" % (number - kept))


def test_a_reader_that_is_gone_is_survived(pipe: tuple[int, int]) -> None:
    """The lines are counted and the caller goes on."""
    told: list[int] = []
    writer = LineWriter(pipe[1], lambda number: told.append(number) or b"lost\n")
    os.close(pipe[0])
    for _ in range(10):
        writer.put(b"x\n")
    writer.close()
    assert told == [10]


def test_a_full_disk_is_survived() -> None:
    """The device that is always full takes nothing, and the thread ends when it is told to."""
    before = set(threading.enumerate())
    full = os.open("/dev/full", os.O_WRONLY)
    writer = _writer(full)
    writer.start()
    (thread,) = set(threading.enumerate()) - before
    for _ in range(10):
        writer.put(b"x\n")
    assert thread.is_alive()
    writer.close(60.0)
    assert not thread.is_alive()
    os.close(full)


def test_a_fork_writes_none_of_its_parents_lines(pipe: tuple[int, int]) -> None:
    """What waits is the parent's."""
    fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, 8_192)
    writer = _writer(pipe[1])
    writer.put(b"a" * 8_192)
    writer.put(b"waits\n")
    child = os.fork()
    if not child:
        os.read(pipe[0], 8_192)
        writer.put(b"child\n")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.close()
    assert os.read(pipe[0], 65_536) == b"child\nwaits\n"
