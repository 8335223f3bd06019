"""Golden images as bad cameras and bad networks would have sent them: whether a cheaper variant bears less than the one in use.

Images come here as the model takes them. They are brought back to pixels by the range of the set, spoiled as pixels, and scaled
again: what is compared is two variants on the same spoiled items, so that the way there and back harms neither more.

References:
    D. Hendrycks, T. Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import cv2
import numpy as np

#: Items that ranges are taken from.
_RANGED = 64

Picture = np.ndarray
"""uint8 (height, width, 3), RGB."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """How inputs of a model become pictures, and pictures inputs."""

    channels_first: bool
    low: np.ndarray
    """(channels,), 3 or 1."""
    span: np.ndarray

    @classmethod
    def find(cls, inputs: np.ndarray) -> Pixels | None:
        """Return the way for (items, 3, height, width) or (items, height, width, 3) numbers; None: they are no pictures.

        One channel in place of three is a grey picture.
        """
        if inputs.ndim != 4 or inputs.dtype.kind not in "fu" or not {1, 3} & {inputs.shape[1], inputs.shape[3]}:
            return None
        channels_first = inputs.shape[1] in (1, 3)
        some = np.asarray(
            inputs[np.unique(np.linspace(0, len(inputs) - 1, min(len(inputs), _RANGED)).astype(int))], float
        )
        axes = (0, 2, 3) if channels_first else (0, 1, 2)
        low, high = some.min(axis=axes), some.max(axis=axes)
        return cls(channels_first, low, np.where(high > low, high - low, 1.0))

    def picture(self, item: np.ndarray) -> Picture:
        """Return one input as a picture."""
        last = np.moveaxis(item, 0, 2) if self.channels_first else item
        pixels = np.asarray(((last - self.low) / self.span * 255).round().clip(0, 255), np.uint8)
        return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels

    def inputs(self, picture: Picture, like: np.ndarray) -> np.ndarray:
        """Return a picture as an input of the type of another."""
        pixels = picture.mean(axis=2, keepdims=True) if len(self.low) == 1 else picture
        scaled = pixels / 255.0 * self.span + self.low
        return np.asarray(np.moveaxis(scaled, 2, 0) if self.channels_first else scaled, like.dtype)


def corrupt(inputs: np.ndarray, kind: str, pixels: Pixels) -> np.ndarray:
    """Return (items, ...) inputs, spoiled; the same for the same arguments."""
    spoil = CORRUPTIONS[kind]
    return np.stack(
        [
            pixels.inputs(spoil(pixels.picture(item), np.random.default_rng(place)), item)
            for place, item in enumerate(inputs)
        ]
    )


def _blur(picture: Picture, random: np.random.Generator) -> Picture:
    return np.asarray(cv2.GaussianBlur(picture, (0, 0), max(picture.shape) * 0.008 + 0.5))


def _noise(picture: Picture, random: np.random.Generator) -> Picture:
    return np.asarray((picture + random.normal(0, 20, picture.shape)).clip(0, 255), np.uint8)


def _jpeg(picture: Picture, random: np.random.Generator) -> Picture:
    _, data = cv2.imencode(".jpg", picture[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 15])
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR))[:, :, ::-1]


def _brightness(factor: float) -> Callable[[Picture, np.random.Generator], Picture]:
    return lambda picture, random: np.asarray((picture * factor).clip(0, 255), np.uint8)


def _rotation(picture: Picture, random: np.random.Generator) -> Picture:
    height, width = picture.shape[:2]
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), float(random.choice([-15.0, 15.0])), 1.0)
    return np.asarray(cv2.warpAffine(picture, turn, (width, height), borderMode=cv2.BORDER_REFLECT))


def _grey(picture: Picture, random: np.random.Generator) -> Picture:
    return np.repeat(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)[:, :, None], 3, axis=2)


CORRUPTIONS: Mapping[str, Callable[[Picture, np.random.Generator], Picture]] = {
    "blur": _blur,
    "noise": _noise,
    "jpeg": _jpeg,
    "dark": _brightness(0.4),
    "bright": _brightness(1.8),
    "rotation": _rotation,
    "grey": _grey,
}
"""Sensor noise of 20 of 255, JPEG of quality 15, light of 0.4 and 1.8, 15 degrees either way, and no colour."""
