"""Clips of the sample photographs with known motion: which photograph a frame shows is its label."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from benchmarks.paths import CACHE, digest, kept
from headrace.samples.catalogue import photograph

FPS = 25
#: Each photograph is shown for so long.
LABEL_SECONDS = 2
PHOTOGRAPHS = ("chelsea", "coffee", "rocket", "flower")
#: Part of the names of kept clips: raise it when a clip would be another one.
_RECIPE = 1


def clip(seconds: int, size: tuple[int, int] = (1280, 720), *, first: int = 0, suffix: str = ".mp4") -> Path:
    """Return an H.264 clip as cameras send it: 25 frames a second, a keyframe every two seconds, no B-frames.

    Args:
        seconds: Its length.
        size: (width, height).
        first: The photograph that it begins with.
        suffix: Of the container.
    """
    path = CACHE / f"clip-{digest([_RECIPE, seconds, size, first])}{suffix}"
    return kept(path, lambda partial: _write(partial, seconds, size, first))


def label_of(seconds: float, first: int = 0) -> str:
    """Return the photograph that a clip shows at a time."""
    return PHOTOGRAPHS[(first + int(seconds / LABEL_SECONDS)) % len(PHOTOGRAPHS)]


def _write(path: Path, seconds: int, size: tuple[int, int], first: int) -> None:
    width, height = size
    margin = width // 10
    pictures = {name: _picture(name, width + margin, height + margin) for name in PHOTOGRAPHS}
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = 2 * FPS, 0
        stream.options = {"preset": "veryfast"}
        for number in range(seconds * FPS):
            picture = pictures[label_of(float(Fraction(number, FPS)), first)]
            x, y = (round(margin * (1 + turn(number / 25)) / 2) for turn in (math.sin, math.cos))
            image = np.ascontiguousarray(picture[y : y + height, x : x + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


def _picture(name: str, width: int, height: int) -> np.ndarray:
    image = cv2.imread(str(photograph(name).path))
    assert image is not None, name
    return cv2.resize(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), (width, height))
