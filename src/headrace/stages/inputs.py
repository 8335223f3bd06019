"""The input that a module needs; the Plan decides how to prepare it."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from headrace.base.settings import check

Interpolation = Literal["linear", "area", "cubic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInput:
    """An image: uint8 (height, width, 3), RGB, 0-255, upright by its EXIF orientation."""

    short_side: int | None = None
    """Pixels to which the shorter side is resized; None keeps the size."""
    crop: int | None = None
    """Side of the square cut from the centre after that; None keeps all."""
    long_side: int | None = None
    """Pixels to which the longer side is resized, instead of `short_side` and `crop`: the whole image stays visible."""
    pad: str | None = None
    """Colour, such as `"#727272"`, of a border that pads the image to a centred square of `long_side`; None: no border."""
    interpolation: Interpolation = "linear"
    """Filter with which the model's training images were resized. Area is better for large reductions, and slower."""
    background: str | None = None
    """Colour behind transparent pixels, such as `"#ffffff"`; None: alpha is dropped, and pixels keep the colour of the file."""

    def __post_init__(self) -> None:
        """Check every value."""
        for key in ("short_side", "crop", "long_side"):
            value = getattr(self, key)
            check(value is None or value >= 1, key, value, "a whole number >= 1")
        for key in ("background", "pad"):
            value = getattr(self, key)
            is_colour = value is None or re.fullmatch("#[0-9a-fA-F]{6}", value)
            check(bool(is_colour), key, value, "a colour such as '#ffffff', or None")
        is_whole = self.short_side is None and self.crop is None
        check(self.long_side is None or is_whole, "long_side", self.long_side, "None beside short_side and crop")
        check(self.pad is None or self.long_side is not None, "pad", self.pad, "None, or long_side beside it")
        if self.crop is not None and self.short_side is not None:
            check(self.crop <= self.short_side, "crop", self.crop, f"at most short_side = {self.short_side}")

    @property
    def is_resized(self) -> bool:
        """Whether images change their size."""
        return any(side is not None for side in (self.short_side, self.crop, self.long_side))

    def scaled_to(self, side: int | None) -> ImageInput:
        """Return the same view of an image at another resolution.

        Args:
            side: Pixels of the crop; without a crop of the shorter side, or of the longer side if that one is resized. None:
                unchanged.

        Raises:
            SettingsError: If images keep their size, so that there is nothing to scale.
        """
        if side is None:
            return self
        if self.long_side is not None:
            return replace(self, long_side=side)
        if self.short_side is None:
            what = "an ImageInput with short_side or long_side, for without it images keep their size"
            check(False, "input_side", side, f"none, or {what}")
            return self
        if self.crop is None:
            return replace(self, short_side=side)
        return replace(self, short_side=max(side, round(self.short_side * side / self.crop)), crop=side)


@dataclass(frozen=True, slots=True)
class BytesInput:
    """The fetched bytes, unchanged."""


@dataclass(frozen=True, slots=True)
class TextInput:
    """The fetched bytes, decoded as text; with a `tokenizer` its tokens, of which `hr.stack_tokens` makes arrays of a batch."""

    encoding: str = "utf-8"
    tokenizer: str | Path | None = None
    """A `tokenizer.json` of the package tokenizers, relative to the file that defines the module; None: the text itself."""
    lengths: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Tokens to which a batch may be padded: the shortest that holds its longest text is taken. Longer texts are cut to the
    last."""
    padding: Literal["right", "left"] | None = None
    """The side on which a batch is padded; models that go on with a text want the left. None: as the file says, else right."""

    def __post_init__(self) -> None:
        """Check the encoding, the lengths and the side."""
        check(self.padding in ("right", "left", None), "padding", self.padding, "'right', 'left' or None")
        is_file = self.tokenizer is None or isinstance(self.tokenizer, str | Path)
        check(is_file, "tokenizer", self.tokenizer, "the path of a tokenizer.json, or None")
        is_counts = isinstance(self.lengths, tuple | list) and all(type(one) is int for one in self.lengths)
        is_ascending = is_counts and all(a < b for a, b in zip((0, *self.lengths), self.lengths, strict=False))
        check(
            bool(self.lengths) and is_ascending,
            "lengths",
            self.lengths,
            "whole numbers >= 1, each larger than the one before",
        )
        try:
            codecs.lookup(self.encoding)
        except (LookupError, TypeError):
            check(False, "encoding", self.encoding, "an encoding that Python knows, such as 'utf-8' or 'latin-1'")


@dataclass(frozen=True, slots=True)
class ArrayInput:
    """The unchanged value, of any type: from the stage before, such as crops of a detector, or from the job.

    Nothing is fetched or decoded. `dtype` and `shape` are what clients are told that send arrays over the Open Inference
    Protocol or NumPy files (`/v1/jobs`), and what their arrays must have; values from elsewhere are not checked.
    """

    dtype: str | None = None
    """NumPy's name of the type, such as `"float32"`; None: any."""
    shape: tuple[int | None, ...] | None = None
    """Of one array; None for an axis of any length, or for any shape."""

    def __post_init__(self) -> None:
        """Check both."""
        try:
            is_numeric = self.dtype is None or np.dtype(self.dtype).kind in "biuf"
        except TypeError:
            is_numeric = False
        check(is_numeric, "dtype", self.dtype, "None, or a type of numbers that NumPy knows, such as 'float32'")
        check(self.shape is None or self.dtype is not None, "shape", self.shape, "a dtype beside it, or None")
        fits = all(length is None or length >= 1 for length in self.shape or ())
        check(fits, "shape", self.shape, "axes of 1 and more, or None for those of any length")


Input = ImageInput | BytesInput | TextInput | ArrayInput
