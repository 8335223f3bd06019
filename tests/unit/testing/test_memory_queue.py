"""The memory queue's lies, and the clock that stands still."""

import pytest

from headrace.base.errors import QueueUnavailable
from headrace.base.protocols import STALE
from headrace.testing import FakeClock, Lies, MemoryQueue


def test_the_clock_moves_when_told() -> None:
    """Both clocks stand still until advance, which does not go back."""
    clock = FakeClock(unix_seconds=100.0)
    before = clock.now_ns()
    clock.advance(1.5)
    assert clock.now_ns() - before == 1_500_000_000
    assert clock.unix_seconds() == pytest.approx(101.5)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


def test_loans_follow_the_fake_clock() -> None:
    """On a fake clock a loan runs out when the clock is moved, without waiting."""
    clock = FakeClock()
    queue = MemoryQueue(visibility_seconds=30, clock=clock)
    queue.send([b"x"])
    assert len(queue.receive(1, wait_seconds=60)) == 1
    assert queue.receive(1, wait_seconds=60) == []
    clock.advance(30)
    assert queue.receive(1)[0].receive_count == 2


def test_a_stale_ack_may_be_called_a_success() -> None:
    """With stale_acks_succeed, an old receipt is answered with success and removes nothing."""
    clock = FakeClock()
    queue = MemoryQueue(clock=clock, lies=Lies(stale_acks_succeed=True))
    queue.send([b"x"])
    (first,) = queue.receive(1)
    clock.advance(31)
    queue.receive(1)
    assert queue.ack([first.receipt]) == {}
    assert queue.statistics().in_flight == 1
    assert queue.extend([first.receipt], 30) == {first.receipt: STALE}


def test_a_seed_repeats_the_lies() -> None:
    """The same seed lies in the same places."""

    def history(seed: int) -> list[int]:
        queue = MemoryQueue(lies=Lies(empty_receive_ratio=0.5, shuffle=True), seed=seed)
        queue.send([b"%d" % number for number in range(20)])
        return [int(message.body) for _ in range(30) for message in queue.receive(1)]

    assert history(1) == history(1)
    assert history(1) != history(2)


def test_an_outage_can_be_made() -> None:
    """While not available, every call is QueueUnavailable, and nothing is lost."""
    queue = MemoryQueue()
    queue.send([b"x"])
    queue.available = False
    with pytest.raises(QueueUnavailable):
        queue.receive(1)
    queue.available = True
    assert len(queue.receive(1)) == 1
