"""Simulations of one recorded run under any Plan: the same answer for the same question, and no simulation twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from headrace.base.documents import encode_document
from headrace.base.plan import Plan
from headrace.diagnose.budget import Budget
from headrace.diagnose.cpu_account import NATIVE
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.gil_holders import count_seen
from headrace.diagnose.replay.costs import BatchCost, Spread, make_given_cost, read_emulated_seconds
from headrace.diagnose.replay.decoding import scale_factors
from headrace.diagnose.replay.demands import CannotReplay, Demands
from headrace.diagnose.replay.gil_shares import find_gil_shares
from headrace.diagnose.replay.jobs import find_ahead, find_arrivals, find_calls, find_open, sample_jobs
from headrace.diagnose.replay.kept import Kept, find_kept, pass_by
from headrace.diagnose.replay.plans import change_plan, check_change
from headrace.diagnose.replay.structure import (
    GilAcquisitions,
    Machine,
    Scenario,
    build,
    group_stages,
    model_threads,
)
from headrace.diagnose.simulator import Trace, simulate
from headrace.diagnose.simulator.system import System
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import ProfileDocument
from headrace.runs.reader import Run
from headrace.runs.run_folder import StageInfo

#: Jobs simulated unless asked for more: few enough for a verdict of some dozen simulations in a second.
_FEWEST_JOBS, _MOST_JOBS = 400, 700
#: Jobs for each that can be inside at once, so that filling and draining are a small part.
_ROUNDS = 8
#: Standard error of the share of its work that a stage was seen to do with the GIL, above which the simulation finds it.
_KNOWN_SHARE = 0.1
#: Steps of one simulation, about 30 ms of a core; a job whose stages often take the GIL back takes some hundred of them. Then
#: fewer jobs are simulated: at least so many, and so many rounds.
_MOST_EVENTS = 20_000
_LEAST_JOBS, _LEAST_ROUNDS = 100, 4
#: Models that compute less than this share of a call wait for a device, and use no threads of this machine.
_LEAST_CPU_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulation came to; nothing of it is calibrated."""

    throughput: float
    """Jobs per second of the steady part; of the whole where the ends come in a burst."""
    latencies: Array
    """(jobs,) float64 seconds."""
    utilization: Mapping[str, float]
    """{`cores`, `gil`, `workers:STATION`, `device:STAGE`, `receiving`: 0 to 1}."""
    queue_mean: Mapping[str, float]
    full_share: Mapping[str, float]
    starved_share: Mapping[str, float]
    blocked_share: Mapping[str, float]
    batch_mean: Mapping[str, float]
    """{stage: mean size}."""
    cpu_per_job: float
    gil_wait: Mapping[str, float]
    """{station: mean seconds a unit waits for the GIL}."""
    trace: Trace


