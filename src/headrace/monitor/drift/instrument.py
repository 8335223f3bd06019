"""Looks at items where they pass: around the stage that decodes, the one that resizes, and the last before the delivery.

How this works. Which stage has which part is found once, from the pipeline. A worker's own thread runs the code here, with the
job at hand (`base/current_job`). In a child process (`executor = "process"`) no job is at hand, and nothing is counted; the
companion says so. What is measured before a run's first batch (warm-up) is a real item seen twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.current_job import hands
from headrace.monitor.drift.collector import Collector
from headrace.pipeline.definition import Pipeline
from headrace.stages.stage import Stage


@dataclass(frozen=True, slots=True)
class Parts:
    """What a stage tells."""

    enters: bool = False
    """It is the first that sees the content of an item."""
    shows: bool = False
    """Its result is the image that the model sees."""
    answers: bool = False
    """Its result is the item's."""


def parts_of(pipeline: Pipeline) -> dict[str, Parts]:
    """Return {stage: what it tells}."""
    found: dict[str, Parts] = {}
    for route in pipeline.routes.values():
        stages = [stage for stage in route if stage.role == "map"]
        entry = next((one for one in stages if one.work == "decode"), None) or next(
            (one for one in stages if one.kind != "io"), None
        )
        shown = next((one for one in stages if one.work == "resize"), None) or (
            entry if entry is not None and entry.work == "decode" else None
        )
        for stage in stages:
            parts = Parts(enters=stage is entry, shows=stage is shown, answers=stage is _last(stages))
            if parts != Parts() or stage.kind == "cpu":
                found[stage.name] = parts
    return found


def _last(stages: Sequence[Stage]) -> Stage | None:
    """Return the last stage if its result is the item's: not that of a stage that only decodes."""
    return stages[-1] if stages and stages[-1].work not in ("download", "decode", "resize") else None


class DriftInstrument:
    """Wraps the calls of these stages.

    Args:
        collector: Counts.
        parts: See `parts_of`.
    """

    def __init__(self, collector: Collector, parts: dict[str, Parts]) -> None:
        self._collector = collector
        self._parts = parts

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call of a stage, watched; the call itself if it tells nothing."""
        parts = self._parts.get(stage)
        if parts is None:
            return call
        if kind == "device":
            return _watch_batches(self._collector, stage, parts, call)
        return _watch_items(self._collector, stage, parts, call)


def _watch_items(collector: Collector, stage: str, parts: Parts, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def watched(value: Any) -> Any:
        items = hands.items
        if not items:
            return call(value)
        job, began = items[0].job, time.thread_time_ns()
        try:
            result = call(value)
        except Exception as error:
            if parts.enters:
                collector.enter(job, value, stage, None, error, 0)
            raise
        cpu_ns = time.thread_time_ns() - began
        if parts.enters:
            collector.enter(job, value, stage, result, None, cpu_ns)
        else:
            collector.time(job, stage, cpu_ns)
        if parts.shows:
            collector.look(job, result)
        if parts.answers:
            collector.answer(job, result)
        return result

    return watched


def _watch_batches(collector: Collector, stage: str, parts: Parts, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def watched(batch: Any) -> Any:
        items = hands.items
        is_trial = len(items) > 1 and items[0] is items[1]  # warm-up runs one item in each place
        results = call(batch)
        if items and not is_trial and _matches(results, items):
            for index, item in enumerate(items):
                if parts.enters:
                    collector.enter(item.job, batch[index], stage, None, None, 0)
                if parts.answers:
                    collector.answer(item.job, results[index])
        return results

    return watched


def _matches(results: Any, items: Sequence[Any]) -> bool:
    """Return whether there is a result for each item; if not, the runtime refuses the batch."""
    try:
        return len(results) == len(items)
    except TypeError:
        return False
