"""How many items a margin needs, said beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.validate.metrics import metric_named
from headrace.validate.noninferiority import items_planned, judge_drop, largest_discordance
from headrace.validate.policy import Policy
from headrace.validate.sample_size import sample_size_told


def test_it_says_what_so_many_items_can_show() -> None:
    """The margin, the share of other answers up to which it works, and what usual shares need."""
    told = sample_size_told(3000, Policy(max_drop=0.01))
    assert told == (
        "3,000 golden items, a drop of 1 points allowed: they can show that a variant is as good if it answers up to 4.9% of "
        "them otherwise; it takes at least 618 for 1% and 1,236 for 2%"
    )


def test_who_may_be_wrong_less_often_needs_more() -> None:
    """A search shares its probability of a wrong acceptance among the candidates that it asks about."""
    assert items_planned(0.005, 0.02, 0.05 / 8) > 1.7 * items_planned(0.005, 0.02)
    assert largest_discordance(0.01, 1000, 0.05 / 8) < largest_discordance(0.01, 1000)


@pytest.mark.parametrize("num_items", [200, 700, 900, 1000, 3000])
def test_a_set_that_can_show_nothing_is_told_so(num_items: int) -> None:
    """And so it is, at the very size: then even a variant with the very same answers is not accepted on it."""
    is_told = "too few to accept anything" in sample_size_told(num_items, Policy(max_drop=0.005))
    assert is_told is (judge_drop(np.zeros(num_items), 0.005).decided_after is None)
    assert is_told is (num_items < 900)


@pytest.mark.parametrize("name", ["f1", "roc-auc"])
def test_metrics_of_whole_sets_have_no_such_rule(name: str) -> None:
    """Their intervals are found by drawing again, and depend on more than the number of items."""
    assert sample_size_told(200, Policy(metric=metric_named(name))) == ""
