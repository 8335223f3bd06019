"""Makes alerts of heat maps, by a postprocessing that grew: a dozen small operations of NumPy, one after the other.

headrace run jobs.py:slow --plan slow.toml
"""

import numpy as np

import headrace as hr

#: What the network returns for each image; the device is emulated, so it returns the same for all.
HEAT = np.random.default_rng(0).normal(size=(19, 384, 384)).astype(np.float32)


class Alerts(hr.Module):
    """Counts the pixels that are hot, and names the class in the middle."""

    input = hr.ImageInput(short_side=256, crop=224)

    def load(self, context):
        """Open the device that the Plan names."""
        self.network = context.open_model()

    def preprocess(self, image):
        """Return what the network takes."""
        return hr.images.normalize(image)

    def process(self, batch):
        """Return a heat map of 19 classes for each image."""
        self.network(batch)
        return [HEAT for _ in batch]

    def postprocess(self, heat):
        """Return the count and the class; each step was added for a reason that nobody remembers."""
        heat = heat * 1.7
        heat = heat + 0.3
        heat = np.exp(heat - heat.max(axis=0))
        heat = heat / heat.sum(axis=0)
        heat = np.clip(heat, 0.001, 0.999)
        heat = np.log(heat / (1 - heat))
        heat = np.tanh(heat)
        heat = np.where(heat > 0, heat, 0)
        heat = np.sqrt(heat**2)
        return int((heat.max(axis=0) > 0).sum()), int(heat.argmax(axis=0)[192, 192])


class Fused(Alerts):
    """The same two numbers: a class is hot where its share is above one half, which needs one pass of exponentials."""

    def postprocess(self, heat):
        """Return the count and the class."""
        best = heat.max(axis=0)
        others = np.exp((heat - best) * 1.7).sum(axis=0)
        return int((others < 2).sum()), int(heat[:, 192, 192].argmax()) if others[192, 192] < 2 else 0


slow = hr.Pipeline(hr.folder("photos"), module=Alerts(), delivery=hr.jsonl("alerts.jsonl"))
fixed = hr.Pipeline(hr.folder("photos"), module=Fused(), delivery=hr.jsonl("alerts.jsonl"))
