"""What counts against the limit of a run."""

from __future__ import annotations

import pytest

from headrace.base.records import DELIVERED, Job, Outcome, OutcomeKind
from headrace.pipeline.run_limit import RunLimit

TURNED_AWAY = Outcome(OutcomeKind.RETURNED, "brake.task: nothing succeeds", 1.0, excused=True)
SPARED = Outcome(OutcomeKind.RETRY, "download.host: left alone", 1.0, spared=True)
CROWDED = Outcome(OutcomeKind.RETURNED, "route: share.full: task 'a' has its share", 1.0, spared=True)
FAILED = Outcome(OutcomeKind.RETRY, "process: no", 1.0)


def job(name: str = "1") -> Job:
    """Return a job."""
    return Job(name, b"", settle=lambda job, outcome: None)


@pytest.mark.parametrize(
    ("outcome", "source_ends", "left"),
    [
        (DELIVERED, True, 9),
        (FAILED, True, 9),
        (TURNED_AWAY, True, 10),
        (TURNED_AWAY, False, 10),
        (SPARED, True, 10),
        (SPARED, False, 9),
        (CROWDED, False, 10),
    ],
)
def test_what_was_not_tried_does_not_count(outcome: Outcome, source_ends: bool, left: int) -> None:
    """But where a source without end puts it aside, for then it may come again after hours."""
    limit = RunLimit(10, source_ends=source_ends)
    limit.settled(job(), outcome)
    assert limit.left(received=1) == left


def test_the_warning_has_the_number_of_those_that_did_not_come_again_and_the_reason() -> None:
    """One that was put aside and then delivered is not left."""
    limit = RunLimit(10, source_ends=True)
    assert limit.warning() == ""
    for name in "123":
        limit.settled(job(name), SPARED)
    limit.settled(job("2"), DELIVERED)
    assert limit.warning().startswith("put aside and not done")
    assert "2 jobs" in limit.warning()
    assert "download.host: left alone" in limit.warning()
