"""Sends masks of persons to whoever asked: as JSON, a number for each pixel.

headrace run jobs.py:slow --plan slow.toml
"""

import json
import time

import numpy as np

import headrace as hr

WANTED = hr.ImageInput(short_side=256, crop=224)
#: To the receiver and back.
NETWORK_SECONDS = 0.005


class Masks(hr.Module):
    """Says of each pixel whether it is bright; a network would say whether it shows a person."""

    input = hr.ArrayInput()

    def load(self, context):
        """Open the device that the Plan names."""
        self.network = context.open_model()

    def preprocess(self, image):
        """Return what the network takes."""
        return hr.images.normalize(image)

    def process(self, batch):
        """Return a mask for each image, from 0 to 1."""
        self.network(batch)
        return [1 / (1 + np.exp(-image[0])) for image in batch]


def post(body):
    """Send a body to the receiver, which is emulated: it answers after a while."""
    time.sleep(NETWORK_SECONDS)
    return len(body)


def send(mask):
    """Send a mask as JSON: 50,176 numbers with all their digits."""
    return post(json.dumps({"label": "person", "mask": mask.tolist()}))


def send_run_lengths(mask):
    """Send a mask as JSON: how many pixels are out, in, out, ..."""
    inside = np.concatenate([[False], (mask > 0.5).ravel(), [False]])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    runs = np.diff(edges, prepend=0).tolist()
    return post(json.dumps({"label": "person", "shape": mask.shape, "runs": runs}))


def make_pipeline(sending):
    """Return the pipeline with a way to send masks."""
    return hr.Pipeline(
        hr.folder("photos"),
        stages=[
            hr.fetch("fetch"),
            hr.decode("decode", WANTED),
            hr.resize("resize", WANTED),
            *Masks().stages(),
            hr.stage("send", sending),
        ],
        delivery=hr.jsonl("sizes.jsonl"),
    )


slow = make_pipeline(send)
fixed = make_pipeline(send_run_lengths)
