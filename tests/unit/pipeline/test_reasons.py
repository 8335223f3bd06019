"""Counting why jobs ended badly."""

from __future__ import annotations

import pytest

from headrace.base.error_origin import Origin
from headrace.base.errors import DeliveryRejected
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.delivery.encoding import encode
from headrace.pipeline.reasons import (
    EXAMPLE_CHARACTERS,
    MOST_CODES,
    Failure,
    Reasons,
    failure_of,
    merge_reasons,
    parse_reason,
    show_reasons,
)
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


def test_results_that_json_cannot_hold_are_counted_apart() -> None:
    """NaN is the model's fault and an object the code's: each has its own code, number and example."""
    reasons = Reasons()
    for result in (float("nan"), object(), [float("inf")]):
        with pytest.raises(DeliveryRejected) as caught:
            encode(result)
        reasons.add(failure(str(caught.value.locate("deliver", "id"))))
    counted = [(row["code"], row["count"], row["example"]) for row in merge_reasons([reasons.as_list()])]
    assert [(code, count) for code, count, _ in counted] == [("result.not_finite", 2), ("result.type", 1)]
    assert ["NaN" in example for _, _, example in counted] == [True, False]


def test_errors_without_a_place_are_counted_by_their_type() -> None:
    """A builtin has no line: its errors of one type in one stage are one reason, of two types two, merged ones too."""
    reasons = Reasons()
    for text in ("TypeError: bad operand", "ValueError: 3", "TypeError: another operand"):
        reasons.add(failure(f"abs: item id: {text}"))
    rows = merge_reasons([reasons.as_list(), reasons.as_list()])
    assert [(row["code"], row["example"], row["count"]) for row in rows] == [
        ("abs", "TypeError: bad operand", 4),
        ("abs", "ValueError: 3", 2),
    ]


def test_memory_is_bounded() -> None:
    """Any number of codes and any length of text keep to a bound, and none is left out of the count."""
    reasons = Reasons()
    for number in range(MOST_CODES + 50):
        reasons.add(failure(f"word.{'x' * number}y: {'long ' * 1000}"))
    rows = reasons.as_list()
    assert len(rows) == MOST_CODES + 1
    assert sum(row["count"] for row in rows) == MOST_CODES + 50
    assert max(len(row["example"]) for row in rows) == EXAMPLE_CHARACTERS


def test_people_see_the_most_frequent_and_no_control_characters() -> None:
    """Three lines and the rest in one; what strangers wrote cannot steer the terminal."""
    reasons = Reasons()
    for code, count in (("a.a", 1), ("b.b", 4), ("c.c", 2), ("d.d", 3), ("e.e", 1)):
        for _ in range(count):
            reasons.add(failure(f"{code}: red \x1b[31m", item="\x1b[2J"))
    lines = show_reasons(reasons.as_list())
    assert [line.split(": ")[0] for line in lines] == ["4 b.b", "3 d.d", "2 c.c", "2 for 2 other reasons"]
    assert all(line.isprintable() for line in lines)


def failure(reason: str, kind: OutcomeKind = OutcomeKind.REJECTED, item: str = "id", line: int = 0) -> Failure:
    """Return a failure of a job; with a line, one of the user's code."""
    origin = Origin("ValueError", "jobs.py", line, "process") if line else None
    found = failure_of(Job(item, b""), Outcome(kind, reason, origin=origin, excused=True))
    assert found is not None
    return found


def test_a_summary_counts_every_failure_once() -> None:
    """Those that ended for good, those that come again and those given back are told apart; the end of the run is none."""
    summary = Summary()
    kinds = [OutcomeKind.REJECTED, OutcomeKind.DEAD_LETTERED, OutcomeKind.RETRY, OutcomeKind.RETURNED]
    for number, kind in enumerate(kinds):
        job = Job(str(number), b"")
        summary.job_received([job])
        summary.job_settled(job, Outcome(kind, f"fetch: item {number}: http.status: 404"))
    job = Job("4", b"")
    summary.job_settled(job, Outcome(OutcomeKind.RETURNED, "fetch: item 4: http.status: 404", excused=True))
    (row,) = summary.as_dict()["reasons"]
    assert row == {
        "code": "http.status",
        "count": 2,
        "retried": 1,
        "returned": 1,
        "example": "404",
        "first_item": "0",
        "origin": None,
    }
    assert "4 http.status: 404 [first 0; 1 to be tried again; 1 given back]" in summary.as_text()


def test_each_line_of_the_users_code_is_a_reason_of_its_own() -> None:
    """Two faults in one stage are two rows, each with its place."""
    reasons = Reasons()
    for line in (3, 7, 3):
        reasons.add(failure("process: item id: ValueError: no", OutcomeKind.RETRY, line=line))
    rows = reasons.as_list()
    assert [(row["origin"]["line"], row["retried"]) for row in rows] == [(3, 2), (7, 1)]
    assert [row["retried"] for row in merge_reasons([rows, rows])] == [4, 2]


def test_reasons_of_earlier_versions_are_merged() -> None:
    """Rows without the numbers that came later count what they have."""
    (row,) = merge_reasons([[{"code": "a.b", "count": 2, "example": "x"}]] * 2)
    assert (row["count"], row["retried"], row["origin"]) == (4, 0, None)
    assert show_reasons([row]) == ["4 a.b: x"]
