"""A task of which nothing succeeds is stopped by itself, tried at growing intervals, and given up where the run has an end."""

from __future__ import annotations

import pytest

from headrace.base.policies.brake import BrakePolicy, Fault
from headrace.base.policies.task_brakes import TaskBrakes


def braked(tries: int | None = None) -> TaskBrakes:
    """Return the brakes of two tasks, of which that of `bad` was put on at 0 s."""
    brakes = TaskBrakes(["good", "bad"], BrakePolicy(tries=tries))
    fail(brakes, *range(5))
    assert brakes.is_any_on
    return brakes


def fail(brakes: TaskBrakes, *jobs: object, now: float = 0.0) -> list[float | None]:
    """Let jobs of `bad` fail."""
    return [brakes.note_failure("bad", str(job), Fault.WORK, now) for job in jobs]


def give_up(brakes: TaskBrakes) -> float:
    """Let tries fail until `bad` is given up, and return when that was."""
    now = 0.0
    while not brakes.list_given_up():
        now += 1.0
        if brakes.seconds_away("bad", f"try {now}", now) is None:
            fail(brakes, f"try {now}", now=now)
            brakes.note_end("bad", f"try {now}")
    return now


def test_the_other_task_goes_on() -> None:
    """Jobs of the bad one are turned away, those of the good one are let in."""
    brakes = braked()
    assert brakes.seconds_away("bad", "5", 0.0) == 15.0
    assert brakes.seconds_away("good", "6", 0.0) is None


def test_a_single_task_has_no_brake_of_its_own() -> None:
    """The run's is there for it."""
    brakes = TaskBrakes([""], BrakePolicy())
    assert [brakes.note_failure("", str(job), Fault.WORK, 0.0) for job in range(100)] == [None] * 100
    assert not brakes.is_any_on


def test_one_is_tried_then_two() -> None:
    """When the pause is over one job is let in; when it has failed, after a longer pause, two are."""
    brakes = braked()
    lets_in = [brakes.seconds_away("bad", str(job), 0.6) is None for job in range(3)]
    fail(brakes, 0, now=0.7)
    brakes.note_end("bad", "0")
    assert brakes.seconds_away("bad", "7", 1.0) is not None
    lets_in += [brakes.seconds_away("bad", str(job), 1.8) is None for job in range(3)]
    assert lets_in == [True, False, False, True, True, False]


@pytest.mark.parametrize(("now", "seconds"), [(3.0, 15.0), (100.0, 100.0), (4000.0, 300.0)])
def test_what_is_turned_away_comes_more_and_more_seldom(now: float, seconds: float) -> None:
    """It waits for as long as nothing has succeeded, within bounds."""
    brakes = braked()
    brakes.seconds_away("bad", "tried", now)
    assert brakes.seconds_away("bad", "another", now) == seconds


def test_a_success_lets_all_in_again() -> None:
    """One of the task's own; another task's changes nothing."""
    brakes = braked()
    assert not brakes.note_success("good")
    assert brakes.seconds_away("bad", "5", 0.0) is not None
    assert brakes.note_success("bad")
    assert brakes.seconds_away("bad", "5", 0.0) is None
    assert not brakes.is_any_on


def test_nothing_is_left_once_a_job_of_a_task_that_is_given_up_comes_round() -> None:
    """The same job has come twice, and none of another task between; without an end none is given up."""
    brakes = braked(tries=4)
    now = give_up(brakes)
    assert not brakes.is_all_there_is("bad", "a")
    assert not brakes.is_all_there_is("bad", "b")
    brakes.seconds_away("good", "c", now)
    assert not brakes.is_all_there_is("bad", "a")
    assert brakes.seconds_away("bad", "a", now) == 1.0
    assert brakes.is_all_there_is("bad", "a")
