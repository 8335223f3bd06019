"""Mean IoU of semantic segmentation: of each class the pixels on which answer and truth agree, by those that either names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.base.errors import SettingsError
from headrace.validate.parity import name_outputs

Array = np.ndarray

#: Of a mask: what nobody knows, as VOC and Cityscapes have it. Such pixels count nowhere.
UNKNOWN = 255
_IN_UINT8 = (
    "int8 ends at 127 and turns 200 into -56 and 255 into -1: write uint8 (or int32), with 255 for what nobody knows"
)


def count_pixels(outputs: Any, masks: Array) -> list[Array]:
    """Return of each item (3, 256) pixels of each class: rightly named, true, named.

    Args:
        outputs: (items, classes, h, w) scores, or (items, h, w) or (items, 1, h, w) whole numbers, the classes; where a model
            has several outputs, the one called out, masks, or the first.
        masks: (items, h, w) true classes, 255 where nobody knows.

    Raises:
        SettingsError: If outputs are neither, or of another size than the masks.
    """
    _check_masks(masks)
    named = read_classes(outputs)
    if named is None or named.shape != masks.shape:
        seen = {name: list(np.shape(one)) for name, one in name_outputs(outputs).items()}
        raise SettingsError(
            f"--metric iou reads (items, classes, h, w) scores or (items, h, w) classes as whole numbers, of the size of the "
            f"masks, {list(masks.shape[1:])}; the model gives {seen}. Resize within the model or give masks of that size; "
            "score other layouts by your own --metric MODULE:FUNCTION"
        )
    return [_count(own, mask) for own, mask in zip(named, masks, strict=True)]


class ClassOverlap:
    """IoU of each class, of any draw of the items.

    Args:
        counted: Of each item; see `count_pixels`.

    Attributes:
        classes: Those of which there are true pixels: others have no IoU.
    """

    def __init__(self, counted: Sequence[Array]) -> None:
        pixels = np.stack(counted)
        self.classes = np.flatnonzero(pixels[:, 1].any(axis=0))
        self._pixels = pixels[:, :, self.classes].astype(float)

    def __call__(self, counts: Array) -> Array:
        """Return (classes,) IoU from 0 to 1, NaN where no true pixel counts.

        Args:
            counts: (items,) how often each item is there.
        """
        right, true, named = np.tensordot(counts, self._pixels, axes=1)
        found: Array = np.divide(right, true + named - right, out=np.full(len(true), np.nan), where=true > 0)
        return found

    def images_with(self, place: int) -> Array:
        """Return the places of the items with pixels of a class."""
        return np.flatnonzero(self._pixels[:, 1, place])


def _check_masks(masks: Array) -> None:
    if masks.ndim == 3 and masks.dtype.kind in "iu" and masks.min(initial=0) >= 0 and masks.max(initial=0) <= UNKNOWN:
        return
    raise SettingsError(
        f"truth_mask is {masks.dtype}{list(masks.shape)}{_format_range(masks)}; expected (items, h, w) whole numbers, the "
        f"classes 0 to 254, and 255 where nothing is known; {_IN_UINT8}"
    )


def _format_range(classes: Array) -> str:
    return f" from {classes.min():g} to {classes.max():g}" if classes.size else ""


def read_classes(outputs: Any) -> Array | None:
    """Return (items, h, w) whole numbers, the class that each pixel was named; None if the outputs do not say."""
    each = name_outputs(outputs)
    found = each.get("out", each.get("masks", next(iter(each.values()))))
    if found.dtype.kind in "iu":
        if found.dtype == np.int8 and found.min(initial=0) < 0:
            raise SettingsError(
                f"the model names classes of pixels as {found.dtype}{list(found.shape)}{_format_range(found)}; expected 0 to "
                f"254, and less than 0 only in types that hold all of them; {_IN_UINT8}"
            )
        classes = found[:, 0] if found.ndim == 4 and found.shape[1] == 1 else found
        return np.where((classes < 0) | (classes > UNKNOWN), UNKNOWN, classes) if classes.ndim == 3 else None
    return found.argmax(axis=1) if found.ndim == 4 and 2 <= found.shape[1] <= UNKNOWN else None


def _count(named: Array, mask: Array) -> Array:
    known = mask != UNKNOWN
    named, true = named[known], mask[known]
    return np.stack([np.bincount(one, minlength=UNKNOWN + 1) for one in (true[named == true], true, named)])
