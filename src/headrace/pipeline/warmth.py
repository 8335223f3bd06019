"""The first worker that gets an item warms the models of its station up; the others wait for it."""

from __future__ import annotations

import functools
import threading

from headrace.pipeline.group import Group
from headrace.pipeline.item import Item
from headrace.pipeline.levers import Lever
from headrace.pipeline.opening import GroupSpec
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.warm_up import CostCurve
from headrace.pipeline.worker import Worker


class Warmth:
    """That of one station.

    Args:
        context: Of the run.
        spec: The stages of the station, with the resolved Plan.
        lever: The station's: it makes no batch that is predicted not to fit.

    Attributes:
        is_there: Whether the models are warm, or there are none.
    """

    def __init__(self, context: RunContext, spec: GroupSpec, lever: Lever) -> None:
        self._context = context
        self._spec = spec
        self._name = spec.stages[0].name
        self._lever = lever
        self._lock = threading.Lock()
        has_device = any(stage.kind == "device" for stage in spec.stages)
        self.is_there = not has_device or not spec.plan.run.warm_up

    def bring(self, worker: Worker, item: Item) -> None:
        """Warm up with an item, unless another worker did."""
        with self._lock:
            if self.is_there:
                return
            curve = self._measure_curve(worker, item)
            is_process = self._spec.plan.stages[self._name].executor == "process"
            if curve is not None and (curve.seconds or is_process):
                self._context.cost_curves.append(curve)
            self.is_there = True

    def _measure_curve(self, worker: Worker, item: Item) -> CostCurve | None:
        """Warm up; with a budget no batch that is predicted not to fit is made, now or later."""
        forecast = self._context.forecast
        if forecast is None or not isinstance(worker.group, Group):
            return worker.group.warm_up(item)
        with forecast.warming:
            curve = worker.group.warm_up(item, functools.partial(forecast.before_batch, self._name))
            self._lever.cap("forecast", items=forecast.end_warm_up(self._name, self._spec.max_batch))
        return curve
