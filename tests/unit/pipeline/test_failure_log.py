"""What is said of failures while they happen."""

from __future__ import annotations

import logging

import pytest

from headrace.base.error_origin import Origin
from headrace.base.records import DELIVERED, Job, Outcome, OutcomeKind
from headrace.pipeline.failure_log import MOST_KINDS, FailureLog


def settle(log: FailureLog, reason: str, line: int = 0, kind: OutcomeKind = OutcomeKind.RETRY) -> None:
    """Let one delivery fail."""
    origin = Origin("ValueError", "jobs.py", line, "process", "  File jobs.py\n    x.men()") if line else None
    log.job_settled(Job("a", b""), Outcome(kind, f"process: item a: {reason}", origin=origin))


def test_the_first_is_shown_in_full_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Forty failures at one line are two messages: one with the frames, one with the number of the others."""
    log = FailureLog()
    for _ in range(40):
        settle(log, "ValueError: no (jobs.py:3)", 3)
    log.close()
    first, last = [record.getMessage() for record in caplog.records]
    assert first == ("to be tried again: process: item a: ValueError: no (jobs.py:3)\n  File jobs.py\n    x.men()")
    assert last == "and 39 more failures like this one: ValueError at jobs.py:3"


def test_many_kinds_are_not_shown_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    """The log stays short however many different things fail."""
    log = FailureLog()
    for line in range(1, 50):
        settle(log, "ValueError: no", line)
    log.close()
    assert len(caplog.records) == MOST_KINDS


def test_all_are_shown_to_who_asks(caplog: pytest.LogCaptureFixture) -> None:
    """With -v every failure has its line, with what would steer a terminal made visible."""
    caplog.set_level(logging.INFO)
    log = FailureLog()
    for number in range(3):
        settle(log, f"no {number} \x1b[31m")
    assert len(caplog.records) == 3
    assert "\x1b" not in caplog.text


def test_what_did_not_fail_is_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    """Delivered jobs, and those given back because the run ended, are no failures."""
    caplog.set_level(logging.INFO)
    log = FailureLog()
    log.job_settled(Job("a", b""), DELIVERED)
    settle(log, "the run was stopped", kind=OutcomeKind.RETURNED)
    log.close()
    assert not caplog.records


def test_what_a_source_rejects_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Its reason says nothing of the item, which is the file to look at."""
    FailureLog().job_settled(Job("a.mp4#", b""), Outcome(OutcomeKind.REJECTED, "video.open: it cannot be read"))
    assert caplog.messages == ["rejected: a.mp4#: video.open: it cannot be read"]
