"""What is kept of an item, as bytes of a file: a picture as the model saw it, blurred if that was asked, or text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from headrace.stages.image_header import image_format

_QUALITY = 90
#: Of the longer side, the blur's standard deviation: faces and plates of a tenth of the picture cannot be recognised.
_BLUR = 0.03
#: Pictures with more bytes than this are made smaller at once, by leaving out pixels, so that copying one takes no time.
_MOST_BYTES = 1 << 20
_LONGEST_TEXT = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSettings:
    """How pictures are kept."""

    pixels: int = 512
    """Longer side, at most."""
    blur: bool = False
    original: bool = False
    """Keep the bytes that came instead."""


def is_picture(value: Any) -> bool:
    """Return whether a value is uint8 (height, width, 3)."""
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3


def copy_value(value: Any, settings: PictureSettings) -> Any:
    """Return what is to be kept of a value until it is known whether the item is kept: quick; None for what is not kept.

    Args:
        value: An image, text, or the bytes of a file.
        settings: Of the pictures.
    """
    if isinstance(value, bytes | str):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if not is_picture(value):
        return None
    step = 1
    if value.nbytes > _MOST_BYTES:
        step = max(1, max(value.shape[:2]) // (2 * settings.pixels))
    return np.ascontiguousarray(value[::step, ::step]) if step > 1 else value.copy()


def encode(value: Any, settings: PictureSettings) -> tuple[bytes, str]:
    """Return a file's content and its suffix; empty content for what is not kept.

    Args:
        value: Of `copy_value`.
        settings: Of the pictures.
    """
    if isinstance(value, str):
        return value[:_LONGEST_TEXT].encode("utf-8", "replace"), ".txt"
    if isinstance(value, bytes):
        return value, f".{_find_format(value)}"
    if value is None or not value.size:
        return b"", ""
    image = value
    scale = settings.pixels / max(image.shape[:2])
    if scale < 1:
        size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    if settings.blur:
        image = cv2.GaussianBlur(image, (0, 0), max(image.shape[:2]) * _BLUR)
    done, data = cv2.imencode(".jpg", np.ascontiguousarray(image[:, :, ::-1]), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return (data.tobytes(), ".jpg") if done else (b"", "")


def _find_format(data: bytes) -> str:
    """Return the suffix of a picture's file; `bin` for what is none."""
    return {None: "bin", "jpeg": "jpg"}.get(found := image_format(data), found or "bin")
