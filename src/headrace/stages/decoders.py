"""The three libraries that decode, each behind one function.

They are native code and read files of strangers. So the size that a library will write is known before it is called: from the
file's header, which `image_header` has read, and the factor of reduction. If a library sees another size, it is not called, or
its image is rejected.

* simplejpeg fills a buffer that has exactly that size, and refuses if its own reading of the header asks for more. It does not
  see that a frame cannot be reduced (lossless JPEG) and would write the whole picture: `image_header` refuses such frames.
* Pillow says its size after it has read the header; it is compared before the pixels are read.
* OpenCV makes its own room and says nothing before; the size is compared afterwards.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageFile, UnidentifiedImageError

from headrace.stages.image_header import ImageHeader
from headrace.stages.stripped_files import bare_jpeg

#: A decoder takes the bytes, their header and by what to reduce a JPEG (1, 2, 4, 8), and returns uint8 (h, w, 3) RGB, upright.
Decoder = Callable[[bytes, ImageHeader, int], np.ndarray]

#: simplejpeg counts bytes in a C int.
_MOST_BYTES = 2**31 - 1

_REDUCED = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}


def reduced_size(header: ImageHeader, factor: int) -> tuple[int, int]:
    """Return the height and width in pixels that a decoder gives, before the picture is turned upright."""
    return -(-header.height // factor), -(-header.width // factor)


class TurboJpeg:
    """simplejpeg, the strict and fast decoder of JPEG; see `Decoder`. One per worker.

    Args:
        is_fast: Whether to use the transforms that cost under one grey level.
        reuse_buffer: Whether the image may live in a buffer that the next call overwrites.
    """

    def __init__(self, *, is_fast: bool, reuse_buffer: bool) -> None:
        self._is_fast = is_fast
        self._buffer = np.empty(0, np.uint8) if reuse_buffer else None

    def __call__(self, data: bytes, header: ImageHeader, factor: int) -> np.ndarray:
        """Return the image as simplejpeg reads it.

        Raises:
            ValueError: With the text of libjpeg, if the file has any defect.
        """
        if header.components == 4:
            raise ValueError("CMYK is left to the next decoder")
        height, width = reduced_size(header, factor)
        buffer = self._scratch(height * width * 3)
        return upright(read_jpeg(data, header, factor, "RGB", buffer, is_fast=self._is_fast), header.orientation)

    def _scratch(self, num_bytes: int) -> np.ndarray | None:
        if self._buffer is None:
            return None
        if self._buffer.size < num_bytes:
            # Fresh memory costs a page fault per 4 KiB, a third of the decode: keep the largest buffer seen.
            self._buffer = np.empty(num_bytes, np.uint8)
        return self._buffer


def read_jpeg(
    data: bytes,
    header: ImageHeader,
    factor: int,
    colorspace: str,
    buffer: np.ndarray | None = None,
    *,
    is_fast: bool = False,
) -> np.ndarray:
    """Return a JPEG as simplejpeg reads it, not turned.

    Args:
        data: The file.
        header: Its header.
        factor: Reduction: 1, 2, 4 or 8.
        colorspace: `RGB`, `GRAY` or `CMYK`.
        buffer: uint8, one axis, to write to; None: a new one.
        is_fast: Whether to use the transforms that cost under one grey level.

    Returns:
        uint8 (height, width, channels).

    Raises:
        ValueError: With the text of libjpeg, or if its size differs from the header's.
    """
    try:
        return _read_jpeg(data, header, factor, colorspace, buffer, is_fast=is_fast)
    except ValueError as error:
        if not any(warning in str(error) for warning in _HARMLESS):
            raise
    return _read_jpeg(bare_jpeg(data), header, factor, colorspace, buffer, is_fast=is_fast)


#: Warnings of libjpeg about harmless things in the header; it reports only the first warning of a file.
_HARMLESS = ("extraneous bytes", "bad ICC marker", "unknown JFIF revision")


def _read_jpeg(
    data: bytes, header: ImageHeader, factor: int, colorspace: str, buffer: np.ndarray | None, *, is_fast: bool
) -> np.ndarray:
    size = reduced_size(header, factor)
    shape = (*size, _CHANNELS[colorspace])
    num_bytes = shape[0] * shape[1] * shape[2]
    if num_bytes > _MOST_BYTES:
        raise ValueError(f"{num_bytes:,} bytes are more than simplejpeg can count")
    room = np.empty(num_bytes, np.uint8) if buffer is None else buffer[:num_bytes]
    # Without a least size nothing is scaled; with one, seven eighths of a picture of 7 x 7 would do.
    least = size if factor > 1 else (0, 0)
    image: np.ndarray = simplejpeg.decode_jpeg(
        data,
        colorspace,
        fastdct=is_fast,
        fastupsample=is_fast,
        min_height=least[0],
        min_width=least[1],
        min_factor=1.0,  # never enlarge
        buffer=room,
    )
    check_size(header, factor, *image.shape[:2])
    return image


_CHANNELS = {"GRAY": 1, "RGB": 3, "CMYK": 4}


def decode_opencv(data: bytes, header: ImageHeader, factor: int) -> np.ndarray:
    """Return the image as OpenCV reads it; see `Decoder`."""
    image = cv2.imdecode(np.frombuffer(data, np.uint8), _REDUCED[factor] | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise ValueError("not decodable")
    check_size(header, factor, *image.shape[:2])
    return upright(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), header.orientation)


def decode_pillow(data: bytes, header: ImageHeader, factor: int, *, background: str | None = None) -> np.ndarray:
    """Return the image as Pillow reads it, on a background where one is named; see `Decoder`."""
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        # A process-wide switch: with it Pillow would fill in missing data.
        raise ValueError("not asked, because ImageFile.LOAD_TRUNCATED_IMAGES is set")
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=[header.format.upper()])
    except UnidentifiedImageError:  # names nothing but the place of our buffer in memory
        raise ValueError("not decodable") from None
    if factor > 1:
        # Rounded down: it takes the largest factor that covers what it is asked for.
        image.draft("RGB", (max(1, header.width // factor), max(1, header.height // factor)))
    check_size(header, factor, image.height, image.width)
    image.load()
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # convert() would clip, not scale
    if background is not None and image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, background), image.convert("RGBA"))
    return upright(np.asarray(image.convert("RGB")), header.orientation)


def check_size(header: ImageHeader, factor: int, height: int, width: int) -> None:
    """Raise ValueError if a library sees another size than the header says."""
    expected = reduced_size(header, factor)
    is_turned = header.format == "tiff" and (width, height) == expected  # by the libraries themselves
    if (height, width) != expected and not is_turned:
        raise ValueError(f"it sees {height} x {width} (height x width) where the header says {expected}")


def upright(image: np.ndarray, exif_orientation: int) -> np.ndarray:
    """Return the image turned as its EXIF orientation asks.

    Args:
        image: (height, width, channels).
        exif_orientation: 1 to 8; others are ignored.

    References:
        Exif 2.32, tag 274: values 5 to 8 are transposed.
    """
    if exif_orientation in (5, 6, 7, 8):
        image = image.transpose(1, 0, 2)
    flip = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}.get(exif_orientation)
    return image if flip is None and image.flags.c_contiguous else _flip(np.ascontiguousarray(image), flip)


def _flip(image: np.ndarray, flip: int | None) -> np.ndarray:
    return image if flip is None else cv2.flip(image, flip)
