"""Says what is where in an image, by a postprocessing that grew: small steps, each over all that the step before it left.

headrace run jobs.py:slow --plan slow.toml
"""

import math

import numpy as np

import headrace as hr

SIDE, CELLS, REACH = 544, 34, 48
SURE, OVERLAP = 0.5, 0.3
NAMES = (
    "brick", "chelsea", "clock", "coffee", "deep_field", "flower", "grass", "gravel", "pagoda", "retina", "rocket",
)  # fmt: skip


class Places(hr.Module):
    """Names a part of the image for each cell of a grid, and leaves out doubles."""

    input = hr.ImageInput(short_side=SIDE, crop=SIDE)

    def load(self, context):
        """Open the network that `prepare.py` wrote."""
        self.network = context.open_model()

    def preprocess(self, image):
        """Return what the network takes."""
        return hr.images.normalize(image)

    def process(self, batch):
        """Return (11 names, 34, 34) logits for each image."""
        return list(self.network(batch))

    def postprocess(self, logits):
        """Return name, score and box of what is found, the surest first; each step was added when somebody needed it."""
        cells = [
            (logits[:, row, column].tolist(), row, column)
            for row in range(logits.shape[1])
            for column in range(logits.shape[2])
        ]
        cells = [(softmax(values), row, column) for values, row, column in cells]
        found = [
            {"label": odds.index(max(odds)), "score": max(odds), "at": (row, column)} for odds, row, column in cells
        ]
        found = [one | {"box": box(*one["at"])} for one in found]
        found = [one for one in found if one["score"] >= SURE]
        found = sorted(found, key=lambda one: -one["score"])
        found = without_doubles(found)
        found = [one | {"box": [side / SIDE for side in one["box"]]} for one in found]
        found = [one | {"name": NAMES[one["label"]]} for one in found]
        return [[one["name"], round(one["score"], 3), one["box"]] for one in found]


def softmax(values):
    """Return the share of each."""
    largest = max(values)
    odds = [math.exp(value - largest) for value in values]
    total = sum(odds)
    return [value / total for value in odds]


def box(row, column):
    """Return left, top, right, bottom of what a cell looks at, within the image."""
    x, y = ((place + 0.5) * SIDE / CELLS for place in (column, row))
    return [min(max(side, 0.0), SIDE) for side in (x - REACH, y - REACH, x + REACH, y + REACH)]


def iou(a, b):
    """Return the area that two boxes share over the area of both."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return width * height / (areas - width * height)


def without_doubles(found):
    """Leave out what overlaps something surer of the same label."""
    kept = []
    for one in found:
        if all(one["label"] != other["label"] or iou(one["box"], other["box"]) <= OVERLAP for other in kept):
            kept.append(one)
    return kept


#: (1156, 4) What each cell looks at, row after row: the same in every image.
BOXES = np.array([box(row, column) for row in range(CELLS) for column in range(CELLS)])


class Fused(Places):
    """The same answers: one array where there was a list of cells, and `hr.nms` for the doubles."""

    def postprocess(self, logits):
        """Return name, score and box of what is found, the surest first."""
        logits = logits.reshape(len(logits), -1).astype(np.float64)
        odds = np.exp(logits - logits.max(axis=0))
        labels, scores = odds.argmax(axis=0), odds.max(axis=0) / odds.sum(axis=0)
        kept = hr.nms(BOXES, scores, score_threshold=SURE, iou_threshold=OVERLAP, classes=labels, max_boxes=len(BOXES))
        rows = zip(labels[kept].tolist(), scores[kept].tolist(), (BOXES[kept] / SIDE).tolist(), strict=True)
        return [[NAMES[label], round(score, 3), sides] for label, score, sides in rows]


slow = hr.Pipeline(hr.folder("photos"), module=Places(), delivery=hr.jsonl("places.jsonl"))
fixed = hr.Pipeline(hr.folder("photos"), module=Fused(), delivery=hr.jsonl("places.jsonl"))
