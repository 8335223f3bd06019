"""Looks for the best point of a space by prediction, makes it as small as it may be, and picks a few to measure.

How this works: from several starts (the base, a generous Plan, points drawn at random) one axis after the other is set
to its best value until no axis gains any more. One axis alone often gains nothing where two together do, as with two
equal bottlenecks; the generous start, where everything is ample, comes down to such points. Predictions are noisy by
some percent, so what is best by prediction is only a candidate: it is then made smaller as long as the prediction stays
within 1 %, and several that differ are measured.

No clock of its own: `may_go_on` says when the time is over.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.base.coordinate_search import Axis, climb
from headrace.tune.objective import SAME, Objective, Outlook
from headrace.tune.predictor import Predictor
from headrace.tune.space import Point, Value

#: A step must gain so much on the scale of logarithms, or noise would be followed forever.
_STEP = 0.002
_RESTARTS = 3
#: Predicted worse than the best by more: not worth measuring.
_WORTH_MEASURING = 0.08
#: What a further difference from those chosen is worth, on the scale of logarithms: predictions of Plans that are alike err
#: together.
_DIVERSITY = 0.005


@dataclass(frozen=True, slots=True)
class FoundPoint:
    """A point and what is predicted of it."""

    point: Point
    outlook: Outlook
    score: float


def search(
    predictor: Predictor,
    objective: Objective,
    *,
    may_go_on: Callable[[], bool] = lambda: True,
    seed: int = 0,
    keeps_base: bool = True,
) -> list[FoundPoint]:
    """Return every point that was looked at and can run, best first; the first was made as small as it may be.

    Args:
        predictor: Says what a point does, and of which space.
        objective: Says what is better.
        may_go_on: Asked before each prediction of the search; making the best one smaller is always finished.
        seed: Of the random starts and the order of the axes.
        keeps_base: The base comes first where nothing is better, even if something smaller is as good.
    """
    return _Search(predictor, objective, may_go_on, random.Random(seed)).run(keeps_base=keeps_base)


def choose(found: Sequence[FoundPoint], number: int, *, without: Sequence[Point] = ()) -> list[FoundPoint]:
    """Return the few to measure: the first of `found`, then those that are good and differ from the ones chosen.

    Args:
        found: Best first, as `search` returns them.
        number: How many at most.
        without: Points that were measured already.
    """
    known = [dict(point) for point in without]
    left = [one for one in found if dict(one.point) not in known]
    if not left:
        return []
    worth = [one for one in left if one.score >= left[0].score - _WORTH_MEASURING]
    chosen = [left[0]]
    while len(chosen) < number:
        others = [one for one in worth if all(dict(one.point) != dict(taken.point) for taken in chosen)]
        if not others:
            break
        chosen.append(max(others, key=lambda one: one.score + _DIVERSITY * _distance(one, chosen)))
    return chosen


def _distance(one: FoundPoint, chosen: Sequence[FoundPoint]) -> int:
    """Return in how many settings a point differs from the nearest of those chosen, 4 at most."""
    return min(4, *(sum(one.point[key] != taken.point[key] for key in one.point) for taken in chosen))


class _Search:
    def __init__(
        self, predictor: Predictor, objective: Objective, may_go_on: Callable[[], bool], rng: random.Random
    ) -> None:
        self._predictor = predictor
        self._objective = objective
        self._may_go_on = may_go_on
        self._random = rng
        self._space = predictor.space
        self._seen: dict[tuple[tuple[str, Value], ...], FoundPoint] = {}

    def run(self, *, keeps_base: bool) -> list[FoundPoint]:
        base = self._look(self._space.base)
        for start in self._starts():
            self._climb(start)
            if not self._may_go_on():
                break
        if not self._seen:
            return []
        best = max(self._seen.values(), key=lambda found: found.score)
        self._may_go_on = lambda: True  # making it smaller takes few predictions, and a large Plan is no answer
        smallest = self._shrink(best, base if keeps_base else None)
        rest = sorted(self._seen.values(), key=lambda found: (-found.score, found.outlook.size))
        return [smallest, *(found for found in rest if found.point != smallest.point)]

    def _starts(self) -> list[dict[str, Value]]:
        base = dict(self._space.base)
        # `executor` stays: its values are of different kinds, not more or less of one.
        ample = {axis.key: self._ample(axis) for axis in self._space.axes}
        drawn = [{axis.key: self._random.choice(axis.values) for axis in self._space.axes} for _ in range(_RESTARTS)]
        return [{**base, **ample}, base, *({**base, **start} for start in drawn)]

    def _ample(self, axis: Axis[Value]) -> Value:
        if axis.key.endswith((".executor", ".max_wait_seconds")):
            base = self._space.base[axis.key]
            return "thread" if base == "inline" else base
        numbers = [value for value in axis.values if isinstance(value, int | float)]
        if not numbers:
            return axis.values[0]
        # Not the most there is: of threads and CPU workers that would be too many.
        return numbers[(3 * len(numbers)) // 4 - 1] if len(numbers) > 2 else numbers[-1]

    def _climb(self, start: dict[str, Value]) -> None:
        here = self._look(start)
        begin: tuple[Point, float] = (start, here.score if here else -float("inf"))
        climb(begin, self._passes(), self._improve)

    def _passes(self) -> Iterator[list[Axis[Value]]]:
        axes = list(self._space.axes)
        while self._may_go_on():
            self._random.shuffle(axes)
            yield axes

    def _improve(self, axis: Axis[Value], at: tuple[Point, float]) -> tuple[Point, float] | None:
        """Return the best other point on an axis with its score, where it is better than this one."""
        point, score = at
        found = [self._look({**point, axis.key: value}) for value in axis.values if value != point[axis.key]]
        best = max((one for one in found if one is not None), key=lambda one: one.score, default=None)
        return None if best is None or best.score <= score + _STEP else (best.point, best.score)

    def _shrink(self, best: FoundPoint, base: FoundPoint | None) -> FoundPoint:
        """Return the smallest point that is as good: no gain is worth a setting that does not bring it."""
        enough = best.score - SAME
        if base is not None and base.score >= enough:
            return base

        def shrink_on(axis: Axis[Value], smallest: FoundPoint) -> FoundPoint | None:
            values = dict.fromkeys((self._space.base[axis.key], *axis.values))
            tries = [self._look({**smallest.point, axis.key: value}) for value in values]
            fit = [one for one in tries if one is not None and one.score >= enough and self._is_less(one, smallest)]
            return min(fit, key=self._find_burden, default=None)

        # Batches first: of all settings they cost most in latency and memory.
        axes = sorted(self._space.axes, key=lambda axis: not axis.key.endswith((".batch", ".max_wait_seconds")))
        return climb(best, itertools.repeat(axes), shrink_on)

    def _is_less(self, one: FoundPoint, other: FoundPoint) -> bool:
        return self._find_burden(one) < self._find_burden(other)

    def _find_burden(self, found: FoundPoint) -> tuple[float, int]:
        """Return what a point takes, and how much of the Plan it changes."""
        return (round(found.outlook.size, 6), len(self._space.list_changed(found.point)))

    def _look(self, point: Point) -> FoundPoint | None:
        point = self._space.canonical(point)
        key = tuple(sorted(point.items()))
        if key in self._seen:
            return self._seen[key]
        if not self._may_go_on() and self._seen:
            return None
        outlook = self._predictor.predict(point)
        if outlook is None:
            return None
        found = FoundPoint(point, outlook, self._objective.score(outlook, self._predictor.base_throughput))
        self._seen[key] = found
        return found
