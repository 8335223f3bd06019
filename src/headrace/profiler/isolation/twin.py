"""A device stage's emulated twin: takes its time, and not the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from headrace.engines.emulated import EmulatedModel, EmulatedOptions
from headrace.profiler.isolation.values import kept
from headrace.stages.stage import Stage, StageContext


class EmulatedTwin(Stage):
    """Takes the time of a device stage, one batch at a time without the CPU, and answers with results of the real one."""

    kind = "device"
    releases_gil = True
    computes = False

    def __init__(
        self, stage: Stage, launch_seconds: float, item_seconds: float, misfit: float, results: list[Any]
    ) -> None:
        super().__init__(stage.name, task=stage.task)
        self.executor = stage.executor
        self.workers = stage.workers
        self.launch_seconds = launch_seconds
        self.item_seconds = item_seconds
        self.misfit = misfit
        self._results = results

    def open(self, context: StageContext) -> Callable[[Any], list[Any]]:
        """Return the device; the stage's own options mean nothing to it."""
        device = EmulatedModel(EmulatedOptions(launch_seconds=self.launch_seconds, item_seconds=self.item_seconds))
        results = itertools.cycle(self._results)

        def take_time(batch: Any) -> list[Any]:
            device(batch)
            return [kept(result) for result in itertools.islice(results, len(batch))]

        return take_time

    def in_words(self) -> str:
        """Return its cost, and how well it fits."""
        line = f"{self.launch_seconds * 1e3:.3g} ms + {self.item_seconds * 1e3:.3g} ms per item"
        return line if self.misfit <= 0.1 else f"{line}, up to {self.misfit:.0%} off what was measured"
