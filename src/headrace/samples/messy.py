"""What goes wrong with real images, one function a fault, each named in the manifest.

Two families. Faults of the picture change pixels: `blur`, `low_light`, `rotation`, `grey`. Faults of the file change how it
must be read: `orientation` (pixels lie on their side, a tag says so), `cmyk` (four channels), `truncated` (the upload broke
off) and `not_an_image` (an error page under an image's name). Only the last two cannot be decoded; a pipeline ought to
reject these and classify the rest.
"""

from __future__ import annotations

import random
from typing import Literal, get_args

from PIL import Image, ImageEnhance, ImageFilter

MessyKind = Literal["blur", "low_light", "rotation", "orientation", "grey", "cmyk", "truncated", "not_an_image"]

MESSY_KINDS: tuple[MessyKind, ...] = get_args(MessyKind)
UNDECODABLE: frozenset[MessyKind] = frozenset({"truncated", "not_an_image"})
JPEG_ONLY: frozenset[MessyKind] = frozenset({"orientation", "grey", "cmyk", "truncated", "not_an_image"})
"""Faults that need a JPEG: WebP has neither grey nor CMYK, and many readers ignore the tag outside JPEG."""

ORIENTATION_TAG = 0x0112
_STORED_TURNED = {
    3: Image.Transpose.ROTATE_180,
    6: Image.Transpose.ROTATE_90,  # counter-clockwise; the tag asks the reader to turn it back clockwise
    8: Image.Transpose.ROTATE_270,
}

_ERROR_PAGE = """<!DOCTYPE html>
<html><head><title>503 Service Unavailable</title></head>
<body><h1>Service Unavailable</h1>
<p>The server cannot answer this request for now. Request {request:08x}.</p></body></html>
"""


def spoil_picture(image: Image.Image, kind: MessyKind, rng: random.Random) -> Image.Image:
    """Return the image with the fault's change of pixels; unchanged for faults of the file alone.

    Args:
        image: RGB.
        kind: The fault.
        rng: Decides how strong it is.

    Returns:
        RGB, or L for `grey`, or CMYK for `cmyk`, of the same size.
    """
    if kind == "blur":
        return image.filter(ImageFilter.GaussianBlur(max(image.size) * rng.uniform(0.003, 0.009)))
    if kind == "low_light":
        return ImageEnhance.Brightness(image).enhance(rng.uniform(0.15, 0.4))
    if kind == "rotation":
        degrees = rng.choice((-1, 1)) * rng.uniform(5.0, 30.0)
        return image.rotate(degrees, resample=Image.Resampling.BILINEAR)
    if kind == "grey":
        return image.convert("L")
    return image.convert("CMYK") if kind == "cmyk" else image


def turn(image: Image.Image, rng: random.Random) -> tuple[Image.Image, bytes]:
    """Return the image as a camera held on its side stores it, and the EXIF block whose tag says how to turn it."""
    orientation = rng.choice(tuple(_STORED_TURNED))
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    return image.transpose(_STORED_TURNED[orientation]), exif.tobytes()


def truncate(data: bytes, rng: random.Random) -> bytes:
    """Return the first 30 to 80 % of a file."""
    return data[: int(len(data) * rng.uniform(0.3, 0.8))]


def error_page(rng: random.Random) -> bytes:
    """Return what a server sends instead of the image, as UTF-8 HTML."""
    return _ERROR_PAGE.format(request=rng.getrandbits(32)).encode()
