"""Finds defects in photographs that are cleaned first: by a filter of OpenCV, on the CPU, in the loop that feeds the device.

headrace run jobs.py:pipeline --plan slow.toml
"""

import cv2

import headrace as hr

#: Of the network.
WANTED = hr.ImageInput(short_side=256, crop=224)


def clean(image):
    """Return the image without noise, as those were that the network was trained with."""
    for _ in range(2):
        image = cv2.bilateralFilter(image, 9, 40, 40)
    return image


class Defects(hr.Module):
    """Scores an image."""

    input = hr.ArrayInput()

    def load(self, context):
        """Open the device that the Plan names."""
        self.network = context.open_model()

    def preprocess(self, image):
        """Return what the network takes."""
        return hr.images.normalize(image)

    def process(self, batch):
        """Return a score for each image."""
        return self.network(batch)[:, 0].tolist()


pipeline = hr.Pipeline(
    hr.folder("photos"),
    stages=[
        hr.fetch("fetch"),
        hr.decode("decode", WANTED),
        hr.resize("resize", WANTED),
        hr.stage("clean", clean, releases_gil=True),
        *Defects().stages(),
    ],
    delivery=hr.jsonl("defects.jsonl"),
)
