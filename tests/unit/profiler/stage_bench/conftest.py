"""Points, measurements and taken-apart pipelines for the tests of the stage benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.base.plan import Plan
from headrace.delivery.collect import Collect
from headrace.pipeline.definition import Pipeline
from headrace.profiler.stage_bench.pipeline_parts import PipelineParts
from headrace.profiler.stage_bench.stage_run import Measurement
from headrace.runs.formats.isolation import CurvePoint
from headrace.stages.stage import Stage
from headrace.testing import ListSource


@pytest.fixture
def point() -> Callable[..., CurvePoint]:
    """Return a function that makes a point of a curve."""

    def make(workers: int, throughput: float, **values: Any) -> CurvePoint:
        given = {
            "batch_size": None,
            "throughput_low": throughput,
            "throughput_high": throughput,
            "cpu": None,
            "run_delay": None,
            "blocked": None,
            "service": workers / throughput,
            "num_items": 100,
        } | values
        return CurvePoint(workers=workers, throughput=throughput, **given)

    return make


@pytest.fixture
def measured() -> Callable[..., Measurement]:
    """Return a function that makes what one stretch measured."""

    def make(**values: Any) -> Measurement:
        given = {
            "num_items": 100,
            "num_failed": 0,
            "num_calls": 100,
            "throughput": 100.0,
            "wall_seconds": 1.0,
            "cpu_seconds": 0.5,
            "native_cpu_seconds": 0.0,
            "run_delay_seconds": 0.1,
        } | values
        return Measurement(**given)

    return make


@pytest.fixture
def bench() -> Callable[..., PipelineParts]:
    """Return a function that takes a pipeline of given stages over a list of payloads apart."""

    def make(
        stages: Sequence[Stage] | None = None,
        payloads: Sequence[Any] = (b"a",),
        *,
        plan: Plan | None = None,
        **parts: Any,
    ) -> PipelineParts:
        parts = {"source": ListSource(payloads), "delivery": Collect()} | parts
        return PipelineParts.of(Pipeline(stages=stages, **parts), plan or Plan())

    return make
