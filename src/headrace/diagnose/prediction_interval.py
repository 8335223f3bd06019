"""How far a simulated ratio may be off: the spread of the run, the misfit of its own replay, and the simulator's record."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headrace.runs.formats.profile import Estimate

#: Of nine predictions in ten, the largest error: the goal of `benchmarks/whatif_error`, used until the ledger knows better.
USUAL_ERROR = 0.10
#: A change of throughput by this much (as a logarithm) or more may be off by all of that; smaller ones by less.
_FULL_CHANGE = math.log(1.25)
#: What even a prediction of no change may be off: the noise of a measurement.
_LEAST_ERROR = 0.02
#: {simulations: standard deviations, estimated from so many, within which nine in ten lie}: Student's t. Their own 5th and 95th
#: percentile would hold three in four.
_STUDENT = {8: 1.895, 12: 1.796}


def nine_in_ten(num_simulations: int) -> float:
    """Return within how many standard deviations, estimated from 8 or 12 simulations, nine in ten lie."""
    return _STUDENT[num_simulations]


def interval(mid: float, logs: Sequence[float], misfit: float, error: float = USUAL_ERROR) -> Estimate:
    """Return a predicted ratio with the interval that holds nine in ten.

    Args:
        mid: The ratio, > 0.
        logs: Logarithms of the ratios of 8 or 12 simulations of resampled jobs.
        misfit: The run as simulated over the run as measured, less 1, > -1. Whatever the simulator missed of the run itself may
            be missed of the changed run, too, so that no interval is narrower.
        error: By how far nine in ten of earlier predictions of large changes were off, as a share.
    """
    model = max(_LEAST_ERROR, error * min(1.0, abs(math.log(mid)) / _FULL_CHANGE))
    width = math.exp(math.hypot(nine_in_ten(len(logs)) * float(np.std(logs, ddof=1)), model, math.log1p(misfit)))
    return Estimate(low=mid / width, mid=mid, high=mid * width)
