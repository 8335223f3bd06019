"""Clips through loops that people write, each tuned, and through headrace: the same frames, the same model.

    python -m benchmarks.video.files [--quick] [--json] [--write]

All settings run in turn, forwards and backwards, and the best median of each counts. Peers that are not installed are named. To
have them: `pip install --no-deps --target DIR ultralytics supervision streamvision torchvision pydeprecate defusedxml scipy
polars` beside PyTorch, and DIR on PYTHONPATH. `streamvision` is the part of Roboflow's `inference` that reads video.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import cv2

from benchmarks import measure, models
from benchmarks.paths import ROOT
from benchmarks.video.clips import clip
from benchmarks.video.loops import EVERY, LOOPS

Settings = Mapping[str, Any]

#: What is tried of each; the best counts.
_GRIDS: dict[str, list[dict[str, Any]]] = {
    "opencv": [{"threads": 2}, {"processes": 2}, {"processes": 2, "batch": 4}],
    "pyav": [{"decoders": 2, "threads": 2}, {"processes": 2}, {"processes": 2, "batch": 4}],
    "ultralytics": [{"processes": 2}],
    "supervision": [{"processes": 2}],
    "roboflow": [{}, {"processes": 2}],
    "headrace": [{}, {"batch": 4}, {"decoders": 2}, {"processes": 2}, {"processes": 2, "batch": 4}],
}
_QUICK: dict[str, list[dict[str, Any]]] = {
    "opencv": [{"processes": 2}],
    "pyav": [{"processes": 2}],
    "headrace": [{"processes": 2}],
}
_ROUNDS = 4


def run(quick: bool) -> dict[str, Any]:
    """Return frames per second and CPU per frame of headrace and of each peer, at its best setting."""
    seconds = 8 if quick else 16
    work = {
        "clips": [str(clip(seconds, first=first)) for first in range(2 if quick else 4)],
        "model": str(models.build()),
    }
    grids = _QUICK if quick else _GRIDS
    missing = {
        name: "not installed" for name in LOOPS if name in grids and not importlib.util.find_spec(_MODULES[name])
    }
    runners = {
        f"{name} {_say(settings)}": functools.partial(_once, {"name": name, **work, **settings})
        for name, grid in grids.items()
        if name not in missing
        for settings in grid
    }
    found = measure.interleave(runners, 1 if quick else _ROUNDS)
    answers = {name: found[key][0]["answers"] for key in found for name in [key.split()[0]]}
    rows: dict[str, dict[str, Any]] = {}
    for name, grid in grids.items():
        tried = [_row(found[f"{name} {_say(settings)}"], settings) for settings in grid if name not in missing]
        if tried:
            rows[name] = {**max(tried, key=lambda row: row["rate"]), "tried": tried}
    ours = rows.pop("headrace")
    best_peer = max(rows, key=lambda name: rows[name]["rate"])
    ratios = measure.paired_ratios(ours["rates"], rows[best_peer]["rates"])
    for name, row in rows.items():
        row["same_answers_share"] = _same(answers["headrace"], answers[name])
    return {
        "frames": ours["frames"],
        "rounds": ratios.count,
        "every": EVERY,
        "headrace": ours,
        "peers": rows,
        "missing": missing,
        "best_peer": best_peer,
        "ratio_best_peer": ratios.median,
        "ratio_range": [ratios.low, ratios.high],
        "decode_and_convert_ms": _costs(work["clips"][0]),
        "quick": quick,
    }


def _costs(path: str) -> dict[str, float]:
    """Return the milliseconds of CPU that decoding a frame and shrinking it take, on one thread, every frame used."""
    import headrace as hr
    from benchmarks.video.loops import SIDE

    cv2.setNumThreads(1)

    def naive() -> Iterator[object]:
        capture = cv2.VideoCapture(path)
        while (read := capture.read())[0]:
            yield cv2.resize(read[1], (SIDE, SIDE), interpolation=cv2.INTER_AREA)

    costs = {}
    for name, frames in (("headrace", hr.video(path, size=SIDE).entries), ("opencv", naive)):
        begin = time.process_time()
        count = sum(1 for _ in frames())
        costs[name] = 1e3 * (time.process_time() - begin) / count
    return costs


_MODULES = {
    "opencv": "cv2",
    "pyav": "av",
    "ultralytics": "ultralytics",
    "supervision": "supervision",
    "roboflow": "streamvision",
}


def _row(runs: Sequence[Mapping[str, Any]], settings: Settings) -> dict[str, Any]:
    """Return the medians of the runs of one setting."""
    return {
        "settings": settings,
        "frames": runs[0]["frames"],
        "rates": [one["rate"] for one in runs],
        "rate": statistics.median(one["rate"] for one in runs),
        "cpu_ms_per_frame": statistics.median(one["cpu_ms_per_frame"] for one in runs),
    }


def _once(settings: Settings) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.video.loops", json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{settings['name']}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    frames = sum(map(len, found["answers"].values())) - found["frames_before"]
    return {
        "frames": frames,
        "rate": frames / found["seconds"],
        "cpu_ms_per_frame": 1e3 * found["cpu_seconds"] / frames,
        "answers": found["answers"],
    }


def _same(ours: Mapping[str, list[int]], theirs: Mapping[str, list[int]]) -> float:
    pairs = [pair for clip in ours for pair in zip(ours[clip], theirs[clip], strict=False)]
    return sum(one == other for one, other in pairs) / len(pairs)


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result for readers."""
    rows = {"headrace": result["headrace"], **result["peers"]}
    lines = [
        f"| {name} | {_say(one['settings'])} | {one['rate']:.1f} ({min(one['rates']):.1f}-{max(one['rates']):.1f}) | "
        f"{one['cpu_ms_per_frame']:.1f} | {row.get('same_answers_share', 1.0):.1%} |"
        for name, row in sorted(rows.items(), key=lambda pair: -pair[1]["rate"])
        for one in sorted(row["tried"], key=lambda one: -one["rate"])
    ]
    low, high = result["ratio_range"]
    costs = result["decode_and_convert_ms"]
    missing = "".join(f"\n- {name}: {why}" for name, why in result["missing"].items())
    return f"""# Clips of 720p, every fifth frame to a model

Clips of moving photographs (H.264, 25 frames a second, no B-frames), each fifth frame shrunk to 224 x 224 and given to
MobileNetV2 on ONNX Runtime; {result["frames"]} frames, {result["rounds"]} rounds in turn, medians. CPU is of all that is done
for a used frame, the decoding of five among it. The model's weights are random, so that its answers tell any difference of
pixels.

| | settings | used frames/s | CPU ms | same answers |
|---|---|---|---|---|
{chr(10).join(lines)}

headrace does {result["ratio_best_peer"]:.2f} times ({low:.2f} to {high:.2f}, round by round) what the best of the others does
({result["best_peer"]}), each at its best setting. Decoding a frame and shrinking it, each frame used and nothing else done,
takes headrace {costs["headrace"]:.1f} ms of CPU, and a loop of OpenCV {costs["opencv"]:.1f} ms.
{missing}
"""


def _say(settings: Settings) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items()) or "as it is"


if __name__ == "__main__":
    measure.run_benchmark("video.files", "Clips through loops that people write, and headrace.", run, as_text)
