"""Says of each frame of a stream whether anything moved, before the frame is converted.

How this works: a frame is scaled to a small grey picture and compared with the one that was let through last, so that what
moves slowly is seen as well, once it has moved far enough. A change of the light or of the exposure, which is the same
everywhere, is no motion.
"""

from __future__ import annotations

import importlib
from fractions import Fraction
from typing import Any

import numpy as np

from headrace.sources.region import Cropper, Region

#: (width, height) of the small picture: a point stands for 13 x 13 pixels of 1280 x 720.
_POINTS = (96, 54)
#: A point has changed if its grey differs by more: noise of single pixels is averaged away, and the shade of a cloud is less.
_GREY = 12
#: After a motion frames come for so long, so that what follows learns how it ended; and without any one comes as often as this.
_AFTER_SECONDS, _STILL_SECONDS = 1, 2


class MotionGate:
    """Lets through the frames in which something moves, those of the next second, and one every two seconds.

    Args:
        share: Of the points of the picture that must have changed, above 0 to 1.
        region: The part that is looked at; None: all.
    """

    def __init__(self, share: float, region: Region | None) -> None:
        self._share = share
        self._crop = Cropper(region)
        self._reformatter = importlib.import_module("av.video.reformatter").VideoReformatter()
        self._last: np.ndarray | None = None
        self._last_seconds = self._moved_seconds = Fraction(0)

    def lets_through(self, frame: Any, seconds: Fraction) -> bool:
        """Return whether a frame is let through.

        Args:
            frame: As decoded.
            seconds: Its time; it may jump.
        """
        try:
            points = self._scale(frame)
        except Exception:  # who converts it says what is wrong with it
            return True
        moved = self._last is None or self._has_changed(points, self._last)
        if moved:
            self._moved_seconds = seconds
        is_passed = (
            moved
            or not 0 <= seconds - self._last_seconds < _STILL_SECONDS
            or 0 <= seconds - self._moved_seconds < _AFTER_SECONDS
        )
        if is_passed:
            self._last, self._last_seconds = points, seconds
        return is_passed

    def _scale(self, frame: Any) -> np.ndarray:
        small = self._reformatter.reformat(self._crop(frame), *_POINTS, "gray", interpolation="AREA", threads=1)
        points: np.ndarray = small.to_ndarray().astype(np.int16)
        return points

    def _has_changed(self, points: np.ndarray, before: np.ndarray) -> bool:
        change = points - before
        changed = np.abs(change - int(np.median(change))) > _GREY
        return bool(changed.sum() >= self._share * changed.size)
