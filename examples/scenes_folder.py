"""The smallest whole pipeline: a folder of images in, JSON Lines out."""

from __future__ import annotations

import json
from typing import Any

import headrace as hr
from headrace.samples.catalogue import SCENES_MODEL_PATH


class Scenes(hr.Module):
    """Name the photograph that a crop was cut from."""

    model = SCENES_MODEL_PATH
    input = hr.ImageInput(short_side=256, crop=224)

    def load(self, context: Any) -> None:
        """Open the model that the Plan names."""
        self.scenes = context.open_model()
        # An emulated device (`--set model.engine=emulated`) opens no file that could carry names; it always answers 0.
        self.names = json.loads(self.scenes.metadata.get("names", '["emulated"]'))

    def preprocess(self, image: Any) -> Any:
        """Return float32 (3, 224, 224)."""
        return hr.images.normalize(image)

    def process(self, batch: Any) -> list[str]:
        """Return a name for each image."""
        return [self.names[best] for best in self.scenes(batch).argmax(axis=1)]


pipeline = hr.Pipeline(source=hr.folder("photos"), module=Scenes(), delivery=hr.jsonl("scenes.jsonl"))
