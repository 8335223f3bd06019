"""Takes the largest batch size whose validation loss is not worse than the present one's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.runs.formats.batch_search import LossComparison
from headrace.train.search.children import run_child
from headrace.train.search.loss_judgement import judge_losses


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """How losses are compared."""

    samples: int
    """Seen by each training."""
    rule: str = "linear"
    """How the learning rate follows the batch size; of `loss_trial.RATE_RULES`."""
    num_seeds: int = 6
    margin: float = 0.01
    """Increase that is acceptable, as a share of the present loss."""


def compare_losses(
    recipe: str,
    present: int,
    candidates: Sequence[int],
    settings: LossSettings,
    *,
    on_comparison: Callable[[LossComparison], None],
) -> None:
    """Compare each candidate with the present size, until one is kept.

    Args:
        recipe: FILE.py:make.
        present: Batch size of the recipe.
        candidates: Larger ones, in the order in which they are tried.
        settings: Of the comparison.
        on_comparison: Called with each result, so that Ctrl-C loses none.
    """
    before = _train(recipe, present, settings, [None] * settings.num_seeds)
    for size in candidates:
        after = _train(recipe, size, settings, [one["seconds"] for one in before])
        comparison = judge_losses(
            size,
            [_number(one["loss"]) for one in before],
            [_number(one["loss"]) for one in after],
            margin=settings.margin,
            seconds_ratio=statistics.median(
                new["seconds"] / old["seconds"] for old, new in zip(before, after, strict=True)
            ),
            at_time=[one["loss_at_time"] for one in after],
        )
        on_comparison(comparison)
        if comparison.outcome == "kept":
            return


def _number(loss: float | None) -> float:
    """Return a loss; NaN was written as null."""
    return float("nan") if loss is None else loss


def _train(
    recipe: str, batch_size: int, settings: LossSettings, seconds: Sequence[float | None]
) -> list[dict[str, Any]]:
    answer = run_child(
        "losses",
        recipe,
        batch_size=batch_size,
        rule=settings.rule,
        samples=settings.samples,
        seeds=list(range(settings.num_seeds)),
        seconds=list(seconds),
    )
    answer.check_finished(recipe)
    return answer.results
