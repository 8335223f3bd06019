"""Small pictures of golden items, to be shown in a page that needs no other file."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np

from headrace.runs.formats.variants import WorstItem
from headrace.validate.corruptions import Pixels
from headrace.validate.golden import Golden

#: Longer side, pixels.
SIDE = 112
_QUALITY = 70
#: Pictures of one page, about 4 kB each.
MOST = 48


def thumbnails(items: Iterable[WorstItem], golden: Golden | None) -> dict[int, str]:
    """Return {item: JPEG as a `data:` address} of at most 48 items; what is no picture, or is not there any more, is left out.

    Args:
        items: Of a golden set: files of a folder, or arrays that are pictures.
        golden: The set, for items that are no files.
    """
    pixels = None if golden is None else Pixels.of(golden.inputs)
    found: dict[int, str] = {}
    for item in items:
        if len(found) >= MOST:
            break
        if item.item in found:
            continue
        picture = _of_file(item.file) if item.file else None
        if picture is None and golden is not None and pixels is not None and item.item < len(golden):
            picture = pixels.picture(golden.inputs[item.item])[:, :, ::-1]
        if picture is not None:
            found[item.item] = _address(picture)
    return found


def _of_file(file: str) -> np.ndarray | None:
    """Return uint8 (height, width, 3), BGR; None if it cannot be read."""
    try:
        data = np.frombuffer(Path(file).read_bytes(), np.uint8)
        return np.asarray(found) if (found := cv2.imdecode(data, cv2.IMREAD_REDUCED_COLOR_2)) is not None else None
    except (OSError, cv2.error):
        return None


def _address(picture: np.ndarray) -> str:
    scale = SIDE / max(picture.shape[:2])
    if scale < 1:
        picture = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode(".jpg", np.ascontiguousarray(picture), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}"
