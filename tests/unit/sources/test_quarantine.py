"""Suspects run with nothing beside them, and nothing that was received meanwhile is lost."""

from headrace.base.records import DELIVERED, Job, Outcome, OutcomeKind
from headrace.sources.quarantine import Quarantine


class Desk:
    """Makes jobs and keeps their outcomes."""

    def __init__(self) -> None:
        self.isolation = Quarantine()
        self.outcomes: dict[str, OutcomeKind] = {}

    def job(self, name: str) -> Job:
        """Return a job whose end the isolation hears of."""

        def settle(job: Job | None, outcome: Outcome) -> None:
            self.outcomes[name] = outcome.kind

        return Job(name, b"", settle=self.isolation.track_settle(settle))


def test_a_suspect_waits_until_nothing_is_out() -> None:
    """A suspect goes out when the last of the others is settled, and nothing else while it is out."""
    desk = Desk()
    good, bad = desk.job("good"), desk.job("bad")
    assert desk.isolation.pass_through([(good, False), (bad, True)]) == [good]
    assert desk.isolation.is_holding
    assert desk.isolation.take(10, 0.0) == []
    good.settle(DELIVERED)
    assert desk.isolation.take(10, 0.0) == [bad]
    assert desk.isolation.take(10, 0.0) == []
    bad.settle(DELIVERED)
    assert desk.isolation.take(10, 0.0) == []
    assert not desk.isolation.is_holding


def test_suspects_go_one_by_one() -> None:
    """Of several suspects each runs alone, in the order of receipt."""
    desk = Desk()
    first, second = desk.job("first"), desk.job("second")
    assert desk.isolation.pass_through([(first, True), (second, True)]) == []
    assert desk.isolation.take(10, 0.0) == [first]
    first.settle(DELIVERED)
    assert desk.isolation.take(10, 0.0) == [second]


def test_what_comes_while_one_runs_alone_follows() -> None:
    """A job that another receiver brings while a suspect is out waits until it is through."""
    desk = Desk()
    bad, late = desk.job("bad"), desk.job("late")
    desk.isolation.pass_through([(bad, True)])
    assert desk.isolation.take(10, 0.0) == [bad]
    assert desk.isolation.pass_through([(late, False)]) == []
    bad.settle(DELIVERED)
    assert desk.isolation.take(10, 0.0) == [late]
    late.settle(DELIVERED)
    assert not desk.isolation.is_holding


def test_what_is_held_back_is_given_back_at_the_end() -> None:
    """A run that stops returns what never went out."""
    desk = Desk()
    desk.isolation.pass_through([(desk.job("bad"), True)])
    desk.isolation.give_back()
    assert desk.outcomes == {"bad": OutcomeKind.RETURNED}
    assert not desk.isolation.is_holding
