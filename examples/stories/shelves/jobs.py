"""Counts what is missing on shelves: photographs lie on a network drive, and six views of each are averaged.

headrace run jobs.py:pipeline --plan slow.toml
"""

import time
from pathlib import Path

import cv2
import numpy as np

import headrace as hr

#: Of the network drive, which is emulated: a pause before each file is read.
DRIVE_SECONDS = 0.03
WANTED = hr.ImageInput(short_side=256, crop=224)


def read(path):
    """Return a file's bytes, from a drive that is far away."""
    time.sleep(DRIVE_SECONDS)
    return Path(path).read_bytes()


class Shelves(hr.Module):
    """Scores a shelf by the mean of six views."""

    input = hr.ArrayInput()

    def load(self, context):
        """Open the device that the Plan names."""
        self.network = context.open_model()

    def preprocess(self, image):
        """Return the mean of the image turned a little, blurred, made brighter and mirrored."""
        views = []
        for angle in (-4, 0, 4):
            turn = cv2.getRotationMatrix2D((112, 112), angle, 1.0)
            view = cv2.warpAffine(image, turn, (224, 224), flags=cv2.INTER_CUBIC)
            view = cv2.cvtColor(cv2.GaussianBlur(view, (5, 5), 0), cv2.COLOR_RGB2HSV)
            view[..., 2] = np.clip(view[..., 2] * 1.1, 0, 255)
            view = cv2.cvtColor(view, cv2.COLOR_HSV2RGB)
            views += [hr.images.normalize(view), hr.images.normalize(view[:, ::-1].copy())]
        return np.mean(views, axis=0)

    def process(self, batch):
        """Return a score for each shelf."""
        return self.network(batch)[:, 0].tolist()


pipeline = hr.Pipeline(
    hr.items(sorted(map(str, Path("photos").glob("*.jpg")))),
    stages=[
        hr.stage("fetch", read, kind="io"),
        hr.decode("decode", WANTED),
        hr.resize("resize", WANTED),
        *Shelves().stages(),
    ],
    delivery=hr.jsonl("shelves.jsonl"),
)
