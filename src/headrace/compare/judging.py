"""Better, worse, no difference, or how many more pairs would tell. Plain arithmetic on logarithms of ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.compare.intervals import FEWEST_PAIRS, Interval
from headrace.runs.formats.outcomes import Verdict

#: A side that delivers so much less of its jobs than the other, as a share, does not do the same work.
MOST_LOST = 0.01


def lost_share(delivered: Sequence[float | None]) -> float:
    """Return by how much less of its jobs B delivered than A, as a share; 0 where one of them is not known."""
    a, b = delivered
    return 0.0 if a is None or b is None else a - b


@dataclass(frozen=True, slots=True)
class Goal:
    """What the answer is wanted for; log scale, >= 0 but for `floor`."""

    margin: float
    """Differences up to this count as none."""
    floor: float | None = None
    """The least gain that the user accepts: the budget's end, <= 0; None without a budget."""
    drift: float = 0.0
    """By how much the two may differ because they did not run at the same time; 0 for paired blocks."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an interval says about a goal."""

    verdict: Verdict
    budget_met: bool | None
    """None without a budget, or when it cannot be told yet."""
    pairs_needed: int | None
    """Further pairs that would probably decide; None when decided, or when pairs are not what is missing."""

    def is_sure(self, goal: Goal) -> bool:
        """Return whether more pairs could not tell more."""
        return self.verdict != "underpowered" and (goal.floor is None or self.budget_met is not None)


def judge(gain: Interval | None, num_pairs: int, goal: Goal) -> Judgement:
    """Return what a gain means.

    Better (worse) takes both: the whole interval, widened by the drift, lies above (below) 0, and the estimate is at least the
    margin. No difference: the whole interval lies within the margin. Else underpowered. So a true difference of nothing is
    called one at most as often as the interval misses the truth.

    Args:
        gain: Log-ratio of B over A, turned so that more is better; None with too few pairs.
        num_pairs: That it is made of.
        goal: What it is wanted for.
    """
    if gain is None:
        return Judgement("underpowered", None, max(1, FEWEST_PAIRS - num_pairs))
    low, high = gain.low - goal.drift, gain.high + goal.drift
    verdict: Verdict = "underpowered"
    if low > 0 and gain.mid >= goal.margin:
        verdict = "better"
    elif high < 0 and gain.mid <= -goal.margin:
        verdict = "worse"
    elif -goal.margin <= gain.low and gain.high <= goal.margin:
        verdict = "no_difference"
    budget_met = None
    if goal.floor is not None:
        budget_met = True if low >= goal.floor else False if high < goal.floor else None
    judged = Judgement(verdict, budget_met, None)
    if judged.is_sure(goal) or goal.drift:
        return judged
    return Judgement(verdict, budget_met, _pairs_needed(gain, num_pairs, goal, verdict))


def _pairs_needed(gain: Interval, num_pairs: int, goal: Goal, verdict: Verdict) -> int:
    """Return how many more pairs shrink the interval enough, if the estimate stays: its width goes with 1 / sqrt(pairs)."""
    half = (gain.high - gain.low) / 2
    gaps = []
    if verdict == "underpowered":
        size = abs(gain.mid)
        gaps.append(size if size >= goal.margin else goal.margin - size)
    if goal.floor is not None:
        gaps.append(abs(gain.mid - goal.floor))
    # Right at an edge no number of pairs would do; a quarter of the margin is close enough to act on.
    gap = max(min(gaps), goal.margin / 4, half / 20)
    return max(1, math.ceil(num_pairs * (half / gap) ** 2) - num_pairs)
