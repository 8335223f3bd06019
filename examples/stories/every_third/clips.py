"""Writes the clips of two gates, and what is true of them: scenes that stay for seconds, one that does for half a second."""

from __future__ import annotations

import csv
from pathlib import Path

import av
import cv2
import numpy as np

from headrace.samples.catalogue import PHOTOGRAPHS

SIDE, RATE = 256, 10
#: The scene that is there for half a second, and how often: about once in six.
EVENT, EVENT_SECONDS, EVENT_SHARE = "rocket", 0.5, 0.15
SCENES = ("brick", "coffee", "flower", "pagoda")


def write(folder: Path, names: tuple[str, ...], seconds: int) -> None:
    """Write clips and labels.csv into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {one.name: _part(one) for one in PHOTOGRAPHS if one.name in (*SCENES, EVENT)}
    rows = []
    for number, name in enumerate(names):
        random = np.random.default_rng(number)
        stays = list(_story(random, seconds))
        rows += [(name, begin / RATE, end / RATE, label) for begin, end, label in stays]
        _write_clip(folder / name, stays, pictures, random)
    with (folder.parent / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("stream", "from", "to", "label"), *rows])


def _story(random, seconds):
    """Give (first frame, last frame + 1, scene); what comes is another one each time."""
    at, last = 0, ""
    while at < seconds * RATE:
        label = EVENT if last != EVENT and random.random() < EVENT_SHARE else str(random.choice(SCENES))
        if label == last:
            continue
        stays = EVENT_SECONDS if label == EVENT else random.uniform(3, 12)
        end = min(seconds * RATE, at + round(stays * RATE))
        yield at, end, label
        at, last = end, label


def _part(photograph):
    """Return the part of a photograph that the model was not trained on, a little larger than a frame."""
    left, top, right, bottom = photograph.held_out
    side = SIDE + 16
    return cv2.resize(cv2.imread(str(photograph.path))[top:bottom, left:right], (side, side))


def _write_clip(path, stays, pictures, random):
    noise = random.integers(0, 12, (SIDE + 64, SIDE, 3), np.uint8)
    with av.open(str(path), "w") as clip:
        stream = clip.add_stream("libx264", rate=RATE, options={"preset": "ultrafast", "g": "50", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = SIDE, SIDE, "yuv420p"
        for begin, end, label in stays:
            for number in range(begin, end):
                sway = round(8 + 8 * np.sin(number / RATE))
                picture = cv2.add(pictures[label][sway:][:SIDE, sway:][:, :SIDE], noise[number * 7 % 64 :][:SIDE])
                clip.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="bgr24")))
        clip.mux(stream.encode(None))
