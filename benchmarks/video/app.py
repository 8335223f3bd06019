"""The pipeline whose profile tells how many cameras are held: `headrace profile benchmarks/video/app.py:pipeline`."""

import os
from typing import Any

import headrace as hr
from benchmarks.video.classify import Classify


def stages(sleep: float) -> list[Any]:
    """Return the stages behind the source: a model, or an emulated device that takes so long for each frame."""
    if sleep:
        return [hr.emulated("model", seconds=sleep)]
    return list(Classify().stages())


class Nothing:
    """Keeps no answer."""

    flush_items, flush_seconds, default_workers, is_instant = 1, 1.0, 1, True

    def open(self, context: Any) -> None:
        """Do nothing."""

    def deliver(self, job: hr.Job, result: Any) -> bool:
        """Take it."""
        return True

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


pipeline = hr.Pipeline(hr.folder("."), stages=stages(float(os.environ.get("VIDEO_SLEEP") or 0)), delivery=Nothing())
