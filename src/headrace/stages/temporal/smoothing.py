"""Labels and numbers that do not flicker: averages in time, whatever the frame rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.base.errors import ItemRejected
from headrace.base.settings import check

#: Least share of a label in one frame: by a lower one a single wrong frame outvotes many right ones.
_LEAST_SHARE = 0.02


class Smooth:
    """Gives each frame the label that the last frames speak for.

    The logarithms of the scores are averaged with a weight that halves with every `half_life` seconds of age. Another label
    takes over once its share reaches `enter` and the present one has stood for `dwell` seconds; or once the present one's
    falls below `leave`. A sudden change is told about one `half_life` later.

    Values are an array of scores (labels,) >= 0, or a mapping that holds one under `key`. The new value is a mapping: what was
    there, and `label`, `score` (the label's share of the average, 0 to 1), `raw_label` (of this frame alone).

    Args:
        half_life: Seconds.
        enter: Share, 0 to 1.
        leave: Share, 0 to `enter`.
        dwell: Seconds.
        labels: Names; None: labels are numbers, from 0.
        key: Where the scores are in a mapping.
    """

    def __init__(
        self,
        half_life: float = 0.25,
        *,
        enter: float = 0.55,
        leave: float = 0.25,
        dwell: float = 0.0,
        labels: Sequence[str] | None = None,
        key: str = "scores",
    ) -> None:
        check(_is_number(half_life) and half_life > 0, "half_life", half_life, "seconds > 0")
        check(_is_number(enter) and 0 < enter < 1, "enter", enter, "a share between 0 and 1")
        check(_is_number(leave) and 0 <= leave <= enter, "leave", leave, f"a share from 0 to enter ({enter})")
        check(_is_number(dwell) and dwell >= 0, "dwell", dwell, "seconds >= 0")
        are_names = labels is None or (isinstance(labels, Sequence) and not isinstance(labels, str | bytes))
        check(are_names, "labels", labels, "a list of names, or None")
        self._average = _Decaying(half_life)
        self._enter = enter
        self._leave = leave
        self._dwell = dwell
        self._labels = None if labels is None else list(labels)
        self._key = key
        self._label: int | None = None
        self._since = 0.0

    def __call__(self, value: Any, seconds: float) -> dict[str, Any]:
        """Return the value with the label that the last frames speak for."""
        scores, kept = _read(value, self._key)
        if scores.ndim != 1 or not scores.size or (scores < 0).any() or not scores.sum() > 0:
            raise ItemRejected(
                f"temporal.scores: got scores of shape {scores.shape}, {_show(scores)}; expected one number >= 0 for each "
                "label, not all of them 0 (of logits take the softmax before)"
            )
        if self._labels is not None and len(scores) != len(self._labels):
            raise ItemRejected(f"temporal.scores: got {len(scores)} scores for {len(self._labels)} labels")
        shares = np.maximum(scores / scores.sum(), _LEAST_SHARE)
        average = np.exp(self._average.add(np.log(shares), seconds))
        # Without the least share, of which a thousand labels would have twenty times as much as the one that is right.
        above = np.maximum(average - _LEAST_SHARE, 0.0)
        average = above / above.sum() if above.any() else average / average.sum()
        best = int(average.argmax())
        if self._label is None or self._label >= len(average):
            self._label, self._since = best, seconds
        elif best != self._label:
            has_stood = seconds - self._since >= self._dwell
            if average[self._label] < self._leave or (has_stood and average[best] >= self._enter):
                self._label, self._since = best, seconds
        return {
            **kept,
            "label": self._name(self._label),
            "score": round(float(average[self._label]), 4),
            "raw_label": self._name(int(scores.argmax())),
        }

    def _name(self, label: int) -> int | str:
        return label if self._labels is None else self._labels[label]


class Average:
    """Gives each frame the average of the last frames' numbers; a weight halves with every `half_life` seconds of age.

    Values are a number, an array, or a mapping that holds one under `key`, which is replaced.

    Args:
        half_life: Seconds.
        key: Where the number is in a mapping.
    """

    def __init__(self, half_life: float = 0.25, *, key: str = "value") -> None:
        check(_is_number(half_life) and half_life > 0, "half_life", half_life, "seconds > 0")
        self._average = _Decaying(half_life)
        self._key = key

    def __call__(self, value: Any, seconds: float) -> Any:
        """Return the average in the place of the value."""
        numbers, kept = _read(value, self._key)
        average = self._average.add(numbers, seconds)
        result = float(average) if average.ndim == 0 else average.copy()
        return {**kept, self._key: result} if isinstance(value, Mapping) else result


class _Decaying:
    """Average of arrays of one shape; begins anew where the shape changes."""

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._mean: np.ndarray | None = None
        self._weight = 0.0
        self._newest = 0.0

    def add(self, values: np.ndarray, seconds: float) -> np.ndarray:
        """Return the average with one more."""
        if self._mean is None or self._mean.shape != values.shape:
            self._mean, self._weight, self._newest = values.astype(np.float64), 1.0, seconds
            return self._mean
        # Each frame weighs 1 when it comes: the first ones are averaged at once, and the rate of frames does not matter.
        self._weight = self._weight * 0.5 ** ((seconds - self._newest) / self._half_life) + 1.0
        self._mean = self._mean + (values - self._mean) / self._weight
        self._newest = seconds
        return self._mean


def _read(value: Any, key: str) -> tuple[np.ndarray, Mapping[str, Any]]:
    """Return the numbers of a value, and what stands beside them."""
    kept = value if isinstance(value, Mapping) else {}
    if isinstance(value, Mapping) and key not in value:
        raise ItemRejected(
            f"temporal.scores: the value has no {key!r}, but {', '.join(map(repr, value)) or 'nothing'}; set key="
        )
    try:
        numbers = np.asarray(value[key] if isinstance(value, Mapping) else value, np.float64)
    except (TypeError, ValueError):
        got = type(value[key] if isinstance(value, Mapping) else value).__name__
        raise ItemRejected(
            f"temporal.scores: got {got}; expected numbers, or a mapping with numbers under {key!r}"
        ) from None
    if not np.isfinite(numbers).all():
        raise ItemRejected(f"temporal.scores: got {_show(numbers)}; expected finite numbers")
    return numbers, kept


def _show(numbers: np.ndarray) -> str:
    return np.array2string(numbers.reshape(-1)[:5], precision=3) + (" ..." if numbers.size > 5 else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
