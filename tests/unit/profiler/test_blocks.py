"""Blocks with profiling on and off."""

from __future__ import annotations

import pytest

from headrace.profiler.blocks import BLOCK_SECONDS, LONGEST_BLOCK_SECONDS, MOST_PAIRS, BlockSchedule, Reading


def drive(schedule: BlockSchedule, seconds: float, *, per_second: int = 1000, cost_on: float = 1.1) -> list[bool]:
    """Tell a schedule the readings of a made-up run in which a passage costs 1 ms, times `cost_on` while it is on."""
    states = []
    cpu, is_on = 0.0, True
    for tick in range(int(seconds * 10) + 1):
        count = tick * per_second // 10
        states.append(is_on)
        is_on = schedule.tell(Reading(tick / 10, count, cpu, {"decode": count}))
        cpu += per_second / 10 * 0.001 * (cost_on if is_on else 1.0)
    return states


def test_the_order_is_a_b_b_a() -> None:
    """The blocks of a group are on, off, off, on, and the next group is the same."""
    schedule = BlockSchedule()
    drive(schedule, 9)
    assert [block.on for block in schedule.blocks[:8]] == [True, False, False, True] * 2


def test_a_block_tells_what_was_done_and_what_it_cost() -> None:
    """Each block has its own items, passages and CPU time, so the ratio of on and off is the cost that was put in."""
    schedule = BlockSchedule()
    drive(schedule, 9, cost_on=1.1)
    for block in schedule.blocks:
        assert block.items == pytest.approx(1000 * block.seconds)
        assert block.passages == {"decode": block.items}
        assert block.cpu_seconds / block.items == pytest.approx(0.0011 if block.on else 0.001)


def test_most_of_the_run_is_recorded() -> None:
    """Profiling is off for no more than a quarter of the time."""
    states = drive(BlockSchedule(), 40)
    assert 0.15 < states.count(False) / len(states) < 0.27


def test_a_slow_pipeline_has_longer_blocks() -> None:
    """At 50 passages a second a block lasts 4 s, so that it holds 200 of them."""
    schedule = BlockSchedule()
    drive(schedule, 60, per_second=50)
    assert schedule.blocks
    assert all(block.seconds == pytest.approx(4.0, abs=0.21) for block in schedule.blocks)


def test_a_pipeline_that_stands_still_has_blocks_of_bounded_length() -> None:
    """Without any passage a block lasts as long as the longest, and no division by zero ends the profiler."""
    schedule = BlockSchedule()
    drive(schedule, 60, per_second=0)
    assert schedule.blocks
    assert max(block.seconds for block in schedule.blocks) <= LONGEST_BLOCK_SECONDS + 0.11


def test_a_block_without_partner_is_left_out() -> None:
    """Pairs are whole: the last block does not count if the run ended before its partner."""
    schedule = BlockSchedule()
    drive(schedule, BLOCK_SECONDS * 4 + BLOCK_SECONDS * 3 + 0.35)
    assert len(schedule.blocks) == 3
    assert [block.on for block in schedule.pairs()] == [True, False]


def test_it_ends_and_stays_on() -> None:
    """After enough pairs profiling is not switched off any more."""
    schedule = BlockSchedule()
    drive(schedule, MOST_PAIRS * 2.2 + 5)
    assert len(schedule.blocks) == 2 * MOST_PAIRS
    assert schedule.is_on
