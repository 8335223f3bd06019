"""Images as they are read: most of 8 bits, a few of 16."""

from __future__ import annotations

import json

import cv2
import numpy as np
import onnx

from headrace.samples.catalogue import PHOTOGRAPHS, SCENES_MODEL_PATH


def cut(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images of 8 bits as uint16 (count, 3, 224, 224), and their labels."""
    random = np.random.default_rng(seed)
    named = {one.key: one.value for one in onnx.load(SCENES_MODEL_PATH).metadata_props}
    names = json.loads(named["names"])
    regions = []
    for photograph in PHOTOGRAPHS:
        left, top, right, bottom = photograph.held_out
        picture = cv2.cvtColor(cv2.imread(str(photograph.path)), cv2.COLOR_BGR2RGB)
        regions.append((names.index(photograph.name), picture[top:bottom, left:right]))
    images, labels = np.empty((count, 3, 224, 224), np.uint16), np.empty(count, np.int64)
    for number in range(count):
        labels[number], region = regions[number % len(regions)]
        side = int(min(region.shape[:2]) * random.uniform(0.7, 1))
        top, left = (int(random.integers(0, length - side + 1)) for length in region.shape[:2])
        images[number] = cv2.resize(region[top : top + side, left : left + side], (224, 224)).transpose(2, 0, 1)
    return images, labels


def as_sixteen_bits(images: np.ndarray) -> np.ndarray:
    """Return the same pictures from a camera of 16 bits, which tells steps between the levels of one of 8."""
    finer = np.random.default_rng(16).integers(0, 256, images.shape, np.uint16)
    return images * np.uint16(256) + finer
