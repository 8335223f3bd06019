"""When a device takes a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.policies.batching import BatchingPolicy, Release, ReleaseReason, Wait, Waiting, warm_up_sizes


def waiting(count: int = 1, *, oldest: int = 0, shape_closed: bool = False, draining: bool = False) -> Waiting:
    """What waits, with nothing special about it."""
    return Waiting(count, oldest, shape_closed, draining)


def test_full() -> None:
    """The largest size is released at once, whatever else holds, and no more than that."""
    policy = BatchingPolicy(max_size=4, max_wait_ns=100)
    assert policy.decide(0, waiting(4)) == Release(4, ReleaseReason.FULL)
    assert policy.decide(0, waiting(9, shape_closed=True, draining=True)) == Release(4, ReleaseReason.FULL)


def test_idle() -> None:
    """Without max_wait an idle device takes what is there."""
    assert BatchingPolicy(max_size=4).decide(0, waiting(1)) == Release(1, ReleaseReason.IDLE)


def test_shape() -> None:
    """No company can come for items in front of another shape, so they do not wait."""
    policy = BatchingPolicy(max_size=4, max_wait_ns=100)
    assert policy.decide(0, waiting(3, shape_closed=True)) == Release(3, ReleaseReason.SHAPE)


def test_drain() -> None:
    """At the end nothing waits for company."""
    policy = BatchingPolicy(max_size=4, max_wait_ns=100)
    assert policy.decide(0, waiting(3, draining=True)) == Release(3, ReleaseReason.DRAIN)


def test_max_wait() -> None:
    """With max_wait a device waits for company until the oldest item has waited that long, and not longer."""
    policy = BatchingPolicy(max_size=4, max_wait_ns=100)
    assert policy.decide(50, waiting(2, oldest=10)) == Wait(until_ns=110)
    assert policy.decide(109, waiting(2, oldest=10)) == Wait(until_ns=110)
    assert policy.decide(110, waiting(2, oldest=10)) == Release(2, ReleaseReason.MAX_WAIT)


def test_only_the_runtime_splits() -> None:
    """Every reason but SPLIT, which is no decision of the policy, is given by the tests above."""
    assert set(ReleaseReason) == {"full", "idle", "shape", "drain", "max_wait", "split"}


@given(
    max_size=st.integers(1, 64),
    max_wait=st.integers(0, 1000),
    now=st.integers(0, 5000),
    age=st.integers(0, 5000),
    count=st.integers(1, 200),
    shape_closed=st.booleans(),
    draining=st.booleans(),
)
def test_no_decision_breaks_a_limit(
    max_size: int, max_wait: int, now: int, age: int, count: int, shape_closed: bool, draining: bool
) -> None:
    """A batch is never larger than allowed or than what is there; a wait is never past max_wait, and never over already."""
    oldest = now - age
    decision = BatchingPolicy(max_size=max_size, max_wait_ns=max_wait).decide(
        now, Waiting(count, oldest, shape_closed, draining)
    )
    if isinstance(decision, Release):
        assert 1 <= decision.size <= min(max_size, count)
    else:
        assert now < decision.until_ns <= oldest + max_wait
        assert (shape_closed, draining, count < max_size) == (False, False, True)


@given(
    arrivals=st.lists(st.integers(0, 300), min_size=1, max_size=40),
    max_size=st.integers(1, 8),
    max_wait=st.integers(0, 500),
)
def test_an_idle_device_holds_nothing_back(arrivals: list[int], max_size: int, max_wait: int) -> None:
    """Asked at every arrival and at every time that it named, the policy releases each item within max_wait, in order."""
    policy = BatchingPolicy(max_size=max_size, max_wait_ns=max_wait)
    times = [sum(arrivals[: index + 1]) for index in range(len(arrivals))]
    queue: list[int] = []
    released = 0

    def ask(now: int) -> int | None:
        nonlocal released
        while queue:
            decision = policy.decide(now, waiting(len(queue), oldest=queue[0]))
            if isinstance(decision, Wait):
                return decision.until_ns
            assert now - queue[0] <= max_wait
            released += decision.size
            del queue[: decision.size]
        return None

    again: int | None = None
    for now in times:
        while again is not None and again <= now:
            again = ask(again)
        queue.append(now)
        again = ask(now)
    while again is not None:
        again = ask(again)
    assert released == len(arrivals)


@pytest.mark.parametrize(
    ("max_size", "sizes"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])]
)
def test_warm_up_sizes(max_size: int, sizes: list[int]) -> None:
    """The powers of two below the largest, and the largest, each once."""
    assert warm_up_sizes(max_size) == sizes
