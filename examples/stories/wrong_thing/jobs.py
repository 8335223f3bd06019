"""Watches traffic: frames are decoded in full, although the network looks at 160 by 160 pixels.

headrace run jobs.py:pipeline --plan slow.toml
"""

import headrace as hr


class Traffic(hr.Module):
    """Scores a frame."""

    input = hr.ImageInput(short_side=160, crop=160)

    def load(self, context):
        """Open the device that the Plan names."""
        self.network = context.open_model()

    def preprocess(self, image):
        """Return what the network takes."""
        return hr.images.normalize(image)

    def process(self, batch):
        """Return a score for each frame."""
        return self.network(batch)[:, 0].tolist()


pipeline = hr.Pipeline(hr.folder("frames"), module=Traffic(), delivery=hr.jsonl("traffic.jsonl"))
