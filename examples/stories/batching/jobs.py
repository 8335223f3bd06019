"""The same service as a pipeline.

headrace serve jobs.py:pipeline --plan one_by_one.toml
"""

from __future__ import annotations

from typing import Any

import headrace as hr


class Thumbnails(hr.Module):
    """Names each image; the device is emulated, so that every answer is 0."""

    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        """Open the device that the Plan names."""
        self._device = context.open_model()

    def process(self, batch: list[bytes]) -> list[dict[str, float]]:
        """Return a label for each image."""
        return [{"label": float(label)} for label in self._device(batch)[:, 0]]


pipeline = hr.Pipeline(source=hr.items([]), module=Thumbnails())
