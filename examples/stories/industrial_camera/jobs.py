"""Names what an industrial camera shows, frame after frame, on a device many times as slow as a core."""

import json
import os

import headrace as hr

#: As slow as a core of this machine; 1: it is one.
TIMES = int(os.environ.get("DEVICE_TIMES", "1"))


class Parts(hr.Module):
    """Says which of eleven things a frame shows."""

    input = hr.ImageInput(short_side=512, crop=448)

    def load(self, context):
        """Open the model."""
        self.parts = context.open_model()
        self.names = json.loads(self.parts.metadata["names"])

    def preprocess(self, image):
        """Return what the model takes."""
        return on_device(hr.images.normalize, image)

    def process(self, batch):
        """Return the name."""
        return [self.names[row.argmax()] for row in on_device(self.parts, batch)]


def on_device(work, given):
    """Do it as many times over as the device is slower."""
    for _ in range(TIMES):
        made = work(given)
    return made


pipeline = hr.Pipeline(hr.folder("frames"), module=Parts(), delivery=hr.collect())
