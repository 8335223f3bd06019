"""Bytes -> image, at the smallest scale that still covers what the module needs.

libjpeg-turbo decodes at 1/2, 1/4 or 1/8 of the size for a fraction of the cost (about half at 2 Mpx, a quarter at 12 Mpx),
because it leaves out the high frequencies that the resize would throw away. The eighths between are not used: they have no
SIMD code, and cost more than the next larger power of two (5/8 to 7/8: more than a full decode).

Which decoder served is counted; the odd file that the strict and fast decoder refuses goes to a tolerant one, and only what
none of them reads is rejected.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from headrace.base.errors import DecodeRejected
from headrace.base.plan import DecodePlan
from headrace.base.settings import refuse_options
from headrace.stages.images import fit
from headrace.stages.inputs import ImageInput, TextInput
from headrace.stages.stage import Stage, StageContext

#: A decoder takes the bytes and the short side that must be covered (0: every pixel) and returns uint8 (h, w, 3) RGB.
Decoder = Callable[[bytes, int], np.ndarray]

_JPEG_MAGIC = b"\xff\xd8\xff"
_EXIF_MAGIC = b"Exif\x00\x00"
_START_OF_SCAN = b"\xda"
_ORIENTATION_TAG = 274


def decode(data: bytes, *, short_side: int | None = None, plan: DecodePlan | None = None) -> np.ndarray:
    """Return the image in a file's bytes.

    Args:
        data: JPEG, PNG, WebP or another format that OpenCV or Pillow reads.
        short_side: Pixels that the shorter side must have at least, if the file has them; None: every pixel.
        plan: The Plan's `[decode]` table.

    Returns:
        uint8 (height, width, 3), RGB, 0-255, upright.

    Raises:
        DecodeRejected: If no decoder reads it.
    """
    return DecodeChain(plan or DecodePlan(), short_side, {}).decode(data)


class DecodeChain:
    """Tries decoders in turn; one per worker, because it reuses its buffer.

    Args:
        plan: Which decoders, and whether at scale.
        short_side: Pixels to cover; None: every pixel.
        counts: Where to count which decoder served.
        reuse_buffer: Whether the image may live in a buffer that the next call overwrites.
    """

    def __init__(
        self, plan: DecodePlan, short_side: int | None, counts: dict[str, int], *, reuse_buffer: bool = False
    ) -> None:
        self._cover = short_side or 0 if plan.scale == "auto" else 0
        self._counts = counts
        self._buffer: np.ndarray | None = np.empty(0, np.uint8) if reuse_buffer else None
        every: dict[str, Decoder] = {
            "simplejpeg": self._simplejpeg,
            "opencv": decode_opencv,
            "pillow": decode_pillow,
        }
        # A decoder that the Plan names comes first; the others remain as the tolerant fallback.
        first = [plan.decoder] if plan.decoder != "auto" else []
        self._decoders = {name: every[name] for name in [*first, *every]}

    def decode(self, data: bytes) -> np.ndarray:
        """Return the image; see `decode`."""
        if not data:
            raise DecodeRejected("there are no bytes to decode; check what the sender stored")
        refusals = []
        for name, decoder in self._decoders.items():
            if name == "simplejpeg" and not data.startswith(_JPEG_MAGIC):
                continue
            try:
                image = decoder(data, self._cover)
            except Exception as error:  # every decoder has its own ways to refuse
                refusals.append(f"{name}: {str(error).strip() or type(error).__name__}")
                continue
            self._counts[f"decode.decoder.{name}"] = self._counts.get(f"decode.decoder.{name}", 0) + 1
            return image
        start = data[:8].hex(" ")
        raise DecodeRejected(
            f"{len(data)} bytes starting with {start} are not an image that can be decoded "
            f"({'; '.join(refusals)}); check what the sender stored"
        )

    def _simplejpeg(self, data: bytes, cover: int) -> np.ndarray:
        height, width, colorspace = simplejpeg.decode_jpeg_header(data)[:3]
        if colorspace in ("CMYK", "YCCK"):
            raise ValueError(f"{colorspace} is left to the next decoder")
        factor = reduction(height, width, cover)
        height, width = -(-height // factor), -(-width // factor)
        # The fast transforms cost under one grey level and are used where pixels are being thrown away anyway, not for a
        # full decode. min_factor 1: never enlarge.
        image: np.ndarray = simplejpeg.decode_jpeg(
            data,
            "RGB",
            fastdct=cover > 0,
            fastupsample=cover > 0,
            min_height=height,
            min_width=width,
            min_factor=1.0,
            buffer=self._scratch(height * width * 3),
        )
        return upright(image, orientation(data))

    def _scratch(self, num_bytes: int) -> np.ndarray | None:
        if self._buffer is None:
            return None
        if self._buffer.size < num_bytes:
            # Fresh memory costs a page fault per 4 KiB, a third of the decode: keep the largest buffer seen.
            self._buffer = np.empty(num_bytes, np.uint8)
        return self._buffer


def reduction(height: int, width: int, cover: int) -> int:
    """Return the largest of 8, 4, 2 and 1 by which a JPEG can be reduced so that its shorter side still covers.

    Args:
        height: Pixels.
        width: Pixels.
        cover: Pixels that the shorter side must have; 0: all of them.
    """
    if cover == 0:
        return 1
    return next((factor for factor in (8, 4, 2) if min(height, width) >= factor * cover), 1)


_REDUCED = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}


def decode_opencv(data: bytes, cover: int) -> np.ndarray:
    """Return the image as OpenCV reads it (it turns by EXIF itself); JPEG at 1/2, 1/4 or 1/8 where that covers."""
    factor = 1
    if cover and data.startswith(_JPEG_MAGIC):
        height, width = simplejpeg.decode_jpeg_header(data)[:2]
        factor = reduction(height, width, cover)
    image = cv2.imdecode(np.frombuffer(data, np.uint8), _REDUCED[factor])
    if image is None:
        raise ValueError("not decodable")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def decode_pillow(data: bytes, cover: int) -> np.ndarray:
    """Return the image as Pillow reads it; JPEG by `draft` at the scale that covers."""
    try:
        image: Image.Image = Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        raise ValueError("not an image") from None  # Pillow's own message names a memory address
    if cover:
        image.draft("RGB", (cover, cover))
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # convert() would clip, not scale
    return np.asarray(image.convert("RGB"))


def orientation(data: bytes) -> int:
    """Return the EXIF orientation of a JPEG, 1 to 8; 1 when it carries none."""
    # Most crops carry no EXIF: a look at the headers saves Pillow's 60 microseconds.
    if not _has_exif(data):
        return 1
    try:
        return int(Image.open(io.BytesIO(data)).getexif().get(_ORIENTATION_TAG, 1))
    except (OSError, ValueError, SyntaxError):
        return 1


def _has_exif(data: bytes) -> bool:
    # From header to header; EXIF may stand behind a colour profile of any size.
    position = len(_JPEG_MAGIC) - 1
    while data[position : position + 1] == b"\xff" and data[position + 1 : position + 2] != _START_OF_SCAN:
        if data.startswith(_EXIF_MAGIC, position + 4):
            return True
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return False


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
    return image if flip is None and image.flags.c_contiguous else _flipped(np.ascontiguousarray(image), flip)


def _flipped(image: np.ndarray, flip: int | None) -> np.ndarray:
    return image if flip is None else cv2.flip(image, flip)


class DecodeStage(Stage):
    """Bytes -> image; an array passes as it is."""

    kind = "cpu"
    releases_gil = True
    work = "decode"

    def __init__(self, name: str, wanted: ImageInput, *, task: str = "") -> None:
        super().__init__(name, task=task)
        self.wanted = wanted

    def open(self, context: StageContext) -> Callable[[bytes | np.ndarray], np.ndarray]:
        """Return a decoder; it reuses its buffer when the same worker resizes next."""
        refuse_options(context.options, self.name)
        chain = DecodeChain(
            context.plan.decode,
            self.wanted.short_side,
            context.counts,
            reuse_buffer=isinstance(context.next_stage, ResizeStage),
        )

        def decode_one(data: bytes | np.ndarray) -> np.ndarray:
            if isinstance(data, np.ndarray):
                return data
            if not isinstance(data, bytes):
                raise DecodeRejected(f"expected the bytes of an image, got {type(data).__name__}")
            return chain.decode(data)

        return decode_one


class ResizeStage(Stage):
    """Image -> image of the module's size."""

    kind = "cpu"
    releases_gil = True
    executor = "inline"
    work = "resize"

    def __init__(self, name: str, wanted: ImageInput, *, task: str = "") -> None:
        super().__init__(name, task=task)
        self.wanted = wanted

    def open(self, context: StageContext) -> Callable[[np.ndarray], np.ndarray]:
        """Return the resize; its result never shares memory with its argument."""
        refuse_options(context.options, self.name)
        wanted = self.wanted
        return lambda image: fit(image, wanted)


class TextStage(Stage):
    """Bytes -> text."""

    kind = "cpu"
    work = "decode"

    def __init__(self, name: str, wanted: TextInput, *, task: str = "") -> None:
        super().__init__(name, task=task)
        self.wanted = wanted

    def open(self, context: StageContext) -> Callable[[bytes | str], str]:
        """Return the text decoder."""
        refuse_options(context.options, self.name)

        def decode_text(data: bytes | str) -> str:
            try:
                return data if isinstance(data, str) else data.decode(self.wanted.encoding)
            except UnicodeDecodeError as error:
                raise DecodeRejected(f"the bytes are not {self.wanted.encoding} text: {error}") from None

        return decode_text
