"""Runs a Pipeline under a Plan, from settings to run folder."""

from __future__ import annotations

import dataclasses
import functools
import html
import io
import logging
import signal
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.base.budget import BudgetPlan
from headrace.base.errors import RunFolderError, SettingsError
from headrace.base.observer import Observer, Observers
from headrace.base.plan import Plan, resolve
from headrace.base.protocols import Instrument, NamesUnit, TellsBacklog, TellsStreams, Thins, WorksForJobs
from headrace.base.records import Counters, SourceWork
from headrace.base.request_tally import TalliesRequests
from headrace.base.settings import check
from headrace.base.worker_slot import OutcomeCounter, TakesWorkerSlot, WorkerSlot, provide_own_slot
from headrace.engines import check_engine
from headrace.pipeline.arms import Arms
from headrace.pipeline.building import Equipment
from headrace.pipeline.canary import CanaryPlace, CanaryRunner
from headrace.pipeline.checkpoint import Before, Checkpoint
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.end_signals import EndSignals, end_signals
from headrace.pipeline.failure_limit import FailureLimit, MostFailed
from headrace.pipeline.failure_log import FailureLog
from headrace.pipeline.following import Following, PlanFollower
from headrace.pipeline.fused_waits import warn_of_waits
from headrace.pipeline.governor import BudgetReport, Governor, budget_of
from headrace.pipeline.memory_forecast import MemoryForecast
from headrace.pipeline.model_slots import ModelSlots
from headrace.pipeline.resuming import keep_checkpoint, open_checkpoint
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.rung_models import RungModels, changes_models, check_models
from headrace.pipeline.rungs import rungs_of
from headrace.pipeline.runtime import Bounds, Runtime
from headrace.pipeline.sensors import MemorySensor, open_sensors
from headrace.pipeline.shadow import Shadow
from headrace.pipeline.span_limit import SpanLimit
from headrace.pipeline.stage_defaults import fused_because, stage_defaults
from headrace.pipeline.summary import Summary
from headrace.pipeline.thread_budget import ThreadBudget, budget, usable_cores
from headrace.pipeline.warm_up import WarmUp
from headrace.pipeline.watching import RunInProgress, Watch
from headrace.runs.emulation import emulated_engines
from headrace.runs.errors_log import ErrorLog
from headrace.runs.run_folder import RunFolder, StageInfo, Status
from headrace.runs.span_files import SpanWriter

logger = logging.getLogger("headrace")

