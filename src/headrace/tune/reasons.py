"""Why each setting of a better Plan was changed, from predictions with and without it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.tune.predictor import Predictor
from headrace.tune.space import Point, Value
from headrace.tune.view import shown

#: Below this share a change makes no difference to the prediction.
_NOTHING = 0.005


@dataclass(frozen=True, slots=True)
class Reason:
    """One changed setting."""

    key: str
    """Path in the Plan's file."""
    before: Value
    after: Value
    without: float | None
    """Predicted throughput if this change alone were taken back, over that with it; None where it cannot be predicted."""

    @property
    def says(self) -> str:
        """The reason in words."""
        was = f"was {shown(self.before)}"
        if self.without is None:
            return f"{was}; cannot be predicted without the others"
        loss = 1 - self.without
        if abs(loss) < _NOTHING:
            return (
                f"{was}; as fast, and takes less of the machine"
                if _is_less(self)
                else f"{was}; makes no difference alone"
            )
        return f"{was}; without this change {abs(loss):.1%} {'less' if loss > 0 else 'more'} throughput (predicted)"


def find_reasons(predictor: Predictor, point: Point, base: Point) -> tuple[Reason, ...]:
    """Return the reason of each setting in which a point differs from the user's Plan.

    Args:
        predictor: What the point was predicted by.
        point: Of its space.
        base: The user's Plan, which another space may be built around.
    """
    together = predictor.of(point)
    reasons = []
    for key in point:
        if key not in base or point[key] == base[key]:
            continue
        alone = predictor.of({**point, key: base[key]})
        without = None if alone is None or together is None or together.ratio <= 0 else alone.ratio / together.ratio
        reasons.append(Reason(key, base[key], point[key], without))
    return tuple(reasons)


def _is_less(reason: Reason) -> bool:
    before, after = reason.before, reason.after
    return isinstance(before, int | float) and isinstance(after, int | float) and after < before
