"""What is let in and what is refused; time is only a number. `test_simulated_overload` shows what that comes to under load."""

from __future__ import annotations

import pytest

from headrace.base.policies.expected_wait import ExpectedWait, Inside, LetIn, Reason, TurnedAway

NOTHING = Inside(before=0, waiting=0)


def known() -> ExpectedWait:
    """Batches of 10 in 100 ms, and 20 ms for one alone."""
    return ExpectedWait(at_once=10, item_seconds=0.01, alone_seconds=0.02)


def test_what_is_inside_is_waited_for() -> None:
    """Before 40 there are four rounds: that is in time for a deadline of half a second, and not for one of 300 ms."""
    inside = Inside(before=40, waiting=30)
    assert isinstance(known().decide(5.0, 5.5, inside), LetIn)
    refused = known().decide(5.0, 5.3, inside)
    assert isinstance(refused, TurnedAway)
    assert refused.reason is Reason.BUSY
    assert refused.most_seconds == pytest.approx(0.4)
    assert refused.retry_after_seconds == pytest.approx(0.1)


def test_without_a_deadline_everything_is_let_in() -> None:
    """How much may be inside then is for others to say."""
    assert isinstance(known().decide(0.0, None, Inside(before=10**6, waiting=10**6)), LetIn)


def test_where_nothing_is_known_everything_is_let_in() -> None:
    """Something has to be measured first."""
    assert isinstance(ExpectedWait().decide(0.0, 0.001, Inside(before=100, waiting=100)), LetIn)


def test_a_deadline_that_is_too_short_for_anything_is_hopeless() -> None:
    """Coming again would not help; and now and then one is let in, as things may have become faster."""
    policy = known()
    policy.note_end(0.02, LetIn(0.0, 0, 0.02, 0.02, meets_nobody=True, priority=1), NOTHING)
    refused = policy.decide(0.03, 0.04, NOTHING)
    assert isinstance(refused, TurnedAway)
    assert refused.reason is Reason.HOPELESS
    assert isinstance(policy.decide(2.0, 2.01, NOTHING), LetIn)
    assert isinstance(policy.decide(2.1, 2.11, NOTHING), TurnedAway)


def test_what_is_foreseen_is_what_is_decided() -> None:
    """A head is turned away where its work would be; what meets nobody is decided once, when its work is there."""
    inside = Inside(before=40, waiting=30)
    assert known().foresee(5.0, 5.3, inside) == known().decide(5.0, 5.3, inside)
    assert known().foresee(5.0, 5.5, inside) is None
    policy = known()
    assert policy.foresee(0.03, 0.04, NOTHING) is None
    policy.note_end(0.02, LetIn(0.0, 0, 0.02, 0.02, meets_nobody=True, priority=1), NOTHING)
    assert policy.foresee(2.0, 2.01, NOTHING) is None
    assert isinstance(policy.decide(2.0, 2.01, NOTHING), LetIn), "foreseeing took the turn of a try"


def test_what_is_read_after_its_deadline_is_refused_for_now() -> None:
    """It waited to be read: that is no fault of its deadline, and nothing inside makes it worth a try."""
    for inside in (NOTHING, Inside(before=40, waiting=30)):
        for refused in (known().decide(5.0, 4.9, inside), known().foresee(5.0, 5.0, inside)):
            assert isinstance(refused, TurnedAway)
            assert refused.reason is Reason.BUSY


def test_what_meets_nobody_is_let_in_whatever_others_waited() -> None:
    """Answers that took ten times as long as expected do not close an idle service."""
    policy = known()
    late = LetIn(0.0, 40, 0.4, 0.4, meets_nobody=False, priority=1)
    for _ in range(50):
        policy.note_end(4.0, late, Inside(before=40, waiting=30))
    assert isinstance(policy.decide(4.0, 4.5, Inside(before=40, waiting=30)), TurnedAway)
    assert isinstance(policy.decide(4.0, 4.5, NOTHING), LetIn)


def test_what_was_not_checked_for_a_while_is_doubted() -> None:
    """Nothing is answered while all is refused, so the estimate comes down by itself."""
    policy, inside = known(), Inside(before=20, waiting=10)
    late = LetIn(0.0, 20, 0.2, 0.2, meets_nobody=False, priority=1)
    for _ in range(50):
        policy.note_end(2.0, late, inside)
    decisions = [policy.decide(2.0 + seconds, 2.5 + seconds, inside) for seconds in range(20)]
    assert isinstance(decisions[0], TurnedAway)
    assert isinstance(decisions[-1], LetIn)


def test_the_pace_is_measured_while_enough_waits() -> None:
    """Ends that come twice as slowly as the cost curve says make the next ones expected later."""
    policy, inside = known(), Inside(before=40, waiting=30)
    work = policy.decide(0.0, None, inside)
    assert isinstance(work, LetIn)
    for number in range(1, 500):
        policy.note_end(0.02 * number, work, inside)
    assert policy.item_seconds == pytest.approx(0.02, rel=0.01)


def test_ends_without_a_line_say_nothing_of_the_pace() -> None:
    """A service that has little to do is not slow."""
    policy, inside = known(), Inside(before=2, waiting=1)
    work = policy.decide(0.0, None, inside)
    assert isinstance(work, LetIn)
    for number in range(1, 500):
        policy.note_end(1.0 * number, work, inside)
    assert policy.item_seconds == 0.01


def test_each_priority_has_its_own_errors() -> None:
    """That those who come second are late does not make those who come first expected late."""
    policy, inside = known(), Inside(before=40, waiting=30)
    for _ in range(50):
        policy.note_end(4.0, LetIn(0.0, 40, 0.4, 0.4, meets_nobody=False, priority=1), inside)
    assert isinstance(policy.decide(4.0, 4.5, inside, 1), TurnedAway)
    assert isinstance(policy.decide(4.0, 4.5, inside, 0), LetIn)


def test_answers_that_were_off_by_any_number_close_no_door_for_long_deadlines() -> None:
    """Some took a thousand times as long as expected and others did not: within 30 s an answer is still expected."""
    policy, inside = known(), Inside(before=40, waiting=30)
    for seconds in (400.0, 0.4) * 50:
        policy.note_end(seconds, LetIn(0.0, 40, 0.4, 0.4, meets_nobody=False, priority=1), inside)
    assert isinstance(policy.decide(500.0, 530.0, inside), LetIn)
