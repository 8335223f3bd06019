"""The benchmark of hostile inputs: what it counts as what, and that it sees what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import hostile
from benchmarks.hostile import Part
from headrace.base.records import DELIVERED, Outcome, OutcomeKind


def judged(reason: str | None, verdicts: frozenset[str] | None = None) -> Part:
    """Return a part that saw one end."""
    part = Part("threads", inputs=1)
    outcome = None if reason is None else Outcome(OutcomeKind.REJECTED, reason) if reason else DELIVERED
    hostile._judge(part, "cut", outcome, verdicts)
    return part


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("", {}),
        ("decode: item 7: decode.truncated: it lacks its end", {}),
        ("message.json: the message is not a job", {}),
        (None, {"untyped": 1}),
        ("decode: item 7: StageFailed: ValueError: what?", {"untyped": 1}),
        ("decode: item 7: the process working on it died (SIGSEGV); a crash", {"crashes": 1}),
        ("decode: item 7: took longer than time_limit_seconds = 20 and was stopped", {"hangs": 1}),
    ],
)
def test_what_is_counted_as_what(reason: str | None, expected: dict[str, int]) -> None:
    """A result and a reason with a code are well; no end, no code, a dead process and a stopped one are not."""
    part = judged(reason)
    assert {key: getattr(part, key) for key in ("untyped", "crashes", "hangs") if getattr(part, key)} == expected
    assert bool(part.examples) == bool(expected)


def test_a_wrong_verdict_is_a_surprise() -> None:
    """A verdict that the corpus does not call right is counted and shown."""
    refused = frozenset({"decode.corrupt"})
    assert judged("", refused).surprises == 1
    assert judged("decode: item 7: decode.corrupt: x", refused).surprises == 0
    assert judged("decode: item 7: decode.bomb: x", refused).examples == [
        "cut: decode.bomb: decode: item 7: decode.bomb: x"
    ]


def test_a_good_image_that_is_lost_or_changed() -> None:
    """Good images count as kept only with the result that they have alone."""
    part = Part("threads")
    hostile._judge_good(part, {"a": "jpeg", "b": "png", "c": "gif"}, {"a": 1e6, "b": -1e6})
    assert (part.good, part.good_kept) == (3, 0)


def test_a_part_that_dies_or_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part's process that dies is a crash, one that is not through in time a hang; what it said is shown."""
    monkeypatch.setattr(hostile.sys, "executable", "/bin/false")
    died = hostile.watched("threads", 10, 1, 60)
    assert (died.crashes, died.hangs, died.examples[0][:28]) == (1, 0, "the part ended with code 1: ")
    monkeypatch.undo()
    hung = hostile.watched("threads", 10, 1, 0.0)
    assert (hung.crashes, hung.hangs) == (0, 1)


@pytest.mark.slow
def test_a_few_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small run of the files and the messages finds nothing wrong, and its sums are those of its parts."""
    monkeypatch.setattr(hostile, "QUICK", (150, 150, 60))
    monkeypatch.delitem(hostile.PARTS, "addresses")
    found: dict[str, Any] = hostile.run_all(quick=True, seed=5)
    assert found["inputs"] == 360
    assert [found[key] for key in ("crashes", "hangs", "untyped", "surprises")] == [0, 0, 0, 0]
    assert found["good"] == found["good_kept"] == 36
    assert found["peak_rss_mb"] > 50
    assert "360 hostile inputs, seed 5: 0 crashes, 0 hangs" in hostile.as_text(found)
