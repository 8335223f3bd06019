"""Names the scene of an image: the pipeline that is watched."""

import json

import numpy as np

import headrace as hr
from headrace.samples.catalogue import SCENES_MODEL_PATH


class Scenes(hr.Module):
    """Says which photograph an image was cut from, and how certain it is."""

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
        """Return the name and its probability."""
        odds = np.exp(self.scenes(batch))
        return [(self.names[row.argmax()], float(row.max() / row.sum())) for row in odds]


pipeline = hr.Pipeline(hr.folder("images"), module=Scenes(), delivery=hr.collect())
