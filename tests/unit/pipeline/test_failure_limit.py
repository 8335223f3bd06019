"""Runs that end early because too many jobs failed."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.base.errors import ItemRejected, SettingsError
from headrace.base.records import DELIVERED, Job, Outcome, OutcomeKind
from headrace.delivery.collect import Collect
from headrace.pipeline.failure_limit import FailureLimit, MostFailed
from headrace.testing import ListSource

REJECTED = Outcome(OutcomeKind.REJECTED, "no")


@pytest.mark.parametrize(("given", "failed", "of", "exceeded"), [
    ("5", 5, 5, False), (5, 6, 100, True), ("0", 1, 100, True), ("5%", 5, 100, False), (0.05, 6, 100, True),
    ("0%", 1, 1000, True),
])  # fmt: skip
def test_numbers_and_shares(given: str | float, failed: int, of: int, *, exceeded: bool) -> None:
    """A whole number is jobs, anything with a percent sign or below 1 a share of those that ended."""
    assert MostFailed.parse(given).is_exceeded(failed, of) is exceeded


@pytest.mark.parametrize("given", ["many", "-1", "100%", "1.5", "nan", ""])
def test_what_is_neither(given: str) -> None:
    """Anything else is refused with what is expected."""
    with pytest.raises(SettingsError, match=r"expected 5, 5% or 0\.05"):
        MostFailed.parse(given)


def test_a_share_is_not_judged_by_the_first_jobs() -> None:
    """While the run goes on a share is one of at least twenty jobs; at its end of all."""
    said: list[str] = []
    limit = FailureLimit(MostFailed.parse("10%"), said.append)
    limit.job_settled(Job("a", b""), REJECTED)
    limit.job_settled(Job("b", b""), REJECTED)
    assert not said
    assert limit.verdict() == "2 jobs of 2 failed, allowed were 10 % (max_failed)"
    limit.job_settled(Job("c", b""), REJECTED)
    assert len(said) == 1
    for _ in range(40):
        limit.job_settled(Job("d", b""), DELIVERED)
    assert limit.verdict() == ""


def test_tries_that_come_again_do_not_count() -> None:
    """Only jobs that ended for good are counted."""
    said: list[str] = []
    limit = FailureLimit(MostFailed.parse(0), said.append)
    limit.job_settled(Job("a", b""), Outcome(OutcomeKind.RETRY, "later"))
    limit.job_settled(Job("a", b""), Outcome(OutcomeKind.RETURNED, "stopped"))
    assert not said
    assert not limit.verdict()


def refuse_odd(value: int) -> int:
    """Reject every other value."""
    if value % 2:
        raise ItemRejected("odd")
    return value


def test_a_run_ends_and_gives_back_the_rest() -> None:
    """Soon after the limit nothing more is received, and the result says why; the run counts as ended by nobody."""
    source = ListSource(list(range(1000)))
    pipeline = hr.Pipeline(source, stages=[hr.stage("odd", refuse_odd)], delivery=Collect())
    plan = hr.Plan.from_table({"source": {"receive_batch": 1}, "stages": {"odd": {"executor": "inline"}}})
    result = hr.run(pipeline, plan, max_failed=3)
    assert result.ended_early.endswith("failed, allowed were 3 (max_failed)")
    assert result.counters.rejected == 4
    assert result.counters.received < 20
    assert not result.interrupted
