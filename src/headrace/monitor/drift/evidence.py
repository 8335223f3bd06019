"""Evidence that a window is not as usual, and its sum over windows: an e-value, and a CUSUM of them.

How this works. A window's score is its mean's distance from the usual one, in long-run standard deviations of windows. Its
e-value is the likelihood of the score if the mean had moved by one of `SHIFTS`, over that if it had not. Both are Student's t
with few degrees of freedom: so one strange window says little, however strange it is. For shares it is the likelihood of the
count if the rate were a multiple of the usual one, over that of the usual one; both negative binomial, whose variance includes
bursts.
An e-value is 1 on average while nothing has moved. The CUSUM multiplies them, and starts again from 1 whenever the product is
below 1. While nothing has moved, it then passes a limit once in so many windows at most, on average: see `LIMIT`.

What a baseline does not know is its own error: its means are off by chance, in the same direction in each later window. A shift
of the least of `SHIFTS` is so much more than that, from the 40 windows that are the least, that the CUSUM falls nevertheless.

References:
    Shin, Ramdas, Rinaldo, "E-detectors", 2023 (arXiv 2203.03532): the limit, and averages of detectors.
    Lange, Little, Taylor, 1989: Student's t in place of the normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

#: Windows between false alarms, on average, at least.
LIMIT = 10_000.0
#: {shift that is looked for, in long-run standard deviations of windows: part of the mean's weight}.
SHIFTS: Mapping[float, float] = {2.0: 0.7, 6.0: 0.3}
#: Shifts up, and down.
DETECTORS = (*SHIFTS, *(-shift for shift in SHIFTS))
#: Degrees of freedom of scores.
DEGREES = 8.0
#: Evidence is not collected far beyond the limit, so that it goes when the drift does. Natural logarithm.
MOST_BEYOND = 3.0
#: {multiple of the usual rate: part of the share's weight}.
MULTIPLES: Mapping[float, float] = {1.5: 0.35, 3.0: 0.35, 0.5: 0.3}
#: Of the share of files that cannot be decoded: that it grows is what counts.
REFUSED_MULTIPLES: Mapping[float, float] = {1.5: 0.12, 3.0: 0.85, 0.5: 0.03}


def evidence_of_scores(scores: np.ndarray) -> np.ndarray:
    """Return the logarithms of e-values.

    Args:
        scores: Any shape; NaN where there is none, which gives no evidence.

    Returns:
        (detectors, *shape): that the mean moved by each of `DETECTORS`.
    """
    usual = _log_likelihood(scores)
    evidence: np.ndarray = np.nan_to_num(np.stack([_log_likelihood(scores - shift) - usual for shift in DETECTORS]))
    return evidence


def _log_likelihood(distance: np.ndarray) -> np.ndarray:
    likelihood: np.ndarray = -(DEGREES + 1) / 2 * np.log1p(distance**2 / DEGREES)
    return likelihood


def limits_of(weight: float) -> np.ndarray:
    """Return the limits of the `DETECTORS` of a mean whose weight is given; infinite for none."""
    parts = np.array([*SHIFTS.values(), *SHIFTS.values()]) / 2
    return limit_of(weight * parts) if weight > 0 else np.full(len(parts), np.inf)


def evidence_of_count(count: float, usual: float, variation: float, multiple: float) -> float:
    """Return the logarithm of the e-value of a count.

    Args:
        count: Cases seen.
        usual: Cases expected, > 0.
        variation: Variance beyond chance, over `usual` squared; >= 0.
        multiple: Of the usual rate, that is looked for.
    """
    if variation * usual < 1e-9:
        return count * math.log(multiple) - (multiple - 1) * usual
    shape = 1 / variation
    return count * math.log(multiple) - (count + shape) * math.log((shape + multiple * usual) / (shape + usual))


def add_evidence(before: np.ndarray, more: np.ndarray, most: np.ndarray | float) -> np.ndarray:
    """Return the CUSUM's logarithm after one more window.

    Args:
        before: Until now.
        more: Logarithms of the window's e-values.
        most: Where it stops to grow.
    """
    after: np.ndarray = np.minimum(np.maximum(before, 0.0) + more, most)
    return after


def limit_of(weight: np.ndarray | float) -> np.ndarray:
    """Return the logarithm of the CUSUM at which a detector with this weight, all weights being 1 together, is an alarm."""
    limit: np.ndarray = np.log(LIMIT / np.asarray(weight, float))
    return limit
