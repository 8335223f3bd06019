"""A difference between two variants is said when it is sure, and not before."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.validate.excess import Excess
from headrace.validate.shadow import ShadowRecord


def test_one_changed_answer_is_no_reason_to_roll_back() -> None:
    """It may be the odd one: it is said how many more would tell."""
    made = ShadowRecord("candidate", 0.02)
    scores = np.array([[4.0, 0.0, 0.0, 0.0]], np.float32)
    made.add(scores, -scores, 0.02, 0.01)
    document = made.document()

    assert document.advice == "keep"
    assert "not sure, about" in document.says
    assert "more such answers would tell" in document.says


def test_a_lost_class_is_a_reason_once_it_is_sure() -> None:
    """Answers of one class that are always another one, among very many that are the same."""
    made = ShadowRecord("candidate", 0.5)
    same, lost = np.eye(4, dtype=np.float32)[[0]] * 5, np.eye(4, dtype=np.float32)[[2]] * 5
    advice = []
    for _ in range(20):
        made.add(np.repeat(same, 50, axis=0), np.repeat(same, 50, axis=0), 0.02, 0.01)
        made.add(lost, np.roll(lost, 1, axis=1), 0.02, 0.01)
        advice.append(made.document().advice)

    assert advice[0] != "roll back"
    assert advice[-1] == "roll back"
    assert "mostly for 2 (20 of 20)" in made.document().says


def test_a_mean_below_the_limit_is_never_sure() -> None:
    """However often one looks, equal shares on both sides of the limit seldom pass: here none of 200 sequences of 300 does."""
    random = np.random.default_rng(3)
    wrong = 0
    for _ in range(200):
        excess = Excess(0.25)
        for value in random.random(300) < 0.25:
            excess.add(float(value))
            wrong += excess.is_sure(0.01)
    assert wrong <= 200 * 300 * 0.01


@pytest.mark.parametrize("limit", [0.05, 0.25, 0.5])
def test_what_is_missing_is_about_what_it_takes(limit: float) -> None:
    """Values that are all 1: so many more as were said make it sure, or a few less."""
    excess = Excess(limit)
    excess.add(1.0)
    missing = excess.count_missing(0.01)
    assert missing is not None
    for _ in range(missing):
        assert not Excess(limit).is_sure(0.01)
        excess.add(1.0)
    assert excess.is_sure(0.01)
    assert excess.count_missing(0.01) is None


def test_nothing_is_missing_where_nothing_looks_different() -> None:
    """A mean below the limit is no difference."""
    excess = Excess(0.5)
    excess.add(0.0)
    assert not excess.is_seen
    assert excess.count_missing(0.05) is None
