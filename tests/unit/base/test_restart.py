"""When a worker that died is started again, and when no more."""

import pytest

from headrace.base.policies.restart import RestartPolicy, Restarts

POLICY = RestartPolicy(base_seconds=0.1, max_seconds=30.0, healthy_seconds=10.0, storm_deaths=5, storm_seconds=60.0)


def test_pauses_double_up_to_the_limit() -> None:
    """Deaths in vain double the pause, and no pause is longer than the limit."""
    restarts = Restarts(POLICY)
    pauses = [restarts.pause(0, 1.0, False, jitter=1.0) for _ in range(12)]
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert pauses[-1] == 30.0


@pytest.mark.parametrize(("lived", "delivered"), [(10.0, False), (0.1, True)])
def test_a_good_life_begins_anew(lived: float, delivered: bool) -> None:
    """After a life that was long, or that delivered a job, the pause is the first one again."""
    restarts = Restarts(POLICY)
    for _ in range(5):
        restarts.pause(0, 0.1, False, 1.0)
    assert restarts.pause(0, lived, delivered, 1.0) == pytest.approx(0.1)


def test_workers_pause_apart() -> None:
    """One worker's deaths do not delay another."""
    restarts = Restarts(POLICY, num_workers=2)
    for _ in range(5):
        restarts.pause(0, 0.1, False, 1.0)
    assert restarts.pause(1, 0.1, False, 1.0) == pytest.approx(0.1)


def test_five_deaths_within_a_minute_are_a_storm() -> None:
    """The fifth death within the time is one too many; spread over a longer time they are none."""
    quick, slow = Restarts(POLICY), Restarts(POLICY)
    assert [quick.is_storm(second) for second in range(5)] == [False] * 4 + [True]
    assert not any(slow.is_storm(second * 20.0) for second in range(20))


def test_each_worker_has_its_five() -> None:
    """What kills every worker kills N at a time: the limit is per worker."""
    restarts = Restarts(POLICY, num_workers=4)
    assert [restarts.is_storm(second) for second in range(20)] == [False] * 19 + [True]


def test_a_delivery_ends_the_count() -> None:
    """Deaths before a job was delivered do not count any more."""
    restarts = Restarts(POLICY)
    for second in range(4):
        restarts.is_storm(second)
    restarts.note_delivery()
    assert not restarts.is_storm(4)
