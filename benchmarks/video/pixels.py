"""By how many grey levels frames differ with how they are converted and scaled; nothing is timed.

python -m benchmarks.video.pixels [--quick] [--json] [--write]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from benchmarks import measure
from benchmarks.video.clips import FPS, clip
from headrace.sources.frames import Converter, choose

_SIZES = ((320, 180), (224, 224))
_SCALERS = ("AREA", "FAST_BILINEAR", "BILINEAR", "BICUBIC", "LANCZOS")
#: Shares of the colours that are looked at beside the mean.
_PERCENT = 99


def run(quick: bool) -> dict[str, Any]:
    """Return {way: mean, p99 and largest difference of a colour's value, 0 to 255} over frames of all photographs."""
    path = clip(8)
    found: dict[str, list[np.ndarray]] = {}
    for number, (frame, by_cv2) in enumerate(zip(_decode(path), _read_by_cv2(path), strict=True)):
        if number % (5 * FPS if quick else FPS) == 0:
            for way, (ours, reference) in _ways(frame, by_cv2).items():
                found.setdefault(way, []).append(np.abs(ours.astype(np.int16) - reference))
    return {"ways": {way: _describe(np.stack(each)) for way, each in found.items()}, "quick": quick}


def _ways(frame: Any, by_cv2: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return what is compared with what, by name."""
    plain = frame.to_ndarray(format="rgb24")
    ways = {"as decoded, headrace and PyAV": (_converter(None)(frame), plain)}
    ways["as decoded, headrace and OpenCV"] = (_converter(None)(frame), by_cv2)
    for size in _SIZES:
        name, reference = f"{size[0]} x {size[1]}", cv2.resize(plain, size, interpolation=cv2.INTER_AREA)
        ways[f"{name}, headrace"] = (_converter(size)(frame), reference)
        for scaler in _SCALERS:
            scaled = frame.reformat(*size, format="rgb24", interpolation=scaler).to_ndarray()
            ways[f"{name}, {scaler} of FFmpeg"] = (scaled, reference)
        ways[f"{name}, INTER_LINEAR of OpenCV"] = (cv2.resize(plain, size, interpolation=cv2.INTER_LINEAR), reference)
    return ways


def _converter(size: tuple[int, int] | None) -> Callable[[Any], np.ndarray]:
    return Converter(choose(every=1, fps=None, keyframes=False, size=size, region=None, motion=None))


def _decode(path: Path) -> Iterator[Any]:
    with av.open(str(path)) as container:
        yield from container.decode(container.streams.video[0])


def _read_by_cv2(path: Path) -> Iterator[np.ndarray]:
    video = cv2.VideoCapture(str(path))
    while (read := video.read())[0]:
        yield cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB)


def _describe(differences: np.ndarray) -> dict[str, float]:
    return {
        "mean": float(differences.mean()),
        "p99": float(np.percentile(differences, _PERCENT)),
        "largest": float(differences.max()),
    }


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result for readers."""
    rows = [
        f"| {way} | {one['mean']:.2f} | {one['p99']:.0f} | {one['largest']:.0f} |"
        for way, one in result["ways"].items()
    ]
    return f"""# By how many grey levels frames differ

720p H.264 made of photographs, one frame a second; the values of all colours, 0 to 255. A frame as decoded is
compared with what PyAV's `to_ndarray` and OpenCV's `VideoCapture` give. A smaller one is compared with the
frame that PyAV gives, scaled by `cv2.resize` with `INTER_AREA`, which is the mean of the pixels that each new
one covers.

| frame | mean | p99 | largest |
|---|---|---|---|
{chr(10).join(rows)}
"""


if __name__ == "__main__":
    measure.run_benchmark("video.pixels", "By how many grey levels frames differ.", run, as_text)
