"""One planted incident: what happens, how strongly, and what the recorder must name."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from headrace.runs.formats.incident import ChangeKind as K

#: Stage of a change that must show at no stage: it is the run's, or the machine's.
NOWHERE = ""


@dataclass(frozen=True, slots=True)
class Dose:
    """How strong something is; drawn anew for each scoring, so that no rule fits one figure."""

    least: float
    most: float
    digits: int = 3
    """Significant ones that are kept."""

    def draw(self, chance: random.Random) -> float:
        """Return a figure between the two, evenly spread by its logarithm."""
        drawn = math.exp(chance.uniform(math.log(self.least), math.log(self.most)))
        return float(f"{drawn:.{self.digits}g}")


@dataclass(frozen=True, slots=True)
class Planted:
    """One incident."""

    name: str
    expected: tuple[tuple[K, str | None], ...]
    """One change, or two of a compound incident: kind and stage; None: it may show at any stage, or at none."""
    knobs: dict[str, Any] = field(default_factory=dict)
    """What happens from half of the time on, with a `Dose` where a figure is drawn; see `world.World`."""
    also: frozenset[K] = frozenset()
    """Kinds that are as right: another name of the same thing."""

    def draw(self, seed: int) -> dict[str, Any]:
        """Return the knobs with a figure in the place of each dose; the same ones for the same seed."""
        chance = random.Random(f"{seed} {self.name}")
        return {name: _drawn(value, chance) for name, value in self.knobs.items()}


def _drawn(value: Any, chance: random.Random) -> Any:
    if isinstance(value, Dose):
        return value.draw(chance)
    if isinstance(value, dict):
        return {name: _drawn(one, chance) for name, one in value.items()}
    return [_drawn(one, chance) for one in value] if isinstance(value, tuple) else value


def is_right(planted: Planted, changes: list[dict[str, Any]]) -> bool:
    """Return whether what was named is what was planted: a single change first, two among the first three."""
    named = [(K(change["kind"]), change["stage"]) for change in changes]
    if len(planted.expected) == 1:
        named = named[:1]
    return all(
        any((kind == one or one in planted.also) and _is_there(stage, where) for one, where in named[:3])
        for kind, stage in planted.expected
    )


def _is_there(expected: str | None, named: str | None) -> bool:
    """Return whether a change shows where it must; larger images are met first where they are downloaded."""
    return expected is None or named == (expected or None)
