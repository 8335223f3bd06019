"""Counts vehicles at an intersection, in each frame of three cameras.

headrace run jobs.py:every_frame --plan slow.toml
"""

import cv2

import headrace as hr


class Vehicles(hr.Module):
    """Looks for vehicles in a frame."""

    input = hr.ArrayInput()

    def load(self, context):
        """Open the device that the Plan names."""
        self.network = context.open_model()

    def preprocess(self, frame):
        """Return what the network takes."""
        if frame.shape[:2] != (180, 320):
            frame = cv2.resize(frame, (320, 180), interpolation=cv2.INTER_AREA)
        return hr.images.normalize(frame)

    def process(self, batch):
        """Return a score for each frame."""
        return self.network(batch)[:, 0].tolist()


def count(source):
    """Return the pipeline over the clips of a source."""
    return hr.Pipeline(source, module=Vehicles(), delivery=hr.jsonl("vehicles.jsonl"))


every_frame = count(hr.video("clips/"))
small_frames = count(hr.video("clips/", size=(320, 180), threads=2))
