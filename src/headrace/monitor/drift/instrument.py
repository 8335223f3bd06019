"""Looks at items where they pass: around the stage that decodes, the one that resizes, and the last before the delivery.

How this works. Which stage has which part is found once, from the pipeline. A worker's own thread runs the code here, with the
job at hand (`base/current_job`). In a child process (`executor = "process"`) no job is at hand: a copy measures there, and what
it notes comes back with the values (`elsewhere`). What is measured before a run's first batch (warm-up) is a real item seen
twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.base.current_job import Returned, Worked, hands
from headrace.base.records import Job
from headrace.monitor.drift.collector import Collector
from headrace.monitor.drift.elsewhere import CollectorElsewhere, brief_for, take_notes
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
        return _wrap(self._collector, self._parts.get(stage), stage, kind, call)

    def brief(self, items: Sequence[Worked]) -> Any:
        """Return what a copy in a child process has to know of the items that it is about to see."""
        return brief_for(items, self._collector.step)

    def learn(self, stages: Sequence[str], items: Sequence[Returned], notes: Any) -> None:
        """Count what a copy noted of items, and what their results say; None: the process died with them."""
        parts = [self._parts.get(stage, Parts()) for stage in stages]
        if notes is not None:
            take_notes(self._collector, items, notes)
        elif any(one.enters for one in parts):
            for item in items:
                self._collector.enter(item.job, item.value, stages[0], None, item.error, 0)
        if parts[-1].answers:
            for item in items:
                if item.error is None:
                    self._collector.answer(item.job, item.value)

    def __reduce__(self) -> Any:
        """Be a copy in a child process."""
        return DriftCopy, (self._parts,)


class DriftCopy:
    """The instrument in a child process.

    Args:
        parts: See `parts_of`.
    """

    def __init__(self, parts: dict[str, Parts]) -> None:
        self._collector = CollectorElsewhere()
        self._parts = parts
        self.begin, self.report = self._collector.begin, self._collector.report

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call of a stage, watched; the call itself if it tells nothing."""
        return _wrap(self._collector, self._parts.get(stage), stage, kind, call)


class _Sees(Protocol):
    """Those methods of `Collector` that see items; see there."""

    def enter(
        self, job: Job, value: Any, stage: str, result: Any, error: BaseException | None, cpu_ns: int
    ) -> None: ...

    def look(self, job: Job, image: Any) -> None: ...

    def time(self, job: Job, stage: str, cpu_ns: int) -> None: ...

    def answer(self, job: Job, result: Any) -> None: ...


def _wrap(collector: _Sees, parts: Parts | None, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
    if parts is None:
        return call
    watch = _watch_batches if kind == "device" else _watch_items
    return watch(collector, stage, parts, call)


def _watch_items(collector: _Sees, stage: str, parts: Parts, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
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


def _watch_batches(collector: _Sees, stage: str, parts: Parts, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
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
