"""Counting why jobs ended badly."""

from __future__ import annotations

import pytest

from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.pipeline.reasons import EXAMPLE_CHARACTERS, MOST_CODES, Reasons, parse_reason, shown_reasons
from headrace.pipeline.summary import Summary


@pytest.mark.parametrize(
    ("reason", "job_id", "expected"),
    [
        ("fetch: item a: ssrf.port: no", "a", ("ssrf.port", "no")),
        ("fetch: item a/0/12: ssrf.port: no", "a", ("ssrf.port", "no")),
        ("message.json: not a job", "a", ("message.json", "not a job")),
        ("process: item a: ValueError: decode.bomb: no", "a", ("process", "ValueError: decode.bomb: no")),
        ("fetch: item x: decode.bomb: y: ssrf.port: no", "x: decode.bomb: y", ("ssrf.port", "no")),
        ("the worker died", "a", ("other", "the worker died")),
        ("", "", ("other", "")),
    ],
)
def test_codes_are_found(reason: str, job_id: str, expected: tuple[str, str]) -> None:
    """The code stands after stage and item; what a sender wrote into an id is none."""
    assert parse_reason(reason, job_id) == expected


def test_memory_is_bounded() -> None:
    """Any number of codes and any length of text keep to a bound, and none is left out of the count."""
    reasons = Reasons()
    for number in range(MOST_CODES + 50):
        reasons.add(*parse_reason(f"word.{'x' * number}y: {'long ' * 1000}", "id"))
    rows = reasons.as_list()
    assert len(rows) == MOST_CODES + 1
    assert sum(row["count"] for row in rows) == MOST_CODES + 50
    assert max(len(row["example"]) for row in rows) == EXAMPLE_CHARACTERS


def test_people_see_the_most_frequent_and_no_control_characters() -> None:
    """Three lines and the rest in one; what strangers wrote cannot steer the terminal."""
    reasons = Reasons()
    for code, count in (("a.a", 1), ("b.b", 4), ("c.c", 2), ("d.d", 3), ("e.e", 1)):
        for _ in range(count):
            reasons.add(code, "red \x1b[31m")
    lines = shown_reasons(reasons.as_list())
    assert [line.split(": ")[0] for line in lines] == ["4 b.b", "3 d.d", "2 c.c", "2 for 2 other reasons"]
    assert all(line.isprintable() for line in lines)


def test_a_summary_counts_what_ended_for_good() -> None:
    """Rejected and dead-lettered jobs have a reason; tries that come again do not."""
    summary = Summary()
    kinds = [OutcomeKind.REJECTED, OutcomeKind.DEAD_LETTERED, OutcomeKind.RETRY, OutcomeKind.RETURNED]
    for number, kind in enumerate(kinds):
        job = Job(str(number), None)
        summary.job_received([job])
        summary.job_settled(job, Outcome(kind, f"fetch: item {number}: http.status: 404"))
    assert summary.as_dict()["reasons"] == [{"code": "http.status", "count": 2, "example": "404"}]
    assert "2 http.status: 404" in summary.as_text()
