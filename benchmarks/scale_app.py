"""What `benchmarks.scale` runs: decodes a JPEG and makes it small, or waits; each result says when it was there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import headrace as hr
from benchmarks.ours import Classifier


def shrink(data: Any) -> dict[str, float]:
    """Return the mean of a photograph's small version."""
    data = data.read_bytes() if isinstance(data, Path) else data
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return {"mean": float(cv2.resize(image, (224, 224), interpolation=cv2.INTER_AREA).mean()), "at": time.time()}


def wait(path: Path) -> dict[str, float]:
    """Take some milliseconds of nobody's processor."""
    time.sleep(0.01)
    return {"at": time.time()}


class Timed(Classifier):
    """The classifier of the other benchmarks; each result says when it was there."""

    def process(self, batch: Any) -> list[dict[str, object]]:
        """Return label, score and time of each image."""
        return [{**answer, "at": time.time()} for answer in super().process(batch)]


queued = hr.Pipeline(
    hr.queue(os.environ.get("SCALE_QUEUE", "sqlite:///jobs.db"), drain=True),
    stages=[hr.stage("shrink", shrink)],
    delivery=hr.jsonl("queued.jsonl"),
)
listed = hr.Pipeline(hr.folder("photos"), stages=[hr.stage("shrink", shrink)])
waiting = hr.Pipeline(hr.folder("photos"), stages=[hr.stage("wait", wait)])
classified = hr.Pipeline(hr.folder("photos"), module=Timed())
