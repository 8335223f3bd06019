"""Whether a larger batch is kept, by the validation losses of the same seeds."""

from __future__ import annotations

import math
import random

from headrace.train.search.loss_judgement import FEWEST_SEEDS, judge_losses


def _outcome(present: list[float], larger: list[float], margin: float = 0.01) -> str:
    return judge_losses(64, present, larger, margin=margin).outcome


def test_equal_losses_are_kept_and_worse_ones_refused() -> None:
    """Seeds differ by much, and the difference within each seed decides."""
    present = [0.2, 0.5, 0.9, 0.4, 0.7, 0.3]
    assert _outcome(present, [loss * 1.001 for loss in present]) == "kept"
    assert _outcome(present, [loss - 0.1 for loss in present]) == "kept"
    assert _outcome(present, [loss + 0.1 for loss in present]) == "worse"


def test_losses_that_scatter_around_the_margin_are_neither() -> None:
    """Where the interval holds the margin, nothing is said, and the size is not kept."""
    present = [1.0] * 6
    assert _outcome(present, [0.9, 1.1, 0.95, 1.08, 1.02, 0.97]) == "cannot tell"


def test_too_few_seeds_allow_no_answer() -> None:
    """Five agree, and still a 95 % interval needs six."""
    found = judge_losses(64, [1.0] * 5, [2.0] * 5, margin=0.01)
    assert (found.outcome, FEWEST_SEEDS) == ("cannot tell", 6)
    assert "5 seeds" in found.why


def test_a_loss_that_is_no_number_is_worse() -> None:
    """A learning rate that was scaled too far ends in NaN with some seeds."""
    found = judge_losses(64, [1.0] * 6, [1.0, 1.0, math.nan, 1.0, math.inf, 1.0], margin=0.01)
    assert found.outcome == "worse"
    assert "2 of 6 seeds" in found.why


def test_errors_of_the_decision_stay_below_their_level() -> None:
    """Of 400 batches that are worse by exactly the margin, at most 5 % are kept (and 9 more, by chance)."""
    drawn = random.Random(7)
    kept = 0
    for _ in range(400):
        present = [drawn.uniform(0.5, 1.5) for _ in range(8)]
        scale = sum(present) / 8
        larger = [loss + scale * (0.05 + drawn.gauss(0, 0.02)) for loss in present]
        kept += _outcome(present, larger, margin=0.05) == "kept"
    assert kept <= 400 * 0.05 + 9
