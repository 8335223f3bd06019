"""Faults between the last stage and the outcome: large JSON (F21), callbacks that fail (F23), ordered output (F24)."""

from __future__ import annotations

import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from headrace.delivery.jsonl import JsonLines
from headrace.stages.stage import FunctionStage

_MASK_PIXELS = 24_000
_FAILING_SHARE = 0.25
#: Two workers that post each result once can keep up with the pipeline, and not with many more posts.
_CALLBACK_SECONDS = 0.004
_SLOW_ONE_IN = 50
_SLOW_SECONDS = 0.3
_IN_FLIGHT = 32


class ScratchLines(JsonLines):
    """Lines of JSON in a file that is removed when it is closed."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="headrace-scratch-")
        super().__init__(Path(self._scratch.name) / "results.jsonl")

    def close(self) -> None:
        """Close and remove the file."""
        super().close()
        self._scratch.cleanup()


def _float_mask(case: Case, dose: float) -> Case:
    side = round((_MASK_PIXELS * dose) ** 0.5)
    mask = np.random.default_rng(0).random((side, side), np.float32)

    def postprocess(result: Any) -> Any:
        return {"best": result, "mask": mask}

    stage = FunctionStage("postprocess", postprocess, executor="inline", releases_gil=True, work="postprocess")
    changed = replace(case, stages=(*case.stages, stage)).with_settings("deliver.workers=1")
    return changed if case.server is not None else replace(changed, delivery=ScratchLines)


def _failing_callback(case: Case, dose: float) -> Case:
    share = min(0.75, _FAILING_SHARE * dose)
    failing = case.with_server(callback_failures=share, callback_seconds=_CALLBACK_SECONDS)
    return failing.with_settings("deliver.attempts=4", "deliver.workers=2")


def _ordered(case: Case, dose: float) -> Case:
    slow = functools.partial(_now_and_then, itertools.count(1).__next__, _SLOW_SECONDS * dose)
    ordered = case.with_settings(
        "run.ordered=true", f"source.max_in_flight={_IN_FLIGHT}", "fetch.workers=8", "deliver.workers=1"
    )
    return ordered.around("fetch", slow)


def _now_and_then(number: Callable[[], int], seconds: float, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that waits before one item in so many, as for a server that is busy; `number` counts for all workers."""

    def before(value: Any) -> Any:
        if number() % _SLOW_ONE_IN == 0:
            time.sleep(seconds)
        return call(value)

    return before


def without_order(case: Case) -> Case:
    """Return the case with its results delivered as they come."""
    return case.with_settings("run.ordered=false")


def without_last_stage(case: Case) -> Case:
    """Return the case without the stage that makes its results large."""
    stages: Sequence[Any] = case.stages[:-1]
    return replace(case, stages=tuple(stages))


FAULTS = (
    Fault(
        id="F21",
        title="a mask of floats in each result, written as JSON",
        dose=f"pixels of the mask, from {_MASK_PIXELS:,}",
        applies_to=("download_heavy", "decode_heavy", "python_preprocess"),
        inject=_float_mask,
        fix=without_last_stage,
    ),
    Fault(
        id="F23",
        title="callbacks that are answered with 503, and posted again by two workers",
        dose=f"share of the posts that fail, from {_FAILING_SHARE:.0%}",
        applies_to=("download_heavy",),
        inject=_failing_callback,
        fix=lambda case: case.with_server(callback_failures=0.0),
    ),
    Fault(
        id="F24",
        title=f"results in order, while one item in {_SLOW_ONE_IN} is late",
        dose=f"how late, from {_SLOW_SECONDS:g} s",
        applies_to=("download_heavy", "decode_heavy", "python_preprocess"),
        inject=_ordered,
        fix=without_order,
    ),
)
