"""How many items a margin needs, said beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.validate.accuracy import judge_accuracy
from headrace.validate.golden import Golden
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
    assert is_told is (judge_drop(np.zeros(num_items), 0.005, is_all=True).decided_after is None)
    assert is_told is (num_items < 900)


@pytest.mark.parametrize("name", ["f1", "roc-auc"])
def test_metrics_of_whole_sets_have_no_such_rule(name: str) -> None:
    """Their intervals are found by drawing again, and depend on more than the number of items."""
    assert sample_size_told(200, Policy(metric=metric_named(name))) == ""


def test_what_an_open_set_can_show_is_told_for_its_share_of_the_error() -> None:
    """One of many questions has little of it, and can show less."""
    labels = np.zeros(300, np.int64)
    golden = Golden(name="g", inputs=np.zeros((300, 1)), labels=labels, sha256="")
    right, apart = np.tile([1.0, 0.0], (300, 1)), np.tile([1.0, 0.0], (300, 1))
    right[:5], apart[5:10] = [0.0, 1.0], [0.0, 1.0]
    policy = Policy(max_drop=0.01, alpha=0.001, batch=300)
    judged = judge_accuracy(
        lambda: iter([right]), lambda: iter([apart]), golden, policy, names=None, is_interrupted=lambda: False
    )
    assert judged.gate.outcome == "inconclusive"
    assert f"only up to {100 * largest_discordance(0.01, 300, 0.001):.2g} % of differing" in judged.gate.says
