"""The records."""

from __future__ import annotations

import pytest

from headrace.base.records import DELIVERED, Job, Outcome, OutcomeKind


def test_settling_tells_the_source_once() -> None:
    """The source hears the job and how it ended."""
    heard: list[tuple[Job, Outcome]] = []
    job = Job("a", b"", settle=lambda job, outcome: heard.append((job, outcome)))
    job.settle(DELIVERED)
    assert heard == [(job, DELIVERED)]


def test_settling_twice_raises() -> None:
    """The second call is a defect that names job and outcome; the source does not hear it."""
    heard: list[Outcome] = []
    job = Job("a", b"", settle=lambda job, outcome: heard.append(outcome))
    job.settle(DELIVERED)
    with pytest.raises(RuntimeError, match="job a was settled twice; the second outcome was retry"):
        job.settle(Outcome(OutcomeKind.RETRY))
    assert heard == [DELIVERED]


def test_a_source_that_raises_is_not_asked_again() -> None:
    """An error of the source comes out, and the job counts as settled."""

    def settle(job: Job, outcome: Outcome) -> None:
        raise OSError("gone")

    job = Job("a", b"", settle=settle)
    with pytest.raises(OSError, match="gone"):
        job.settle(DELIVERED)
    with pytest.raises(RuntimeError, match="twice"):
        job.settle(DELIVERED)


def test_a_job_without_a_source_settles_once() -> None:
    """A job that nobody waits for is settled all the same, and once."""
    job = Job("a", b"")
    job.settle(DELIVERED)
    with pytest.raises(RuntimeError):
        job.settle(DELIVERED)


def test_a_job_is_shown_without_its_payload() -> None:
    """Payloads are large, and addresses hold secrets."""
    assert repr(Job("a", b"secret" * 1000, task="faces", attempt=2)) == "Job('a', task='faces', attempt=2)"


def test_a_job_takes_no_further_fields() -> None:
    """A mistyped field is an error, not a silent new one."""
    with pytest.raises(AttributeError):
        Job("a", b"").attemt = 2  # type: ignore[attr-defined]
