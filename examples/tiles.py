"""Fan-out and join: one image is cut into four, each is classified, the image is named by vote."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import headrace as hr
from headrace.samples.catalogue import SCENES_MODEL_PATH


class Tiles(hr.Module):
    """Name the photograph that a tile was cut from; its input is an array, so nothing is fetched or decoded."""

    model = SCENES_MODEL_PATH
    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        """Open the model that the Plan names."""
        self.scenes = context.open_model()
        # An emulated device (`--set model.engine=emulated`) opens no file that could carry names; it always answers 0.
        self.names = json.loads(self.scenes.metadata.get("names", '["emulated"]'))

    def preprocess(self, tile: Any) -> Any:
        """Return float32 (3, 224, 224) from uint8 (224, 224, 3)."""
        return hr.images.normalize(tile)

    def process(self, batch: Any) -> list[str]:
        """Return a name for each tile; a batch may hold tiles of several images."""
        return [self.names[best] for best in self.scenes(batch).argmax(axis=1)]


def cut(image: Any) -> hr.Fan:
    """Return the four corners, 224 x 224 each; the join gets the image's size back beside the answers."""
    height, width = image.shape[:2]
    corners = [(0, 0), (0, width - 224), (height - 224, 0), (height - 224, width - 224)]
    return hr.Fan([image[top : top + 224, left : left + 224].copy() for top, left in corners], keep=(height, width))


def vote(joined: hr.Joined) -> dict[str, Any]:
    """Return the name that most tiles were given."""
    (name, votes), *_ = Counter(joined.results).most_common(1)
    return {"scene": name, "votes": votes, "of": len(joined.results), "size": list(joined.keep)}


whole = hr.ImageInput(short_side=448)

pipeline = hr.Pipeline(
    source=hr.folder("photos"),
    stages=[
        hr.fetch("fetch"),
        hr.decode("decode", whole),
        hr.resize("resize", whole),
        hr.fan_out("cut", cut),
        *Tiles().stages(),
        hr.join("vote", vote),
    ],
    delivery=hr.jsonl("tiles.jsonl"),
)
