"""What each part of the work on a frame costs, alone on one thread; so how much two cores could do at the most.

python -m benchmarks.video.parts [--quick] [--json] [--write]

Any program that calls the same decoder, scaler and model needs at least this much. What more a pipeline takes, `files` and
`held` measure.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np

from benchmarks import measure, models
from benchmarks.video.clips import FPS, clip
from headrace.engines import engine
from headrace.runs.hardware import usable_cores
from headrace.sources.frames import Converter, choose
from headrace.stages.images import normalize

#: Frames a second of a camera that go to the model, and of a clip each so many-th.
_USED_FPS, _EVERY = 5, 5
_SIDE = 224
_ROUNDS = 5
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ONNX Runtime, float32": ("onnx", {}),
    "OpenVINO, bfloat16": ("openvino", {"precision": "bf16"}),
}


def run(quick: bool) -> dict[str, Any]:
    """Return the milliseconds of CPU of each part, medians, and what they come to."""
    path = clip(8)
    frames = list(decode(path))[::_EVERY]
    convert = Converter(choose(every=1, fps=None, keyframes=False, size=_SIDE, region=None, motion=None))
    images = [convert(frame) for frame in frames]
    inputs = [normalize(image)[None] for image in images]
    parts: dict[str, tuple[Callable[[], Any], int]] = {
        "decode": (lambda: sum(1 for _ in decode(path)), 8 * FPS),
        "convert": (lambda: [convert(frame) for frame in frames], len(frames)),
        "normalize": (lambda: [normalize(image) for image in images], len(images)),
        **{name: (_caller(*found, inputs), len(inputs)) for name, found in _MODELS.items()},
    }
    costs: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(1 if quick else _ROUNDS):
        for name, (work, count) in parts.items():
            began = time.process_time()
            work()
            costs[name].append(1e3 * (time.process_time() - began) / count)
    medians = {name: statistics.median(found) for name, found in costs.items()}
    used = {name: medians["convert"] + medians["normalize"] + medians[name] for name in _MODELS}
    cores = usable_cores()
    return {
        "ms": medians,
        "range_ms": {name: [min(found), max(found)] for name, found in costs.items()},
        "clip_kbit_per_second": path.stat().st_size * 8 / 8 / 1e3,
        "cores": cores,
        "most_cameras": {name: 1e3 * cores / (FPS * medians["decode"] + _USED_FPS * ms) for name, ms in used.items()},
        "used_frame_ms": {name: _EVERY * medians["decode"] + ms for name, ms in used.items()},
        "rounds": len(costs["decode"]),
        "quick": quick,
    }


def decode(path: Path) -> Iterator[Any]:
    """Give the frames of a clip, decoded by one thread."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        yield from container.decode(stream)


def _caller(name: str, options: Mapping[str, Any], inputs: Sequence[np.ndarray]) -> Callable[[], Any]:
    model = engine(name).open(Path(models.build()), threads=1, options=options)
    model(inputs[0])
    return lambda: [model(one) for one in inputs]


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result for readers."""
    rows = [
        f"| {name} | {ms:.2f} | {low:.2f} to {high:.2f} |"
        for name, ms in result["ms"].items()
        for low, high in [result["range_ms"][name]]
    ]
    bounds = [
        f"| {name} | {result['used_frame_ms'][name]:.1f} | {result['cores'] * 1e3 / result['used_frame_ms'][name]:.0f} | "
        f"{most:.1f} |"
        for name, most in result["most_cameras"].items()
    ]
    return f"""# What the parts of the work on a frame cost

720p H.264 at {FPS} frames a second, no B-frames, {result["clip_kbit_per_second"]:,.0f} kbit/s; MobileNetV2 on
{_SIDE} x {_SIDE}, one frame a call. Milliseconds of CPU on one thread, each part alone: medians and
range of {result["rounds"]} rounds.

| part | ms | range |
|---|---|---|
{chr(10).join(rows)}

Where one frame of {_EVERY} goes to the model, and nothing but these parts is done, on {result["cores"]} cores:

| model | ms of a used frame | used frames/s at the most | cameras at the most |
|---|---|---|---|
{chr(10).join(bounds)}

That leaves out demultiplexing a network's stream, handing frames from thread to thread, and who sends.
"""


if __name__ == "__main__":
    measure.run_benchmark("video.parts", "What the parts of the work on a frame cost.", run, as_text)
