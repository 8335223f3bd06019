"""Opens the stages of one worker, in whichever thread or process it lives."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.base.carrier import Carried
from headrace.base.clock import Clock
from headrace.base.error_origin import describe, find_origin
from headrace.base.errors import HeadraceError
from headrace.base.metering import Metering
from headrace.base.plan import Plan, model_key
from headrace.base.protocols import Instrument, KeepsBuffers, Model
from headrace.base.signature import check_takes
from headrace.engines import open_model
from headrace.pipeline.caching import StageCaches
from headrace.pipeline.group import Group
from headrace.pipeline.model_slots import ModelSlots
from headrace.pipeline.thread_budget import limit_library_threads
from headrace.pipeline.warm_up import WarmUp
from headrace.stages.stage import Stage, StageContext


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What a worker opens; can be sent to another process."""

    stages: tuple[Stage, ...]
    plan: Plan
    """Resolved."""
    worker: int
    model_threads: int
    max_batch: int
    instruments: tuple[Instrument, ...] = ()
    warm_up: WarmUp | None = None
    """What is measured beyond the Plan's own batch sizes; None: nothing."""
    slots: ModelSlots | None = None
    """Where models are put so that they can be switched; None: they stay. Never sent to another process."""
    model_calls: int = 1
    """Calls that the model should run side by side."""
    uses: Mapping[str, int] = field(default_factory=dict)
    """{resource: how much of it the worker has for itself while the stages run}."""
    caches: Mapping[str, StageCaches] = field(default_factory=dict)
    """By stage, what is kept of results; none of a stage in a process of its own."""
    shared: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By stage, what its workers in one process share; empty until they are opened, so that none of it is sent."""


@dataclass(slots=True)
class OpenedGroup:
    """An opened group and what its stages reported."""

    group: Group
    counts: dict[str, int] = field(default_factory=dict)
    variants: list[dict[str, Any]] = field(default_factory=list)
    carried: Carried | None = None
    """What lets one thread carry the calls of a group's only stage; None where it offers none, or an instrument wraps it."""


# A model lives as long as a worker holds it.
_models: weakref.WeakValueDictionary[tuple[Any, ...], Model] = weakref.WeakValueDictionary()
_models_lock = threading.Lock()


def open_group(spec: GroupSpec, clock: Clock, metering: Metering | None = None) -> OpenedGroup:
    """Return the group of a spec with all its stages opened.

    Raises:
        EngineError: If a model cannot be opened.
        SettingsError: If a stage's option is unknown or impossible.
    """
    limit_library_threads()
    counts: dict[str, int] = {}
    variants: list[dict[str, Any]] = []
    calls = []
    carried = together = None
    for index, stage in enumerate(spec.stages):
        later = spec.stages[index + 1] if index + 1 < len(spec.stages) else None
        context = StageContext(
            stage=stage.name,
            worker=spec.worker,
            plan=spec.plan,
            options=spec.plan.stages[stage.name].options,
            next_stage=later,
            open_model=_ModelOpener(spec, stage, variants),
            counts=counts,
            shared=spec.shared.setdefault(stage.name, {}),
        )
        call = stage.open(context)
        takes = ("job", "result") if stage.role == "deliver" else ("batch" if stage.kind == "device" else "value",)
        check_takes(call, takes, f"what open() of stage {stage.name} returned")
        if stage.name in spec.caches:
            call = spec.caches[stage.name].around(call, context.count)
        opened = call
        for instrument in spec.instruments:
            call = instrument.wrap(stage.name, stage.kind, call)
        calls.append(call)
        # A wrapper may have copied the attributes of what it wraps, and would be passed by.
        if call is opened and len(spec.stages) == 1:
            carried, together = getattr(call, "carried", None), getattr(call, "together", None)
    group = Group(spec.stages, calls, clock, spec.max_batch, metering, spec.warm_up, together)
    return OpenedGroup(group, counts, variants, carried)


def give_back_buffers() -> None:
    """Ask every model of this process for the memory that it keeps beside its weights; it gets anew what it needs."""
    with _models_lock:
        models = list(_models.values())
    for model in models:
        if isinstance(model, KeepsBuffers):
            model.give_back_buffers()


class _ModelOpener:
    """Opens what the Plan names, once per process: workers share a model, and so do stages; their calls run side by side."""

    def __init__(self, spec: GroupSpec, stage: Stage, variants: list[dict[str, Any]]) -> None:
        self._spec = spec
        self._stage = stage
        self._variants = variants

    def __call__(self, path: str | None = None) -> Model:
        settings = self._spec.plan.model_of(self._stage.task, self._stage.name)
        device = settings.device_of(self._spec.worker)
        settings = settings.on_device(device)
        artifact = settings.artifact or path
        threads = self._spec.model_threads
        calls = self._spec.model_calls
        key = (settings.engine, artifact, settings.sha256, threads, calls, repr(sorted(settings.options.items())))
        with _models_lock:
            model = _models.get(key)
            if model is None:
                model = _models[key] = open_model(settings, path, threads, calls)
        variant = dict(model.variant)
        if variant not in self._variants:
            self._variants.append(variant)
        if self._spec.slots is None:
            return model
        task = model_key(self._stage.task, self._stage.name)
        output = self._stage.output_of(path)
        return self._spec.slots.around(
            model, task=task, default=path, threads=threads, calls=calls, output=output, device=device
        )


def make_opening_error(stage: str, error: BaseException) -> HeadraceError:
    """Return what ends a run whose stage could not be opened: headrace's own error, or the user's with its place."""
    if isinstance(error, HeadraceError):
        return error
    origin = find_origin(error)
    failure = HeadraceError(f"stage {stage} could not be opened: {describe(error, origin)}")
    # A KeyboardInterrupt that the user's code raises is no Ctrl-C, and whoever looks for one among the causes must not find it.
    failure.__cause__ = None if isinstance(error, KeyboardInterrupt) else error
    failure.origin = origin
    return failure


def groups(stages: Sequence[Stage], plan: Plan) -> list[tuple[Stage, ...]]:
    """Return stages cut where a queue goes: before every stage whose executor is not `inline`."""
    cut: list[list[Stage]] = []
    for stage in stages:
        if not cut or plan.stages[stage.name].executor != "inline":
            cut.append([])
        cut[-1].append(stage)
    return [tuple(group) for group in cut]
