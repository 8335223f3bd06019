"""A receiver comes for several places at once, but no worker waits for that."""

from __future__ import annotations

from headrace.pipeline.refill import Refill


def test_a_part_of_what_the_workers_do_not_need() -> None:
    """A quarter of the places beyond those in hand must be free, and never more than one call of the source brings."""
    refill = Refill(10, in_hand=20)
    assert [refill.least(most) for most in (40, 44, 1000)] == [5, 6, 10]


def test_every_place_counts_where_the_workers_need_all() -> None:
    """Where fewer jobs may be inside than the workers can have in hand, one free place is enough."""
    refill = Refill(10, in_hand=20)
    assert [refill.least(most) for most in (0, 1, 20, 23)] == [1, 1, 1, 1]


def test_less_is_waited_for_where_it_does_not_come() -> None:
    """A wait in vain halves what is waited for, down to one; each wait that ends in time adds one, up to a full call."""
    refill = Refill(10, in_hand=0)
    seen = []
    for is_late in (True, True, True, True, False, False):
        refill.note(is_late=is_late)
        seen.append(refill.least(1000))
    assert seen == [5, 2, 1, 1, 2, 3]
    for _ in range(20):
        refill.note(is_late=False)
    assert refill.least(1000) == 10
