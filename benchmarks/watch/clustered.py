"""Windows of images that are clustered: a share of the variance is between cameras, which wander, fall silent and burst.

A statistic of an image is: a level of its camera that stays, a level of the camera in this window, and the image's own part.
Together their variance is 1, so that shifts are in standard deviations of images. Only sums are drawn, as they would come of
images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.runs.formats.drift import DriftWindow, StratumSums, Sums

#: Statistics that the simulation gives values to: half of the pixels' are enough for their weights to be as in practice.
STATISTICS = (
    "brightness", "dark_end", "bright_end", "contrast", "saturation", "red_cast", "blue_cast", "entropy", "sharpness", "noise",
    "pixels", "bytes", "bytes_per_pixel", "aspect",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class World:
    """How windows come about."""

    cameras: int = 20
    images: int = 500
    correlation: float = 0.3
    """Intra-class correlation: share of the variance that is between cameras."""
    wandering: float = 0.25
    """Share of that which changes from window to window."""
    memory: float = 0.0
    """Correlation of a camera's wandering with that of the window before."""
    together: float = 0.0
    """Share of the wandering that all cameras do together: the weather."""
    silent: float = 0.0
    """Probability that a camera gives nothing to a window."""
    bursts: float = 0.0
    """Probability that a camera gives ten times as many images."""
    heavy_tails: bool = False
    """Whether the images' own part is of Student's t with 3 degrees of freedom."""
    items_per_image: int = 1
    """Items of which verdicts are counted, for each image that is looked at closely; 8 in a service at first."""
    refused: float = 0.01
    """Share of files that cannot be decoded."""
    refused_clustering: float = 0.0
    """Intra-class correlation of refusals within a camera and window (beta-binomial)."""


class Cameras:
    """The cameras of a world.

    Args:
        world: How windows come about.
        random: The generator.
    """

    def __init__(self, world: World, random: np.random.Generator) -> None:
        self._world = world
        self._random = random
        between = world.correlation
        self._levels = random.normal(0, math.sqrt(between * (1 - world.wandering)), (world.cameras, len(STATISTICS)))
        self._step_sd = math.sqrt(between * world.wandering)
        self._state = random.normal(0, self._step_sd, self._levels.shape)
        self._number = 0

    def windows(
        self,
        number: int,
        *,
        shift: float = 0.0,
        statistics: int | None = None,
        camera_shift: float = 0.0,
        refused: float | None = None,
    ) -> Iterator[DriftWindow]:
        """Yield the next windows.

        Args:
            number: How many.
            shift: Of all cameras, in standard deviations of images.
            statistics: How many statistics move; None: all.
            camera_shift: Of the first camera alone.
            refused: Share of files that cannot be decoded; None: the world's.
        """
        moved = np.zeros(self._levels.shape)
        moved[:, :statistics] = shift
        moved[0, :statistics] += camera_shift
        rate = self._world.refused if refused is None else refused
        for _ in range(number):
            self._number += 1
            yield self._window(self._levels + self._wander() + moved, rate)

    def _wander(self) -> np.ndarray:
        world, random = self._world, self._random
        alone = random.normal(0, 1, self._state.shape) * math.sqrt(1 - world.together)
        shared = random.normal(0, 1, (1, self._state.shape[1])) * math.sqrt(world.together)
        step = (alone + shared) * self._step_sd * math.sqrt(1 - world.memory**2)
        self._state = world.memory * self._state + step
        return self._state

    def _window(self, levels: np.ndarray, rate: float) -> DriftWindow:
        world, random = self._world, self._random
        each = world.images // world.cameras
        numbers = np.where(random.random(world.cameras) < world.bursts, 10 * each, each)
        numbers = np.where(random.random(world.cameras) < world.silent, 0, numbers)
        if not numbers.any():
            numbers[0] = each
        strata = {
            f"camera {index}": self._camera(levels[index], int(images), rate)
            for index, images in enumerate(numbers)
            if images
        }
        total = int(numbers.sum())
        return DriftWindow(
            began=60.0 * self._number, ended=60.0 * self._number + 60, items=total, sampled=total, strata=strata
        )

    def _camera(self, levels: np.ndarray, images: int, rate: float) -> StratumSums:
        world, random = self._world, self._random
        shape, items = (images, len(STATISTICS)), images * world.items_per_image
        own = random.standard_t(3, shape) / math.sqrt(3) if world.heavy_tails else random.normal(0, 1, shape)
        values = levels + math.sqrt(1 - world.correlation) * own
        totals, squares = values.sum(axis=0), (values**2).sum(axis=0)
        if world.refused_clustering:
            strength = 1 / world.refused_clustering - 1
            rate = random.beta(rate * strength, (1 - rate) * strength)
        return StratumSums(
            means={
                name: Sums(images, float(total), float(square))
                for name, total, square in zip(STATISTICS, totals, squares, strict=True)
            },
            counts={"items": items, "refused": int(random.binomial(items, rate))},
        )
