"""Resize, crop and normalise: plain functions on arrays, for stages and for users' own `preprocess`."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import cv2
import numpy as np

from headrace.base.errors import DecodeRejected
from headrace.stages.inputs import ImageInput, Interpolation

#: Mean and standard deviation of ImageNet's pixels, RGB, on the scale 0-1, as torchvision's models expect.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

#: Most pixels that a whole image is enlarged to: 75 MB. A file of 300 bytes can ask for any number.
MOST_PIXELS = 25_000_000

#: The limit if only the centre is needed; no real picture is narrow enough to exceed it.
MOST_PIXELS_UNCROPPED = 100_000_000

#: Source pixels beside the crop that interpolation reads, and one for rounding.
_MARGIN = 5

_INTERPOLATION = {"linear": cv2.INTER_LINEAR, "area": cv2.INTER_AREA, "cubic": cv2.INTER_CUBIC}


class Slot(threading.local):
    """The place in the batch's buffer that the runtime has reserved for what this thread computes next.

    A stage that writes its result there saves the copy that stacking would cost.
    """

    array: np.ndarray | None = None

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return the reserved place if it fits, else a new array."""
        array, self.array = self.array, None
        if array is not None and array.shape == shape and array.dtype == dtype:
            return array
        return np.empty(shape, dtype)


slot = Slot()


def fit(image: np.ndarray, wanted: ImageInput) -> np.ndarray:
    """Return the image resized and cropped or padded to what the module needs; never a view of a larger image.

    Args:
        image: uint8 (height, width, 3).
        wanted: The module's input.
    """
    if wanted.long_side is not None:
        return _fit_image(image, wanted, wanted.long_side)
    height, width = image.shape[:2]
    resized = image
    if wanted.short_side is not None and min(height, width) != wanted.short_side:
        resized = _scale_image(image, wanted.short_side, wanted.crop, wanted.interpolation)
    if wanted.crop is not None:
        resized = centre_crop(resized, wanted.crop)
    # A view would keep the decoder's reused buffer, or a far larger image, alive.
    return resized.copy() if resized.base is not None or resized is image else resized


def _fit_image(image: np.ndarray, wanted: ImageInput, long_side: int) -> np.ndarray:
    """Return the whole image scaled by its longer side, in the middle of a square if a border is asked for."""
    height, width = fitted_size(image.shape[0], image.shape[1], long_side)
    fitted = cv2.resize(image, (width, height), interpolation=_INTERPOLATION[wanted.interpolation])
    if wanted.pad is None:
        return np.array(fitted)  # of the same size, OpenCV may return what it was given
    square = np.empty((long_side, long_side, image.shape[2]), image.dtype)
    square[:] = list(bytes.fromhex(wanted.pad[1:]))
    top, left = (long_side - height) // 2, (long_side - width) // 2
    square[top : top + height, left : left + width] = fitted
    return square


def fitted_size(height: int, width: int, long_side: int) -> tuple[int, int]:
    """Return (height, width) scaled so that the longer side is long_side; at least one pixel."""
    scale = long_side / max(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def _scale_image(image: np.ndarray, short_side: int, crop: int | None, interpolation: Interpolation) -> np.ndarray:
    """Return the image scaled by its shorter side; only the part that the crop needs if the whole would be too large.

    Raises:
        DecodeRejected: If the whole is too large and needed: a line of one pixel would fill the memory.
    """
    height, width = image.shape[:2]
    size = scaled_size(height, width, short_side)
    pixels = size[0] * size[1]
    if pixels > max(MOST_PIXELS, height * width):
        most = MOST_PIXELS if crop is None else MOST_PIXELS_UNCROPPED
        if crop is None or pixels > most:
            raise DecodeRejected(
                f"decode.bomb: the image is too narrow: {width} x {height} pixels would become {size[1]} x {size[0]}, and "
                f"at most {most:,} are enlarged to; check what the sender stored"
            )
        shorter = min(height, width)
        # The same from both ends of the longer side: the centre stays where it is.
        kept = max(shorter, crop * shorter // short_side + 2 * _MARGIN)
        top, left = max(0, (height - kept) // 2), max(0, (width - kept) // 2)
        image = image[top : height - top, left : width - left]
        size = scaled_size(image.shape[0], image.shape[1], short_side)
    return np.asarray(cv2.resize(image, (size[1], size[0]), interpolation=_INTERPOLATION[interpolation]))


def scaled_size(height: int, width: int, short_side: int) -> tuple[int, int]:
    """Return (height, width) scaled so that the shorter side is short_side."""
    scale = short_side / min(height, width)
    return max(short_side, round(height * scale)), max(short_side, round(width * scale))


def centre_crop(image: np.ndarray, side: int) -> np.ndarray:
    """Return the central square as a view; an image smaller than that is enlarged first.

    Args:
        image: (height, width, channels).
        side: Pixels, >= 1.
    """
    if min(image.shape[:2]) < side:
        image = _scale_image(image, side, side, "linear")
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    return image[top : top + side, left : left + side]


def normalize(
    image: np.ndarray,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Return (image / 255 - mean) / std, channels first, written straight into the batch's buffer where there is one.

    Args:
        image: uint8 (height, width, channels), 0-255.
        mean: One per channel, on the scale 0-1.
        std: One per channel, on the scale 0-1, > 0.
        out: float32 (channels, height, width) to write to; None: the batch's buffer or a new array.

    Returns:
        float32 (channels, height, width).
    """
    height, width, channels = image.shape
    target = slot.take((channels, height, width), _FLOAT32) if out is None else out
    for channel in range(channels):
        scale = 1.0 / (255.0 * std[channel])
        plane = target[channel]
        np.multiply(image[:, :, channel], np.float32(scale), out=plane, casting="unsafe")
        plane -= np.float32(mean[channel] / std[channel])
    return target


_FLOAT32 = np.dtype(np.float32)
