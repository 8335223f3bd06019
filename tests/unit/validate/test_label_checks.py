"""Labels that may not be those of the model: few items of other classes, none, and labels in another order."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.validate.label_checks import doubt_of_labels


def rare(others: int, num_items: int = 216) -> np.ndarray:
    """Return labels of which few are not of class 0."""
    return (np.arange(num_items) < others).astype(int)


@pytest.mark.parametrize("others", [5, 6, 20, 108])
def test_a_faultless_model_is_believed_whatever_the_share_of_the_commonest_class(others: int) -> None:
    """No set of a rare class is beyond what a model can reach."""
    assert doubt_of_labels(rare(others), rare(others), 2) is None


def test_too_few_items_of_other_classes_are_counted() -> None:
    """Three rare items, all right, can be chance; the message says how many more there must be."""
    doubt = doubt_of_labels(rare(3), rare(3), 2)
    assert doubt is not None
    assert "only 3 items of 216 are of another class" in doubt
    assert "3 right there against 0 wrong elsewhere can be chance (0.12" in doubt
    assert "add at least 2 more of them" in doubt


def test_a_narrow_lead_asks_for_more_items() -> None:
    """Enough items of other classes, and a lead over the commonest class that a coin has too."""
    found = rare(20)
    found[:10] = 0  # missed
    found[100:105] = 1  # false alarms: 10 right against 5 wrong
    doubt = doubt_of_labels(rare(20), found, 2)
    assert doubt is not None
    assert doubt.endswith("add more of them to the golden set")


@pytest.mark.parametrize(
    "found", [np.zeros(216, int), 1 - rare(20)], ids=["always the commonest", "the other way round"]
)
def test_no_better_than_the_commonest_class_is_doubted(found: np.ndarray) -> None:
    """What a wrong preprocessing or another order of the classes looks like."""
    doubt = doubt_of_labels(rare(20), found, 2)
    assert doubt is not None
    assert doubt.endswith("labels or preprocessing are not those of this model")


def test_labels_drawn_anew_are_rarely_believed() -> None:
    """Two classes as common as one another, labels that have nothing to do with the answers: at most one time in twenty."""
    rng = np.random.default_rng(0)
    found = rng.integers(0, 2, 400)
    believed = sum(doubt_of_labels(rng.permutation(found), found, 2) is None for _ in range(1000))
    assert believed <= 50


def test_one_class_alone_is_no_ground_for_doubt() -> None:
    """There is no other class to be right about."""
    assert doubt_of_labels(rare(0), rare(0), 2) is None


def test_many_items_are_counted_without_overflow() -> None:
    """The exact probability of tens of thousands of items is a number."""
    labels = np.arange(40_000) % 2
    assert doubt_of_labels(labels, labels, 2) is None
