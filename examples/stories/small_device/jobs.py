"""Names what photographs show, on a device with little memory: what does not fit is swapped to a slow card."""

import json
import time
from pathlib import Path

import headrace as hr
from headrace.samples.catalogue import SCENES_MODEL_PATH

#: Of the device, for this program; and what its card writes and reads again in a second.
MEMORY_BYTES, CARD_BYTES_PER_SECOND = 256e6, 200e6


class Scenes(hr.Module):
    """Says which photograph an image was cut from."""

    model = str(SCENES_MODEL_PATH)
    input = hr.ImageInput(short_side=256, crop=224)

    def load(self, context):
        """Open the model."""
        self.scenes = context.open_model()
        self.names = json.loads(self.scenes.metadata["names"])

    def preprocess(self, image):
        """Return what the model takes."""
        return hr.images.normalize(image)

    def process(self, batch):
        """Return the names; a call waits for the card where the program has more than the device's memory."""
        names = [self.names[row.argmax()] for row in self.scenes(batch)]
        time.sleep(max(0.0, resident_bytes() - MEMORY_BYTES) / CARD_BYTES_PER_SECOND)
        return names


def resident_bytes():
    """Return the memory that this process has."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


pipeline = hr.Pipeline(hr.folder("photos"), module=Scenes(), delivery=hr.collect())
