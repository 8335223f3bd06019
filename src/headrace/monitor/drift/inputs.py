"""What the input says: of a file its head alone, of text and arrays their length and numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headrace.base.errors import DecodeRejected
from headrace.stages.image_header import image_format, read_header

#: Sizes first, in the order of `slower.SIZES`.
FILE_STATISTICS = ("pixels", "bytes", "bytes_per_pixel", "aspect")
#: A JPEG's EXIF stands at its beginning, behind 20 bytes at most of another mark in nearly all files.
_EXIF, _EXIF_WITHIN = b"Exif\x00\x00", 512
#: Numbers of an array that are looked at.
_MOST_NUMBERS = 4096


def measure_file(data: bytes) -> tuple[tuple[float, ...], list[str]] | None:
    """Return the values of `FILE_STATISTICS` and what is to be counted; None if it is no image that can be read."""
    format_ = image_format(data)
    if format_ is None:
        return None
    try:
        header = read_header(data, format_)
    except DecodeRejected:
        return None
    pixels, size = math.log10(header.width * header.height), math.log10(len(data))
    counts = ["files"]
    if format_ != "jpeg":
        counts.append("not_jpeg")
    if header.components == 1:
        counts.append("grey")
    if header.orientation != 1:
        counts.append("turned")
    if data.find(_EXIF, 0, _EXIF_WITHIN) >= 0:
        counts.append("exif")
    upright = header.orientation < 5
    wide, high = (header.width, header.height) if upright else (header.height, header.width)
    return (pixels, size, size - pixels, math.log10(wide / high)), counts


def measure_value(value: Any) -> dict[str, float]:
    """Return statistics of what is no image: text, bytes, an array of numbers; empty for anything else."""
    if isinstance(value, str | bytes):
        return {"length": math.log10(len(value) + 1)}
    if not isinstance(value, np.ndarray) or value.size == 0 or not np.issubdtype(value.dtype, np.number):
        return {}
    numbers = value.ravel()
    numbers = numbers[:: max(1, len(numbers) // _MOST_NUMBERS)].astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    found = {"length": math.log10(value.size), "nan_share": 1 - len(finite) / len(numbers)}
    if len(finite):
        found |= {"mean": float(finite.mean()), "spread": float(finite.std())}
    return found
