"""What decoding at scale saves and what it changes, on the photographs that ship with headrace.

For several sizes of the file and of the model's input: CPU time of decode + resize at full size and at scale, and the mean
absolute difference of the results in grey levels.

    python -m benchmarks.decode_difference [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

import headrace as hr
from benchmarks import measure
from headrace.base.plan import DecodePlan
from headrace.samples.catalogue import NAMES, photograph
from headrace.stages.decode import DecodeChain
from headrace.stages.images import fit

#: Long side of the file, pixels.
FILE_SIDES = (640, 1920, 4000)
SHORT_SIDES = (256, 640)
INTERPOLATIONS = ("linear", "area")
QUALITY = 88


def measure_all() -> list[dict[str, Any]]:
    """Return one row for each size of file, size of input and interpolation."""
    cv2.setNumThreads(1)
    rows = []
    for long_side in FILE_SIDES:
        files = [_jpeg(name, long_side) for name in NAMES]
        for short_side in SHORT_SIDES:
            for interpolation in INTERPOLATIONS:
                wanted = hr.ImageInput(short_side=short_side, interpolation=interpolation)
                rows.append({"file_long_side": long_side, "short_side": short_side, **_row(files, wanted)})
    return rows


def _row(files: list[bytes], wanted: hr.ImageInput) -> dict[str, Any]:
    full, scaled = (_decoder(scale, wanted) for scale in ("full", "auto"))
    differences = [float(np.abs(_same_size(full(data), scaled(data))).mean()) for data in files]
    full_seconds, scaled_seconds = (_cpu_seconds(decoder, files) for decoder in (full, scaled))
    return {
        "interpolation": wanted.interpolation,
        "full_ms": full_seconds * 1e3,
        "scaled_ms": scaled_seconds * 1e3,
        "speed_up": full_seconds / scaled_seconds,
        "difference_mean": float(np.mean(differences)),
        "difference_worst_photograph": max(differences),
    }


def _decoder(scale: Any, wanted: hr.ImageInput) -> Callable[[bytes], np.ndarray]:
    chain = DecodeChain(DecodePlan(scale=scale), wanted.short_side, {}, reuse_buffer=True)
    return lambda data: fit(chain.decode(data), wanted)


def _same_size(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    # Rounding of the scaled size can move the long side by a pixel.
    height, width = min(one.shape[0], other.shape[0]), min(one.shape[1], other.shape[1])
    return one[:height, :width].astype(np.int16) - other[:height, :width]


def _cpu_seconds(decoder: Callable[[bytes], np.ndarray], files: list[bytes]) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.thread_time()
        for data in files:
            decoder(data)
        best = min(best, (time.thread_time() - started) / len(files))
    return best


def _jpeg(name: str, long_side: int) -> bytes:
    image = cv2.imread(str(photograph(name).path))
    factor = long_side / max(image.shape[:2])
    resized = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
    return cv2.imencode(".jpg", resized, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return the result for readers."""
    lines = [
        "# Decode at scale: what it saves and what it changes",
        "",
        f"{len(NAMES)} photographs, JPEG quality {QUALITY}; CPU milliseconds of decode + resize on one thread;",
        "difference of the results in grey levels (0-255), mean over pixels.",
        "",
        "| file, long side | input, short side | resize | full ms | scaled ms | speed-up | difference | worst photograph |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['file_long_side']} | {row['short_side']} | {row['interpolation']} | {row['full_ms']:.2f} | "
        f"{row['scaled_ms']:.2f} | {row['speed_up']:.1f} | {row['difference_mean']:.1f} | "
        f"{row['difference_worst_photograph']:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode_difference", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--write", action="store_true", help="write a dated result to benchmarks/results")
    arguments = parser.parse_args()
    rows = measure_all()
    print(json.dumps({"rows": rows}) if arguments.json else as_text(rows))
    if arguments.write:
        print(f"written: {measure.write_result('decode_difference', as_text(rows), rows)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
