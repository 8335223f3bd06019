"""Whether calls fail more often than a limit allows, told as early as the data allow, however often one looks.

Two bettors, as in `noninferiority`: one stakes against "a share of the limit or less fails", the other against "the limit or
more". The capital of a bettor who expects the share q is the likelihood of what came under q over that under the limit; which q
nobody knows, so it is spread over several, a factor of two apart.

References:
    H. Robbins, "Statistical methods related to the law of the iterated logarithm", 1970 (mixtures of likelihood ratios);
    J. Ville, "Etude critique de la notion de collectif", 1939 (the bound that holds at every look).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

#: Share of the calls that may fail: about one in a thousand is what memory that is short for a moment comes to.
MOST_FAILING = 0.001
#: Failures that are no accident of one moment; fewer prove nothing, whatever the share.
FEWEST_FAILURES = 3

Finding = Literal["more", "less", "not known"]


def judge_failures(num_failed: int, num_calls: int, limit: float = MOST_FAILING, alpha: float = 0.05) -> Finding:
    """Return whether a larger share of the calls fails than the limit; of no failure at all, less.

    Args:
        num_failed: Calls that failed.
        num_calls: All calls, >= num_failed; whether one fails has nothing to do with the others.
        limit: Above 0 and below 0.5.
        alpha: Probability of a wrong answer, at most, for each of the two, however often it is asked.
    """
    if not num_failed:
        return "less"
    above, below = list(_shares_above(limit)), [limit / 2**step for step in range(1, 6)]
    if num_failed >= FEWEST_FAILURES and _capital(num_failed, num_calls, limit, above) >= 1 / alpha:
        return "more"
    return "less" if _capital(num_failed, num_calls, limit, below) >= 1 / alpha else "not known"


def _shares_above(limit: float) -> Iterator[float]:
    share = 2 * limit
    while share < 1:
        yield share
        share *= 2


def _capital(num_failed: int, num_calls: int, limit: float, shares: list[float]) -> float:
    def of(share: float) -> float:
        good = num_calls - num_failed
        return math.exp(min(700.0, num_failed * math.log(share / limit) + good * math.log((1 - share) / (1 - limit))))

    return sum(map(of, shares)) / len(shares)
