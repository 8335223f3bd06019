"""Bytes -> image, at the smallest scale that still covers what the module needs.

libjpeg-turbo decodes at 1/2, 1/4 or 1/8 of the size for a fraction of the cost (about half at 2 Mpx, a quarter at 12 Mpx),
because it leaves out the high frequencies that the resize would throw away. The eighths between are not used: they have no
SIMD code, and cost more than the next larger power of two (5/8 to 7/8: more than a full decode).

`decode_limits` checks the header first and decides whether a file may be decoded. The run counts which decoder was used, and
each rejection by its code. A file that the strict, fast decoder refuses goes to a tolerant one, unless data is missing:
tolerant decoders would fill it with grey. This check runs whichever decoder comes first, so a Plan never changes which files
are accepted. It does not change pixels either, except by the fast transforms of JPEG: a file that one decoder misreads goes to
the other.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import functools
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import cv2
import numpy as np

from headrace.base.errors import DecodeRejected
from headrace.base.plan import DecodePlan, Plan
from headrace.base.settings import refuse_options
from headrace.stages.decode_limits import check_limits, factor_of
from headrace.stages.decoders import Decoder, TurboJpeg, decode_opencv, decode_pillow, read_jpeg
from headrace.stages.image_header import ImageHeader
from headrace.stages.images import fit
from headrace.stages.inputs import ImageInput, TextInput
from headrace.stages.placement import note_decoded, note_resized
from headrace.stages.stage import Stage, StageContext
from headrace.stages.stripped_files import make_still_png

if "OPENCV_LOG_LEVEL" not in os.environ:
    # OpenCV would write a line to stderr for each damaged file; the item's reason has it already.
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


#: What Pillow reads rightly and OpenCV does not always: transparent pixels and small frames of GIF, colour masks and palettes
#: of BMP, 16 bits and alpha of TIFF. So it comes first whatever the Plan says, and pixels do not depend on the Plan.
_FOR_PILLOW = frozenset({"gif", "bmp", "tiff"})


def decode(
    data: bytes, *, short_side: int | None = None, plan: DecodePlan | None = None, background: str | None = None
) -> np.ndarray:
    """Return the image in a file's bytes.

    Args:
        data: A file in one of the Plan's formats; by default JPEG, PNG, WebP, GIF or BMP.
        short_side: Pixels that the shorter side must have at least, if the file has them; None: every pixel.
        plan: The Plan's `[decode]` table.
        background: Colour behind transparent pixels, such as `"#ffffff"`; None: alpha is dropped.

    Returns:
        uint8 (height, width, 3), RGB, 0-255, upright.

    Raises:
        DecodeRejected: If it exceeds a limit of the Plan or cannot be read completely; the reason begins with a code such as
            `decode.bomb`.
    """
    return DecodeChain(plan or DecodePlan(), short_side, {}, background=background).decode(data)


class DecodeChain:
    """Tries decoders in turn; one per worker, because it reuses its buffer.

    Args:
        plan: Which decoders, and whether at scale.
        short_side: Pixels to cover; None: every pixel.
        counts: Counts the calls of each decoder.
        reuse_buffer: Whether the image may live in a buffer that the next call overwrites.
        background: Colour behind transparent pixels, such as `"#ffffff"`; None: alpha is dropped.
        long_side: Pixels that the longer side must have at least, if the file has them, in place of `short_side`.

    Attributes:
        file_size: (height, width) of the last file, upright, before anything was scaled.
    """

    def __init__(
        self,
        plan: DecodePlan,
        short_side: int | None,
        counts: dict[str, int],
        *,
        reuse_buffer: bool = False,
        background: str | None = None,
        long_side: int | None = None,
    ) -> None:
        self.file_size = (0, 0)
        self._cover_long = long_side or 0 if plan.reduces else 0
        self._plan = plan
        self._cover = short_side or 0 if plan.reduces else 0
        self._counts = counts
        self._is_blended = background is not None
        every: dict[str, Decoder] = {
            # Fast where pixels are being thrown away anyway, not for a full decode.
            "simplejpeg": TurboJpeg(is_fast=self._cover + self._cover_long > 0, reuse_buffer=reuse_buffer),
            "opencv": decode_opencv,
            "pillow": functools.partial(decode_pillow, background=background),
        }
        if plan.decoder == "nvjpeg":
            from headrace.stages.decode_nvjpeg import NvJpeg

            every["nvjpeg"] = NvJpeg()
        # A decoder that the Plan names comes first; the others remain as the tolerant fallback.
        first = [plan.decoder] if plan.decoder != "auto" else []
        self._decoders = {name: every[name] for name in [*first, *every]}

    def decode(self, data: bytes) -> np.ndarray:
        """Return the image; see `decode`."""
        with count_rejections(self._counts):
            if not isinstance(data, bytes):
                raise _reject_type("an image", data)
            header = check_limits(data, self._plan, self._cover, self._cover_long)
            upright = (header.height, header.width)
            self.file_size = upright if header.orientation < 5 else upright[::-1]
            return self._decode(data, header)

    def _decode(self, data: bytes, header: ImageHeader) -> np.ndarray:
        factor = factor_of(header, self._cover, self._cover_long)
        if header.format == "png" and header.is_misread:
            data = make_still_png(data)
        elif header.format == "jpeg" and (header.components == 4 or next(iter(self._decoders)) != "simplejpeg"):
            _refuse_torn(data, header)
        refusals: dict[str, Exception] = {}
        has_more = False
        waiting = list(self._order(header))
        while waiting:
            name = waiting.pop(0)
            try:
                image = self._decoders[name](data, header, factor)
            except Exception as error:  # every decoder has its own ways to refuse
                if name == "simplejpeg":
                    _raise_if_torn(error)
                    if "extraneous" in str(error) and "opencv" in waiting:
                        # Last: its libjpeg writes a line straight to stderr, without the item. The note counts them.
                        waiting.sort(key="opencv".__eq__)
                        has_more = True
                refusals[name] = error
                continue
            if has_more:
                self._count("decode.extraneous")
            self._count(f"decode.decoder.{name}")
            return image
        raise _make_rejection(data, header, refusals)

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1

    def _order(self, header: ImageHeader) -> Iterable[str]:
        """Return the decoders to try, in order."""
        if header.format == "jpeg":
            return self._decoders
        if self._is_blended:
            return ("pillow",)  # alone says what is transparent in every format
        if header.format not in _FOR_PILLOW:
            return (name for name in self._decoders if name not in _JPEG_ALONE)
        return ("pillow",) if header.is_misread else ("pillow", "opencv")


@contextlib.contextmanager
def count_rejections(counts: dict[str, int]) -> Iterator[None]:
    """Count a rejection under its code, such as `decode.rejected.bomb`, so that each rate can be watched."""
    try:
        yield
    except DecodeRejected as rejected:
        name = f"decode.rejected.{rejected.code.removeprefix('decode.')}"
        counts[name] = counts.get(name, 0) + 1
        raise


def _refuse_torn(data: bytes, header: ImageHeader) -> None:
    """Raise DecodeRejected if data of a JPEG is missing or broken; decodes at one eighth, only for this check."""
    try:
        read_jpeg(data, header, 8, "CMYK" if header.components == 4 else "GRAY")
    except Exception as error:
        _raise_if_torn(error)


def _raise_if_torn(error: Exception) -> None:
    # libjpeg goes on after these and makes up what is missing. Not so after "extraneous bytes before marker", which many
    # cameras cause: every pixel was read, and the tolerant decoders take it.
    said = str(error)
    if said.startswith("Premature end"):
        raise DecodeRejected(f"decode.truncated: {said}; check what the sender stored") from None
    if said.startswith("Corrupt JPEG data") and "extraneous" not in said:
        raise DecodeRejected(f"decode.corrupt: {said}; check what the sender stored") from None


def _make_rejection(data: bytes, header: ImageHeader, refusals: dict[str, Exception]) -> DecodeRejected:
    said = "; ".join(f"{name}: {str(error).strip() or type(error).__name__}" for name, error in refusals.items())
    if any(_is_memory(error) for error in refusals.values()):
        code = "memory"
    elif "runcated" in said:
        code = "truncated"
    else:
        code = "corrupt"
    return DecodeRejected(
        f"decode.{code}: a {header.format} file of {len(data)} bytes, {header.width} x {header.height} pixels, cannot be "
        f"decoded ({said:.400}); check what the sender stored"
    )


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, cv2.error) and error.code == _CV_NO_MEMORY)


_CV_NO_MEMORY = -4
#: Decoders that read nothing else.
_JPEG_ALONE = ("simplejpeg", "nvjpeg")


class DecodeStage(Stage):
    """Bytes -> image; an array passes unchanged.

    Args:
        name: Unique in its pipeline.
        wanted: The input that the module needs.
        task: Chooses the Plan's `[models.TASK]`.
        scales: Whether the image is for that model, so that its `input_side` applies.
    """

    kind = "cpu"
    releases_gil = True
    work = "decode"

    def __init__(self, name: str, wanted: ImageInput, *, task: str = "", scales: bool = False) -> None:
        super().__init__(name, task=task)
        self.wanted = wanted
        self.scales = scales

    def recipe(self, plan: Plan) -> Mapping[str, Any]:
        """Return the Plan's decoding and the input."""
        return {"stage": "decode", "plan": dataclasses.asdict(plan.decode), "input": _say_input(self, plan)}

    def open(self, context: StageContext) -> Callable[[bytes | np.ndarray], np.ndarray]:
        """Return a decoder; it reuses its buffer when the same worker resizes next."""
        refuse_options(context.options, self.name)
        wanted = _find_input(self, context.plan)
        chain = DecodeChain(
            context.plan.decode,
            wanted.short_side,
            context.counts,
            background=wanted.background,
            reuse_buffer=isinstance(context.next_stage, ResizeStage),
            long_side=wanted.long_side,
        )

        def decode_one(data: bytes | np.ndarray) -> np.ndarray:
            image = data if isinstance(data, np.ndarray) else chain.decode(data)
            note_decoded(chain.file_size if image is not data else data.shape[:2], image)
            return image

        return decode_one


