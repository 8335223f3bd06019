"""A file's bytes -> the bytes of a smaller image file; what is no image, or is small already, passes unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cv2
import numpy as np

from headrace.base.current_job import hands
from headrace.base.errors import ItemRejected
from headrace.base.plan import DecodePlan, Plan
from headrace.base.settings import refuse_options
from headrace.stages.decode import decode
from headrace.stages.image_header import ImageHeader, image_format, read_header
from headrace.stages.images import fit
from headrace.stages.inputs import ImageInput
from headrace.stages.stage import Stage, StageContext
from headrace.store.manifest import Encoding
from headrace.store.samples import IMAGE_PARTS

_QUALITY = {"jpeg": cv2.IMWRITE_JPEG_QUALITY, "webp": cv2.IMWRITE_WEBP_QUALITY}
_SUFFIX = {"jpeg": ".jpg", "webp": ".webp"}
#: WebP holds no larger ones.
_MOST_SIDE = {"jpeg": 65_500, "webp": 16_383}


def encode(data: bytes, encoding: Encoding, plan: DecodePlan | None = None) -> bytes:
    """Return an image file with a smaller side, or of another format or quality; the same bytes where nothing is gained.

    Args:
        data: Any file's bytes.
        encoding: What it is to be.
        plan: Limits of what is decoded.

    Raises:
        DecodeRejected: If it is an image that cannot be read.
        ItemRejected: If the result has more pixels than its format takes.
    """
    found = image_format(data)
    target = encoding.format or found
    if found is None or target not in _QUALITY:
        return data
    header = read_header(data, found)
    is_small = encoding.short_side is None or min(header.width, header.height) <= encoding.short_side
    if found == target and ((is_small and encoding.quality is None) or header.frames > 1):
        return data
    image = _decode(data, header, encoding, plan)
    if max(image.shape) > _MOST_SIDE[target]:
        raise ItemRejected(
            f"encode.size: {image.shape[1]} x {image.shape[0]} pixels; {target} takes at most {_MOST_SIDE[target]} a side"
        )
    made = cv2.imencode(
        _SUFFIX[target],
        cv2.cvtColor(image, cv2.COLOR_RGB2BGR),
        [_QUALITY[target], encoding.quality or Encoding.USUAL_QUALITY],
    )[1].tobytes()
    return data if found == target and is_small and len(made) >= len(data) else made


def _decode(data: bytes, header: ImageHeader, encoding: Encoding, plan: DecodePlan | None) -> np.ndarray:
    side = encoding.short_side
    if side is None or min(header.width, header.height) <= side:
        return decode(data, plan=plan)
    # Averaging over areas loses least of what is made smaller once and for all.
    return fit(decode(data, short_side=side, plan=plan), ImageInput(short_side=side, interpolation="area"))


def _is_named_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in IMAGE_PARTS


class EncodeStage(Stage):
    """Makes image files smaller; all else passes unchanged, but for what is named as an image and is none.

    Args:
        name: Of the stage.
        encoding: What images are to be.
    """

    kind = "cpu"
    releases_gil = True
    work = "preprocess"

    def __init__(self, name: str, encoding: Encoding) -> None:
        super().__init__(name)
        self.encoding = encoding

    def recipe(self, plan: Plan) -> Mapping[str, Any]:
        """Return what images are to be."""
        return {"stage": "encode", "encoding": self.encoding.describe()}

    def open(self, context: StageContext) -> Callable[[bytes], bytes]:
        """Return the function."""
        refuse_options(context.options, self.name)

        def encode_one(data: bytes) -> bytes:
            if image_format(data) is None and any(_is_named_image(one.id) for one in hands.items):
                decode(
                    data, plan=context.plan.decode
                )  # it raises what is wrong: an empty file, a page instead of an image
            made = encode(data, self.encoding, context.plan.decode)
            context.count(f"{self.name}.kept" if made is data else f"{self.name}.made")
            return made

        return encode_one
