"""Clips through loops that people write, each tuned, and through headrace: the same frames, the same model.

    python -m benchmarks.video.files [--quick] [--json] [--write]

Peers that are not installed are named. To have them: `pip install --no-deps --target DIR ultralytics supervision torchvision
pydeprecate defusedxml scipy polars` beside PyTorch, and DIR on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

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
    "headrace": [{"decoders": 1}, {"decoders": 2}, {"decoders": 2, "batch": 4}],
}
_QUICK: dict[str, list[dict[str, Any]]] = {
    "opencv": [{"processes": 2}],
    "pyav": [{"processes": 2}],
    "headrace": [{"decoders": 2}],
}


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
    rows: dict[str, dict[str, Any]] = {}
    answers: dict[str, Any] = {}
    for name, grid in grids.items():
        if name in missing:
            continue
        tried = [(settings, _once({"name": name, **work, **settings})) for settings in grid]
        settings, best = max(tried, key=lambda one: one[1]["rate"])
        answers[name] = best.pop("answers")
        rows[name] = {**best, "settings": settings}
    ours = rows.pop("headrace")
    best_peer = max(rows, key=lambda name: rows[name]["rate"])
    for name, row in rows.items():
        row["same_answers_share"] = _same(answers["headrace"], answers[name])
    return {
        "frames": ours["frames"],
        "every": EVERY,
        "headrace": ours,
        "peers": rows,
        "missing": missing,
        "best_peer": best_peer,
        "ratio_best_peer": ours["rate"] / rows[best_peer]["rate"],
        "quick": quick,
    }


_MODULES = {"opencv": "cv2", "pyav": "av", "ultralytics": "ultralytics", "supervision": "supervision"}


def _once(settings: Settings) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.video.loops", json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{settings['name']}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    frames = sum(map(len, found["answers"].values())) - found.get("frames_before", 0)
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
        f"| {name} | {_say(row['settings'])} | {row['rate']:.1f} | {row['cpu_ms_per_frame']:.1f} | "
        f"{row.get('same_answers_share', 1.0):.1%} |"
        for name, row in sorted(rows.items(), key=lambda pair: -pair[1]["rate"])
    ]
    missing = "".join(f"\n- {name}: {why}" for name, why in result["missing"].items())
    return f"""# Clips of 720p, every fifth frame to a model

Clips of moving photographs (H.264, 25 frames a second, no B-frames), each fifth frame shrunk to 224 x 224 and given to
MobileNetV2 on ONNX Runtime; {result["frames"]} frames. Each is at the best of its settings. CPU is of all that is done for a
used frame, the decoding of five among it. The model's weights are random, so that its answers tell any difference of pixels.

| | settings | used frames/s | CPU ms | same answers |
|---|---|---|---|---|
{chr(10).join(lines)}

headrace does {result["ratio_best_peer"]:.2f} times what the best of the others does ({result["best_peer"]}).
{missing}
"""


def _say(settings: Settings) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items()) or "as it is"


if __name__ == "__main__":
    measure.run_benchmark("video.files", "Clips through loops that people write, and headrace.", run, as_text)
