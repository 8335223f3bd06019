"""What decoding at another scale would cost: decode policy as factors on the recorded times.

A JPEG costs a part for its bytes (entropy decoding, at any scale) and a part for the pixels that come out (inverse transform,
colour). With libjpeg-turbo one byte costs as much as 5 to 17 pixels, by subsampling and quality: measured on the shipped
photographs, as they are (300 to 1,000 pixels wide) and enlarged to 2.5 megapixels; the middle is taken. Resizing costs a part
for the pixels that it reads and a part for those that it writes, which cost some fifty times as much each (areas, crop, copy):
from 2.5 megapixels to 224 x 224 it took 0.41 ms, from a sixteenth of them still 0.22 ms. So this is an estimate, and the
prediction says so.
"""

from __future__ import annotations

import re

import numpy as np

from headrace.base.plan import Plan
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.replay.demands import CannotReplay, Demands
from headrace.diagnose.span_columns import Array

_PIXELS_PER_BYTE = 13.0
_PIXELS_PER_OUTPUT_PIXEL = 50.0
#: An image is decoded to cover what is then cropped from it; the usual 256 for 224.
_COVER = 256 / 224
_SHAPE = re.compile(r"(\d+)x(\d+)|\((\d+), (\d+)")


def scale_factors(evidence: Evidence, demands: Demands, recorded: Plan, changed: Plan) -> dict[str, float]:
    """Return {stage: factor on its time} of another `decode.scale`; empty where it stays as it was, or has no effect.

    Raises:
        CannotReplay: If the sizes of the images are not known.
    """
    if recorded.decode.scale == changed.decode.scale or not (recorded.decode.reduces or changed.decode.reduces):
        return {}
    if recorded.decode.scale == "auto":
        raise CannotReplay(
            "the run decoded at scale, so the full sizes of its images are not known, and a full decode cannot be predicted; "
            "measure it: headrace profile ... --set decode.scale=full"
        )
    factors = {}
    names = [stage.name for stage in demands.stages]
    for number, stage in enumerate(demands.stages):
        if stage.info.work != "decode":
            continue
        pixels, sides, sizes = _images(evidence, stage.name)
        out = _output_side(evidence, names[number + 1 :], demands)
        reduced = np.array([_reduction(side, out * _COVER) for side in sides], float)
        left = _PIXELS_PER_BYTE * sizes + pixels / reduced**2
        factors[stage.name] = float(left.sum() / (_PIXELS_PER_BYTE * sizes + pixels).sum())
        resize = next((later for later in demands.stages[number + 1 :] if later.info.work == "resize"), None)
        if resize is not None:
            target = _PIXELS_PER_OUTPUT_PIXEL * out**2
            factors[resize.name] = float((pixels / reduced**2 + target).sum() / (pixels + target).sum())
    return factors


def _images(evidence: Evidence, stage: str) -> tuple[Array, Array, Array]:
    """Return pixels, shorter side and compressed bytes of each decoded image."""
    spans = evidence.spans
    rows = np.arange(len(spans))[spans.of(stage)]
    shapes = [_height_width(name) for name in spans.shape_names]
    known = [row for row in rows if spans.shape[row] >= 0 and shapes[spans.shape[row]] is not None]
    if not known:
        raise CannotReplay(
            f"stage {stage} left no shapes of images, so another scale cannot be predicted; try --speedup"
        )
    found = [shapes[spans.shape[row]] or (1, 1) for row in known]
    return (
        np.array([height * width for height, width in found], float),
        np.array([min(pair) for pair in found], float),
        spans.bytes_in[known].astype(float),
    )


def _output_side(evidence: Evidence, later: list[str], demands: Demands) -> float:
    """Return the shorter side of what the module wants: the shape after resizing."""
    works = {stage.name: stage.info.work for stage in demands.stages}
    spans = evidence.spans
    for name in later:
        if works[name] == "resize":
            rows = np.arange(len(spans))[spans.of(name)]
            sides = [_height_width(spans.shape_names[spans.shape[row]]) for row in rows[:1] if spans.shape[row] >= 0]
            if sides and sides[0] is not None:
                return float(min(sides[0]))
    raise CannotReplay("the size that the module wants is not known from the run; give a factor with --speedup instead")


def _reduction(side: float, cover: float) -> int:
    return next((factor for factor in (8, 4, 2) if side >= factor * cover), 1)


def _height_width(shape: str) -> tuple[int, int] | None:
    match = _SHAPE.search(shape)
    if match is None:
        return None
    numbers = [int(group) for group in match.groups() if group is not None]
    return numbers[0], numbers[1]
