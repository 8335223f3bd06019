"""Boxes and masks of a golden folder: read from `labels.jsonl`, and moved with their image into the model's input.

    {"file": "a.jpg", "boxes": [[x1, y1, x2, y2], ...], "classes": [0, ...]}     an image without anything: two empty lists
    {"file": "a.jpg", "mask": "a.png"}                                           or an .npy file; 255: nobody knows

Both are in pixels of the image as it is seen, upright by its EXIF orientation.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import cv2
import numpy as np
from PIL import Image

from headrace.base.errors import SettingsError
from headrace.base.plan import DecodePlan
from headrace.stages.placement import Placement
from headrace.validate.detections import box_problem
from headrace.validate.golden_files import MOST_CLASSES, file_in, read_array, read_file

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Annotations:
    """What is true of one image, in its own pixels."""

    boxes: Array | None = None
    """(n, 4) float64: x1, y1, x2, y2."""
    classes: Array | None = None
    """(n,) int64."""
    mask: Path | None = None


def read_marks(said: Mapping[str, Any], names: Sequence[str] | None, where: str, folder: Path) -> Annotations | None:
    """Return what a line of `labels.jsonl` marks; None if it marks nothing.

    Args:
        said: The line.
        names: Of the classes in the order of the model's numbers; None: classes must be numbers.
        where: The line, for messages.
        folder: That masks are in.

    Raises:
        SettingsError: If a box is none, or a class is not known.
    """
    mask = None if said.get("mask") is None else file_in(folder, said["mask"], where)
    if said.get("boxes") is None:
        return None if mask is None else Annotations(mask=mask)
    rows, classes = said["boxes"], said.get("classes")
    if not isinstance(rows, list) or not isinstance(classes, list) or len(rows) != len(classes):
        raise SettingsError(f'{where}: expected "boxes" and "classes", two lists of one length')
    if any(not _is_row(row) for row in rows):
        bad = next(row for row in rows if not _is_row(row))
        raise SettingsError(f"{where}: {bad!r} is no box; expected four numbers x1, y1, x2, y2")
    boxes = np.array(rows, float).reshape(-1, 4)
    problem = box_problem(boxes)
    if problem:
        raise SettingsError(f"{where}: {problem}")
    return Annotations(boxes, np.array([_class(one, names, where) for one in classes], np.int64), mask)


def place_boxes(marks: Annotations, place: Placement) -> tuple[Array, Array]:
    """Return (n, 4) boxes in pixels of the model's input, cut at its edges, and (n,) classes; what is cut off is gone."""
    assert marks.boxes is not None
    assert marks.classes is not None
    moved = place.to_input(marks.boxes)
    height, width = place.size
    cut = moved.clip(0, [width, height, width, height])
    left = (cut[:, 2] > cut[:, 0]) & (cut[:, 3] > cut[:, 1])
    return cut[left], marks.classes[left]


def pad_boxes(items: Sequence[tuple[Array, Array]]) -> dict[str, Array]:
    """Return {`boxes`: (items, most, 4) float32, `classes`: (items, most) int64, -1 where a row only fills up}."""
    most = max((len(classes) for _, classes in items), default=0)
    boxes, classes = np.zeros((len(items), most, 4), np.float32), np.full((len(items), most), -1, np.int64)
    for number, (rows, own) in enumerate(items):
        boxes[number, : len(own)], classes[number, : len(own)] = rows, own
    return {"boxes": boxes, "classes": classes}


def place_mask(file: Path, place: Placement) -> Array:
    """Return (height, width) uint8 classes of the pixels of the model's input, 255 in a border and where nobody knows.

    Raises:
        SettingsError: If there is no such mask, or it is of another size than its image.
    """
    mask = _read_mask(file)
    if mask.shape != place.image:
        raise SettingsError(
            f"{file} has {mask.shape[1]} x {mask.shape[0]} pixels, and its image {place.image[1]} x {place.image[0]} upright; "
            "a mask has the size of its image"
        )
    height, width = map(round, place.scaled)
    first_row, first_column = round(place.top), round(place.left)
    scaled = cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)
    top, left = max(0, -first_row), max(0, -first_column)
    seen = scaled[max(0, first_row) :, max(0, first_column) :][: place.size[0] - top, : place.size[1] - left]
    placed = np.full(place.size, 255, np.uint8)
    placed[top : top + seen.shape[0], left : left + seen.shape[1]] = seen
    return placed


def _read_picture(data: IO[bytes]) -> Array:
    """Return the numbers of a PNG, (height, width), of a palette's colours too; they are the classes."""
    try:
        with Image.open(data, formats=["PNG"]) as image:
            if image.width * image.height > DecodePlan().max_pixels:
                raise ValueError(f"it has {image.width} x {image.height} pixels")
            return np.asarray(image)
    except Exception as error:  # Pillow raises whatever a damaged chunk leads it to
        raise ValueError(f"{error!s:.200}") from None


def _read_mask(file: Path) -> Array:
    try:
        data = io.BytesIO(read_file(file))
        mask = read_array(data) if file.suffix == ".npy" else _read_picture(data)
    except ValueError as error:
        raise SettingsError(
            f"mask {file} cannot be read ({error}); expected a PNG of one channel, or .npy, in the folder"
        ) from None
    low, high = (mask.min(), mask.max()) if mask.size else (0, 0)
    if mask.ndim != 2 or mask.dtype.kind not in "iub" or low < 0 or high > 255:
        raise SettingsError(
            f"mask {file} is {mask.dtype}{list(mask.shape)} of {low} to {high}; expected "
            "(height, width) whole numbers, the classes 0 to 254, and 255 where nothing is known"
        )
    classes: Array = mask.astype(np.uint8)
    return classes


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 4 and all(type(one) in (int, float) for one in row)


def _class(said: Any, names: Sequence[str] | None, where: str) -> int:
    if type(said) is int and 0 <= said < MOST_CLASSES:
        return said
    if isinstance(said, str) and names is not None and said in names:
        return list(names).index(said)
    known = f"or one of {', '.join(names[:12])}" if names else "for the model does not say what its classes are called"
    raise SettingsError(f"{where}: class {said!r} is none; expected the model's number of it, 0 or more, {known}")
