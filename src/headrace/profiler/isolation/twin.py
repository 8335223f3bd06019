"""A device stage's emulated twin: takes its time, and not the CPU.

Its workers do not wait for one another: how much longer calls side by side take than one alone, because the device serves them
one after another or shares its cores among them, is in the time of each call.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from headrace.engines.emulated import EmulatedModel, EmulatedOptions
from headrace.profiler.isolation.values import kept
from headrace.stages.stage import Stage, StageContext


class EmulatedTwin(Stage):
    """Takes the time of a device stage, without the CPU, and answers with results of the real one.

    Args:
        stage: The real one.
        launch_seconds: What a call costs whatever its size, with as many calls at once as the Plan has workers.
        item_seconds: What each item of the batch adds.
        misfit: Worst relative error of that line.
        results: What the real one answered.
    """

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
        cost = EmulatedOptions(launch_seconds=self.launch_seconds, item_seconds=self.item_seconds)
        device = EmulatedModel(cost, contextlib.nullcontext())
        results = itertools.cycle(self._results)

        def take_time(batch: Any) -> list[Any]:
            device(batch)
            return [kept(result) for result in itertools.islice(results, len(batch))]

        return take_time

    def in_words(self) -> str:
        """Return its cost, and how well it fits."""
        line = f"{self.launch_seconds * 1e3:.3g} ms + {self.item_seconds * 1e3:.3g} ms per item"
        return line if self.misfit <= 0.1 else f"{line}, up to {self.misfit:.0%} off what was measured"
