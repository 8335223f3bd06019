"""A drop that hides in a part of the golden set, and one that hangs on a few sources."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.validate.slices import drop_by_source, slices_of, worst_first, worst_of


def test_a_class_that_is_forgotten_is_found() -> None:
    """The mean hardly moves, one class of twenty is gone."""
    labels = np.repeat(np.arange(20), 100)
    differences = np.where(labels == 7, -1.0, 0.0)
    differences[np.flatnonzero(labels != 7)[:100]] = 1.0  # another is right more often: nothing is lost on average
    found = worst_of(slices_of(differences, {"class": labels}, 0.05))
    assert found is not None
    assert (found.name, found.num_items, found.drop) == ("class 7", 100, 1.0)
    assert differences.mean() == pytest.approx(0.0)


@pytest.mark.full
def test_equal_variants_alarm_in_one_of_twenty_sets_at_most() -> None:
    """As many items better as worse, in 30 parts: chance alone is no finding."""
    alarms = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        differences = random.choice([-1.0, 0.0, 1.0], 3000, p=[0.05, 0.9, 0.05])
        parts = {"class": random.integers(0, 30, 3000)}
        alarms += worst_of(slices_of(differences, parts, 0.01)) is not None
    assert alarms <= 10


def test_a_part_that_is_too_small_says_nothing() -> None:
    """Two items of which one is wrong now are no finding."""
    differences = np.zeros(1000)
    differences[0] = -1.0
    parts = {"kind": np.array(["rare", "rare", *["usual"] * 998])}
    assert worst_of(slices_of(differences, parts, 0.05)) is None


def test_whole_sources_make_a_wider_interval() -> None:
    """100 items each of 20 photographs, one of which is wrong throughout: over items that is sure, over photographs not."""
    sources = np.repeat(np.arange(20), 100)
    differences = np.where(sources == 3, -1.0, 0.0)
    interval = drop_by_source(differences, sources)
    assert interval is not None
    low, high = interval
    assert low == 0.0
    assert high > 0.1
    independent = 1.96 * differences.std() / np.sqrt(len(differences))
    assert high - low > 3 * 2 * independent


def test_few_sources_give_no_interval() -> None:
    """Seven photographs say nothing of others."""
    assert drop_by_source(np.zeros(70), np.repeat(np.arange(7), 10)) is None


def test_every_part_is_told_with_what_both_are_worth_there() -> None:
    """The forgotten class first, with the share of right answers before and after; the parts together are the set."""
    labels, random = np.repeat(np.arange(4), 200), np.random.default_rng(0)
    a = (random.random(800) < 0.9).astype(float)
    b = np.where(labels == 2, 0.0, a)
    told = worst_first(slices_of(b - a, {"class": labels}, 0.05, (a, b)))
    assert told[0].name == "class 2"
    assert (told[0].outcome, told[0].b, told[0].a) == ("rejected", 0.0, pytest.approx(a[labels == 2].mean()))
    assert told[0].low < told[0].drop <= told[0].high
    assert {one.outcome for one in told[1:]} == {"passed"}
    assert sum(one.num_items for one in told) == 800
