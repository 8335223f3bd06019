"""What a pipeline's device stages really ask of their models: which file, and with which inputs.

How this works: a few items of the source go through the stages before the device, and the device stage is opened once more,
with an `open_model` that hands out a model which notes its calls. So a model with several inputs, or one that a module calls in
a way of its own, is measured with what it is really given. Nothing is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace import engines
from headrace.base.errors import HeadraceError
from headrace.base.plan import Plan
from headrace.base.protocols import Model
from headrace.pipeline.batch_buffer import BatchBuffer
from headrace.pipeline.definition import Pipeline
from headrace.profiler.stage_bench.inputs import collect, same_shape_batches
from headrace.profiler.stage_bench.pipeline_parts import PipelineParts
from headrace.stages.stage import Stage, StageContext


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of one model, as a device stage made it."""

    stage: str
    artifact: Path
    engine: str
    threads: int
    options: Mapping[str, Any]
    inputs: np.ndarray | Mapping[str, np.ndarray]
    batch_size: int
    """Items in the stage's batch."""


def model_calls(pipeline: Pipeline, plan: Plan, stop: Callable[[], bool] = lambda: False) -> list[ModelCall]:
    """Return the first call that each device stage makes of each model file, at the Plan's batch size.

    Args:
        pipeline: What is done; its source must be one that can be read again.
        plan: How.
        stop: Asked between items; True ends it with what is there.

    Raises:
        SettingsError: If the source is a queue.
        SourceError: If it gives no job.
        HeadraceError: If a stage cannot be opened, or a device stage fails on each item.
    """
    parts = PipelineParts.of(pipeline, plan)
    devices = [stage for stage in parts.pipeline.stages if stage.kind == "device" and not parts.is_emulated(stage)]
    if not devices:
        return []
    inputs = collect(parts, max(parts.batch(stage) for stage in devices), stop)
    found: list[ModelCall] = []
    for stage in devices:
        entered = inputs.stages[stage.name]
        batches = same_shape_batches(entered.given, parts.batch(stage))
        if not batches and entered.first_error:
            raise HeadraceError(
                f"stage {stage.name} failed on each of the first {entered.num_failed} items, so its model cannot be measured: "
                f"{entered.first_error}"
            )
        if batches:
            largest = max(batches, key=len)
            found += _calls(parts, stage, [given.value for given in largest])
    return found


def _calls(parts: PipelineParts, stage: Stage, values: list[Any]) -> list[ModelCall]:
    calls: list[ModelCall] = []
    threads = parts.threads.model_threads.get(stage.name, 1)
    settings = parts.plan.model_of(stage.task, stage.name)

    def open_model(path: str | None = None) -> Model:
        artifact = settings.artifact or path
        file = None if artifact is None else Path(artifact)
        model = engines.open_model(settings, path, threads)
        if file is None:
            return model
        return _NotingModel(
            model,
            lambda batch: calls.append(
                ModelCall(stage.name, file, settings.engine, threads, settings.options, _copy(batch), len(values))
            ),
        )

    context = StageContext(
        stage=stage.name,
        worker=0,
        plan=parts.plan,
        options=parts.plan.stages[stage.name].options,
        next_stage=None,
        open_model=open_model,
    )
    stage.open(context)(BatchBuffer(len(values)).stack(values))
    return calls


class _NotingModel:
    """A model that tells of its first call."""

    def __init__(self, model: Model, note: Callable[[Any], object]) -> None:
        self._model = model
        self._note: Callable[[Any], object] | None = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, batch: np.ndarray | Mapping[str, np.ndarray]) -> Any:
        if self._note is not None:
            self._note(batch)
            self._note = None
        return self._model(batch)


def _copy(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {name: np.array(array) for name, array in batch.items()}
    return np.array(batch)
