"""The share of wrong answers in production, from reviewed items that were drawn with known probabilities.

The draws of a round are a random order of the whole population: at each step one of the answers that are left, with a
probability in proportion to its preference. So 1 for a wrong answer and 0 for a right one, times (1/N) / probability, is an
unbiased estimate of what is left of the sum over all answers. The interval comes from betting against each possible sum: who
bets against the true one does not get rich, so that a sum against which the capital has ever grown 40-fold (two sides at 95 %)
is refused. It holds at all numbers of reviewed items at once: whoever looks after each one, and stops when it suits, is as
safe as who decided on a number before. What that costs is in benchmarks/watch/review.py.

An item without a verdict ("unsure") counts as wrong for the upper limit and as right for the lower one.

References:
    S. Shekhar, Z. Xu, Z. Lipton, P. Liang, A. Ramdas, "Risk-limiting financial audits via weighted sampling without
    replacement", UAI 2023. I. Waudby-Smith, A. Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024.
    J. Hajek, "Comment on a paper by D. Basu", 1971 (the point estimate).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

#: Shares of the largest stake that cannot lose everything; the capital is spread over them evenly.
_STAKES = np.array([0.05, 0.12, 0.25, 0.4, 0.6, 0.8, 0.95, 0.99])
_STEPS = 45


@dataclass(frozen=True, slots=True)
class Stratum:
    """Answers that were drawn with the same probability."""

    num_answers: int
    preference: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share of wrong answers."""

    rate: float | None
    """None: no verdict yet."""
    low: float
    high: float


def estimate_errors(
    strata: Sequence[Stratum], drawn: Sequence[int], wrong: Sequence[bool | None], *, confidence: float = 0.95
) -> Estimate:
    """Return the share of wrong answers in a population.

    Args:
        strata: The population, with answers of which none was drawn.
        drawn: Stratum of each reviewed item, in the order of the draws, of which none is left out.
        wrong: The verdict of each; None: the reviewer cannot tell.
        confidence: Of the interval.
    """
    if len(drawn) != len(wrong):
        raise ValueError(f"{len(drawn)} draws have {len(wrong)} verdicts; expected one for each")
    if not drawn:
        return Estimate(None, 0.0, 1.0)
    ratios, most = _walk(strata, drawn)
    num = sum(one.num_answers for one in strata)
    threshold = 2 / (1 - confidence)
    surely = np.array([one is True for one in wrong], float)
    perhaps = np.array([one is not False for one in wrong], float)
    return Estimate(
        _rate(strata, drawn, wrong),
        _lower(surely, ratios, num, threshold),
        _upper(perhaps, ratios, most, num, threshold),
    )


def _walk(strata: Sequence[Stratum], drawn: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each draw (1/N) / its probability, and the largest such number of all that could have been drawn."""
    left = [one.num_answers for one in strata]
    num, weight = sum(left), sum(one.num_answers * one.preference for one in strata)
    rising = sorted((index for index in range(len(strata)) if left[index]), key=lambda index: strata[index].preference)
    least, ratios, most = 0, [], []
    for index in drawn:
        if not left[index]:
            raise ValueError(f"more items were drawn of stratum {index} than it has answers")
        while not left[rising[least]]:
            least += 1
        ratios.append(weight / strata[index].preference / num)
        most.append(weight / strata[rising[least]].preference / num)
        left[index] -= 1
        weight -= strata[index].preference
    return np.array(ratios), np.array(most)


def _rate(strata: Sequence[Stratum], drawn: Sequence[int], wrong: Sequence[bool | None]) -> float | None:
    """Return Hajek's estimate: each decided item weighted by one over the probability that it is among so many."""
    decided = [index for index, one in enumerate(wrong) if one is not None]
    if not decided:
        return None
    preferences = np.array([one.preference for one in strata])
    numbers = np.array([one.num_answers for one in strata])
    included = _inclusion(preferences, numbers, len(drawn))
    weights = np.array([1 / included[drawn[index]] for index in decided])
    return float((weights * [bool(wrong[index]) for index in decided]).sum() / weights.sum())


def _inclusion(preferences: np.ndarray, numbers: np.ndarray, num_drawn: int) -> np.ndarray:
    """Return for each stratum the probability that an answer is among the first so many.

    Each answer waits an exponential time of its preference; the time by which so many came is taken as known.
    """
    if num_drawn >= numbers.sum():
        return np.ones(len(numbers))
    low, high = 0.0, 1.0
    while (numbers * -np.expm1(-preferences * high)).sum() < num_drawn:
        high *= 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if (numbers * -np.expm1(-preferences * middle)).sum() < num_drawn else (low, middle)
    return np.asarray(-np.expm1(-preferences * high))


def _lower(found: np.ndarray, ratios: np.ndarray, num: int, threshold: float) -> float:
    """Return the least share of wrong answers that is not refused."""
    before = np.concatenate([[0.0], np.cumsum(found)[:-1]]) / num
    known = float(found.sum()) / num

    def is_refused(share: float) -> bool:
        left = np.maximum(share - before, 1e-15)
        return _has_won(found * ratios / left - 1, threshold)

    return known if not is_refused(known + 1e-12) else _edge(is_refused, known, 1.0)


def _upper(found: np.ndarray, ratios: np.ndarray, most: np.ndarray, num: int, threshold: float) -> float:
    """Return the largest share of wrong answers that is not refused."""
    before = np.concatenate([[0.0], np.cumsum(found)[:-1]]) / num
    largest = 1 - float((1 - found).sum()) / num

    def is_refused(share: float) -> bool:
        left = share - before
        if (left > most).any():
            return True
        return _has_won((left - found * ratios) / np.maximum(most - left, 1e-15), threshold)

    return largest if not is_refused(largest - 1e-12) else _edge(is_refused, largest, 0.0)


def _has_won(gains: np.ndarray, threshold: float) -> bool:
    """Return whether the capital ever reached the threshold."""
    with np.errstate(divide="ignore", over="ignore"):
        capital = np.exp(np.cumsum(np.log(np.maximum(1 + np.multiply.outer(gains, _STAKES), 1e-300)), axis=0)).mean(
            axis=1
        )
    return bool((capital >= threshold).any())


def _edge(is_refused: Callable[[float], bool], refused: float, kept: float) -> float:
    """Return where refusing ends, on the side that is refused."""
    for _ in range(_STEPS):
        middle = (refused + kept) / 2
        refused, kept = (middle, kept) if is_refused(middle) else (refused, middle)
    return refused
