"""How far two variants agree by what their answers mean: item by item, part by part, and kind by kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from headrace.base.formatting import pluralize
from headrace.base.meaning import Meaning
from headrace.validate.detections import LAYOUTS
from headrace.validate.meaning_choice import DECLARE
from headrace.validate.meanings import Detections
from headrace.validate.parity import name_outputs, shape_problems

#: Parts that agree by less are lost; and the share of all parts that may be lost.
LOST, MOST_LOST = 0.5, 0.25
#: Probability of calling a kind lost that is not, shared among the kinds: one that is rare may be lost a few times by chance.
_ALPHA = 0.05
#: From this number on the normal distribution is a good approximation.
_MANY = 200


class Agreement:
    """Collects how far B agrees with A.

    Args:
        meaning: Fitted to A's answers.
        name: Names a kind, such as a class by its number; None: it is named by itself.
        alpha: Probability of calling a kind lost that is not.

    Attributes:
        num_items: That both answered.
        num_changed: Those with another answer.
        num_parts: That were compared.
        on_parts: Called with the parts of each item, (kind, agreement); None: nobody asked.
    """

    def __init__(self, meaning: Meaning, name: Callable[[Hashable], str] = str, *, alpha: float = _ALPHA) -> None:
        self.meaning = meaning
        self.num_items = 0
        self.num_changed = 0
        self.num_parts = 0
        self.on_parts: Callable[[Sequence[tuple[Hashable, float]]], object] | None = None
        self.name = name
        self._alpha = alpha
        self._num_lost = 0
        self._sum = 0.0
        self._kinds: dict[Hashable, list[int]] = {}

    def add(self, a: Any, b: Any) -> np.ndarray:
        """Compare the answers to one call, and return (items,) 1.0 where B gives another one.

        Raises:
            ValueError: If B's answers cannot be read, or have another shape.
        """
        self._check(a, b)
        return self.add_read(self.meaning.read(a), self.meaning.read(b))

    def add_read(self, first: Sequence[Any], second: Sequence[Any]) -> np.ndarray:
        """Do likewise with answers that were read."""
        if len(first) != len(second):
            raise ValueError(f"it answers {pluralize(len(second), 'item')} where the other answers {len(first)}")
        changed = np.array([self._add_item(one, other) for one, other in zip(first, second, strict=True)], float)
        self.num_items += len(changed)
        self.num_changed += int(changed.sum())
        return changed

    def _add_item(self, a: Any, b: Any) -> bool:
        parts = list(self.meaning.parts(a, b))
        if self.on_parts is not None:
            self.on_parts(parts)
        for kind, agreement in parts:
            own = self._kinds.setdefault(kind, [0, 0])
            is_lost = not agreement >= LOST  # a NaN is
            own[0] += 1
            own[1] += is_lost
            self.num_parts += 1
            self._num_lost += is_lost
            self._sum += agreement if math.isfinite(agreement) else 0.0
        return not self.meaning.same(a, b) >= self.meaning.least

    def _check(self, a: Any, b: Any) -> None:
        """Raise ValueError where answers that cannot come in any number have other shapes."""
        if isinstance(self.meaning, Detections):
            return
        problems = shape_problems(name_outputs(a), name_outputs(b))
        if problems:
            raise ValueError(
                f"it answers in another shape: {'; '.join(problems)}. Only detections can be matched whatever their number, "
                f"and they are read from {LAYOUTS}"
            )

    @property
    def changed(self) -> float:
        """Share of the items with another answer."""
        return self.num_changed / max(1, self.num_items)

    @property
    def mean(self) -> float:
        """Mean agreement of the parts; 1 where there are none."""
        return self._sum / self.num_parts if self.num_parts else 1.0

    def list_lost_kinds(self) -> list[str]:
        """Return the kinds that are surely lost more often than not, in words, the commonest first."""
        most = self._alpha / max(1, len(self._kinds))
        lost = [
            (num, kind, gone)
            for kind, (num, gone) in self._kinds.items()
            if 2 * gone > num and _chance(gone, num) <= most
        ]
        return [f"{self.name(kind)} ({gone} of {num})" for num, kind, gone in sorted(lost, key=lambda one: -one[0])]

    def explain_difference(self) -> str | None:
        """Return why B does not answer what A does; None if it does."""
        meaning = self.meaning
        if self.changed > (meaning.most_changed if meaning.is_known else 0.0):
            return (
                f"other {meaning.name} for {self.num_changed} of {self.num_items} items (at most "
                f"{meaning.most_changed if meaning.is_known else 0:.0%})"
            )
        return self.explain_difference_of_parts()

    def explain_difference_of_parts(self) -> str | None:
        """Do likewise, whatever the number of items with another answer."""
        meaning, lost = self.meaning, self.list_lost_kinds()
        if not meaning.is_known:
            return None
        if lost:
            return f"other {meaning.name} mostly for {', '.join(lost[:4])}"
        if self._num_lost > MOST_LOST * self.num_parts:
            return f"other {meaning.name}: {self._num_lost} of {self.num_parts} parts are not there (at most {MOST_LOST:.0%})"
        if self.mean < meaning.usual:
            return f"other {meaning.name}: they agree by {self.mean:.2f}, usual is {meaning.usual:g} or more"
        return None

    def says(self) -> str:
        """Return the figures in words."""
        return (
            f"compared as {self.meaning.name}: {self.num_changed} of {pluralize(self.num_items, 'item')} with another answer, "
            f"agreement {self.mean:.3f} of {pluralize(self.num_parts, 'part')}"
        )


def _chance(gone: int, num: int) -> float:
    """Return the probability that at least so many of a kind are lost which is lost every other time."""
    if num > _MANY:
        return 0.5 * math.erfc((gone - 0.5 - num / 2) / math.sqrt(num / 2))
    return float(sum(math.comb(num, one) for one in range(gone, num + 1)) / 2**num)


def make_namer(names: Sequence[str] | None) -> Callable[[Hashable], str]:
    """Return what names a kind: a class by what the model's file calls it."""

    def name(kind: Hashable) -> str:
        return names[kind] if names and isinstance(kind, int) and 0 <= kind < len(names) else str(kind)

    return name


def explain_unknown(answers: Any) -> str:
    """Return in words that nobody can tell what answers mean, and what to do."""
    shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in name_outputs(answers).items())
    return f"what the model's answers mean ({shapes}) is not known; {DECLARE}"
