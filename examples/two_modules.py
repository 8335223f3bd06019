"""Several modules behind one queue, chosen by the job's `task`; they share downloads and delivery.

headrace submit sqlite:///jobs.db --task scenes photos
headrace submit sqlite:///jobs.db --task brightness photos
headrace run examples/two_modules.py:pipeline
"""

from __future__ import annotations

from typing import Any

from scenes_folder import Scenes

import headrace as hr


class Brightness(hr.Module):
    """Measure how bright an image is; needs no model, and far fewer pixels."""

    input = hr.ImageInput(short_side=64)

    def process(self, batch: Any) -> list[float]:
        """Return the mean grey level, 0 to 255, of each image."""
        return [float(image.mean()) for image in batch]


pipeline = hr.Pipeline(
    source=hr.queue("sqlite:///jobs.db", drain=True),
    modules={"scenes": Scenes(), "brightness": Brightness()},
    delivery=hr.jsonl("two_modules.jsonl"),
)
