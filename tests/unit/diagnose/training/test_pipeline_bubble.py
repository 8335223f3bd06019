"""Pipelines of stages whose times are known."""

from __future__ import annotations

import pytest

from headrace.diagnose.training.pipeline_bubble import (
    StageNeeds,
    Work,
    find_cuts,
    order_1f1b,
    order_gpipe,
    time_pipeline,
)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (2, 8), (4, 4), (4, 16), (3, 1)])
def test_equal_stages_wait_as_the_formula_says(ranks: int, micro_batches: int) -> None:
    """(p - 1) / (m + p - 1) in both schedules, which differ in what they keep and not in how long they take."""
    stages = [StageNeeds(forward=1.0, backward=2.0)] * ranks
    formula = (ranks - 1) / (micro_batches + ranks - 1)
    gpipe = time_pipeline(stages, [order_gpipe(micro_batches)] * ranks)
    assert gpipe.bubble == pytest.approx(formula)
    assert gpipe.seconds == pytest.approx(3.0 * (micro_batches + ranks - 1))
    if micro_batches >= ranks:
        ours = time_pipeline(stages, [order_1f1b(micro_batches, stage, ranks) for stage in range(ranks)])
        assert ours.bubble == pytest.approx(formula)


def test_a_slow_stage_and_a_slow_way_make_the_others_wait() -> None:
    """Two micro-batches; worked out by hand: 1 + 0.5 + 2 x 3 forward, 2 x 4 + 0.5 + 1 backward."""
    stages = [StageNeeds(forward=1.0, backward=1.0, transfer=0.5), StageNeeds(forward=3.0, backward=4.0)]
    found = time_pipeline(stages, [order_gpipe(2)] * 2)
    assert found.seconds == pytest.approx(1 + 0.5 + 6 + 8 + 0.5 + 1)
    assert found.bubble == pytest.approx(1 - (4 + 14) / (2 * 17))


def test_a_message_that_was_sent_before_is_fetched_when_it_is_asked_for() -> None:
    """The second stage takes longer and is always late: the first message it waits for, and fetches the other and gets on."""
    stages = [StageNeeds(forward=1.0, backward=1.0, transfer=0.5, fetch=0.25), StageNeeds(forward=3.0, backward=3.0)]
    found = time_pipeline(stages, [order_gpipe(2)] * 2)
    # 1 + 0.5, 3, 0.25 + 3, then 3 and 3; the last gradient: 0.5, and 1
    assert found.seconds == pytest.approx(1.5 + 3.0 + 3.25 + 3.0 + 3.0 + 1.5)


def test_what_the_schedule_takes_around_passes_is_bubble() -> None:
    """Worked out by hand: half a second before each of six passes that follow one another."""
    stages = [StageNeeds(forward=1.0, backward=1.0, between=0.5)] * 2
    found = time_pipeline(stages, [order_gpipe(2)] * 2)
    assert found.seconds == pytest.approx(6 * 1.5)
    assert found.bubble == pytest.approx(1 - 8 / (2 * 9))


def test_stages_that_compute_at_once_share_the_cores() -> None:
    """Worked out by hand: 1 forward, 2 of both stages at once on one core, and so on; a device is not shared."""
    computes = [StageNeeds(forward=1.0, backward=1.0, forward_core=1.0, backward_core=1.0)] * 2
    on_one = time_pipeline(computes, [order_gpipe(2)] * 2, cores=1)
    assert on_one.seconds == pytest.approx(1 + 2 + 1 + 1 + 2 + 1)
    assert on_one.bubble == pytest.approx(1 - 12 / (2 * 8))
    assert time_pipeline(computes, [order_gpipe(2)] * 2, cores=2).seconds == pytest.approx(6.0)
    waits = [StageNeeds(forward=1.0, backward=1.0)] * 2
    assert time_pipeline(waits, [order_gpipe(2)] * 2, cores=1).seconds == pytest.approx(6.0)
    around = [StageNeeds(forward=1.0, backward=1.0, between=0.5)] * 2
    # 0.5 + 1, then twice both begin at once and take 1 + 1; of the backward passes the same
    assert time_pipeline(around, [order_gpipe(2)] * 2, cores=1).seconds == pytest.approx(1.5 + 2 + 1.5 + 1.5 + 2 + 1.5)


def test_a_backward_pass_begins_as_soon_as_it_can() -> None:
    """The last of two stages keeps one micro-batch, the first two."""
    last = [(work.is_forward, work.number) for work in order_1f1b(3, 1, 2)]
    assert last == [(True, 0), (False, 0), (True, 1), (False, 1), (True, 2), (False, 2)]
    first = [(work.is_forward, work.number) for work in order_1f1b(3, 0, 2)]
    assert first == [(True, 0), (True, 1), (False, 0), (True, 2), (False, 1), (False, 2)]


def test_orders_that_wait_for_each_other_are_refused() -> None:
    """The first stage wants the backward pass of what it has not sent."""
    stages = [StageNeeds(forward=1.0, backward=1.0)] * 2
    with pytest.raises(ValueError, match="each waits for another"):
        time_pipeline(stages, [[Work(False, 0), Work(True, 0)], order_gpipe(1)])


@pytest.mark.parametrize(
    ("seconds", "stages", "cuts"),
    [([1, 1, 1, 1], 2, [2]), ([5, 1, 1, 1], 2, [1]), ([1, 1, 4, 1, 1], 3, [2, 3]), ([1, 2], 2, [1]), ([3, 3], 1, [])],
)
def test_the_longest_stage_is_as_short_as_it_can_be(seconds: list[float], stages: int, cuts: list[int]) -> None:
    """Chains that have one best cut."""
    assert find_cuts(seconds, stages) == cuts