class ResizeStage(Stage):
    """Image -> image of the module's size; arguments as of `DecodeStage`."""

    kind = "cpu"
    releases_gil = True
    executor = "inline"
    work = "resize"

    def __init__(self, name: str, wanted: ImageInput, *, task: str = "", scales: bool = False) -> None:
        super().__init__(name, task=task)
        self.wanted = wanted
        self.scales = scales

    def recipe(self, plan: Plan) -> Mapping[str, Any]:
        """Return the input."""
        return {"stage": "resize", "input": _say_input(self, plan)}

    def open(self, context: StageContext) -> Callable[[np.ndarray], np.ndarray]:
        """Return the resize; its result never shares memory with its argument."""
        refuse_options(context.options, self.name)
        wanted = _find_input(self, context.plan)

        def resize(image: np.ndarray) -> np.ndarray:
            with count_rejections(context.counts):
                fitted = fit(image, wanted)
            note_resized(image, wanted)
            return fitted

        return resize


def _find_input(stage: DecodeStage | ResizeStage, plan: Plan) -> ImageInput:
    """Return the image input that the model of the Plan needs."""
    return stage.wanted.scaled_to(plan.model_of(stage.task, stage.name).input_side) if stage.scales else stage.wanted


def _say_input(stage: DecodeStage | ResizeStage, plan: Plan) -> dict[str, Any]:
    """Return the input, and what turns files into pixels, whose next version may turn them into others."""
    names = ["numpy", "simplejpeg", "opencv-python-headless", "pillow"]
    names += ["nvidia-nvimgcodec-cu12"] if plan.decode.decoder == "nvjpeg" else []
    libraries = {name: _version_of(name) for name in names}
    return {**dataclasses.asdict(_find_input(stage, plan)), **libraries}


