"""How well predictions did, once their changes were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.base.formatting import pluralize
from headrace.runs.formats.prediction import TrackRecord
from headrace.runs.formats.profile import Estimate

#: Measured ratios this close to 1 have no sign worth getting right: the dead band of `measurement.md`'s protocol.
SIGN_BAND = 0.05
#: Below so many, "90 % of them" is all of them but none, and only the largest error is told.
_ENOUGH_FOR_P90 = 10


def judge_record(outcomes: Sequence[tuple[Estimate, float]]) -> TrackRecord:
    """Return how well predictions did.

    Args:
        outcomes: (predicted ratio, measured ratio) of each, both of throughput and above 0.

    Returns:
        Errors are |predicted / measured - 1|. `p90_error` is the smallest error that at least nine in ten did not exceed
        (nearest rank): it speaks of these predictions alone, and is no estimate for later ones.
    """
    if not outcomes:
        return TrackRecord(num=0)
    errors = sorted(abs(predicted.mid / measured - 1) for predicted, measured in outcomes)
    mean = sum(errors) / len(errors)
    p90 = errors[math.ceil(0.9 * len(errors)) - 1]
    signed = [(predicted.mid, measured) for predicted, measured in outcomes if abs(measured - 1) > SIGN_BAND]
    return TrackRecord(
        num=len(errors),
        mean_error=mean,
        p90_error=p90,
        max_error=errors[-1],
        num_with_sign=len(signed),
        num_sign_right=sum((predicted - 1) * (measured - 1) > 0 for predicted, measured in signed),
        num_inside=sum(predicted.low <= measured <= predicted.high for predicted, measured in outcomes),
        says=_says(len(errors), mean, p90, errors[-1]),
    )


def _says(num: int, mean: float, p90: float, largest: float) -> str:
    if num == 1:
        return f"the only prediction measured so far: error {_percent(mean)}"
    reach = f"90 % within {_percent(p90)}" if num >= _ENOUGH_FOR_P90 else f"largest {_percent(largest)}"
    return f"last {pluralize(num, 'prediction')}: mean error {_percent(mean)}, {reach}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
