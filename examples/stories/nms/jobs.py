"""Finds defects: the network proposes boxes, and those that overlap a better one are suppressed.

headrace run jobs.py:slow --plan slow.toml
"""

import numpy as np

import headrace as hr

random = np.random.default_rng(0)
corners = random.uniform(0, 200, (260, 2))
#: What the network proposes for each image; the device is emulated, so it proposes the same for all.
BOXES = np.concatenate([corners, corners + random.uniform(10, 60, (260, 2))], axis=1).astype(np.float32)
SCORES = random.uniform(0.3, 1.0, 260).astype(np.float32)


def iou(a, b):
    """Return the area that two boxes share over the area of both."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return width * height / (areas - width * height)


class Defects(hr.Module):
    """Suppresses boxes as most tutorials do: a loop in a loop."""

    input = hr.ImageInput(short_side=256, crop=224)

    def load(self, context):
        """Open the device that the Plan names."""
        self.network = context.open_model()

    def preprocess(self, image):
        """Return what the network takes."""
        return hr.images.normalize(image)

    def process(self, batch):
        """Return boxes and scores for each image."""
        self.network(batch)
        return [(BOXES, SCORES) for _ in batch]

    def postprocess(self, proposed):
        """Return the numbers of the boxes that remain, the best first."""
        boxes, scores = (array.tolist() for array in proposed)
        left = sorted(range(len(scores)), key=lambda number: -scores[number])
        kept = []
        while left:
            best = left.pop(0)
            kept.append(best)
            left = [number for number in left if iou(boxes[best], boxes[number]) <= 0.5]
        return kept


class Fixed(Defects):
    """The same boxes, suppressed in native code."""

    def postprocess(self, proposed):
        """Return the numbers of the boxes that remain, the best first."""
        return hr.nms(*proposed, iou_threshold=0.5).tolist()


slow = hr.Pipeline(hr.folder("photos"), module=Defects(), delivery=hr.jsonl("defects.jsonl"))
fixed = hr.Pipeline(hr.folder("photos"), module=Fixed(), delivery=hr.jsonl("defects.jsonl"))
