"""How far a simulated ratio may be off, nine times in ten.

Four things are joined: the spread of the recorded run; the misfit of its own replay; by how much two measured runs of one
pipeline differ; and what the simulator does not know, by kind of change. The last is a prior until the ledger has measured
predictions of that kind: their errors then make the whole interval wider or narrower (`ledger.track_record`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headrace.runs.formats.prediction import TrackRecord
from headrace.runs.formats.profile import Estimate

#: {kind of change: (of a ratio near 1, of a ratio of 1.25 and more): what nine in ten predictions were off by, at most}.
#: The larger of two results of `benchmarks/whatif_error`, 176 changes, of 21 and 22 November 2026 (`benchmarks/results`), and
#: no less than 5 %; where fewer than five of a kind were measured, that of the kind nearest to it.
#: `accumulate`, `link`, `loader` and `ranks` are changes of a training, of which no result is there yet: they have the values
#: of `batch`, `cores`, `workers` and `cores`.
PRIOR: dict[str, tuple[float, float]] = {
    "accumulate": (0.05, 0.09),
    "arrivals": (0.06, 0.09),
    "batch": (0.05, 0.09),
    "cache": (0.08, 0.10),
    "cores": (0.06, 0.15),
    "curve": (0.08, 0.14),
    "decode": (0.05, 0.10),
    "devices": (0.05, 0.10),
    "drop": (0.06, 0.10),
    "executor": (0.06, 0.10),
    "link": (0.06, 0.15),
    "loader": (0.06, 0.11),
    "model": (0.05, 0.10),
    "other": (0.05, 0.10),
    "queues": (0.05, 0.06),
    "quiet": (0.06, 0.15),
    "ranks": (0.06, 0.15),
    "speedup": (0.08, 0.10),
    "workers": (0.06, 0.11),
}
#: What is taken for a kind without a line of its own.
USUAL_ERROR = 0.10
#: A change of throughput by this much (as a logarithm) or more may be off by all of that; smaller ones by less.
_FULL_CHANGE = math.log(1.25)
#: What even a prediction of no change may be off: the noise of a measurement.
_LEAST_ERROR = 0.02
#: Of what the simulator may be off by anyway, a spread that is small beside it.
_SMALL = 1 / 3
#: {simulations: standard deviations, estimated from so many, within which nine in ten lie}: Student's t. Their own 5th and 95th
#: percentile would hold three in four.
_STUDENT = {4: 2.353, 8: 1.895, 12: 1.796}


def nine_in_ten(num_simulations: int) -> float:
    """Return within how many standard deviations, estimated from 4, 8 or 12 simulations, nine in ten lie."""
    return _STUDENT[num_simulations]


def is_spread_small(mid: float, logs: Sequence[float], kinds: Sequence[str]) -> bool:
    """Return whether the spread of resampled runs adds so little to an interval that more of them change nothing of it.

    Of two errors that are joined, one a third of the other makes both a twentieth larger.
    """
    spread = nine_in_ten(len(logs)) * float(np.std(logs, ddof=1))
    return spread <= _SMALL * model_error(mid, kinds)


def times_as_wide(kinds: Sequence[str], record: TrackRecord) -> float:
    """Return how many times as wide the record makes an interval: by the worst kind that it knows; 1 if it knows none."""
    return max((record.by_kind[kind].times for kind in kinds if kind in record.by_kind), default=1.0)


def interval(
    mid: float,
    logs: Sequence[float],
    misfit: float,
    *,
    kinds: Sequence[str] = ("other",),
    noise: float = 0.0,
    times: float = 1.0,
) -> Estimate:
    """Return a predicted ratio with the interval that holds nine in ten.

    Args:
        mid: The ratio, > 0.
        logs: Logarithms of the ratios of 4, 8 or 12 simulations of resampled jobs.
        misfit: The run as simulated over the run as measured, less 1, > -1. Whatever the simulator missed of the run itself may
            be missed of the changed run, too, so that no interval is narrower.
        kinds: Of the change; empty: nothing is changed.
        noise: Standard error of the recorded run's rate, as a share: both sides of a measurement will have it.
        times: How many times as wide the record makes it.
    """
    spread = nine_in_ten(len(logs)) * math.hypot(float(np.std(logs, ddof=1)), math.sqrt(2) * noise)
    by_rule = math.hypot(spread, model_error(mid, kinds), math.log1p(misfit))
    width = math.exp(max(times * by_rule, abs(math.log1p(misfit))))
    return Estimate(low=mid / width, mid=mid, high=mid * width)


def model_error(mid: float, kinds: Sequence[str]) -> float:
    """Return what the simulator may be off by for such a ratio, as a logarithm, by the worst kind of the change."""
    known = [PRIOR.get(kind, (USUAL_ERROR, USUAL_ERROR)) for kind in kinds]
    near, far = (max((one[side] for one in known), default=_LEAST_ERROR) for side in (0, 1))
    return near + (far - near) * min(1.0, abs(math.log(mid)) / _FULL_CHANGE)
