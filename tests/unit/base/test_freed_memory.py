"""Freed memory goes back to the system, now and then."""

from __future__ import annotations

from headrace.base.freed_memory import SometimesTrim
from headrace.testing import FakeClock


def test_not_more_often_than_it_may() -> None:
    """The first call gives back at once, the next ones once the time is over."""
    given: list[float] = []
    clock = FakeClock()
    start = clock.now_ns()
    trim = SometimesTrim(5.0, lambda: given.append((clock.now_ns() - start) / 1e9), lambda: clock.now_ns() / 1e9)
    for _ in range(8):
        trim()
        clock.advance(2.0)
    assert given == [0.0, 6.0, 12.0]
