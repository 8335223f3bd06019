"""Faults of Python code: loops over boxes (F20), one lock for all (F25), the collector of cyclic garbage (F26)."""

from __future__ import annotations

import functools
import gc
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.faults import work
from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from headrace.stages.stage import FunctionStage

Box = tuple[float, float, float, float]

#: Where a device holds up the healthy pipeline, loops have to take longer than it to matter.
_BOXES = {"download_heavy": 70, "decode_heavy": 70, "device_heavy": 120}
_OVERLAP = 0.5
_LOCKED_SECONDS = {"decode_heavy": 0.003, "download_heavy": 0.005}
_LIVING_OBJECTS = 20_000


def random_boxes(count: int) -> list[Box]:
    """Return boxes (left, top, right, bottom) that hardly overlap, the same for each call."""
    numbers = random.Random(0)
    corners = [(numbers.uniform(0, 900), numbers.uniform(0, 900)) for _ in range(count)]
    return [(left, top, left + numbers.uniform(20, 100), top + numbers.uniform(20, 100)) for left, top in corners]


def slow_nms(boxes: Sequence[Box]) -> list[Box]:
    """Return the boxes that remain after non-maximum suppression, best first, by two loops of pure Python.

    The time grows with the square of the number of boxes. `headrace.nms` does the same in C++.

    Args:
        boxes: (left, top, right, bottom), best first.
    """
    kept: list[Box] = []
    for box in boxes:
        if all(_intersection(box, other) <= _OVERLAP * _union(box, other) for other in kept):
            kept.append(box)
    return kept


def _intersection(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _union(a: Box, b: Box) -> float:
    return (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - _intersection(a, b)


def _python_nms(case: Case, dose: float) -> Case:
    boxes = random_boxes(round(_BOXES[case.shape] * dose**0.5))

    def postprocess(result: Any) -> Any:
        return [result, len(slow_nms(boxes))]

    stage = FunctionStage("postprocess", postprocess, work="postprocess")
    # One worker: with two, threads that wait for the GIL would be a second thing wrong.
    return replace(case, stages=(*case.stages, stage)).with_settings("postprocess.workers=1")


def _without_nms(case: Case) -> Case:
    settings = {name: one for name, one in case.plan.stages.items() if name != "postprocess"}
    return replace(case, stages=case.stages[:-1], plan=replace(case.plan, stages=settings))


def _global_lock(case: Case, dose: float) -> Case:
    lock = threading.Lock()
    seconds = _LOCKED_SECONDS[case.shape] * (dose - 1)

    def locked(call: Callable[[Any], Any], extra_seconds: float = 0.0) -> Callable[[Any], Any]:
        def one_at_a_time(value: Any) -> Any:
            with lock:
                work.burn(extra_seconds)
                return call(value)

        return one_at_a_time

    changed = case.around("decode", locked).around("preprocess", functools.partial(locked, extra_seconds=seconds))
    return changed.with_settings("decode.workers=4")


def _garbage(case: Case, dose: float) -> Case:
    living: list[Any] = []
    most = round(_LIVING_OBJECTS * dose)

    def collecting(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def before(value: Any) -> Any:
            # Little by little: what is there before the run begins is frozen, and the collector looks at it no more.
            if len(living) < most:
                living.extend({"number": [number]} for number in range(most // 20))
            cycle: list[Any] = []
            cycle.append(cycle)
            gc.collect()
            return call(value)

        return before

    return case.around("preprocess", collecting)


FAULTS = (
    Fault(
        id="F20",
        title="suppression of overlapping boxes by loops of Python",
        dose=f"pairs of boxes compared, from those of {min(_BOXES.values())} boxes, of {max(_BOXES.values())} after a device",
        applies_to=tuple(_BOXES),
        inject=_python_nms,
        fix=_without_nms,
    ),
    Fault(
        id="F25",
        title="one lock around decoding and preprocessing, for all workers",
        dose="how much more is done while it is held; at 1 decoding and preprocessing alone",
        applies_to=("decode_heavy", "download_heavy"),
        inject=_global_lock,
    ),
    Fault(
        id="F26",
        title="a full collection of cyclic garbage for each item",
        dose=f"objects that live, and that each collection looks at, from {_LIVING_OBJECTS:,}",
        applies_to=("decode_heavy", "download_heavy"),
        inject=_garbage,
    ),
)