class Simulations:
    """One recorded run and what is needed to simulate it, as it was or changed; what calibration finds is given to it.

    Attributes:
        run: The folder.
        evidence: What it holds.
        document: Its analysis.
        plan: The Plan as it ran, resolved.
        demands: What each recorded job needed in each stage.
        machine: What the run had to share.
        costs: {device stage: what a batch costs}.
        holds_gil: {stage: share of its CPU time with the GIL}, calibrated.
        measured_gil_shares: Those of it that were measured: of stages that ran alone, or whose threads were seen with the GIL.
        budget: How long a diagnosis may simulate it; no limit until a diagnosis sets one.
    """

    def __init__(
        self,
        evidence: Evidence,
        document: ProfileDocument,
        plan: Plan,
        demands: Demands,
        machine: Machine,
        costs: dict[str, BatchCost],
    ) -> None:
        self.evidence = evidence
        self.run: Run = evidence.run
        self.document = document
        self.plan = plan
        self.demands = demands
        self.machine = machine
        self.costs = costs
        self.budget = Budget()
        self._known: dict[tuple[Hashable, ...], Simulated] = {}
        self._plans: dict[tuple[tuple[str, ...], int], Plan] = {}
        self._most_jobs = 4 * _MOST_JOBS
        self.num_simulations = self.num_events = 0
        seen = count_seen(evidence.spans, evidence.states, document.window)
        self.seen_with_gil = {
            stage.name: seen[stage.name]
            for stage in demands.stages
            if stage.name in seen and stage.info.executor != "process" and seen[stage.name].error <= _KNOWN_SHARE
        }
        self.measured_gil_shares = find_gil_shares(evidence.isolation, demands.stages) | {
            name: one.share for name, one in self.seen_with_gil.items()
        }
        self.holds_gil = {stage.name: stage.holds_gil for stage in demands.stages} | self.measured_gil_shares
        self.gil_acquisitions: dict[str, GilAcquisitions] = {}
        self.spreads = self._find_spreads()
        self.is_open = find_open(evidence, document)

    @property
    def throughput(self) -> float:
        """Jobs per second, as measured in the steady part of the recorded run."""
        return self.document.throughput or 0.0

    @property
    def misfit(self) -> float:
        """The run as simulated over the run as measured, less 1: above 0 it is simulated too fast."""
        return self.simulate().throughput / self.throughput - 1

    @property
    def cores(self) -> float:
        """Cores that the recorded run could use."""
        return self.machine.cores

    def ratio(
        self,
        change: Change,
        base: Change | None = None,
        *,
        seed: int = 0,
        num_jobs: int | None = None,
        resampled: bool = False,
    ) -> float:
        """Return the simulated throughput of a change over that of the recorded run, or of another change of it.

        Both do the same jobs, as many as either needs; see `simulate` for the arguments and for what it raises. Where the ends
        of one come in a burst, the rates of both are those of the whole.
        """
        base = base or Change()
        count = num_jobs or self._num_jobs_of(base, change)
        traces = [self.simulate(one, seed=seed, num_jobs=count, resampled=resampled).trace for one in (base, change)]
        in_burst = any(trace.comes_in_a_burst for trace in traces)
        before, after = (trace.whole_rate if in_burst else trace.throughput for trace in traces)
        if not (before > 0 and np.isfinite(after / before)):
            raise CannotReplay("nothing that takes time is left of the run, so its throughput has no limit to predict")
        return after / before

    def simulate(
        self, change: Change | None = None, *, seed: int = 0, num_jobs: int | None = None, resampled: bool = False
    ) -> Simulated:
        """Return what a changed run would come to; the same for the same arguments.

        Args:
            change: None or empty: the run as recorded.
            seed: Of random arrivals and of resampling.
            num_jobs: How many jobs; None: as many as a steady rate needs.
            resampled: Draw blocks of neighbouring jobs with replacement instead of replaying them in order: for intervals.

        Raises:
            SettingsError: If a setting or stage is unknown, or a value impossible.
            CannotReplay: If it is beyond what was measured.
        """
        change = change or Change()
        num_jobs = num_jobs or self._num_jobs(self.change_plan(change))
        key = (encode_document(change), seed, num_jobs, resampled, *self._calibration())
        if key not in self._known:
            scenario = self.scenario(change, seed=seed, num_jobs=num_jobs, resampled=resampled)
            self._known[key] = self.simulate_scenario(scenario)
        return self._known[key]

    def simulate_scenario(self, scenario: Scenario) -> Simulated:
        """Return what a scenario comes to: for changes that no `Change` can express."""
        simulated = _summary(scenario, build(scenario))
        self.num_simulations += 1
        self.num_events += simulated.trace.num_events
        return simulated

    def _calibration(self) -> tuple[Hashable, ...]:
        """Return all of a scenario that calibration changes, or that another way of the same run has otherwise."""
        machine, turns = self.machine, tuple(stage.turns for stage in self.demands.stages)
        found = (machine.others, machine.taken, machine.slowdown, machine.wake_seconds, machine.handoff)
        return (turns, *found, *self.holds_gil.items(), *self.gil_acquisitions.items())

    def change_plan(self, change: Change) -> Plan:
        """Return the Plan of a changed run, resolved; raises SettingsError if a setting is unknown or impossible."""
        key = (change.settings, int(change.cores or self.cores))
        if key not in self._plans:
            self._plans[key] = change_plan(self.plan, key[0], self.demands.stages, key[1])
        return self._plans[key]

    def applicable(self, settings: Sequence[str]) -> tuple[str, ...]:
        """Return settings so that they can be applied: a stage that ran inline is told to have threads, if it gets workers."""
        wanted = self.change_plan(Change(settings=tuple(settings)))
        threads = [
            f"{name}.executor=thread"
            for name, stage in self.plan.stages.items()
            if stage.executor == "inline" and wanted.stages[name].executor == "thread"
        ]
        return (*settings, *(one for one in threads if one not in settings))

    def scenario(
        self, change: Change, *, seed: int = 0, num_jobs: int | None = None, resampled: bool = False
    ) -> Scenario:
        """Return all that decides how a changed run goes; raises what `simulate` raises."""
        check_change(change, self.plan, self.demands.stages, is_open=self.is_open)
        plan = self.change_plan(change)
        factors = scale_factors(self.evidence, self.demands, self.plan, plan)
        if factors:
            speedups = {name: 1.0 / factor for name, factor in factors.items()}
            for name, value in change.speedups.items():
                speedups[name] = speedups.get(name, 1.0) * value
            change = msgspec.structs.replace(change, speedups=speedups)
        kept = self.kept(change)
        change = pass_by(change, kept)
        count = num_jobs or self._num_jobs(plan)
        sample = sample_jobs(self.demands.num_jobs, count, seed if resampled else None)
        call_seconds, jobs_per_call = find_calls(self.evidence, self.plan, is_open=self.is_open)
        if self.evidence.info.source_work is not None:  # it works for one caller at a time, however many there are
            call_seconds *= plan.source.receivers / self.plan.source.receivers
        return Scenario(
            demands=self.demands,
            plan=plan,
            costs=self._costs(change, plan),
            recorded_costs=self.costs,
            machine=self.machine,
            change=change,
            sample=sample,
            arrivals=find_arrivals(self.demands, change, count, seed, is_open=self.is_open),
            call_seconds=call_seconds,
            jobs_per_call=jobs_per_call,
            ahead=find_ahead(self.evidence),
            holds_gil=self._compute_holding(plan),
            gil_acquisitions=self.gil_acquisitions,
            spreads=self.spreads,
            hit_seconds=kept.hit_seconds,
        )

    def kept(self, change: Change) -> Kept:
        """Return what the caches of a changed Plan do; raises CannotReplay if the recorded run had others."""
        return find_kept(self.plan, self.change_plan(change), self.demands, self.document)

    def _compute_holding(self, plan: Plan) -> dict[str, float]:
        """Return {stage: share of its CPU time with the GIL}: what comes back from processes of its own has to have it."""
        infos = [stage.info for stage in self.demands.stages]
        back = [info.name for info in infos if info.executor == "process" and not info.releases_gil]
        return self.holds_gil | {name: 1.0 for name in back if plan.stages[name].executor != "process"}

    def _find_spreads(self) -> dict[str, Spread]:
        """Return how calls of each model were spread over its threads: their CPU time is in no span, but in the account.

        Where there is no account all threads are taken to have worked all the time.
        """
        if not any("threads" in variant for variant in self.evidence.info.variants):
            return {}
        found, lines = {}, self.document.cpu.lines if self.document.cpu else ()
        names = [
            stage.name
            for stage in self.demands.stages
            if stage.name in self.costs
            and not stage.is_exclusive
            and self.costs[stage.name].cpu_share >= _LEAST_CPU_SHARE
        ]
        called = sum(line.seconds for line in lines if line.name in names)
        native = sum(line.seconds for line in lines if line.name == NATIVE)
        profiling = self.evidence.profiling
        is_measured = called > 0 and profiling is not None and profiling.native_cpu_seconds is not None
        for group in group_stages(self.demands.stages, self.plan):
            for stage in group:
                if stage.name in names:
                    threads = model_threads(self.plan, group[0].name, stage.info, self.cores)
                    busy = 1.0 + native / called if called > 0 else float(threads)
                    found[stage.name] = Spread(threads, min(busy, float(threads)), is_measured)
        return found

    def _num_jobs_of(self, *changes: Change) -> int:
        """Return how many jobs are simulated where changes are compared: as many as either needs."""
        return max(self._num_jobs(self.change_plan(one)) for one in changes)

    def _num_jobs(self, plan: Plan) -> int:
        at_once = _count_at_once(plan)
        wanted = min(4 * _MOST_JOBS, max(_FEWEST_JOBS, min(_MOST_JOBS, self.demands.num_jobs), _ROUNDS * at_once))
        return self.affordable(wanted, max(_LEAST_JOBS, _LEAST_ROUNDS * at_once))

    def affordable(self, wanted: int, least: int = _LEAST_JOBS) -> int:
        """Return how many jobs to simulate: as many as wanted, or fewer where each takes many events; `least` in any case."""
        return min(wanted, max(least, self._most_jobs))

    def bound_jobs(self, simulated: Simulated) -> None:
        """Let later simulations have no more jobs than take the events that one simulation may, by what this one took."""
        self._most_jobs = _MOST_EVENTS * len(simulated.latencies) // max(1, simulated.trace.num_events)

    def forget(self) -> None:
        """Keep no simulation."""
        self._known.clear()

    def _costs(self, change: Change, plan: Plan) -> dict[str, BatchCost]:
        costs = {}
        for stage in self.demands.stages:
            name = stage.name
            if name not in self.costs:
                continue
            cost = self.costs[name]
            if name in change.cost_curves:
                cost = make_given_cost(change.cost_curves[name], cost.cpu_share)
            elif stage.is_emulated:
                cost = _make_emulated_cost(cost, self.plan, plan, stage.info)
            batch, recorded = plan.stages[name].batch or 1, self.plan.stages[name].batch or 1
            if batch > recorded or name in change.cost_curves:
                cost.check(name, batch)
            costs[name] = cost
        return costs


