"""Which task's job comes in; time is only a number."""

from __future__ import annotations

from headrace.base.policies.task_turns import TaskTurns


def turns(*tasks: str) -> TaskTurns:
    """Turns of tasks whose jobs came at time 0."""
    one = TaskTurns()
    for task in tasks:
        one.came(task, 0.0)
    return one


def test_where_there_is_room_a_job_comes_in() -> None:
    """Whatever the others have."""
    assert turns("a", "b").seconds_away("a", {"a": 0.9, "b": 5.0}, 1.0) == 0


def test_where_nobody_lacks_work_receivers_wait() -> None:
    """Two that are both busy are held back as one would be: nothing goes back to the source."""
    assert turns("a", "b").seconds_away("a", {"a": 1.0, "b": 0.3}, 1.0) is None


def test_a_full_task_makes_way_for_one_that_lacks_work() -> None:
    """Its job comes again after a second, and after as long as it has been full if that is longer, at most five minutes."""
    one = turns("slow", "fast")
    levels = {"slow": 1.0, "fast": 0.0}
    assert one.seconds_away("slow", levels, 1.0) == 1.0
    assert one.seconds_away("slow", levels, 31.0) == 30.0
    one.came("fast", 1000.0)
    assert one.seconds_away("slow", levels, 1001.0) == 300.0


def test_one_place_that_came_free_is_no_relief() -> None:
    """A slow task that finishes one now and then has been full all the time, until half of its part is free."""
    one = turns("slow", "fast")
    assert one.seconds_away("slow", {"slow": 1.0, "fast": 0.0}, 1.0) == 1.0
    assert one.seconds_away("slow", {"slow": 0.9, "fast": 0.0}, 20.0) == 0
    assert one.seconds_away("slow", {"slow": 1.0, "fast": 0.0}, 21.0) == 20.0
    assert one.seconds_away("slow", {"slow": 0.4, "fast": 0.0}, 30.0) == 0
    assert one.seconds_away("slow", {"slow": 1.0, "fast": 0.0}, 31.0) == 1.0


def test_a_task_without_jobs_lacks_none() -> None:
    """Nothing is turned away for one that had no job for a minute."""
    assert turns("slow", "idle").seconds_away("slow", {"slow": 1.0, "idle": 0.0}, 61.0) is None


def test_a_backlog_is_not_carried_round() -> None:
    """Of a full task no more are turned away than a reserve, ten a second, and ten for each job of another."""
    one = turns("slow", "fast")
    levels = {"slow": 1.0, "fast": 0.0}
    away = 0
    for _ in range(1000):
        seconds = one.seconds_away("slow", levels, 1.0)
        away += seconds is not None
    assert away == 200
    assert one.seconds_away("fast", levels, 1.0) == 0
    assert sum(one.seconds_away("slow", levels, 1.0) is not None for _ in range(100)) == 10
    assert sum(one.seconds_away("slow", levels, 2.0) is not None for _ in range(100)) == 10
