"""A device stage that takes the time of a real one, and not the CPU.

Its workers do not wait for one another: how much longer calls side by side take than one alone, because the device serves them
one after another or shares its cores among them, is in the time of each call.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from headrace.engines.emulated import EmulatedModel, EmulatedOptions
from headrace.profiler.stage_bench.values import copy_of
from headrace.stages.stage import Stage, StageContext


class EmulatedDevice(Stage):
    """Takes the time of a device stage, without the CPU, and answers with results of the real one.

    Args:
        stage: The real one.
        cost: What a call costs, with as many calls at once as the Plan has workers.
        misfit: Worst relative error of that line.
        results: What the real one answered, at least one.
    """

    kind = "device"
    releases_gil = True
    computes = False

    def __init__(self, stage: Stage, cost: EmulatedOptions, misfit: float, results: Sequence[Any]) -> None:
        super().__init__(stage.name, task=stage.task)
        self.executor = stage.executor
        self.workers = stage.workers
        self.cost = cost
        self._misfit = misfit
        self._results = results

    def open(self, context: StageContext) -> Callable[[Any], list[Any]]:
        """Return the device; the stage's own options mean nothing to it."""
        device = EmulatedModel(self.cost, contextlib.nullcontext())
        results = itertools.cycle(self._results)

        def take_time(batch: Any) -> list[Any]:
            device(batch)
            return [copy_of(result) for result in itertools.islice(results, len(batch))]

        return take_time

    def describe(self) -> str:
        """Return its cost in words, and how well it fits."""
        line = f"{self.cost.launch_seconds * 1e3:.3g} ms + {self.cost.item_seconds * 1e3:.3g} ms per item"
        return line if self._misfit <= 0.1 else f"{line}, up to {self._misfit:.0%} off what was measured"