@functools.lru_cache(maxsize=8)
def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


class TextStage(Stage):
    """Bytes -> text."""

    kind = "cpu"
    work = "decode"

    def __init__(self, name: str, wanted: TextInput, *, task: str = "") -> None:
        super().__init__(name, task=task)
        self.wanted = wanted

    def open(self, context: StageContext) -> Callable[[Any], str]:
        """Return the text decoder."""
        refuse_options(context.options, self.name)
        # A mark of UTF-8 in front is no part of the text; a tokeniser would make a token of it.
        encoding = "utf-8-sig" if codecs.lookup(self.wanted.encoding).name == "utf-8" else self.wanted.encoding

        def decode_text(data: Any) -> str:
            if not isinstance(data, bytes | str):
                with count_rejections(context.counts):
                    raise _reject_type("a text", data)
            try:
                return data if isinstance(data, str) else data.decode(encoding)
            except UnicodeDecodeError as error:
                with count_rejections(context.counts):
                    raise DecodeRejected(
                        f"decode.text: the bytes are not {self.wanted.encoding} text: {error}"
                    ) from None

        return decode_text


def _reject_type(what: str, value: object) -> DecodeRejected:
    return DecodeRejected(
        f"decode.type: expected the bytes of {what}, got {type(value).__name__}; a module that takes what the stage before "
        "gives has input = hr.ArrayInput()"
    )
