"""A recorded run, ready to be run again under another Plan, in simulation.

    replay = Analysis(read_run("runs/first")).replay
    replay.ratio(Change(settings=("fetch.workers=32",)))      # throughput over that of the recorded run

A prediction is the measured throughput times the ratio of two simulations, of the changed run and of the run as recorded: what
the simulator gets wrong in both cancels. Both replay the same jobs in the same order.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from headrace.base.documents import encode_document
from headrace.base.formatting import pluralize
from headrace.base.plan import Plan
from headrace.base.settings import check, unknown_key
from headrace.diagnose.budget import Budget
from headrace.diagnose.cpu_account import NATIVE
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.replay.costs import BatchCost, Spread, batch_cost, make_given_cost, read_emulated_seconds
from headrace.diagnose.replay.decoding import scale_factors
from headrace.diagnose.replay.demands import CannotReplay, Demands, StageDemands, find_demands
from headrace.diagnose.replay.gil_shares import find_gil_shares
from headrace.diagnose.replay.kept import Kept, find_kept, pass_by
from headrace.diagnose.replay.machine import HOP_SECONDS, PASSAGE_SHARE, find_machine, find_other_threads
from headrace.diagnose.replay.plans import change_plan
from headrace.diagnose.replay.structure import (
    GIL_MATTERS,
    GilAcquisitions,
    HandoffShare,
    Machine,
    Scenario,
    build,
    count_visits,
    group_stages,
    model_threads,
)
from headrace.diagnose.simulator import Trace, simulate
from headrace.diagnose.simulator.system import System
from headrace.diagnose.span_columns import Array
from headrace.diagnose.steady_state import completions
from headrace.diagnose.trust import FEWEST_JOBS
from headrace.runs.emulation import emulated_engines
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import ProfileDocument
from headrace.runs.reader import Run
from headrace.runs.run_folder import StageInfo

#: Jobs simulated unless asked for more: few enough for a verdict of some dozen simulations in a second.
_FEWEST_JOBS, _MOST_JOBS = 400, 700
#: Jobs for each that can be inside at once, so that filling and draining are a small part.
_ROUNDS = 8
#: Receivers that wait longer than this share of their time for jobs have fewer than they could take.
_WAITING_SHARE = 0.4
#: Steps of one simulation, about 30 ms of a core; a job whose stages often take the GIL back takes some hundred of them. Then
#: fewer jobs are simulated: at least so many, and so many rounds.
_MOST_EVENTS = 20_000
_LEAST_JOBS, _LEAST_ROUNDS = 100, 4
#: Blocks of neighbouring jobs that a resampled run is made of.
_BLOCKS = 12
#: Share of the waiting for a core that is the run's own doing where other programs have little part in it.
_EXPLAINED = 0.5
#: Steps in which the number of others is narrowed down: to 3 % of what they used.
_HALVINGS = 5
#: Shares of the CPU time with the GIL that calibration tries.
_GIL_SHARES = (1.0, 0.75, 0.5, 0.3, 0.15, 0.05)
_GIL_ROUNDS, _ACQUISITION_ROUNDS = 2, 3
#: Times that the price of waking and what is simulated with it are brought into line; and the largest share of what workers
#: spend outside stages that waking others may be.
_HANDOFF_ROUNDS, _MOST_WAKING = 2, 0.9
#: How far the waiting that was seen may be off: what a hundred samples tell of a share of a half.
_GIL_SLACK = 0.15
#: A stage that waits less for the GIL than this is not held up by it, seconds.
_LEAST_GIL_WAIT = 100e-6
#: Most times that a unit takes the GIL back, and the least CPU time between two of them: shorter calls do not let go of it.
_MOST_ACQUISITIONS, _LEAST_BETWEEN_ACQUISITIONS = 60, 50e-6
#: Most that waking up to take the GIL takes, and how far the slowdown of the cores may be from 1; and in how many steps they
#: are narrowed down.
_MOST_WAKE_SECONDS, _MOST_SLOWDOWN, _SPEED_ROUNDS = 200e-6, 1.25, 5
#: How many times as long the wait for the GIL may be where it changes hands less often.
_KEPT_TIMES = 5
#: How many times as long as they did threads may wait for the GIL, as simulated, for it to have made the run slow.
_TOO_MUCH_GIL = 1.5
#: As near to the measured throughput as makes no difference; and how much of what was missing one of these may leave.
_SPEED_FOUND, _MOST_LEFT = 0.005, 0.5
#: Models that compute less than this share of a call wait for a device, and use no threads of this machine.
_LEAST_CPU_SHARE = 0.3
#: Simulated too fast by so much with few others, a run is tried with more.
_TOO_FAST = 0.15
#: Of a run's simulated and measured throughput: beyond it the run is not understood, and nothing can be predicted from it.
UNDERSTOOD = 0.40
#: Share of the deliveries that were lost, failed or given back, from which on jobs that come again matter.
COMES_AGAIN = 0.02
#: Samples of blocked threads below which nothing is said about the GIL.
_FEWEST_SAMPLES = 20


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


class Replay:
    """One recorded run and everything needed to simulate it.

    Attributes:
        run: The folder.
        evidence: What it holds.
        document: Its analysis.
        plan: The Plan as it ran, resolved.
        demands: What each recorded job needed in each stage.
        machine: What the run had to share.
        costs: {device stage: what a batch costs}.
        holds_gil: {stage: share of its CPU time with the GIL}, calibrated.
        measured_gil_shares: Those of it that were measured, of stages that ran alone.
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
        self.measured_gil_shares = find_gil_shares(evidence.isolation, demands.stages)
        self.holds_gil = {stage.name: stage.holds_gil for stage in demands.stages} | self.measured_gil_shares
        self.gil_acquisitions: dict[str, GilAcquisitions] = {}
        self.spreads = self._find_spreads()
        self.is_open = _is_open(evidence, document)
        self._calibrate_handoff()
        self._calibrate_shared()
        self._calibrate_handoff()  # who keeps the GIL decides who sleeps
        self._bound_jobs(self.simulate())
        self._calibrate_speed()
        self._known.clear()  # of no use any more: all but the last were of other machines

    @classmethod
    def of(cls, evidence: Evidence, document: ProfileDocument) -> Replay:
        """Return a run ready to be simulated; `diagnose.analysis.Analysis` makes one of a run folder.

        Args:
            evidence: What the folder holds.
            document: Its analysis.

        Raises:
            CannotReplay: If it does not hold what is needed; the message says what, and the next command.
        """
        demands = find_demands(evidence, document)
        if document.throughput is None:
            raise CannotReplay("the run delivered too few jobs for a rate; profile more items")
        if document.latency.num_samples < FEWEST_JOBS:
            raise CannotReplay(
                f"{pluralize(document.latency.num_samples, 'job')} were delivered while the run was steady, and a verdict or a "
                f"prediction needs {FEWEST_JOBS}: profile more items"
            )
        plan = Plan.from_table(document.plan)
        if missing := [stage.name for stage in demands.stages if stage.name not in plan.stages]:
            raise CannotReplay(
                f"the run folder does not say how the Plan sets {', '.join(missing)}: it was killed as Plan "
                f"{document.plan_id or 'without a name'} came into force; profile again"
            )
        machine = find_machine(evidence, document, demands)
        costs = {}
        for stage in demands.stages:
            if stage.info.kind == "device":
                model = plan.model_of(stage.info.task, stage.name)
                stage.is_emulated = model.engine in emulated_engines(evidence.info.variants)
                stage.is_exclusive = stage.is_emulated or _is_accelerator(evidence, stage)
                costs[stage.name] = batch_cost(evidence, stage, model)
        return cls(evidence, document, plan, demands, machine, costs)

    @property
    def throughput(self) -> float:
        """Jobs per second, as measured in the steady part of the recorded run."""
        return self.document.throughput or 0.0

    @property
    def misfit(self) -> float:
        """The run as simulated over the run as measured, less 1: above 0 it is simulated too fast."""
        return self.simulate().throughput / self.throughput - 1

    def check_understood(self) -> None:
        """Raise CannotReplay where the simulation misses the run as it was by so much that it can predict nothing."""
        if abs(self.misfit) > UNDERSTOOD:
            raise CannotReplay(
                f"as recorded the simulator gives {self.simulate().throughput:.4g}/s and {self.throughput:.4g}/s were measured "
                f"({self.misfit:+z.0%}, at most {UNDERSTOOD:.0%} is allowed): it does not understand this run, and predicts "
                "nothing of it. headrace diagnose says what may be missing; a longer run on a quiet machine may do"
            )

    @property
    def throughput_error(self) -> float:
        """Standard error of that, as a share of it; 0 where the run is too short to tell."""
        window = self.document.window
        return completions(self.evidence, delivered=True).relative_error(window.from_seconds, window.to_seconds)

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

    def with_gil_shares(self, shares: Mapping[str, float]) -> Replay:
        """Return the same run with other shares of the GIL, {stage: 0 to 1}; all else stays as it was calibrated."""
        other = copy.copy(self)
        other.holds_gil = self.holds_gil | dict(shares)
        return other

    def without_turns(self, stage: str) -> Replay:
        """Return the same run with a stage whose calls take as long as they took, however many are under way."""
        other = copy.copy(self)
        stages = tuple(
            dataclasses.replace(one, turns=None) if one.name == stage else one for one in self.demands.stages
        )
        other.demands = dataclasses.replace(self.demands, stages=stages)
        return other

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
        self._check(change)
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
        sample = self._sample(count, seed if resampled else None)
        call_seconds, jobs_per_call = self._calls()
        return Scenario(
            demands=self.demands,
            plan=plan,
            costs=self._costs(change, plan),
            recorded_costs=self.costs,
            machine=self.machine,
            change=change,
            sample=sample,
            arrivals=self._arrivals(change, count, seed),
            call_seconds=call_seconds,
            jobs_per_call=jobs_per_call,
            holds_gil=self._compute_holding(plan),
            gil_acquisitions=self.gil_acquisitions,
            spreads=self.spreads,
            hit_seconds=kept.hit_seconds,
        )

    def kept(self, change: Change) -> Kept:
        """Return what the caches of a changed Plan do; raises CannotReplay if the recorded run had others."""
        return find_kept(self.plan, self.change_plan(change), self.demands, self.document)

    # --- parts of a scenario

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

    def _check(self, change: Change) -> None:
        names = [stage.name for stage in self.demands.stages]
        for name in (
            *change.speedups,
            *change.drop,
            *change.cache_hits,
            *change.every,
            *change.on_device,
            *change.cost_curves,
        ):
            if name not in names and name != "receiving":
                raise unknown_key(name, "the stages of this run", names)
        for name, factor in change.speedups.items():
            check(factor > 0 and np.isfinite(factor), f"speed-up of {name}", factor, "a factor above 0")
        for name, share in change.cache_hits.items():
            check(0 <= share <= 1, f"cache hits of {name}", share, "a share from 0 to 1")
        for name, number in change.every.items():
            check(number >= 1, f"every item of {name}", number, "a whole number >= 1")
        for name, seconds in change.on_device.items():
            check(seconds > 0 and np.isfinite(seconds), f"seconds of {name} on the device", seconds, "more than 0")
            stage = next(one for one in self.demands.stages if one.name == name)
            takes_items = stage.info.kind == "cpu" and stage.info.role == "map"
            check(takes_items, "stage moved to the device", name, "a stage of kind cpu that maps items one by one")
        check(change.cores is None or change.cores > 0, "cores", change.cores, "more than 0")
        check(change.devices is None or change.devices >= 1, "devices", change.devices, "a whole number >= 1")
        has_device = any(
            stage.is_exclusive and not self.plan.model_of(stage.info.task, stage.name).uses
            for stage in self.demands.stages
        )
        allowed = (
            "only where a model runs on a device of its own; here it runs on the cores (--cores), or uses [resources] of the "
            "Plan (--set resources.NAME=N)"
        )
        check(change.devices is None or has_device, "devices", change.devices, allowed)
        rate = change.arrival_rate
        check(rate is None or rate > 0, "arrival rate", rate, "more than 0 jobs per second")
        deadline = change.deadline_seconds
        check(deadline is None or deadline > 0, "deadline", deadline, "more than 0 seconds")
        open_only = "only where jobs come by themselves; say how many: --arrival-rate 100/s"
        check(deadline is None or rate is not None or self.is_open, "deadline", deadline, open_only)
        for name in change.drop:
            role = next(stage.info.role for stage in self.demands.stages if stage.name == name)
            check(role == "map", "dropped stage", name, f"a stage that maps; {name} is a {role}")

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

    def _bound_jobs(self, simulated: Simulated) -> None:
        """Let later simulations have no more jobs than take the events that one simulation may, by what this one took."""
        self._most_jobs = _MOST_EVENTS * len(simulated.latencies) // max(1, simulated.trace.num_events)

    def _sample(self, count: int, seed: int | None) -> Array:
        """Return which recorded jobs come: in order and around again, or in blocks drawn with replacement.

        Of more jobs than that, blocks from all over the run: the first ones alone may be of another kind.
        """
        recorded = self.demands.num_jobs
        if seed is None:
            length = -(-count // _BLOCKS)
            apart = max(0, recorded - length) / (_BLOCKS - 1) if count < recorded else length
            starts = np.floor(np.arange(_BLOCKS) * apart).astype(int)
            return np.asarray((starts[:, None] + np.arange(length)).ravel()[:count] % recorded)
        # No more of them than were recorded: a run of a hundred jobs is no surer for being gone around four times.
        length = -(-min(count, recorded) // _BLOCKS)
        starts = np.random.default_rng(seed).integers(0, recorded, size=_BLOCKS)
        drawn = (starts[:, None] + np.arange(length)).ravel() % recorded
        return np.asarray(drawn[np.arange(count) % len(drawn)])

    def _arrivals(self, change: Change, count: int, seed: int) -> list[float] | None:
        if change.arrival_rate is not None:
            gaps = np.random.default_rng(seed).exponential(1.0, count)
            gaps *= count / change.arrival_rate / gaps.sum()  # a small sample's own rate is that of its luck
            return [float(when) for when in np.cumsum(gaps)]
        if not self.is_open:
            return None
        recorded = self.demands.arrived - self.demands.arrived[0]
        around = recorded[-1] + recorded[-1] / max(1, len(recorded) - 1)
        turns = np.arange(count) // len(recorded)
        return [float(when) for when in recorded[np.arange(count) % len(recorded)] + turns * around]

    def _calls(self) -> tuple[float, int]:
        """Return seconds of a call of the source, and how many jobs it may bring.

        Calls that waited until jobs were due again say nothing of what a call takes. Jobs that were given back without its
        counting against them cannot be told from new ones: where these are many and calls bring few, no call's time is known.
        """
        receiving = self.evidence.info.receiving
        batch = self.plan.source.receive_batch
        if receiving is None or self.is_open:
            return 0.0, max(batch, 1)
        calls = receiving.calls - receiving.empty_calls
        if calls < 1:
            return 0.0, batch
        per_call = receiving.jobs / calls
        # Calls that bring what they are asked for show no limit of the source's own.
        is_full = per_call >= 0.8 * min(batch, receiving.asked / max(1, receiving.calls))
        own_calls = calls - receiving.again_calls
        counters = self.evidence.info.counters
        if own_calls < 1 or (not is_full and counters.returned >= COMES_AGAIN * max(counters.received, 1)):
            return 0.0, batch
        seconds = receiving.call_seconds - receiving.empty_call_seconds - receiving.again_call_seconds
        return max(0.0, seconds) / own_calls, 10**6 if is_full else max(1, round(per_call))

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

    def compute_added_workers(self, station: str) -> float:
        """Return how many times as many workers a station had at most, with those added while some waited for slow calls."""
        found = next((one for one in self.evidence.stages if one.name == station), None)
        return (found.most_workers or found.workers) / found.workers if found and found.workers else 1.0

    # --- calibration

    def _calibrate_handoff(self) -> None:
        """Part what workers spent outside stages into waking others, passing stations, and the rest.

        How often somebody is woken depends on the Plan and on the rate, so each simulation counts it; what that costs is the
        machine's price. Where fewer threads really went to sleep than simulated ones do, a simulated one costs less.
        """
        price, total = self.evidence.info.handoff, self.machine.overhead
        if price is None or not price.cpu_seconds or total <= 0:
            return
        visits, passages = count_visits(self.scenario(Change()))
        weighed = visits + PASSAGE_SHARE * passages
        runtime = self.document.runtime
        slept = None if runtime is None else runtime.voluntary_switches_per_item
        others = find_other_threads(self.document, passages)
        share = self.machine.handoff or HandoffShare(price.cpu_seconds, total / visits, 0.0, others)
        for _ in range(_HANDOFF_ROUNDS):
            self.machine = dataclasses.replace(self.machine, handoff=share)
            simulated = self.simulate(num_jobs=self.affordable(_FEWEST_JOBS))
            wakes = max(1e-9, simulated.trace.num_wakes / len(simulated.latencies))
            wake = min(
                price.cpu_seconds * (1.0 if slept is None else min(1.0, slept / wakes)), _MOST_WAKING * total / wakes
            )
            rest = total - wakes * wake
            visit = min(HOP_SECONDS / (1 + PASSAGE_SHARE), rest / weighed)
            share = HandoffShare(wake, visit, PASSAGE_SHARE * visit, rest - visit * weighed + others)
        self.machine = dataclasses.replace(self.machine, handoff=share)

    def _calibrate_shared(self) -> None:
        """Find how many threads of others the run had to share the cores with, and how it shares the GIL.

        How long workers waited for a core tells of the others. But where a thread that holds the GIL, or is given it, waits for
        a core, all who want it wait for the GIL: if the run is still simulated too fast, and both waits together tell of more
        others that make it as fast as it was, these held it up, and not the GIL.
        """
        found, holds, delay = self.machine, self.holds_gil, self._read_run_delay()
        self._calibrate_others(self._simulate_delay, delay)
        self._calibrate_gil()
        too_fast = self.misfit
        if delay is None or not self.machine.others or too_fast <= _TOO_FAST or not self._gil_was_sampled():
            return
        kept = self.machine, self.holds_gil, self.gil_acquisitions
        self.machine, self.holds_gil, self.gil_acquisitions = found, holds, {}
        both = delay + sum(self._read_gil_wait(stage.name) for stage in self.demands.stages)
        self._calibrate_others(lambda: self._simulate_delay() + sum(self._simulate_gil_wait().values()), both)
        if self.machine.others <= kept[0].others or abs(self.misfit) > _MOST_LEFT * too_fast:
            self.machine, self.holds_gil, self.gil_acquisitions = kept

    def _calibrate_others(self, simulate: Callable[[], float], measured: float | None) -> None:
        """Find how many threads of others make the run, simulated, wait as long as was measured.

        What others used says little: a program that runs now and then takes nothing from threads that mostly sleep, and one
        that wants a core all the time takes more than it is given.
        """
        if measured is None or self.machine.others <= 0:
            return
        found = self.machine
        low, high = 0.0, found.others
        for _ in range(_HALVINGS):
            others = (low + high) / 2
            # Who does not compete for a core has only what is left over.
            self.machine = dataclasses.replace(found, others=others, taken=min(others, found.taken))
            if simulate() < measured:
                low = others
            else:
                high = others

    @property
    def explains_delay(self) -> bool:
        """Whether the run's own threads, as simulated, account for most of the time that they waited for a core."""
        measured = self._read_run_delay()
        return measured is not None and self._simulate_delay() >= _EXPLAINED * measured

    def _simulate_delay(self) -> float:
        simulated = self.simulate(num_jobs=self.affordable(_FEWEST_JOBS))
        return simulated.trace.delay_seconds / len(simulated.latencies)

    def _read_run_delay(self) -> float | None:
        """Return seconds per job that workers waited for a core within stages; None where it was not measured."""
        jobs = max(1, int(self.document.counters.get("delivered", 0)))
        total, known = 0.0, False
        for stage in self.document.stages:
            if stage.run_delay is not None:
                size = stage.batches.mean_size if stage.batches else 1.0
                total += stage.run_delay * stage.items / size
                known = True
        return total / jobs if known else None

    def _calibrate_gil(self) -> None:
        """Find how much of their CPU time stages hold the GIL, and how often others have to take it, from how long all waited.

        A stage's `releases_gil` says only that threads of it gain something: NumPy and OpenCV let go of the GIL within a stage
        that does not promise to. And a call of C code that lets go of it has to have it back, each time it returns to Python,
        and may wait for a whole switch interval then.
        """
        holding = [
            stage.name
            for stage in self.demands.stages
            if stage.holds_gil > 0 and stage.name not in self.measured_gil_shares
        ]
        held = (
            sum(float(stage.cpu_demand.sum()) * self.holds_gil[stage.name] for stage in self.demands.stages)
            / self.demands.num_jobs
        )
        if held * self.throughput < GIL_MATTERS or not self._gil_was_sampled():
            return
        measured = [name for name, share in self.measured_gil_shares.items() if share > 0]
        for _ in range(_GIL_ROUNDS):
            if holding:
                self._fit_holding(holding)
            self._fit_gil_acquisitions([*holding, *measured])

    def _fit_holding(self, holding: list[str]) -> None:
        measured = sum(self._read_gil_wait(name) for name in holding)
        base = {name: share for name, share in self.holds_gil.items() if name not in holding}
        found = []
        for share in _GIL_SHARES:
            self.holds_gil = base | dict.fromkeys(holding, share)
            waits = self._try_gil_wait()
            found.append((abs(sum(waits[name] for name in holding) - measured), -share))
            if sum(waits[name] for name in holding) < measured:
                break  # it only gets less from here on
        # Where several shares explain what was seen about as well, the stage's own word counts: it did not promise to let go.
        least = min(miss for miss, _ in found)
        slack = _GIL_SLACK * measured + _LEAST_GIL_WAIT
        best = max(-share for miss, share in found if miss <= least + slack)
        self.holds_gil = base | dict.fromkeys(holding, best)

    def _fit_gil_acquisitions(self, holding: list[str]) -> None:
        """Make stages that let go of the GIL take it back as often as it takes for them to wait as long as they did."""
        for _ in range(_ACQUISITION_ROUNDS):
            waits = self._try_gil_wait()
            for stage in self.demands.stages:
                name, measured = stage.name, stage.gil_wait
                if name in holding or name not in self.holds_gil or measured < _LEAST_GIL_WAIT:
                    continue
                known = self.gil_acquisitions.get(name, GilAcquisitions(1.0, stage.gil_wait_grows))
                size = stage.batch_size.mean() if stage.info.kind == "device" else 1.0
                seen = max(waits[name] * size, 0.1 * measured)
                most = min(_MOST_ACQUISITIONS, float(stage.cpu.mean()) / _LEAST_BETWEEN_ACQUISITIONS)
                times = max(1.0, min(most, known.times * measured / seen))
                self.gil_acquisitions[name] = GilAcquisitions(times, known.grows)

    def _try_gil_wait(self) -> dict[str, float]:
        """Return what `_simulate_gil_wait` does, and let later simulations take no more events than one may."""
        waits = self._simulate_gil_wait()
        self._bound_jobs(self.simulate(num_jobs=self.affordable(_FEWEST_JOBS)))
        return waits

    def _simulate_gil_wait(self) -> dict[str, float]:
        """Return {stage: seconds per unit}; what a station waits is shared among its stages by what was measured of them."""
        waits = self.simulate(num_jobs=self.affordable(_FEWEST_JOBS)).gil_wait
        found = {}
        for group in group_stages(self.demands.stages, self.plan):
            total = sum(self._read_gil_wait(stage.name) for stage in group)
            for stage in group:
                share = self._read_gil_wait(stage.name) / total if total > 0 else 1.0 / len(group)
                found[stage.name] = waits.get(group[0].name, 0.0) * share
        return found

    def _read_gil_wait(self, name: str) -> float:
        stage = next(one for one in self.demands.stages if one.name == name)
        return stage.gil_wait / (float(stage.batch_size.mean()) if stage.info.kind == "device" else 1.0)

    def _calibrate_speed(self) -> None:
        """Make the run, simulated, as fast as it was: taking the GIL, switches between threads and cold caches cost time too.

        Without it a change that takes them out of play (fewer downloads at a time, fewer arrivals, processes) would be compared
        with a run that never was. What the throughput does not depend on stays as it is.
        """
        if self.is_open:
            return
        busy = self.simulate().utilization
        if busy["gil"] > busy["cores"]:
            most, rounds = _MOST_WAKE_SECONDS, _SPEED_ROUNDS
            if self.machine.handoff is not None:  # it is kept from unit to unit, and changes hands less often
                most, rounds = _KEPT_TIMES * most, rounds + 2
            self._fit_speed(self._set_wake, 0.0, 0.0, most, rounds)
            if self._waits_too_long_for_gil():
                self._set_wake(0.0)
        else:
            self._fit_speed(self._set_slowdown, 1 / _MOST_SLOWDOWN, 1.0, _MOST_SLOWDOWN)

    def _waits_too_long_for_gil(self) -> bool:
        """Return whether threads, as simulated, wait far longer for the GIL than they did: it is not what made the run slow."""
        if not self._gil_was_sampled():
            return False
        measured = sum(self._read_gil_wait(stage.name) for stage in self.demands.stages)
        return sum(self._simulate_gil_wait().values()) > _TOO_MUCH_GIL * measured + _LEAST_GIL_WAIT

    def _set_wake(self, seconds: float) -> None:
        self.machine = dataclasses.replace(self.machine, wake_seconds=seconds)

    def _set_slowdown(self, slowdown: float) -> None:
        self.machine = dataclasses.replace(self.machine, slowdown=slowdown)

    def _fit_speed(
        self, slow: Callable[[float], None], least: float, usual: float, most: float, rounds: int = _SPEED_ROUNDS
    ) -> None:
        """Find how much of something that slows the run makes it as fast as it was; the usual where it has no part in that."""

        def miss(value: float) -> float:
            slow(value)
            return math.log(self._simulate_throughput() / self.throughput)

        missing = miss(usual)
        low, high = (usual, most) if missing > 0 else (least, usual)
        tried = {usual: missing}
        for _ in range(rounds if abs(missing) > _SPEED_FOUND else 0):
            middle = (low + high) / 2
            tried[middle] = miss(middle)
            low, high = (middle, high) if tried[middle] > 0 else (low, middle)
        best = min(tried, key=lambda value: abs(tried[value]))
        slow(best if abs(tried[best]) <= _MOST_LEFT * abs(missing) else usual)

    def _simulate_throughput(self) -> float:
        return self.simulate().throughput

    def _gil_was_sampled(self) -> bool:
        """Return whether enough was sampled to tell, and there was somebody to wait for."""
        splits = [stage.blocked_split for stage in self.document.stages if stage.blocked_split is not None]
        threads = sum(
            (self.plan.stages[group[0].name].workers or 1)
            for group in group_stages(self.demands.stages, self.plan)
            if self.plan.stages[group[0].name].executor == "thread" and group[0].info.role != "deliver"
        )
        return sum(split.num_samples for split in splits) >= _FEWEST_SAMPLES and threads >= 2


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


def _is_open(evidence: Evidence, document: ProfileDocument) -> bool:
    """Return whether jobs came slower than they could have been taken: receivers waited for them."""
    receiving = evidence.info.receiving
    if receiving is not None:
        elapsed = max(evidence.elapsed_seconds, 1e-9) * receiving.num_receivers
        waited = receiving.empty_call_seconds + receiving.call_seconds * (receiving.calls > 0) * _is_polled(evidence)
        return waited / elapsed > _WAITING_SHARE and receiving.blocked_seconds / elapsed < 1 - _WAITING_SHARE
    busiest = max((stage.utilization or 0.0 for stage in document.stages), default=0.0)
    return busiest < 0.6


def _is_polled(evidence: Evidence) -> bool:
    """Return whether calls of the source wait for jobs: these do not grow old in it; if it tells no age, some calls were empty.

    Where jobs come often, a call that waits comes back with the next one and never empty.
    """
    receiving = evidence.info.receiving
    if receiving is None:
        return False
    age = receiving.last_age_seconds
    return receiving.empty_calls > 0 if age is None else age < 0.5


def _is_accelerator(evidence: Evidence, stage: StageDemands) -> bool:
    """Return whether a device works beside this machine's cores, one call at a time."""
    busy = float((stage.wait + stage.cpu).sum())
    return (
        busy > 0
        and float(stage.cpu.sum()) / busy < 0.3
        and any(
            "cuda" in str(variant).lower() or "tensorrt" in str(variant).lower() for variant in evidence.info.variants
        )
    )


def _make_emulated_cost(cost: BatchCost, recorded: Plan, changed: Plan, info: StageInfo) -> BatchCost:
    """Return the cost of an emulated device whose Plan names other times."""
    before, after = (plan.model_of(info.task, info.name) for plan in (recorded, changed))
    if before.engine != after.engine or before.options == after.options:
        return cost
    old, new = read_emulated_seconds(before.options), read_emulated_seconds(after.options)
    return dataclasses.replace(cost, seconds=cost.seconds * [new(size) / old(size) for size in cost.sizes])
