"""Why each setting of a better Plan was changed, from predictions with and without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.tune.predictions import format_value
from headrace.tune.predictor import Predictor
from headrace.tune.space import Point, Value

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
        was = f"was {format_value(self.before)}"
        if self.without is None:
            return f"{was}; what it does alone is not predicted"
        loss = 1 - self.without
        if abs(loss) < _NOTHING:
            return (
                f"{was}; as fast, and takes less of the machine"
                if _is_less(self)
                else f"{was}; makes no difference alone"
            )
        return f"{was}; without this change {abs(loss):.1%} {'less' if loss > 0 else 'more'} throughput (predicted)"


def find_reasons(predictor: Predictor, point: Point, settings: Sequence[str], base: Point) -> tuple[Reason, ...]:
    """Return the reason of each setting that makes another Plan of the user's.

    Args:
        predictor: What the point was predicted by.
        point: Of its space, which may be built around another Plan than the user's.
        settings: `KEY=VALUE` each, to the user's Plan.
        base: The user's Plan.
    """
    together = predictor.predict(point)
    reasons = []
    for key, _, written in (setting.partition("=") for setting in settings):
        before = base.get(key)
        after = point.get(key, written.strip('"'))
        if format_value(before) == format_value(after):
            continue
        alone = predictor.predict({**point, key: before}) if key in point and key in base else None
        without = None if alone is None or together is None or together.ratio <= 0 else alone.ratio / together.ratio
        reasons.append(Reason(key, before, after, without))
    return tuple(reasons)


def _is_less(reason: Reason) -> bool:
    before, after = reason.before, reason.after
    return isinstance(before, int | float) and isinstance(after, int | float) and after < before
