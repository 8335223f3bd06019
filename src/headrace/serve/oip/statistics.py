"""How many requests a model answered and how long that took, as Triton's extension `statistics` says it.

How this works: whoever answers requests counts them. What happened between comes from the run: this observer sees the spans
that the run records (`weight` says how many a span stands for) and the batches. The clock of a request begins with its
first byte; queue, compute_input, compute_infer and compute_output are the waits and services of its items, summed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.base.observer import Observer
from headrace.base.records import BatchFormed, Span
from headrace.pipeline.definition import Pipeline
from headrace.serve.oip.models import VERSION, name_of_model
from headrace.stages.stage import Stage

_PARTS = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(slots=True)
class _Duration:
    count: int = 0
    ns: int = 0

    def add(self, count: int, ns: int) -> None:
        self.count += count
        self.ns += ns

    def say(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


@dataclass(slots=True)
class _ModelStatistics:
    success: _Duration = field(default_factory=_Duration)
    fail: _Duration = field(default_factory=_Duration)
    items: int = 0
    """Answered with success."""
    last_ms: int = 0
    """When that was last, Unix time."""
    passages: int = 0
    """Items that went through the model."""
    waits_and_services: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_PARTS, 0))
    """By part, ns over all items."""
    batches: dict[int, _Duration] = field(default_factory=lambda: defaultdict(_Duration))
    """Calls of the model by their size."""


class Statistics(Observer):
    """Of all models of a pipeline; thread-safe.

    Args:
        pipeline: Its stages tell which span belongs to which model, and to which part of its work.
    """

    recorded_only = True

    def __init__(self, pipeline: Pipeline) -> None:
        self._lock = threading.Lock()
        self._models = {name_of_model(pipeline, task): _ModelStatistics() for task in pipeline.routes}
        met = Counter(stage.name for route in pipeline.routes.values() for stage in route)
        self._stages = {
            stage: (self._models[name_of_model(pipeline, task)], part)
            for task, route in pipeline.routes.items()
            for stage, part in _parts(route).items()
            if met[stage] == 1  # a span does not say whose it is where models share a stage
        }

    def note_request(self, model: str, *, is_good: bool, num_items: int, ns: int) -> None:
        """Count a request that was answered `ns` after its first byte."""
        with self._lock:
            one = self._models[model]
            (one.success if is_good else one.fail).add(1, ns)
            if is_good:
                one.items += num_items
                one.last_ms = time.time_ns() // 1_000_000

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Count waits and services."""
        with self._lock:
            for span in spans:
                if span.stage in self._stages:
                    self._count(span, *self._stages[span.stage])

    def batch_formed(self, batch: BatchFormed) -> None:
        """Count a call of the model."""
        if batch.stage in self._stages:
            with self._lock:
                self._stages[batch.stage][0].batches[batch.size].count += 1

    def describe(self, models: Sequence[str]) -> dict[str, Any]:
        """Return the statistics of models, as JSON has them."""
        with self._lock:
            return {"model_stats": [_describe(name, self._models[name]) for name in models]}

    def _count(self, span: Span, one: _ModelStatistics, part: str) -> None:
        service = (span.ended - span.started) * span.weight
        one.waits_and_services[part] += service
        one.waits_and_services["queue"] += (span.dequeued - span.arrived) * span.weight
        if part == "compute_infer":
            one.passages += span.weight
            if span.batch_size:
                one.batches[span.batch_size].ns += service // span.batch_size


def _parts(route: Sequence[Stage]) -> dict[str, str]:
    """Return to which part of a model's work each stage belongs: where nothing is a device, the last but the delivery is."""
    names = [stage.name for stage in route]
    model = next((index for index, stage in enumerate(route) if stage.kind == "device"), max(0, len(route) - 2))
    parts = dict.fromkeys(names[:model], "compute_input")
    return {**parts, names[model]: "compute_infer", **dict.fromkeys(names[model + 1 :], "compute_output")}


def _describe(name: str, one: _ModelStatistics) -> dict[str, Any]:
    nothing = _Duration()
    durations = {
        "success": one.success,
        "fail": one.fail,
        **{part: _Duration(one.passages, ns) for part, ns in one.waits_and_services.items()},
        "cache_hit": nothing,
        "cache_miss": nothing,
    }
    batches = [{"batch_size": size, "compute_infer": one.batches[size].say()} for size in sorted(one.batches)]
    return {
        "name": name,
        "version": VERSION,
        "last_inference": one.last_ms,
        "inference_count": one.items,
        "execution_count": sum(batch.count for batch in one.batches.values()),
        "inference_stats": {what: duration.say() for what, duration in durations.items()},
        "batch_stats": batches,
    }
