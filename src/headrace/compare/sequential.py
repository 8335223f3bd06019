"""After how many rounds one looks at the measurements, and by how much each look may err. No clock, no threads.

Someone who looks often finds something sooner or later, also where nothing is. So the looks of a comparison share what one
look may err by: all together miss the truth with a probability of at most `ALPHA`.

References:
    C. E. Bonferroni, 1936 (`doubling`);
    S. J. Pocock, "Group sequential methods in the design and analysis of clinical trials", Biometrika 64, 1977 (table 1: the
    level of each of four looks); C. Jennison, B. W. Turnbull, "Interim analyses: the repeated confidence interval approach",
    Journal of the Royal Statistical Society B 51, 1989 (intervals that hold at every look). The level is derived for normal
    differences; by simulation it holds for intervals of ranks under heavy tails too (`test_model_speed`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from headrace.compare.intervals import ALPHA

#: Looks of `quarters`.
LOOKS = 4
#: What each of four looks may miss the truth by, so that all together miss it by 5 %.
LOOK_ALPHA = 0.0182


class Look(NamedTuple):
    """One look at the rounds so far; without an answer measuring goes on to the next look."""

    num_rounds: int
    """After so many rounds."""
    alpha: float
    """By how much it may err."""


def once(rounds: int) -> Iterator[Look]:
    """Return the only look, at the end."""
    yield Look(rounds, ALPHA)


def doubling(first: int, most: int | None = None) -> Iterator[Look]:
    """Return looks after n, 2 n, 4 n, ... rounds; the k-th may err with probability alpha / 2^k.

    Args:
        first: Rounds before the first look.
        most: Rounds after which the last look comes; None: there is always another.
    """
    for number in itertools.count():
        rounds, alpha = first * 2**number, ALPHA / 2 ** (number + 1)
        if most is not None and rounds >= most:
            yield Look(most, alpha)
            return
        yield Look(rounds, alpha)


def quarters(most: int) -> Iterator[Look]:
    """Return looks after each quarter of the rounds."""
    for number in range(1, LOOKS + 1):
        yield Look(min(most, number * math.ceil(most / LOOKS)), LOOK_ALPHA)
