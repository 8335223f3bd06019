"""Which box is which object, from frame to frame.

How this works: each track has a box and a velocity, so it is known where it should be now. Boxes are given to tracks by their
overlap with that, the best pair first. It is meant for objects that move little between frames; where they cross and hide one
another, a tracker that knows their looks does better, and goes into `per_stream` the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.errors import ItemRejected
from headrace.base.settings import check

#: Share of a newly measured velocity; the rest is what was known.
_NEWS = 0.5


@dataclass(slots=True)
class _Track:
    id: int
    box: np.ndarray
    """(4,): left, top, right, bottom."""
    velocity: np.ndarray
    """The same, in a second."""
    kind: Any
    seen: float
    hits: int = 1

    def expected(self, seconds: float) -> np.ndarray:
        return self.box + self.velocity * (seconds - self.seen)


class Tracks:
    """Gives each box of a frame the number of its object, from 1, the same in all frames of a stream.

    Values are a mapping with `boxes` (n, 4): left, top, right, bottom, and, if there are any, `classes` (n): boxes of different
    classes are different objects. The new value has `tracks` besides: a list of n numbers, None for an object that was seen in
    fewer than `min_hits` frames so far.

    Args:
        overlap: Least intersection over union of a box with where its object should be, 0 to 1.
        lost_after: Seconds without a box after which an object is gone; its number is not used again.
        min_hits: Frames, >= 1.
        key, class_key: Where boxes and classes are in the mapping.
    """

    def __init__(
        self,
        *,
        overlap: float = 0.3,
        lost_after: float = 1.0,
        min_hits: int = 2,
        key: str = "boxes",
        class_key: str = "classes",
    ) -> None:
        is_share = isinstance(overlap, int | float) and not isinstance(overlap, bool) and 0 < overlap <= 1
        check(is_share, "overlap", overlap, "a share above 0, at most 1")
        is_time = isinstance(lost_after, int | float) and not isinstance(lost_after, bool) and lost_after > 0
        check(is_time, "lost_after", lost_after, "seconds > 0")
        check(
            isinstance(min_hits, int) and not isinstance(min_hits, bool) and min_hits >= 1, "min_hits", min_hits, ">= 1"
        )
        self._overlap = overlap
        self._lost_after = lost_after
        self._min_hits = min_hits
        self._key = key
        self._class_key = class_key
        self._tracks: list[_Track] = []
        self._last_id = 0

    def __call__(self, value: Any, seconds: float) -> dict[str, Any]:
        """Return the value with the numbers of its objects."""
        boxes, kinds = self._read(value)
        self._tracks = [track for track in self._tracks if seconds - track.seen <= self._lost_after]
        owners: list[_Track | None] = [None] * len(boxes)
        for box, track in self._pair(boxes, kinds, seconds):
            owners[box] = track
            self._move(track, boxes[box], seconds)
        for index, owner in enumerate(owners):
            if owner is None:
                self._last_id += 1
                owners[index] = new = _Track(self._last_id, boxes[index], np.zeros(4), kinds[index], seconds)
                self._tracks.append(new)
        numbers = [None if owner is None or owner.hits < self._min_hits else owner.id for owner in owners]
        return {**value, "tracks": numbers}

    def _pair(self, boxes: np.ndarray, kinds: list[Any], seconds: float) -> list[tuple[int, _Track]]:
        """Return pairs of box and track, those that overlap most first."""
        if not self._tracks or not len(boxes):
            return []
        tracks = self._tracks
        overlaps = _overlaps(boxes, np.stack([track.expected(seconds) for track in tracks]))
        same = np.array([[kind == track.kind for track in tracks] for kind in kinds])
        overlaps[~same] = 0.0
        pairs: list[tuple[int, _Track]] = []
        for flat in np.argsort(-overlaps, axis=None, kind="stable"):
            box, track = divmod(int(flat), len(tracks))
            if overlaps[box, track] < self._overlap:
                break
            if all(box != other and tracks[track] is not owner for other, owner in pairs):
                pairs.append((box, tracks[track]))
        return pairs

    def _move(self, track: _Track, box: np.ndarray, seconds: float) -> None:
        passed = seconds - track.seen
        if passed > 0:
            measured = (box - track.box) / passed
            share = 1.0 if track.hits == 1 else _NEWS
            track.velocity = track.velocity + share * (measured - track.velocity)
        track.box, track.seen, track.hits = box, seconds, track.hits + 1

    def _read(self, value: Any) -> tuple[np.ndarray, list[Any]]:
        if not isinstance(value, Mapping) or self._key not in value:
            raise ItemRejected(
                f"temporal.boxes: got {type(value).__name__}; expected a mapping with {self._key!r} (n, 4)"
            )
        try:
            boxes = np.asarray(value[self._key], np.float64)
            boxes = boxes.reshape(0, 4) if not boxes.size else boxes
        except (TypeError, ValueError):
            boxes = np.full((1, 1), np.nan)
        if boxes.ndim != 2 or boxes.shape[1] != 4 or not np.isfinite(boxes).all():
            raise ItemRejected(
                f"temporal.boxes: {self._key!r} has the shape {np.shape(value[self._key])}; expected (n, 4) finite numbers: "
                "left, top, right, bottom"
            )
        found = value.get(self._class_key)
        kinds = [None] * len(boxes) if found is None else list(found)
        if len(kinds) != len(boxes):
            raise ItemRejected(f"temporal.boxes: {len(boxes)} boxes, but {len(kinds)} {self._class_key!r}")
        return boxes, kinds


def _overlaps(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of each of (n, 4) boxes with each of (m, 4): (n, m)."""
    size = np.clip(
        np.minimum(boxes[:, None, 2:], others[:, 2:]) - np.maximum(boxes[:, None, :2], others[:, :2]), 0, None
    )
    common = size.prod(axis=2)
    areas = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1)
    other_areas = np.clip(others[:, 2:] - others[:, :2], 0, None).prod(axis=1)
    union = areas[:, None] + other_areas - common
    return np.asarray(common / np.where(union > 0, union, 1.0))
