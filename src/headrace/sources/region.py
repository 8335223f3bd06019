"""Cuts a part out of decoded pictures before any pixel is converted or copied."""

from __future__ import annotations

import importlib
import math
import struct
from fractions import Fraction
from typing import Any

#: (left, top, right, bottom), shares of the upright picture.
Region = tuple[float, float, float, float]
#: Chroma has half or a quarter of the pixels of a side: cuts are at multiples of this.
_STEP = 4


class Cropper:
    """Gives a part of each frame, which shares the frame's memory; in 5 us, whatever the size.

    A frame's time does not come with the part.

    Args:
        region: What is kept; None: all.
    """

    def __init__(self, region: Region | None) -> None:
        self._region = region
        self._made_for: tuple[Any, ...] = ()
        self._graph: Any = None

    def __call__(self, frame: Any) -> Any:
        """Return the part of a frame as stored, not turned."""
        if self._region is None:
            return frame
        shape = (frame.width, frame.height, frame.format.name, frame.rotation)
        if shape != self._made_for:
            self._graph, self._made_for = _make_graph(frame, self._region), shape
        self._graph.vpush(frame)
        return self._graph.vpull()


def turns_of(frame: Any) -> int:
    """Return by how many quarters, against the clock, a frame has to be turned to be upright.

    A picture that is mirrored alone is not turned, although FFmpeg says so of one that is mirrored left to right.
    """
    turns: int = round(frame.rotation / 90) % 4
    return turns if turns and _is_turned(frame) else 0


def _is_turned(frame: Any) -> bool:
    """Return whether the display matrix turns a picture: its first two rows, 16.16 numbers, are (a b) and (c d)."""
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return True
    a, b, _, c, d, _, *_ = struct.unpack("=9i", bytes(matrix)[:36])
    return bool(a < 0 and d < 0) or bool(b and c)


def _make_graph(frame: Any, region: Region) -> Any:
    graph = importlib.import_module("av.filter").Graph()
    graph.threads = 1
    first = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format.name, time_base=Fraction(1, 1000)
    )
    left, top, right, bottom = _as_stored(region, turns_of(frame))
    x, width = _cut(left, right, frame.width)
    y, height = _cut(top, bottom, frame.height)
    crop, last = graph.add("crop", f"{width}:{height}:{x}:{y}"), graph.add("buffersink")
    first.link_to(crop)
    crop.link_to(last)
    graph.configure()
    return graph


def _as_stored(region: Region, turns: int) -> Region:
    """Return the same part of a picture that is not turned yet."""
    for _ in range(turns):
        left, top, right, bottom = region
        region = (1 - bottom, left, 1 - top, right)
    return region


def _cut(first: float, last: float, pixels: int) -> tuple[int, int]:
    """Return the first pixel of a part of a side, and how many there are: at least as many as asked for."""
    begin = math.floor(first * pixels / _STEP) * _STEP
    end = min(math.ceil(last * pixels / _STEP) * _STEP, pixels)
    return begin, end - begin
