"""Names the scene of a frame; the photographs that it was trained on are those of the clips, in another part."""

import json

import headrace as hr
from headrace.samples.catalogue import SCENES_MODEL_PATH


class Scenes(hr.Module):
    """Says which photograph a frame shows."""

    model = str(SCENES_MODEL_PATH)
    input = hr.ArrayInput()

    def load(self, context):
        """Open the model."""
        self.scenes = context.open_model()
        self.names = json.loads(self.scenes.metadata["names"])

    def preprocess(self, frame):
        """Return what the model takes."""
        return hr.images.normalize(frame)

    def process(self, batch):
        """Return the label."""
        return [self.names[row.argmax()] for row in self.scenes(batch)]


pipeline = hr.Pipeline(hr.video("clips/", size=224), module=Scenes(), delivery=hr.collect())
