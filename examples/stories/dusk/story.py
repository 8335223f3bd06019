"""The story of dusk, told by running it: `python story.py [FOLDER]` prints the transcript.

Four cameras send photographs in turn, and a model names the scene. Nobody knows the right names in production; here they are
known, so that the transcript can say what drift alone could not see: how many answers were right.

1. A usual day is recorded, and taken for what is usual.
2. Another usual day: nothing is said.
3. Dusk: the same scenes at a third of the light, with the noise of a camera that amplifies. Nothing fails.
4. The cameras expose for longer instead: as light as by day, and all is smeared, as their masts sway.
5. The camera at the gate is replaced by one with more pixels.
6. A camera is added.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from headrace.samples.generator import crops
from headrace.stages.decode import decode

HERE = Path(__file__).parent
CAMERAS = ("gate", "hall", "road", "yard")
#: Scenes, and how often each is photographed on the usual day: each time in another light.
NUM_SCENES, TIMES = 400, 9
WINDOW = 25
#: Pixels, of 288, that a long exposure smears.
SMEARED = 25


def save(folder: Path, images: list[tuple[str, np.ndarray]], random: np.random.Generator, how: Callable[..., np.ndarray],
         *, times: int = 1, cameras: tuple[str, ...] = CAMERAS) -> Path:  # fmt: skip
    """Write images of cameras; the file's name begins with the right answer."""
    listed = []
    for number, scene in enumerate(random.permutation(times * len(images)) % len(images)):
        label, image = images[scene]
        camera = cameras[number % len(cameras)]
        (folder / camera).mkdir(parents=True, exist_ok=True)
        light = image * random.normal(1.0, 0.1)
        shot = how(np.clip(light, 0, 255), camera, random).astype(np.uint8)
        file = folder / camera / f"{label}-{number:05d}.jpg"
        cv2.imwrite(str(file), cv2.cvtColor(shot, cv2.COLOR_RGB2BGR))
        listed.append(f"{folder.name}/{camera}/{file.name}\n")
    folder.with_suffix(".lst").write_text("".join(listed))
    return folder


def usual(image: np.ndarray, camera: str, random: np.random.Generator) -> np.ndarray:
    """Return an image as it is."""
    return image


def dusk(image: np.ndarray, camera: str, random: np.random.Generator) -> np.ndarray:
    """Return it at a third of the light, and noisy."""
    return np.clip(image / 3 + random.normal(0, 10, image.shape), 0, 255)


def blurred(image: np.ndarray, camera: str, random: np.random.Generator) -> np.ndarray:
    """Return it smeared over so many pixels in some direction, as in a long exposure."""
    path = np.zeros((SMEARED, SMEARED), np.float32)
    x, y = (np.array([np.cos(turn := random.uniform(0, np.pi)), np.sin(turn)]) * SMEARED / 2).tolist()
    middle = SMEARED // 2
    cv2.line(path, (round(middle - x), round(middle - y)), (round(middle + x), round(middle + y)), 1.0)
    return cv2.filter2D(image.astype(np.float32), -1, path / path.sum())


def large_gate(image: np.ndarray, camera: str, random: np.random.Generator) -> np.ndarray:
    """Return it twice as wide and high at the gate."""
    return (
        cv2.resize(image, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC).clip(0, 255) if camera == "gate" else image
    )


def headrace(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    command = [sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise RuntimeError(f"headrace {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done


def watch(folder: Path, images: Path) -> None:
    """Run the pipeline over images, and print what it said and how many answers were right."""
    results = f"{images.name}.jsonl"
    more = ["--results", results, "--drift", "watch", "--drift-key", "folder", "--drift-window", str(WINDOW)]
    more += ["--drift-budget", "100%"]  # a day is over in seconds here: look at every image
    done = headrace("run", f"{HERE / 'jobs.py'}:pipeline", "--source", f"{images.name}.lst", *more, folder=folder)
    lines = [json.loads(line) for line in (folder / results).read_text().splitlines()]
    right = sum(Path(line["id"]).name.startswith(f"{line['result'][0]}-") for line in lines)
    share = right / len(lines)
    print(f"   {len(lines):,} answers, none failed; {share:.0%} of them are right, which nobody knows in production")
    for line in done.stderr.splitlines():
        if line.startswith("headrace drift: "):
            print(f"   {line}")


def main(folder: Path) -> None:
    """Tell the story."""
    random = np.random.default_rng(20)
    scenes = [(crop.label or "", decode(crop.data, short_side=288)) for crop in crops(NUM_SCENES, 20, split="held_out")]
    small = [
        (label, cv2.resize(image, None, fx=(factor := 288 / min(image.shape[:2])), fy=factor).astype(np.float32))
        for label, image in scenes
    ]
    folder.mkdir(parents=True, exist_ok=True)
    print("1. A usual day is recorded, and taken for what is usual.")
    watch(folder, save(folder / "usual", small, random, usual, times=TIMES))
    learnt = headrace("monitor", "drift", "learn", "watch", folder=folder).stdout.splitlines()
    print(*(f"   {line}" for line in learnt if line.startswith(("learnt", "what this"))), sep="\n")
    for what, name, how, cameras in (
        ("2. Another usual day.", "tomorrow", usual, CAMERAS),
        ("3. Dusk.", "dusk", dusk, CAMERAS),
        ("4. Longer exposures: light again, and smeared.", "blurred", blurred, CAMERAS),
        ("5. Day again; the camera at the gate has more pixels.", "gate", large_gate, CAMERAS),
        ("6. The old camera is back at the gate, and one was added at the dock.", "dock", usual, (*CAMERAS, "dock")),
    ):
        print(what)
        watch(folder, save(folder / name, small, random, how, times=3, cameras=cameras))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/dusk"))
