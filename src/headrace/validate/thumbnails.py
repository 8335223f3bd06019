"""Small pictures of golden items, to be shown in a page that needs no other file."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np

from headrace.base.errors import DecodeRejected
from headrace.runs.formats.variants import BoxShown, Outline, WorstItem
from headrace.stages.decode import decode
from headrace.validate.corruptions import Pixels
from headrace.validate.golden import Golden
from headrace.validate.items import main_array

#: Longer side, pixels.
SIDE = 112
#: The same of each of the three pictures of detections or masks.
BOXED_SIDE = 200
_GAP = 4
#: Pixels from the corner of a picture: what is further away is outside anyway.
_FAR = 10_000.0
#: BGR: of what is true, of the incumbent, of the candidate; Okabe and Ito's green, sky blue and orange.
_COLORS = ((115, 158, 0), (233, 180, 86), (0, 159, 230))
_QUALITY = 70
#: Pictures of one page, about 4 kB each, three times the size of detections about 20 kB.
MOST = 48


def thumbnails(items: Iterable[WorstItem], golden: Golden | None) -> dict[WorstItem, str]:
    """Return {item: JPEG as a `data:` address} of at most 48 items; what is no picture, or is not there any more, is left out.

    Of detections and masks the picture is three beside one another: what is true, the incumbent's, the candidate's.

    Args:
        items: Of a golden set: files of a folder, or arrays that are pictures.
        golden: The set, for items that are no files, and for detections, whose boxes are in pixels of the model's input.
    """
    inputs = None if golden is None else main_array(golden.inputs)
    pixels = None if inputs is None else Pixels.find(inputs)
    plain: dict[int, str | None] = {}
    found: dict[WorstItem, str] = {}
    for item in items:
        if len(found) >= MOST and item.item not in plain:
            continue
        own = None
        if inputs is not None and pixels is not None and item.item < len(inputs):
            own = pixels.picture(inputs[item.item])[:, :, ::-1]
        if any((item.boxes, item.boxes_a, item.boxes_b, item.outlines, item.outlines_a, item.outlines_b)):
            address = None if own is None else _address(side_by_side(own, item), None)
        else:
            if item.item not in plain:
                picture = _read_file(item.file) if item.file else None
                picture = own if picture is None else picture
                plain[item.item] = None if picture is None else _address(picture, SIDE)
            address = plain[item.item]
        if address is not None:
            found[item] = address
    return found


def _read_file(file: str) -> np.ndarray | None:
    """Return uint8 (height, width, 3), BGR; None if it cannot be read."""
    try:
        return decode(Path(file).read_bytes(), short_side=SIDE)[:, :, ::-1]
    except (OSError, DecodeRejected):
        return None


def side_by_side(picture: np.ndarray, item: WorstItem) -> np.ndarray:
    """Return three copies of a picture in a row, with the true boxes or outlines, the incumbent's and the candidate's.

    Args:
        picture: uint8 (height, width, 3), BGR, as the model takes it.
        item: With boxes or outlines.
    """
    scale = BOXED_SIDE / max(picture.shape[:2])
    large = _scale(picture, scale)
    gap = np.full((large.shape[0], _GAP, 3), 255, np.uint8)
    boxes, outlines = (item.boxes, item.boxes_a, item.boxes_b), (item.outlines, item.outlines_a, item.outlines_b)
    drawn = [
        _draw_outlines(_draw_boxes(large, own_boxes, scale, color), own_outlines, color)
        for own_boxes, own_outlines, color in zip(boxes, outlines, _COLORS, strict=True)
    ]
    return np.hstack([drawn[0], gap, drawn[1], gap, drawn[2]])


def _draw_boxes(
    picture: np.ndarray, boxes: Iterable[BoxShown], scale: float, color: tuple[int, int, int]
) -> np.ndarray:
    drawn = np.ascontiguousarray(picture).copy()
    for box in boxes:
        # A detector may find a box anywhere, and OpenCV takes no number that is larger than its integers.
        x1, y1, x2, y2 = (round(min(max(one * scale, -_FAR), _FAR)) for one in (box.x1, box.y1, box.x2, box.y2))
        corner, far = (x1, y1), (x2, y2)
        cv2.rectangle(drawn, corner, far, color, 2)
        _write(drawn, f"{box.name} {box.score:.2f}" if box.score < 1 else box.name, corner, color)
    return drawn


def _draw_outlines(picture: np.ndarray, outlines: Iterable[Outline], color: tuple[int, int, int]) -> np.ndarray:
    """Return the picture with outlines drawn into it."""
    height, width = picture.shape[:2]
    for outline in outlines:
        points = (np.array(outline.points) * (width, height)).round().astype(np.int32)
        cv2.polylines(picture, [points[:, None]], True, color, 2)
        _write(picture, outline.name, tuple(points[points[:, 1].argmin()].tolist()), color)
    return picture


def _write(picture: np.ndarray, name: str, corner: tuple[int, int], color: tuple[int, int, int]) -> None:
    """Write a name above a corner."""
    text = name.encode("ascii", "replace").decode()  # OpenCV's letters
    place = (corner[0] + 2, max(10, corner[1] - 3))
    cv2.putText(picture, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.36, color, 1, cv2.LINE_AA)


def _scale(picture: np.ndarray, scale: float) -> np.ndarray:
    """Return a picture in another size; each side keeps a pixel at least, however long the other one is."""
    height, width = (max(1, round(side * scale)) for side in picture.shape[:2])
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)


def _address(picture: np.ndarray, side: int | None) -> str:
    scale = 1.0 if side is None else side / max(picture.shape[:2])
    if scale < 1:
        picture = _scale(picture, scale)
    _, data = cv2.imencode(".jpg", np.ascontiguousarray(picture), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}"
