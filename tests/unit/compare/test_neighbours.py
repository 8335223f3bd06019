"""What others took of the cores, and whether it changed between the blocks of a round."""

from __future__ import annotations

import os

import pytest

from headrace.compare.neighbours import NeighbourWatch, have_changed

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("shares", "changed"),
    [((0.4, 0.42), False), ((0.4, 0.7), True), ((0.7, 0.4, 0.4), True), ((0.4, None), False), ((0.4,), False)],
)
def test_a_change_by_a_tenth_of_the_cores_counts(shares: tuple[float | None, ...], changed: bool) -> None:
    """In either direction, between any two blocks; where one is not known nothing is told."""
    taken = [None if share is None else share * CORES for share in shares]
    assert have_changed(taken, 1.0) is changed


def test_what_the_kernel_cannot_resolve_is_no_change() -> None:
    """It counts in hundredths of a second: in a fifth of one, a few of them are a tenth of two cores."""
    change = 0.1 * CORES + 0.15
    assert have_changed([0.0, change], 1.0)
    assert not have_changed([0.0, change], 0.2)


def test_a_block_of_no_length_tells_nothing() -> None:
    """It ends before the kernel has counted anything."""
    assert NeighbourWatch(lambda: 0.0).taken_cores() is None
