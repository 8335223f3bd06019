"""How well predictions did, once their changes were measured, and how wide that makes the next intervals.

The width is conformal: a prediction's score is its error over the half width that it was given by rule, and the next interval
of the same kind is as many times as wide as covers nine in ten scores. A kind with few scores is judged together with those
that a right rule would have given, so that one miss widens at once and one hit narrows little.

References:
    Split conformal prediction with normalized scores, by category: V. Vovk, A. Gammerman, G. Shafer, "Algorithmic Learning in
    a Random World", 2005, chapters 2 and 4; H. Papadopoulos et al., "Inductive Confidence Machines for Regression", 2002.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.formatting import pluralize
from headrace.runs.formats.prediction import KindRecord, TrackRecord
from headrace.runs.formats.profile import Estimate

#: Measured ratios this close to 1 have no sign worth getting right: the dead band of `measurement.md`'s protocol.
SIGN_BAND = 0.05
#: Below so many, "90 % of them" is all of them but none, and only the largest error is told.
_ENOUGH_FOR_P90 = 10
#: Share of the measured ratios that intervals are to hold.
_HELD = 0.9
#: Scores that a right rule would have given stand for so many predictions.
_SUPPOSED = 9
#: However right or wrong a few were: no interval becomes wider or narrower than by so many times.
_MOST_TIMES, _LEAST_TIMES = 8.0, 0.4
#: An error by less than this is no miss, however narrow the interval was: what a measurement itself is off by.
_LEAST_WIDTH = math.log(1.01)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A prediction that was measured."""

    predicted: Estimate
    """Ratio of throughputs, above 0."""
    measured: float
    kinds: tuple[str, ...] = ()
    widened: float = 1.0
    """How many times as wide the record had made the interval."""

    @property
    def score(self) -> float:
        """Error over the half width by rule, on the side where it fell; 1: just within."""
        off = math.log(self.measured / self.predicted.mid)
        edge = self.predicted.high / self.predicted.mid if off > 0 else self.predicted.mid / self.predicted.low
        return abs(off) / max(math.log(edge) / self.widened, _LEAST_WIDTH)


def judge_record(outcomes: Sequence[Outcome]) -> TrackRecord:
    """Return how well predictions did.

    Args:
        outcomes: Of each.

    Returns:
        Errors are |predicted / measured - 1|. `p90_error` is the smallest error that at least nine in ten did not exceed
        (nearest rank): it speaks of these predictions alone, and is no estimate for later ones.
    """
    if not outcomes:
        return TrackRecord(num=0)
    errors = sorted(abs(one.predicted.mid / one.measured - 1) for one in outcomes)
    mean = sum(errors) / len(errors)
    p90 = errors[math.ceil(0.9 * len(errors)) - 1]
    signed = [(one.predicted.mid, one.measured) for one in outcomes if abs(one.measured - 1) > SIGN_BAND]
    kinds = sorted({kind for one in outcomes for kind in one.kinds})
    return TrackRecord(
        num=len(errors),
        mean_error=mean,
        p90_error=p90,
        max_error=errors[-1],
        num_with_sign=len(signed),
        num_sign_right=sum((predicted - 1) * (measured - 1) > 0 for predicted, measured in signed),
        num_inside=sum(one.predicted.low <= one.measured <= one.predicted.high for one in outcomes),
        by_kind={kind: _judge_kind([one.score for one in outcomes if kind in one.kinds]) for kind in kinds},
        says=_says(len(errors), mean, p90, errors[-1]),
    )


def _judge_kind(scores: Sequence[float]) -> KindRecord:
    """Return how many times as wide the intervals of a kind are to be, by its scores."""
    normal = statistics.NormalDist()
    halves = [normal.inv_cdf((1 + rank / (_SUPPOSED + 1)) / 2) for rank in range(1, _SUPPOSED + 1)]
    supposed = [one / normal.inv_cdf((1 + _HELD) / 2) for one in halves]
    ordered = sorted((*scores, *supposed))
    place = _HELD * (len(ordered) + 1) - 1  # of the next score among these, which holds for any distribution
    below = min(int(place), len(ordered) - 1)
    above = min(below + 1, len(ordered) - 1)
    times = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    return KindRecord(num=len(scores), times=min(max(times, _LEAST_TIMES), _MOST_TIMES))


def _says(num: int, mean: float, p90: float, largest: float) -> str:
    if num == 1:
        return f"the only prediction measured so far: error {_percent(mean)}"
    reach = f"90 % within {_percent(p90)}" if num >= _ENOUGH_FOR_P90 else f"largest {_percent(largest)}"
    return f"last {pluralize(num, 'prediction')}: mean error {_percent(mean)}, {reach}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