_NOTEBOOK_COLUMNS = 140
#: What asks for models that may change or have company.
_OPTIONS: Mapping[type, str] = {Following: "--follow", Shadow: "--shadow", CanaryPlace: "--canary"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to."""

    plan: Plan
    """Resolved: every setting as used."""
    plan_id: str
    plans: Mapping[str, Plan]
    """{id: Plan} of all that were in force, the first being `plan`: others were followed."""
    counters: Counters
    summary: Summary
    cost_curves: Mapping[str, Mapping[int, float]]
    """By device stage: median seconds per call by batch size, as warmed up."""
    variants: Sequence[Mapping[str, Any]]
    """Models as opened on this machine."""
    warnings: Sequence[str]
    """What does not add up."""
    interrupted: bool
    run_folder: Path | None
    drained_by: int | None = None
    """Signal that stopped an endless source after all received jobs were finished; None otherwise."""
    before: Before | None = None
    """How far the run was when it was resumed; None where it was not."""
    stages: Sequence[StageInfo] = ()
    """How each stage ran, in the order in which an item meets them."""

    ended_early: str = ""
    """Why the run was ended, or counts as failed, although nobody stopped it; empty: neither."""
    budget: BudgetReport | None = None
    """What became of the Plan's `[budget]`; None: it has none."""

    def __repr__(self) -> str:
        """Return one line: the exact counts, and where the rest is."""
        counters = self.counters
        counts = [("received", counters.received), ("delivered", counters.delivered), ("rejected", counters.rejected)]
        counts += [("dead-lettered", counters.dead_lettered), ("given back", counters.returned)]
        said = ", ".join(f"{number:,} {name}" for name, number in counts if number or name in ("received", "delivered"))
        ended = "; interrupted" if self.interrupted else ""
        return f"<Result of {self.plan_id}: {said}{ended}{f'; in {self.run_folder}' if self.run_folder else ''}>"

    def _repr_html_(self) -> str:
        """Return the summary as `headrace run` prints it, for notebooks."""
        from rich.console import Console

        text = io.StringIO()
        console = Console(file=text, width=_NOTEBOOK_COLUMNS, color_system=None)
        console.print(self.summary.as_table())
        for warning in self.warnings:
            console.print(f"warning: {warning}", markup=False)
        return f"<pre>{html.escape(text.getvalue())}</pre>"

    @property
    def is_in_vain(self) -> bool:
        """Whether jobs were received, some failed, and nothing was ever delivered."""
        counters = self.counters
        num_failed = counters.rejected + counters.dead_lettered + counters.retried
        delivered = counters.delivered + (self.before.delivered if self.before else 0)
        return num_failed > 0 and not delivered

    @property
    def is_emulated(self) -> bool:
        """Whether the device was emulated: its times are made up."""
        return bool(emulated_engines(self.variants))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """What a run that measures does otherwise than one that works."""

    curve_batch: int = 0
    """Measure at warm-up the powers of two up to this batch size too, as far as 1.5 s allow."""
    curve_repeats: int = 1
    """Measured calls of each batch size, as far as those 1.5 s allow."""
    first_alone: bool = False
    """Receive one job, and the others when it is through. Without it, queues fill during warm-up, and later stages briefly run
    faster than the bottleneck allows."""
    brakes: bool = True
    """Whether the Plan's `run.brake_after` holds; False where nothing is lost: on a list, or where somebody
    waits for each item."""


def run(
    pipeline: Pipeline,
    plan: Plan | str | Path | None = None,
    *,
    output: str | Path | None = None,
    limit: int | None = None,
    force: bool = False,
    resume: bool = False,
    checkpoint: str | Path | bool = True,
    max_failed: str | float | None = None,
    stop: threading.Event | None = None,
    observers: Sequence[Observer] = (),
    instruments: Sequence[Instrument] = (),
    watch: Watch | None = None,
    beside: Following | Shadow | CanaryPlace | None = None,
    slot: WorkerSlot | None = None,
    measuring: Measuring | None = None,
) -> Result:
    """Run a pipeline until its source has no more, or until SIGTERM, Ctrl-C or `stop`.

    Signals are heeded in the main thread alone; a run in another thread, or in `asyncio.to_thread`, is ended by `stop`.

    Args:
        pipeline: What is done.
        plan: How: a Plan or the path of one; None for defaults.
        output: Run folder to write; None for none.
        limit: Receive at most this many jobs; those that were turned away without a try do not count.
        force: Replace what an earlier run left in the folder; begin anew where an earlier run over the same source was cut
            off; with `resume`, go on where it cannot be checked that it is the same run.
        resume: Go on with what an earlier run over the same folder or list left, however it ended.
        checkpoint: Folder in which to keep what that takes; True: beside the results, where they can be read back (JSON
            Lines, Parquet); False: nowhere.
        max_failed: End the run once more jobs than this were rejected or dead-lettered: a number (5), or a share of those that
            ended (0.05 or "5%"); None: never. `Result.ended_early` then says so.
        stop: Once it is set, from any thread, nothing more is received; what is inside is finished within the Plan's
            run.grace_seconds, and the rest is given back. `Result.interrupted` is then True.
        observers: Whom to notify of jobs, passages and batches.
        instruments: What goes around the calls of stages, in their workers.
        watch: What lives beside the run: the profiler, a live view.
        beside: A Plan's file whose model is taken up whenever it changes, a candidate that runs beside the model on some of
            its batches, or where canaries are started; None: the model stays, alone.
        slot: Of a worker process that shares machine and queue with others under a supervisor; SIGINT alone ends it.
        measuring: What a run that measures does otherwise; None: it works.

    Raises:
        SettingsError: If the Plan does not fit the pipeline; nothing has run.
        CheckpointError: If there is nothing to resume, or it is of another run; if a run that was cut off would be gone over.
        HeadraceError: If a part cannot be opened, or a worker breaks.
    """
    context, threads = _context(pipeline, plan, slot.num_workers if slot else 1)
    if slot is not None:
        _give_slot(pipeline, slot)
    budget = _Budget.of(pipeline, context, beside, slot.num_workers if slot else 1)
    slots = _slots(pipeline, context, beside, budget)
    measuring = measuring or Measuring()
    warm_up = WarmUp(curve_batch=measuring.curve_batch, repeats=measuring.curve_repeats)
    summary = Summary(counters=context.counters, clock=context.clock)
    runtime = Runtime(
        pipeline,
        context,
        Equipment(threads, instruments, warm_up, slots),
        Bounds(limit=limit, first_alone=measuring.first_alone, brakes=measuring.brakes),
        signals=EndSignals([signal.SIGINT] if slot else end_signals(), stop),
    )
    governor = budget.open(pipeline, runtime, slots) if budget else None
    if slot is not None:
        runtime.before_receiving.append(slot.begin)
    # After the Runtime has found the Plan possible: one that is not leaves neither checkpoint nor folder behind.
    kept = _open_kept(
        pipeline, context.plan, checkpoint, resume=resume, force=force, any_model=isinstance(beside, Following)
    )
    limit_failed = None if max_failed is None else FailureLimit(MostFailed.parse(max_failed), runtime.end)
    running = _Run(pipeline, runtime, summary, threads.warnings, kept, limit_failed, governor)
    if governor is not None:
        governor.switched = running.note_switch
    with keep_checkpoint(kept, pipeline, runtime, force=force or isinstance(beside, Following | CanaryPlace)):
        if kept is not None:
            summary.begins_at(kept.num_done, kept.num_left)
            if kept.num_left == 0:
                return running.result()
        running.record = _Record.create(output, pipeline, runtime, force=force, resumed=resume)
        runtime.tick = running.look
        running.tell(observers, slot)
        with provide_own_slot(pipeline.source, slot):
            return running.to_the_end(watch, running.enter_beside(beside, slots))


@dataclass(slots=True)
class _Record:
    """What a run leaves in its folder; without one, nothing."""

    folder: RunFolder | None = None
    spans: SpanWriter | None = None
    span_limit: SpanLimit | None = None
    writers: Sequence[SpanWriter | ErrorLog] = ()

    @classmethod
    def create(
        cls,
        output: str | Path | None,
        pipeline: Pipeline,
        runtime: Runtime,
        *,
        force: bool,
        resumed: bool,
    ) -> _Record:
        """Make the folder, if one is asked for."""
        if output is None:
            return cls()
        plan = runtime.context.plan
        plans = {plan.plan_id: plan.as_table()}
        folder = RunFolder.create(
            output,
            pipeline=pipeline.name,
            options=pipeline.options,
            unit=runtime.context.unit,
            served=isinstance(pipeline.source, TalliesRequests),
            plans=plans,
            force=force,
            resumed=resumed,
        )
        folder.update(stages=_stage_infos(runtime, pipeline), source_work=_work_of(pipeline))
        spans = SpanWriter(folder.spans)
        if isinstance(pipeline.source, TellsStreams):
            spans.beside = functools.partial(_note_streams, folder, runtime)
        limit = SpanLimit(runtime.context.metering, runtime.context.clock.now_ns())
        return cls(folder, spans, limit, [spans, ErrorLog(folder.path / "errors.jsonl")])

    def add_plan(self, plan: Plan) -> None:
        """Note another Plan that is in force from now on."""
        if self.folder is not None:
            self.folder.update(plans={**self.folder.info.plans, plan.plan_id: plan.as_table()})

    def close(self) -> None:
        """Write what has still to be written, before the result is made."""
        for writer in self.writers:
            writer.close()

    def finish(self, status: Status, result: Result, runtime: Runtime, pipeline: Pipeline, *, was_begun: bool) -> None:
        """Close the folder; one in which nothing was measured goes, so that the next try may have its name."""
        if self.folder is None:
            return
        if was_begun:
            stages = _stage_infos(runtime, pipeline)  # once more: workers may have been added
            lost_spans = self.spans.lost_spans if self.spans else 0
            _finish(self.folder, status, result, runtime, stages, lost_spans, _work_of(pipeline))
        else:
            self.folder.discard()


@dataclass(slots=True)
class _Run:
    """A run from its first job to its result."""

    pipeline: Pipeline
    runtime: Runtime
    summary: Summary
    warnings: Sequence[str]
    kept: Checkpoint | None
    limit_failed: FailureLimit | None = None
    governor: Governor | None = None
    record: _Record = field(default_factory=_Record)
    failures: FailureLog = field(default_factory=FailureLog)
    cpu_began: float = field(default_factory=time.process_time)
    in_force: dict[str, Plan] = field(init=False)
    """{id: Plan}, in the order in which they came into force."""

    def __post_init__(self) -> None:
        """Begin with the one Plan."""
        plan = self.runtime.context.plan
        self.in_force = {plan.plan_id: plan}

    def tell(self, observers: Sequence[Observer], slot: WorkerSlot | None) -> None:
        """Let all who observe know of the run: its own summary, folder and checkpoint, the supervisor, and others."""
        beside = [*([OutcomeCounter(slot.table)] if slot else ()), *([self.kept.observer] if self.kept else ())]
        beside += [self.limit_failed] if self.limit_failed else []
        self.runtime.context.observers = Observers(
            [self.summary, self.failures, *self.record.writers, *beside, *observers]
        )
        self.runtime.context.read_notes = self.summary.read_notes
        if isinstance(self.pipeline.source, TellsBacklog):
            self.summary.ask_source = self.pipeline.source.backlog
        self.summary.workers.update(
            (stage.name, station.num_workers) for station in self.runtime.stations for stage in station.stages
        )

    def look(self) -> None:
        """Count what happened, and record fewer jobs where there are too many; called by the bookkeeper."""
        self.summary.digest()
        if self.record.span_limit is not None:
            # What is received is known at once; passages are counted later, and too late where the cores are busy.
            received = self.runtime.context.counters.received * len(self.pipeline.stages)
            now_ns = self.runtime.context.clock.now_ns()
            self.record.span_limit.look(now_ns, max(self.summary.num_passages, received))

    def note_switch(self, plan: Plan) -> None:
        """Note that another Plan is in force: spans carry its id from now on."""
        self.note_plan(plan)
        self.runtime.context.plan_id = plan.plan_id

    def note_plan(self, plan: Plan) -> None:
        """Note a Plan that answers some of the jobs, or all."""
        self.record.add_plan(plan)
        self.in_force.setdefault(plan.plan_id, plan)

    def enter_beside(
        self, beside: Following | Shadow | CanaryPlace | None, slots: ModelSlots | None
    ) -> AbstractContextManager[Any] | None:
        """Return what works beside the models as long as the pipeline runs; None: nothing does."""
        context = self.runtime.context
        if slots is None or isinstance(beside, Shadow):
            return beside if isinstance(beside, Shadow) else None
        if isinstance(beside, Following):
            return PlanFollower(beside, slots, context.plan, self.note_switch)
        if isinstance(beside, CanaryPlace) and context.arms is not None:
            return CanaryRunner(beside, slots, context.arms, context.plan, self.note_plan)
        return None

    def to_the_end(self, watch: Watch | None, beside: AbstractContextManager[Any] | None) -> Result:
        """Run until there is no more, and close the folder, however it ends.

        Args:
            watch: Entered before the run begins.
            beside: What works beside the models as long as the pipeline runs.
        """
        status: Status = "failed"
        ended = False
        try:
            with watch(self._progress()) if watch else nullcontext():
                self._work(beside or nullcontext())
            status = "interrupted" if self.runtime.interrupted else "finished"
            ended = True
        finally:
            self.failures.close()
            self.record.close()
            result = self.result()
            was_begun = ended or self.runtime.context.counters.received > 0
            self.record.finish(status, result, self.runtime, self.pipeline, was_begun=was_begun)
        return result

    def _work(self, beside: AbstractContextManager[Any]) -> None:
        try:
            with beside, self.governor or nullcontext():
                self.runtime.run()
        finally:
            self.summary.digest(budget_seconds=None)  # before the view's last line

    def _progress(self) -> RunInProgress:
        runtime, context = self.runtime, self.runtime.context
        return RunInProgress(
            summary=self.summary,
            statistics=runtime.statistics,
            worker_threads=runtime.worker_threads,
            num_waiting=runtime.num_waiting,
            state=runtime.state,
            longest_call_seconds=runtime.longest_call_seconds,
            longest_calls=runtime.longest_calls,
            warm_ups=context.cost_curves,
            metering=context.metering,
            counters=context.counters,
            folder=self.record.folder,
            pipeline=self.pipeline,
            plan=context.plan,
            spans=self.record.spans,
            span_limit=self.record.span_limit,
            opened=runtime.opened,
            begun=runtime.begun,
            before_closing=runtime.before_closing,
            arms=context.arms,
            describe=self.describe,
            levers=context.levers,
            adjustable=runtime.adjustable,
            receivers_cpu_seconds=runtime.receivers_cpu_seconds,
            flushes_cpu_seconds=runtime.flushes_cpu_seconds,
        )

    def describe(self) -> dict[str, Any]:
        """Return what may change while the run goes on, as fields of `run.json`."""
        curves = list(self.runtime.context.cost_curves)
        return {
            "stages": _stage_infos(self.runtime, self.pipeline),
            "plans": {plan_id: plan.as_table() for plan_id, plan in list(self.in_force.items())},
            "variants": list(self.runtime.variants()),
            "counters": dataclasses.replace(self.runtime.context.counters),
            "streams": self.runtime.streams(),
            "cost_curves": {
                curve.stage: {size: list(some) for size, some in list(curve.seconds.items())} for curve in curves
            },
            "cost_curve_cpu": {
                curve.stage: {size: list(some) for size, some in list(curve.call_cpu_seconds.items())}
                for curve in curves
            },
            "warnings": [*self.warnings, *self.runtime.warnings()],
        }

    def result(self) -> Result:
        """Return what it came to."""
        runtime, context, folder = self.runtime, self.runtime.context, self.record.folder
        stages = _stage_infos(runtime, self.pipeline)
        waits = warn_of_waits(stages, self.summary.as_dict(), time.process_time() - self.cpu_began)
        return Result(
            plan=context.plan,
            plan_id=context.plan.plan_id,
            plans=dict(self.in_force),
            counters=context.counters,
            summary=self.summary,
            cost_curves={
                curve.stage: {size: statistics.median(seconds) for size, seconds in curve.seconds.items()}
                for curve in context.cost_curves
            },
            variants=runtime.variants(),
            warnings=[
                *self.warnings,
                *runtime.warnings(),
                *waits,
                *(self.governor.warnings() if self.governor else ()),
            ],
            budget=self.governor.report if self.governor else None,
            interrupted=runtime.interrupted,
            drained_by=runtime.signals.first if runtime.is_drained else None,
            run_folder=folder.given if folder else None,
            before=self.kept.before if self.kept else None,
            stages=stages,
            ended_early=runtime.ended_because or (self.limit_failed.verdict() if self.limit_failed else ""),
        )


@dataclass(frozen=True, slots=True)
class _Budget:
    """A Plan's `[budget]` as it is for this process, and the Plans of its ladder."""

    limits: BudgetPlan
    plans: Sequence[Plan]

    @classmethod
    def of(cls, pipeline: Pipeline, context: RunContext, beside: object, share: int) -> _Budget | None:
        """Return the budget of a process that is one of `share`; None: nothing is bounded.

        Raises:
            SettingsError: If its ladder is impossible, or others would change the Plan as well.
            EngineError: If the file of a rung's model is missing or refused.
        """
        limits = budget_of(context.plan, share)
        if limits is None:
            return None
        if isinstance(beside, Following | CanaryPlace):
            raise SettingsError(
                f"{_OPTIONS[type(beside)]} and the Plan's [budget] would both put other Plans into force; leave out one of them"
            )
        plans = [context.plan, *rungs_of(context.plan)]
        stages = stage_defaults(pipeline, context.plan)
        for plan in plans[1:]:
            resolve(plan, stages, 1)  # raises where the pipeline cannot have it
        _check_thinned(pipeline, plans)
        check_models(plans)
        return cls(limits, plans)

    @property
    def has_models(self) -> bool:
        """Whether a rung has another model."""
        return changes_models(self.plans)

    def open(self, pipeline: Pipeline, runtime: Runtime, slots: ModelSlots | None) -> Governor:
        """Look whether the models can fit, and return what will keep the run within the budget.

        Raises:
            DoesNotFit: If they cannot.
        """
        sensors = open_sensors(self.limits, runtime.child_processes)
        memory = next((one for one in sensors if isinstance(one, MemorySensor) and not one.not_measured), None)
        if memory is not None:
            forecast = runtime.context.forecast = MemoryForecast(memory.limit, memory.used_bytes)
            forecast.check_files(_model_files(pipeline, runtime.context.plan))
            runtime.before_receiving.append(forecast.check_opened)
        models = RungModels(slots, runtime.context.plan) if slots is not None and self.has_models else None

        def hold_to(plan: Plan) -> Plan:
            runtime.hold_to(plan)
            return plan if models is None else models.hold_to(plan)

        return Governor(sensors, self.plans, hold_to=hold_to, counts=runtime.context.counts)


def _check_thinned(pipeline: Pipeline, plans: Sequence[Plan]) -> None:
    """Raise SettingsError where frames are to be left out of what loses nothing."""
    is_asked = any((plan.source.every or 1) > 1 for plan in plans)
    if is_asked and not isinstance(pipeline.source, Thins):
        raise SettingsError(
            f"source.every leaves out frames of live streams, and {type(pipeline.source).__name__} leaves out nothing; a "
            "source of clips has a setting of its own for that"
        )


def _model_files(pipeline: Pipeline, plan: Plan) -> set[str]:
    """Return the files of the models that will be opened, as far as they are known before."""
    stages = [stage for stage in stage_defaults(pipeline, plan) if stage.kind == "device"]
    return {plan.model_of(stage.task, stage.name).artifact or stage.model for stage in stages} - {""}


def _give_slot(pipeline: Pipeline, slot: WorkerSlot) -> None:
    """Let the source know of its supervisor; raise SettingsError where workers could not share it."""
    if not isinstance(pipeline.source, TakesWorkerSlot):
        raise SettingsError(
            f"{type(pipeline.source).__name__} cannot be shared by several workers, and each would do all of it; "
            "--supervise needs a queue: put the items into one with `headrace submit`, or run without --supervise"
        )
    pipeline.source.take(slot)


def _context(pipeline: Pipeline, plan: Plan | str | Path | None, share: int) -> tuple[RunContext, ThreadBudget]:
    """Return a run's context, and who computes with how many threads, where this is one of `share` processes."""
    plan = Plan.load(plan) if isinstance(plan, str | Path) else plan or Plan()
    cores = max(1, usable_cores() // share)
    stages = stage_defaults(pipeline, plan)
    resolved = _bound_bytes(resolve(plan, stages, cores), share)
    for model in (resolved.model, *resolved.models.values()):
        check_engine(model.engine)
    _check_thinned(pipeline, [resolved])
    threads = budget(resolved, stages, cores)
    for warning in threads.warnings:
        logger.warning("%s", warning)
    source = pipeline.source
    unit = source.unit if isinstance(source, NamesUnit) else "item"
    return RunContext(resolved, fused=fused_because(plan, resolved, stages), unit=unit), threads


def _bound_bytes(plan: Plan, share: int) -> Plan:
    """Return a Plan whose queues hold no more than a quarter of its budget for memory."""
    budget = budget_of(plan, share)
    if budget is None or budget.memory_bytes is None:
        return plan
    most = min(plan.source.max_bytes_in_flight, budget.memory_bytes // 4)
    return dataclasses.replace(plan, source=dataclasses.replace(plan.source, max_bytes_in_flight=most))


def _open_kept(
    pipeline: Pipeline, plan: Plan, checkpoint: str | Path | bool, *, resume: bool, force: bool, any_model: bool
) -> Checkpoint | None:
    """Return what is kept so that the run can be resumed; None if nothing is."""
    if checkpoint is False:
        return None
    place = None if checkpoint is True else Path(checkpoint)
    return open_checkpoint(pipeline, plan, resume=resume, place=place, force=force, any_model=any_model)


def _slots(
    pipeline: Pipeline,
    context: RunContext,
    beside: Following | Shadow | CanaryPlace | None,
    budget: _Budget | None = None,
) -> ModelSlots | None:
    """Return where models are put that may change or have company; None: they are called as they are."""
    if budget is not None and budget.has_models:
        _check_slots(pipeline, context.plan, "the model from budget.ladder")
        if beside is None:
            return ModelSlots()
    if beside is None:
        return None
    _check_slots(pipeline, context.plan, _OPTIONS[type(beside)])
    if isinstance(beside, Shadow):
        _check_shadow(pipeline)
        return ModelSlots(beside)
    if isinstance(beside, CanaryPlace):
        context.arms = Arms(context.plan.plan_id)
    return ModelSlots()


def _check_shadow(pipeline: Pipeline) -> None:
    """Raise SettingsError if it would not be clear beside which model a shadow runs."""
    num_devices = sum(stage.kind == "device" for stage in pipeline.stages)
    if num_devices != 1:
        raise SettingsError(f"a shadow runs beside one model, and here are {num_devices} device stages; run it apart")


def _check_slots(pipeline: Pipeline, plan: Plan, option: str) -> None:
    """Raise SettingsError if the models live where they can be neither switched nor shadowed."""
    for stage in pipeline.stages:
        executor = plan.stages[stage.name].executor
        check(
            stage.kind != "device" or executor != "process",
            f"stages.{stage.name}.executor",
            executor,
            f"thread or inline: a model in another process is out of reach while it runs; leave out {option}",
        )


def _stage_infos(runtime: Runtime, pipeline: Pipeline) -> list[StageInfo]:
    """Return the stages in the order an item meets them."""
    infos, before, plan = {}, "", runtime.context.plan
    for station in runtime.stations:
        # As far as reports go, what runs in place is inline: it has the threads of the station before.
        name = before if station.runs_in_place else station.name
        before = name
        for stage in station.stages:
            infos[stage.name] = StageInfo(
                name=stage.name,
                kind=stage.kind,
                role=stage.role,
                releases_gil=stage.releases_gil,
                executor="inline" if station.runs_in_place else plan.stages[stage.name].executor or stage.executor,
                station=name,
                workers=station.num_workers,
                most_workers=station.most_workers,
                task=stage.task,
                queue_capacity=station.settings.queue_items if station.has_queue else None,
                work=stage.work,
                is_emulated=stage.is_emulated(plan),
                fused=runtime.context.fused.get(stage.name, ""),
                keeps_streams=stage.keeps_streams,
                follows=stage.follows,
            )
    return [infos[stage.name] for stage in pipeline.stages]


def _note_streams(folder: RunFolder, runtime: Runtime) -> None:
    """Write what became of live streams so far: a run over cameras mostly ends by being killed."""
    try:
        folder.update(streams=runtime.streams())
    except RunFolderError as error:
        logger.debug("%s", error)  # spans say that the disk is full, and the run goes on


def _work_of(pipeline: Pipeline) -> SourceWork | None:
    """Return what the source does for each job, with what that took so far where it knows."""
    return pipeline.source.work if isinstance(pipeline.source, WorksForJobs) else None


def _finish(
    folder: RunFolder,
    status: Status,
    result: Result,
    runtime: Runtime,
    stages: list[StageInfo],
    lost_spans: int,
    source_work: SourceWork | None,
) -> None:
    try:
        folder.finish(
            status,
            stages=stages,
            source_work=source_work,
            counters=result.counters,
            cost_curves={curve.stage: curve.seconds for curve in runtime.context.cost_curves},
            cost_curve_cpu={curve.stage: curve.call_cpu_seconds for curve in runtime.context.cost_curves},
            lost_spans=lost_spans,
            streams=runtime.streams(),
            receiving=runtime.receiving(),
            tending=runtime.tending(),
            summary=result.summary.as_dict(),
            variants=list(result.variants),
            warnings=list(result.warnings),
        )
    except RunFolderError as error:
        # The run itself is done; its results are delivered. The folder keeps what was written before.
        logger.error("%s", error)
