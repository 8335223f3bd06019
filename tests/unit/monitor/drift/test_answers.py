"""What results of usual forms say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.monitor.drift.answers import read_answer


@pytest.mark.parametrize(
    ("result", "counts", "means"),
    [
        ("cat", ["class.cat"], {}),
        (7, ["class.7"], {}),
        (0.25, [], {"answer": 0.25}),
        (("cat", 0.9), ["class.cat"], {"top_score": 0.9}),
        ({"label": "cat", "score": 0.9}, ["class.cat"], {"top_score": 0.9}),
        ([{"label": "cat", "score": 0.5}, {"label": "dog", "score": 0.7}], [], {"boxes": 2.0, "top_score": 0.7}),
        ({"boxes": []}, ["abstained"], {"boxes": 0.0}),
        (np.array([0.1, 0.7, 0.2]), ["class.1"], {"top_score": 0.7}),
        (np.zeros((3, 6)), [], {"boxes": 3.0}),
        (np.array([-1.0, 3.0]), [], {"answer": 1.0}),
        (None, ["abstained"], {}),
        ([], ["abstained"], {}),
        ({"label": None}, ["abstained"], {}),
        (object(), [], {}),
        (b"x", [], {}),
        ([0.5, "cat"], [], {}),
        ({"label": "cat", "score": 10**400}, [], {}),
    ],
)
def test_a_result_says_its_class_certainty_or_number_of_objects(
    result: Any, counts: list[str], means: dict[str, float]
) -> None:
    """Classes and abstentions are counted; scores and numbers of objects are means."""
    answer = read_answer(result)
    assert answer.counts == ["answers", *counts]
    assert answer.means == pytest.approx(means)


def test_a_long_text_is_no_class() -> None:
    """Its length is taken: each caption would be a class of its own."""
    answer = read_answer("x" * 100)
    assert answer.counts == ["answers"]
    assert answer.means == {"length": 2.0}
