"""Where the pixels of an image end up in what a model takes, and the way back.

How this works: decode and resize note the placement at the item that their thread works on. A `preprocess` that resizes the
image itself calls `note_placement`. `postprocess` reads it with `current_placements`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.base.current_job import hands
from headrace.base.errors import SettingsError
from headrace.base.settings import check
from headrace.stages.images import fitted_size, scaled_size
from headrace.stages.inputs import ImageInput


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the pixels of an image end up in what the model takes."""

    image: tuple[int, int]
    """(height, width) of the image, upright."""
    scaled: tuple[float, float]
    """(height, width) of the whole image after resizing, even if it was cut in between."""
    top: float
    """Rows cut off above; below 0: rows of border."""
    left: float
    """Columns cut off to the left; below 0: columns of border."""
    size: tuple[int, int]
    """(height, width) in the end."""

    def to_image(self, boxes: np.ndarray) -> np.ndarray:
        """Return boxes in pixels of the image, cut at its edges.

        Args:
            boxes: (..., 4): x1, y1, x2, y2 in pixels of the model's input.

        Returns:
            float64 (..., 4).
        """
        rows, columns = (before / now for now, before in zip(self.scaled, self.image, strict=True))
        moved = (boxes + np.array([self.left, self.top] * 2)) * np.array([columns, rows] * 2)
        height, width = self.image
        back: np.ndarray = moved.clip(0, [width, height] * 2)
        return back

    def to_input(self, boxes: np.ndarray) -> np.ndarray:
        """Return boxes of the image, (..., 4), in pixels of the model's input, float64, not cut: the inverse of `to_image`."""
        rows, columns = (now / before for now, before in zip(self.scaled, self.image, strict=True))
        moved: np.ndarray = boxes * np.array([columns, rows] * 2) - np.array([self.left, self.top] * 2)
        return moved


def placement(image: tuple[int, int], decoded: tuple[int, int], wanted: ImageInput) -> Placement:
    """Return the placement that decoding at scale and `images.fit` give an image.

    Args:
        image: (height, width) of the file, upright.
        decoded: (height, width) that it was decoded at.
        wanted: The module's input.
    """
    if wanted.long_side is not None:
        scaled = fitted_size(*decoded, wanted.long_side)
        if wanted.pad is None:
            return Placement(image, scaled, 0, 0, scaled)
        top, left = (-((wanted.long_side - length) // 2) for length in scaled)
        return Placement(image, scaled, top, left, (wanted.long_side, wanted.long_side))
    scaled = decoded if wanted.short_side is None else scaled_size(*decoded, wanted.short_side)
    if wanted.crop is None:
        return Placement(image, scaled, 0, 0, scaled)
    if min(scaled) < wanted.crop:
        scaled = scaled_size(*scaled, wanted.crop)
    top, left = ((length - wanted.crop) // 2 for length in scaled)
    return Placement(image, scaled, top, left, (wanted.crop, wanted.crop))


def note_decoded(file_size: tuple[int, ...], image: np.ndarray) -> None:
    """Note that an image of (height, width) was decoded as this array."""
    for item in hands.items:
        item.placement = placement((file_size[0], file_size[1]), (image.shape[0], image.shape[1]), ImageInput())


def note_resized(image: np.ndarray, wanted: ImageInput) -> None:
    """Note that a decoded image was resized as wanted; an image that was cut or padded before counts as a new one."""
    decoded = (image.shape[0], image.shape[1])
    for item in hands.items:
        before = item.placement
        is_whole = before is not None and (before.scaled, before.size) == (decoded, decoded)
        item.placement = placement(before.image if is_whole else decoded, decoded, wanted)


def note_placement(
    scaled: tuple[int, int], *, top: int = 0, left: int = 0, size: tuple[int, int] | None = None
) -> None:
    """Note how your own `preprocess`, or a stage of your own, changed the size of its image.

    From then on `current_placements` maps the model's input to the image of the file, and golden folders move boxes and masks
    in the same way. Call it once for each resize, cut or padding.

    Args:
        scaled: (height, width) that the image was resized to.
        top: Rows cut off above after that; below 0: rows of border that were added.
        left: Columns likewise.
        size: (height, width) in the end; None: `scaled`, because nothing was cut or added.

    Raises:
        SettingsError: If this thread works on no image (see `current_placements`), or a length is below 1.
    """
    size = scaled if size is None else size
    for name, lengths in (("scaled", scaled), ("size", size)):
        check(
            len(lengths) == 2 and min(lengths) >= 1,
            f"note_placement's {name}",
            lengths,
            "(height, width) of at least 1",
        )
    for before, item in zip(current_placements(), hands.items, strict=True):
        rows, columns = (now / was for now, was in zip(scaled, before.size, strict=True))
        item.placement = Placement(
            before.image, (before.scaled[0] * rows, before.scaled[1] * columns), before.top * rows + top,
            before.left * columns + left, (int(size[0]), int(size[1])),
        )  # fmt: skip


def current_placements() -> list[Placement]:
    """Return where the images of this thread's jobs are in the model's input.

    There is one in `preprocess`, `postprocess` and your own stages, and one for each input of the batch in `process`, in its
    order. Children of a fan-out that decode nothing have the placement of their parent.

    Raises:
        SettingsError: If there is none: outside of a pipeline's worker, before an image was decoded, or where it is not an
            `ImageInput` of the module, or `headrace.decode` and `headrace.resize`, that decides on its pixels.
    """
    found = [item.placement for item in hands.items]
    if not found or None in found:
        raise SettingsError(
            "current_placements() was called where no image is at hand: call it within preprocess, process, postprocess or a "
            "stage of your own, after images were decoded by a module's ImageInput or by headrace.decode"
        )
    return found
