"""What is made of a candidate's answers beside those in use."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.pipeline.shadow import Failures
from headrace.validate.shadow import ShadowRecord


def record(changed: float, num_items: int, *, seconds: tuple[float, float] = (0.02, 0.01)) -> ShadowRecord:
    """Return a record of batches of 10 with a share of changed answers."""
    made = ShadowRecord("candidate", 0.02)
    random = np.random.default_rng(0)
    for _ in range(num_items // 10):
        scores = random.standard_normal((10, 4)).astype(np.float32)
        other = scores.copy()
        flipped = random.random(10) < changed
        other[flipped] = -other[flipped]
        noise = 1 + 0.05 * random.standard_normal()
        made.add(scores, other, seconds[0] * noise, seconds[1])
    return made


@pytest.mark.parametrize(
    ("changed", "num_items", "advice"), [(0.0, 2000, "promote"), (0.0, 50, "keep"), (0.2, 1000, "roll back")]
)
def test_the_advice_follows_what_is_sure(changed: float, num_items: int, advice: str) -> None:
    """Few changes over many items: promote; too few items: keep what is in use; many changes: roll back."""
    document = record(changed, num_items).document()
    assert document.advice == advice
    assert document.num_items == num_items
    assert document.low <= document.disagreement <= document.high


def test_speed_is_told_with_an_interval() -> None:
    """Twice as fast, measured on the same batches."""
    speed = record(0.0, 400).document().speed
    assert speed is not None
    assert speed[0] < 2.0 < speed[2]
    assert record(0.0, 20).document().speed is None


@pytest.mark.parametrize(("seconds", "why"), [((0.01, 0.02), "slower here"), ((0.01, 0.01), "not surely faster")])
def test_what_is_not_surely_faster_is_not_promoted(seconds: tuple[float, float], why: str) -> None:
    """Though it answers alike; at the lowest priority it may look slower than it is, which rejects nothing, and is said."""
    document = record(0.0, 2000, seconds=seconds).document()
    assert document.advice == "keep"
    assert why in document.says
    assert "lowest priority" in document.says


def test_one_broken_answer_is_enough() -> None:
    """NaN where the model in use had a number."""
    made = record(0.0, 2000)
    scores = np.ones((2, 4), np.float32)
    broken = scores.copy()
    broken[0, 0] = np.nan
    made.add(scores, broken, 0.01, 0.01)
    document = made.document()
    assert (document.advice, document.broken) == ("roll back", 1)


def test_answers_that_are_no_scores_are_compared_as_numbers() -> None:
    """A batch far off counts as changed."""
    made = ShadowRecord("candidate", 0.5)
    made.add(np.ones((4, 3, 3)), np.ones((4, 3, 3)), 0.01, 0.01)
    made.add(np.ones((4, 3, 3)), 5 * np.ones((4, 3, 3)), 0.01, 0.01)
    assert made.document().disagreement == 0.5


def test_another_number_of_classes_is_no_answer() -> None:
    """Its largest score may be in the same place all the same."""
    made = ShadowRecord("candidate", 0.02)
    with pytest.raises(ValueError, match="another shape"):
        made.add(np.eye(4, 11), np.eye(4, 20), 0.01, 0.01)


@pytest.mark.parametrize(
    ("failures", "advice", "why"),
    [
        (
            Failures(1, "no memory"),
            "keep",
            "failed in 1 of 201 calls, at last with: no memory; 0.1% are allowed, more or less",
        ),
        (
            Failures(20, "no memory"),
            "roll back",
            "failed in 20 of 220 calls, at last with: no memory; 0.1% are allowed, more",
        ),
        (Failures(10, "no kernel", has_stopped=True), "roll back", "called no more"),
    ],
    ids=["once", "often", "always, of late"],
)
def test_failures_weigh_as_much_as_they_prove(failures: Failures, advice: str, why: str) -> None:
    """One may be an accident, which promotes nothing either; many are not, and it is said how many of how many."""
    document = record(0.0, 2000).document(failures=failures)
    assert (document.advice, document.num_failed) == (advice, failures.num)
    assert why in document.says


def test_a_candidate_that_always_fails_is_found_before_it_is_called_no_more() -> None:
    """At the third call, though nothing else is known of it."""
    assert ShadowRecord("candidate", 0.02).document(failures=Failures(3, "no kernel")).advice == "roll back"


@pytest.mark.full
def test_a_rare_failure_among_very_many_calls_is_no_obstacle() -> None:
    """It is still said."""
    made = record(0.0, 200_000)
    document = made.document(failures=Failures(1, "no memory"))
    assert document.advice == "promote"
    assert "failed in 1 of 20,001 calls" in document.says
    assert "less for sure" in document.says
