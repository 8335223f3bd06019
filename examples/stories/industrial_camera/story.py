"""The story of the industrial camera, told by running it: `python story.py [FOLDER]` prints the transcript.

1. A network names what a camera over a belt shows, on a device that manages two frames a second; ten are needed.
2. 8 bits: is that faster, and as often right?
3. Images of 160 x 160: the same question.
4. What was accepted, on the same device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import onnx

from headrace.optimize.int8 import quantize
from headrace.samples.catalogue import SCENES_MODEL_PATH
from headrace.samples.generator import crops, make
from headrace.stages.decode import decode
from headrace.stages.images import normalize

HERE = Path(__file__).parent
#: Frames a second of the device at first. How many times as slow as a core it is then, a run with these times says.
RATE, FIRST_TIMES = 2.0, 50
SIDE, SMALLER = 448, 160
NUM_CALIBRATION, NUM_GOLDEN, NUM_FRAMES = 44, 220, 20


def write_files(folder: Path) -> None:
    """Write the network for images of any size, the same in 8 bits, and images: with labels, and of the camera."""
    folder.mkdir(parents=True, exist_ok=True)
    large = onnx.load(SCENES_MODEL_PATH)
    for side in large.graph.input[0].type.tensor_type.shape.dim[2:]:
        side.dim_param = "side"
    del large.graph.value_info[:]
    onnx.save(large, folder / "large.onnx")
    seen = [cv2.resize(decode(one.data), (SIDE, SIDE)) for one in crops(NUM_CALIBRATION, 1, split="train")]
    quantize(folder / "large.onnx", np.stack([normalize(one) for one in seen]), folder / "int8.onnx")
    make(folder / "held_out", count=NUM_GOLDEN, seed=2, split="held_out", force=True)
    make(folder / "frames", count=NUM_FRAMES, seed=3, split="held_out", force=True)
    plan = '[source]\nmax_in_flight = 1\n[model]\nartifact = "large.onnx"\nthreads = 1\n'
    (folder / "now.toml").write_text(plan)
    (folder / "small.toml").write_text(f"{plan}input_side = {SMALLER}\n")


def headrace(*arguments: str, folder: Path, times: int = 1, expect: tuple[int, ...] = (0,)) -> str:
    """Print a command as it would be typed, run it on a device so many times as slow as a core, and return what it prints."""
    device = f"DEVICE_TIMES={times} " if times > 1 else ""
    print(f"$ {device}headrace {' '.join(arguments)}".replace(f"{HERE}/", ""))
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"COLUMNS": "400", "DEVICE_TIMES": str(times)},
    )  # fmt: skip
    if done.returncode not in expect:
        raise RuntimeError(f"it ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def run(plan: str, times: int, folder: Path) -> float:
    """Return how many frames a second the run of a Plan does, one after another, on a device so many times as slow."""
    told = headrace("run", f"{HERE / 'jobs.py'}:pipeline", "--plan", plan, "--json", folder=folder, times=times)
    rate = float(json.loads(told)["throughput_per_second"])
    print(f"   {rate:.1f} frames/s")
    return rate


def validate(variant: str, folder: Path, expect: tuple[int, ...]) -> None:
    """Print the verdict on a variant, and what the gates of speed and accuracy say."""
    said = headrace("validate", "large.onnx", variant, "--pipeline", f"{HERE / 'jobs.py'}:pipeline", "--golden",
                    "held_out", "--max-drop", "1pt", folder=folder, expect=expect).splitlines()  # fmt: skip
    told = [said[0].split()[0], *(line for line in said if line.startswith(("speed", "accuracy")))]
    print(*(f"   {line}" for line in told), sep="\n")


def main(folder: Path) -> None:
    """Tell the story."""
    write_files(folder)
    print(f"A device {FIRST_TIMES} times as slow as a core of this machine, to know how many times the device is:")
    times = round(FIRST_TIMES * run("now.toml", FIRST_TIMES, folder) / RATE)
    print(f"\n1. On the device, {times} times as slow:")
    before = run("now.toml", times, folder)
    print("\n2. In 8 bits?")
    validate("int8.onnx", folder, expect=(0, 1, 4))
    print(f"\n3. Images of {SMALLER} x {SMALLER}?")
    validate(f"large.onnx@onnx,input_side={SMALLER}", folder, expect=(0,))
    print("\n4. On the device, with these:")
    after = run("small.toml", times, folder)
    print(f"\n{before:.1f} frames/s became {after:.1f}: {after / before:.1f} times as many.")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/industrial_camera").resolve())