def _count_at_once(plan: Plan) -> int:
    """Return how many units can be in service at once."""
    return sum(
        (stage.workers or 1) * (stage.batch or 1)
        for name, stage in plan.stages.items()
        if name != "deliver" and stage.executor != "inline"
    )


def _summary(scenario: Scenario, system: System) -> Simulated:
    trace = simulate(system)
    names = [station.name for station in system.stations]
    devices = {
        f"device:{stage}": seconds / (capacity * trace.elapsed)
        for name, capacity, seconds in zip(system.resource_names, system.resources, trace.resource_seconds, strict=True)
        for stage in name.partition(":")[2].split(",")
        if name.startswith(("device:", "uses "))
    }
    return Simulated(
        throughput=trace.whole_rate if trace.comes_in_a_burst else trace.throughput,
        latencies=trace.latencies,
        utilization={
            "cores": trace.cpu_seconds / (trace.elapsed * system.cores),
            "gil": trace.gil_seconds / trace.elapsed,
            "receiving": trace.receivers_busy,
            **{f"workers:{name}": trace.workers_busy[name] for name in names},
            **devices,
        },
        queue_mean=trace.queue_mean,
        full_share=trace.full,
        starved_share=trace.starved,
        blocked_share=trace.blocked,
        batch_mean=trace.batch_mean,
        cpu_per_job=trace.cpu_seconds / len(scenario.sample),
        gil_wait=trace.gil_wait,
        trace=trace,
    )


def _make_emulated_cost(cost: BatchCost, recorded: Plan, changed: Plan, info: StageInfo) -> BatchCost:
    """Return the cost of an emulated device whose Plan names other times."""
    before, after = (plan.model_of(info.task, info.name) for plan in (recorded, changed))
    if before.engine != after.engine or before.options == after.options:
        return cost
    old, new = read_emulated_seconds(before.options), read_emulated_seconds(after.options)
    return dataclasses.replace(cost, seconds=cost.seconds * [new(size) / old(size) for size in cost.sizes])
