"""A pipeline that works and that nobody tuned: photographs are named, and one that shows too little is told apart.

    headrace samples make photos --count 800
    headrace profile examples/slow_scenes.py:pipeline --plan examples/slow_scenes.toml -o runs/slow
    headrace diagnose runs/slow
    headrace tune examples/slow_scenes.py:pipeline --plan examples/slow_scenes.toml -o plan.toml

Each choice had its reason once; the guide "Diagnosing" finds out what they cost.
"""

from __future__ import annotations

from typing import Any

from scenes_folder import Scenes

import headrace as hr

#: Pixels between two that are looked at, along each side.
STEP = 2
#: Mean difference of neighbours, in grey levels, below which a picture shows too little to be named.
LEAST_DETAIL = 4.0


class CarefulScenes(Scenes):
    """Names the photograph, unless it shows nothing but sky or wall."""

    def preprocess(self, image: Any) -> Any:
        """Return float32 (3, 224, 224); a picture without detail becomes black, which no scene is like."""
        return super().preprocess(image if detail(image) >= LEAST_DETAIL else image * 0)


def detail(image: Any) -> float:
    """Return how much neighbours differ on average, in grey levels: a loop, as one writes it first."""
    rows = image[::STEP, ::STEP].sum(axis=2, dtype=int).tolist()
    total = 0
    for row in rows:
        for left, right in zip(row, row[1:], strict=False):  # noqa: RUF007
            total += abs(left - right)
    return total / (3 * len(rows) * (len(rows[0]) - 1))


pipeline = hr.Pipeline(source=hr.folder("photos"), module=CarefulScenes(), delivery=hr.jsonl("slow_scenes.jsonl"))
