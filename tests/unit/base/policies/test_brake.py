"""When a run in which nothing succeeds stops receiving, and when it goes on."""

from __future__ import annotations

import pytest

from headrace.base.policies.brake import Brake, BrakePolicy, Fault


def fail(brake: Brake, *jobs: object, fault: Fault = Fault.WORK, now: float = 0.0) -> list[float | None]:
    """Let jobs fail and return what becomes of each."""
    return [brake.note_failure(str(job), fault, now) for job in jobs]


def engaged(tries: int | None = None) -> Brake:
    """Return a brake that was put on at 0 s."""
    brake = Brake(BrakePolicy(tries=tries))
    fail(brake, *range(5))
    assert brake.is_on
    return brake


def test_the_first_few_fail() -> None:
    """Four failures count; the fifth and all that follow are given back."""
    brake = Brake()
    ends = fail(brake, *range(8))
    assert [end is None for end in ends] == [True] * 4 + [False] * 4
    assert brake.find_limit(0.0) == 0


def test_one_bad_job_among_good_ones_is_its_own_fault() -> None:
    """However often it fails: a job that is known to fail is no news."""
    brake = Brake()
    brake.note_success()
    for _ in range(100):
        assert fail(brake, "bad") == [None]


def test_bad_jobs_that_are_left_over_are_no_stretch() -> None:
    """Those that failed among good ones fail again at the end, one after the other, and nothing is stopped."""
    brake = Brake()
    for job in range(30):
        fail(brake, job)
        brake.note_success()
    assert fail(brake, *range(30)) == [None] * 30
    assert not brake.is_on


def test_a_stretch_after_successes() -> None:
    """Once a job has succeeded it takes four times as many, all different ones."""
    brake = Brake()
    brake.note_success()
    fail(brake, *range(19))
    assert not brake.is_on
    fail(brake, 0, 1, 2)
    assert not brake.is_on
    fail(brake, 19)
    assert brake.is_on


def test_what_is_rejected_is_the_jobs_fault_once_one_has_succeeded() -> None:
    """A thousand bad messages in a row cannot stop a service that works; they can stop one that never did."""
    brake = Brake()
    brake.note_success()
    assert fail(brake, *range(1000), fault=Fault.JOB) == [None] * 1000
    fresh = Brake()
    fail(fresh, *range(5), fault=Fault.JOB)
    assert fresh.is_on


def test_it_is_tried_again_at_growing_intervals() -> None:
    """After half a second one job, then ever later, up to a quarter of a minute; a success lets everything go."""
    brake = engaged()
    now, tried = 0.0, []
    for job in range(100, 110):
        pause = brake.seconds_to_try(now)
        assert pause is not None
        tried.append(pause)
        now += pause
        assert brake.find_limit(now) is not None
        fail(brake, job, now=now)
        assert brake.find_limit(now) == 0
    assert tried == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0, 15.0, 15.0]
    assert brake.note_success()
    assert brake.find_limit(now) is None
    assert not brake.note_success()


def test_good_jobs_behind_many_bad_ones_are_found() -> None:
    """With each try in vain twice as many are tried at once; where the machine is short of something, one."""
    brake, short = engaged(), engaged()
    now, sizes = 0.0, []
    for job in range(12):
        now += 20.0
        sizes.append(brake.find_limit(now))
        fail(brake, 100 + job, now=now)
        fail(short, 100 + job, now=now, fault=Fault.SHORTAGE)
        assert short.find_limit(now + 20.0) == 1
    assert sizes == [1, 2, 4, 8, 16, 16, 16, 16, 16, 16, 16, 16]


def test_what_was_inside_is_no_try() -> None:
    """Jobs received before the brake was put on are given back; they neither count nor bring on the next try."""
    brake = engaged(tries=2)
    assert None not in fail(brake, *range(100, 150), now=0.1)
    assert not brake.is_hopeless
    assert brake.seconds_to_try(0.1) == pytest.approx(0.4)


def test_given_back_jobs_stay_away_longer_than_the_next_try() -> None:
    """So the next try is of another job."""
    brake = engaged()
    now = 0.0
    for job in range(100, 108):
        now += brake.seconds_to_try(now) or 0.0
        (delay,) = fail(brake, job, now=now)
        assert delay is not None
        assert delay > (brake.seconds_to_try(now) or 0.0)


def test_a_source_that_ends_is_not_waited_for() -> None:
    """After some tries in vain it is hopeless; without an end it never is."""
    brake, endless = engaged(tries=2), engaged()
    for number in range(2):
        assert not brake.is_hopeless
        fail(brake, 100 + number, now=20.0 * (number + 1))
        fail(endless, 100 + number, now=20.0 * (number + 1))
    assert brake.is_hopeless
    assert not endless.is_hopeless


def test_a_full_disk_is_waited_for_longer() -> None:
    """Others can make room: ten minutes, also where the source ends."""
    brake = Brake(BrakePolicy(tries=2))
    fail(brake, 1, 2, fault=Fault.DISK)
    assert brake.is_on
    now = 0.0
    while now < 599:
        now += 20.0
        assert not brake.is_hopeless
        fail(brake, 3, fault=Fault.DISK, now=now)
    assert brake.is_hopeless


@pytest.mark.parametrize("fault", [Fault.SHORTAGE, Fault.DISK])
def test_a_shortage_does_not_count(fault: Fault) -> None:
    """Two in a row stop the receiving, and no job pays for it, also after successes."""
    brake = Brake()
    brake.note_success()
    assert None not in fail(brake, 1, 2, 3, fault=fault)
    assert brake.is_on


def test_a_job_that_needs_more_than_there_is_ends() -> None:
    """One that alone meets shortages is excused a few times; a full disk is nobody's fault however often."""
    brake = Brake()
    ends = []
    for _ in range(6):
        brake.note_success()
        ends += fail(brake, "large", fault=Fault.SHORTAGE)
    assert [end is None for end in ends] == [False, False, False, True, True, True]
    alone = Brake()
    assert [end is None for end in fail(alone, *["large"] * 5, fault=Fault.SHORTAGE)] == [False] * 3 + [True] * 2
    full = Brake()
    assert None not in fail(full, *["any"] * 50, fault=Fault.DISK)


def test_it_can_be_left_out() -> None:
    """With 0 every failure counts as usual."""
    brake = Brake(BrakePolicy(jobs=0))
    assert fail(brake, *range(1000), fault=Fault.SHORTAGE) == [None] * 1000
    assert not brake.is_on


def test_what_is_remembered_is_bounded() -> None:
    """A million bad jobs take no more memory than ten thousand."""
    brake = Brake()
    for job in range(20_000):
        brake.note_success()
        fail(brake, job)
    assert len(brake._known) == 10_000
