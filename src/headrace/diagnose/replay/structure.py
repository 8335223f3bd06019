"""Makes the simulator's description of a run under a Plan: stations from stages, programs from demands.

Where what comes from: the Plan says which stages share a worker (inline), how many workers there are and how long the queues;
`demands` says what each unit costs; `costs` what a batch costs; the machine how many cores there are and what others take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.base.plan import Plan
from headrace.base.policies.batching import BatchingPolicy
from headrace.diagnose.replay.admission import expect_by_costs
from headrace.diagnose.replay.costs import BatchCost, Spread
from headrace.diagnose.replay.demands import CannotReplay, Demands, StageDemands
from headrace.diagnose.replay.jobs import Ahead
from headrace.diagnose.simulator.system import (
    CPU,
    GIL,
    GIVE,
    SPREAD,
    TAKE,
    WAIT,
    Phase,
    Program,
    Reader,
    Receivers,
    Retry,
    Station,
    System,
)
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.prediction import Change
from headrace.runs.run_folder import StageInfo

#: Share of the cores that others are taken to keep at most.
MOST_TAKEN = 0.9

#: A worker takes about this much cheap work at once, at most so many units; as the runtime's stations do.
_CHUNK_SECONDS, _MOST_AT_ONCE = 0.001, 64
#: What handing an item to a child process and back costs: in this process with the GIL, in the child without, each a fixed part
#: and one for the bytes. Measured with a stage that does nothing, 1 kB to 8 MB, on two cores (AMD EPYC).
_PROCESS_SECONDS, _PROCESS_BYTES_PER_SECOND = 100e-6, 2e10
_CHILD_SECONDS, _CHILD_BYTES_PER_SECOND = 60e-6, 8e9
#: With the GIL for a moment: returning from C code to the next line.
_TOUCH_SECONDS = 5e-6
#: Linux's base slice: so long on one core, once more for each doubling of the cores, up to eight (`kernel/sched/fair.c`).
_BASE_SLICE_SECONDS, _MOST_SLICED_CORES = 0.7e-3, 8
#: Below this share of the time with the GIL, handing on is not held up by it, and counts as plain CPU.
GIL_MATTERS = 0.05


@dataclass(frozen=True, slots=True)
class HandoffShare:
    """Of what workers spend outside stages: what depends on how many stations a job passes, and on who sleeps there."""

    wake: float
    """CPU seconds of waking a worker that sleeps, of both threads."""
    visit: float
    """CPU seconds of taking and handing on a unit in one station, without waking."""
    passage: float
    """CPU seconds beside each stage of a station: its timing and its span."""
    settling: float
    """CPU seconds of a job, whatever stations it passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the run had to share."""

    cores: float
    others: float
    """Threads of other programs that want a core all the time."""
    taken: float
    """Cores that they used during the run."""
    overhead: float
    """CPU seconds per job that workers spend outside stages: taking, handing on, settling."""
    handoff: HandoffShare | None = None
    """What of `overhead` depends on the Plan; None in runs that did not note the price of a hand-off: all of it is shared out
    among the stations of any Plan."""
    slowdown: float = 1.0
    """Seconds of a core that a second of recorded CPU time took while all cores were wanted; calibrated."""
    wake_seconds: float = 0.0
    """What a thread that waited for the GIL takes to go on when it has it; calibrated."""
    bytes_in: dict[str, float] = field(default_factory=dict)
    """{stage: mean bytes of what comes to it}."""
    bytes_out: dict[str, float] = field(default_factory=dict)
    """{stage: mean bytes of what it hands on}."""

    def slice_on(self, cores: float) -> float:
        """Return how long a thread keeps one of so many cores while another is ready; 0 where that is not known.

        A quota gives parts of cores, and threads of other programs take turns of their own: all share evenly then. Older runs,
        which did not note the price of a hand-off, are predicted as they were: they do not tell who keeps the GIL.
        """
        if self.handoff is None or self.others > 0 or cores < 1 or not float(cores).is_integer():
            return 0.0
        return _BASE_SLICE_SECONDS * (1 + int(math.log2(min(max(1.0, self.cores), _MOST_SLICED_CORES))))


@dataclass(frozen=True, slots=True)
class GilAcquisitions:
    """How often a stage that lets go of the GIL has to have it back."""

    times: float
    """For one unit, or one batch of the mean size."""
    grows: float
    """Share of those that grows with the batch, 0 to 1."""

    def at(self, ratio: float, left: float = 1.0) -> int:
        """Return how often for a unit or batch that needs `ratio` times the mean's work.

        Args:
            ratio: By the size of the batch.
            left: Share of its work that a speed-up leaves, > 0: code that does half as much lets go of the GIL half as often.
        """
        times = self.times * (1.0 - self.grows + self.grows * ratio)
        return max(min(1, round(times)), round(times * left))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that decides how a run goes."""

    demands: Demands
    plan: Plan
    costs: dict[str, BatchCost]
    """As changed."""
    recorded_costs: dict[str, BatchCost]
    machine: Machine
    change: Change
    sample: Array
    """(jobs,) int: which recorded jobs come, in order."""
    arrivals: Sequence[float] | None
    call_seconds: float
    jobs_per_call: int
    ahead: Ahead | None = None
    """What the source's own thread does for each job; None: nothing, or receivers wait for it in their calls."""
    holds_gil: dict[str, float]
    """{stage: share of its CPU time with the GIL}."""
    gil_acquisitions: Mapping[str, GilAcquisitions] = field(default_factory=dict)
    """{stage: how often it takes the GIL back}; of the others once."""
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """{device stage: how its calls were spread over threads}; of the others not at all."""
    hit_seconds: Mapping[str, float] = field(default_factory=dict)
    """{stage that looks items up in a cache: CPU seconds of one that is found}."""
    switch_seconds: float = 0.005


def model_threads(plan: Plan, head: str, device: StageInfo, cores: float) -> int:
    """Return the threads that a call of a device stage's model is given in the station of this name, by the runtime's rule.

    A recording does not say which stages open the same file: each counts as if it had a model of its own.
    """
    settings = plan.stages[head]
    workers = plan.source.receivers if settings.executor == "inline" else settings.workers or 1
    return plan.model_of(device.task, device.name).threads or max(1, int(cores) // workers)


def group_stages(stages: Sequence[StageDemands], plan: Plan) -> list[list[StageDemands]]:
    """Return the stages of each station: a new one before every stage that is not inline."""
    cut: list[list[StageDemands]] = []
    for demands in stages:
        if not cut or plan.stages[demands.name].executor != "inline":
            cut.append([])
        cut[-1].append(demands)
    return cut


def build(scenario: Scenario) -> System:
    """Return the description of a scenario."""
    return _Builder(scenario).system()


def count_visits(scenario: Scenario) -> tuple[float, float]:
    """Return through how many stations and stages a job goes, on an average, with its children."""
    builder = _Builder(scenario)
    return builder.visits, builder.passages


class _Builder:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.plan = scenario.plan
        self.resources: list[int] = []
        self.named: dict[str, int] = {}
        dropped = set(scenario.change.drop)
        # Inline stages stay in the workers of the one that is dropped.
        groups = group_stages(scenario.demands.stages, self.plan)
        self.groups = [group for group in groups if any(demands.name not in dropped for demands in group)]
        self.units = self._units()
        self._check_ways()
        self.visits, self.passages = self._count_visits()
        overhead = scenario.machine.overhead / max(1.0, self.visits)
        self.handoff = scenario.machine.handoff or HandoffShare(0.0, overhead, 0.0, 0.0)
        self.gil_matters = self._gil_share() > GIL_MATTERS

    def system(self) -> System:
        """Return the whole."""
        scenario, groups = self.scenario, self.groups
        first_inline = self.plan.stages[groups[0][0].name].executor == "inline"
        stations = [self._station(group) for group in (groups[1:] if first_inline else groups)]
        receivers = self._receivers(groups[0] if first_inline else None)
        routes, route_of = self._routes(stations, groups[1:] if first_inline else groups)
        limit = self.plan.source.max_in_flight or max(
            sum(station.capacity + station.workers for station in stations), self.plan.source.receive_batch
        )
        cores = scenario.change.cores or scenario.machine.cores
        others, taken = self._others_on(cores)
        slowdown, wake_seconds = self._losses_on(cores)
        deadline = scenario.change.deadline_seconds
        is_judged = deadline is not None and scenario.arrivals is not None and self.plan.serve.admission == "in_time"
        return System(
            stations=stations,
            num_jobs=len(scenario.sample),
            receivers=receivers,
            routes=routes,
            route_of=route_of,
            cores=cores,
            others=others,
            taken=taken,
            slowdown=slowdown,
            slice_seconds=scenario.machine.slice_on(cores),
            wake_seconds=wake_seconds,
            handoff_seconds=self.handoff.wake,
            waker_phase=GIL if self.gil_matters else CPU,
            switch_seconds=scenario.switch_seconds,
            resources=tuple(self.resources),
            resource_names=tuple(self.named),
            max_in_flight=limit,
            arrivals=scenario.arrivals,
            deadline_seconds=deadline,
            admission=expect_by_costs(stations, self.resources, cores) if is_judged else None,
        )

    def _others_on(self, cores: float) -> tuple[float, float]:
        """Return the threads of other programs on so many cores, and the cores that they take there.

        A run that is held to fewer cores leaves the rest of the machine to them, and meets its share of them.
        """
        machine = self.scenario.machine
        if self.scenario.change.quiet:
            return 0.0, 0.0
        share = min(1.0, cores / machine.cores)
        return share * machine.others, min(share * machine.taken, MOST_TAKEN * cores)

    def _losses_on(self, cores: float) -> tuple[float, float]:
        """Return the slowdown of so many cores, and what a thread takes to go on when it is given the GIL.

        Both were calibrated where threads are on several cores: a core idles until the thread that was given the GIL is awake,
        or while two threads have to share another one. The only core of a run is never idle while a thread has work.
        """
        machine = self.scenario.machine
        if cores <= 1.0 < machine.cores:
            return min(1.0, machine.slowdown), 0.0
        return machine.slowdown, machine.wake_seconds

    # --- units

    def _count_visits(self) -> tuple[float, float]:
        """Return through how many stations and stages a job goes, on an average, with its children."""
        jobs = self.scenario.sample
        route = self.scenario.demands.route[jobs]
        visits = passages = 0.0
        for group in self.groups:
            share = float(self._is_on_route(group)[route].mean())
            units = share * len(self.units[group[0].name]) / len(jobs)
            visits, passages = visits + units, passages + units * len(group)
        return visits, passages

    def _is_on_route(self, group: Sequence[StageDemands]) -> Array:
        """Return (routes,) bool: whether jobs of each route go through a station with these stages."""
        demands = self.scenario.demands
        names = {one.name for one in group}
        of_group = [number for number, stage in enumerate(demands.stages) if stage.name in names]
        return np.asarray(demands.routes[:, of_group].any(axis=1))

    def _check_ways(self) -> None:
        """Raise CannotReplay where a worker would run stages of jobs of one route alone: the runtime then has several of it."""
        for group in self.groups:
            other = next((demands for demands in group if demands.route != group[0].route), None)
            if other is not None:
                raise CannotReplay(
                    f"stage {other.name} runs inline in the workers of {group[0].name}, which serve other tasks as well, and "
                    f"that is not simulated; give it workers of its own: --set {other.name}.executor=thread"
                )

    def _units(self) -> dict[str, Array]:
        """Return for each stage which recorded units stand for those that are simulated."""
        jobs, units = self.scenario.sample, {}
        level = jobs
        outer: list[Array] = []
        for demands in self.scenario.demands.stages:
            if demands.info.role == "join":
                level = outer.pop()
            units[demands.name] = level
            if demands.num_children is not None:
                outer.append(level)
                level = _children_of(demands.num_children, level)
        return units

    def _routes(
        self, stations: Sequence[Station], groups: Sequence[Sequence[StageDemands]]
    ) -> tuple[list[list[int]] | None, list[int]]:
        demands = self.scenario.demands
        if demands.routes.all():
            return None, []
        on_route = [self._is_on_route(group) for group in groups]
        routes = [
            [number for number, of_group in enumerate(on_route) if of_group[route]]
            for route in range(len(demands.routes))
        ]
        return routes, demands.route[self.scenario.sample].tolist()

    # --- stations

    def _station(self, group: Sequence[StageDemands]) -> Station:
        head, last = group[0], group[-1]
        settings = self.plan.stages[head.name]
        device = next((demands for demands in group if demands.info.kind == "device"), None)
        workers = settings.workers or 1
        programs = [] if device is not None else self._programs(group)
        batch = (self.plan.stages[device.name].batch or 1) if device is not None else 1
        ordered = self.plan.run.ordered and last.info.role == "deliver"
        return Station(
            name=head.name,
            workers=workers,
            capacity=settings.queue_items or 1,
            programs=programs,
            batching=self._make_batching(device),
            batch_program=self._batch_program(group, device) if device is not None else None,
            shapes=_shape_codes(device, self.units),
            units_per_wake=self._units_per_wake(programs),
            chunk=1
            if device is not None or settings.executor in ("process", "events") or ordered
            else _chunk(programs),
            hands_on_aside=device is head and batch > 1,
            children=self._num_children(last),
            joins=head.info.role == "join",
            ordered=ordered,
            threads=self._busy(device, head),
            claims=self._claims(group),
            retries=self._retries(group),
        )

    def _claims(self, group: Sequence[StageDemands]) -> list[tuple[int, int]]:
        """Return (number, amount) of the Plan's resources that a worker has while it is busy."""
        uses: dict[str, int] = {}
        for demands in group:
            for name, amount in self._uses(demands).items():
                uses[name] = max(amount, uses.get(name, 0))
        found = []
        for name, amount in uses.items():
            users = [demands.name for demands in self.scenario.demands.stages if name in self._uses(demands)]
            found.append((self._resource(f"uses {name}:{','.join(users)}", self.plan.resources[name]), amount))
        return found

    def _uses(self, demands: StageDemands) -> Mapping[str, int]:
        info = demands.info
        return self.plan.model_of(info.task, info.name).uses if info.kind == "device" else {}

    def _units_per_wake(self, programs: Sequence[Program]) -> int:
        return max(1, min(_MOST_AT_ONCE, int(self.handoff.wake / max(_mean_seconds(programs), 1e-7))))

    def _make_batching(self, device: StageDemands | None) -> BatchingPolicy | None:
        if device is None:
            return None
        settings = self.plan.stages[device.name]
        return BatchingPolicy(max_size=settings.batch or 1, max_wait_ns=int(settings.max_wait_seconds * 1e9))

    def _num_children(self, last: StageDemands) -> list[int] | None:
        if last.num_children is None:
            return None
        return [int(number) for number in last.num_children[self.units[last.name]]]

    def _busy(self, device: StageDemands | None, head: StageDemands) -> float:
        """Return how many cores a call of a station's device keeps busy."""
        spread = None if device is None else self.scenario.spreads.get(device.name)
        if device is None or spread is None:
            return 1.0
        cores = self.scenario.change.cores or self.scenario.machine.cores
        return spread.at(model_threads(self.plan, head.name, device.info, cores))

    def _receivers(self, group: Sequence[StageDemands] | None) -> Receivers:
        scenario = self.scenario
        source = self.plan.source
        common: dict[str, Any] = {
            "num": source.receivers,
            "call_seconds": scenario.call_seconds / scenario.change.speedups.get("receiving", 1.0),
            "jobs_per_call": max(1, min(scenario.jobs_per_call, source.receive_batch)),
        }
        if scenario.ahead is not None:
            common["reader"] = self._reader(scenario.ahead)
            common["jobs_per_call"] = min(source.receive_batch, scenario.ahead.depth)
        if group is None:
            return Receivers(**common)
        device = next((demands for demands in group if demands.info.kind == "device"), None)
        if device is None:
            return Receivers(**common, programs=self._programs(group))
        batch = self.plan.stages[device.name].batch or 1
        return Receivers(
            **common,
            batch=batch if scenario.ahead is None else min(batch, common["jobs_per_call"]),
            batch_program=self._batch_program(group, device),
            threads=self._busy(device, group[0]),
        )

    def _reader(self, ahead: Ahead) -> Reader:
        """Return the source's own thread, which has what it works with beside the receivers."""
        times = self.scenario.change.speedups.get("receiving", 1.0)
        kind = SPREAD if ahead.threads > 1 else WAIT
        phases = ((kind, ahead.wait_seconds / times), (CPU, ahead.cpu_seconds / times))
        return Reader(tuple(phase for phase in phases if phase[1] > 0), ahead.depth, float(ahead.threads))

    # --- programs

    def _programs(self, group: Sequence[StageDemands]) -> list[Program]:
        """Return what each unit needs in a station without a device."""
        columns = [self._columns(demands, group[0]) for demands in group]
        locks = {demands.name: self._resource(f"lock:{demands.name}", 1) for demands in group if demands.mean_lock}
        overhead = self._overhead_of(group)
        tail: Program = (((GIL if self.gil_matters else CPU), overhead),) if overhead > 0 else ()
        count = len(self.units[group[0].name])
        gil_acquisitions = [self._gil_acquisitions(demands, group[0]) for demands in group]
        turns = [self._turns(demands) for demands in group]
        if self.plan.stages[group[0].name].executor == "events":
            thread = self._resource("carrier", 1)
            carried = [_carried(w, (*_phases(0.0, c, g), *tail), thread) for w, c, g in zip(*columns[0], strict=True)]
            return [(*turn, *one) for turn, one in zip(turns[0], carried, strict=True)] if turns[0] else carried
        locks |= self._moved(group) | self._pipes(group)
        if len(columns) == 1 and not locks and not gil_acquisitions[0] and not turns[0]:
            wait, cpu, gil = columns[0]
            return [_phases(w, c, g) + tail for w, c, g in zip(wait, cpu, gil, strict=True)]
        programs = []
        for unit in range(count):
            phases: list[Phase] = []
            for demands, (wait, cpu, gil), times, turn in zip(group, columns, gil_acquisitions, turns, strict=True):
                own = (*(turn[unit] if turn else ()), *_cut_by_gil(_phases(wait[unit], cpu[unit], gil[unit]), times))
                phases.extend(_locked(own, locks.get(demands.name)))
            programs.append((*phases, *tail))
        return programs

    def _gil_acquisitions(self, demands: StageDemands, head: StageDemands) -> int:
        gil_acquisitions = self.scenario.gil_acquisitions.get(demands.name)
        if gil_acquisitions is None or not self.gil_matters or self.plan.stages[head.name].executor == "process":
            return 0
        return gil_acquisitions.at(1.0, self._left(demands))

    def _left(self, demands: StageDemands) -> float:
        """Return the share of a stage's work that its speed-up leaves."""
        return 1.0 / self.scenario.change.speedups.get(demands.name, 1.0)

    def _columns(self, demands: StageDemands, head: StageDemands) -> tuple[list[float], list[float], list[float]]:
        """Return waiting, CPU, and CPU with the GIL of each unit, as changed."""
        change, name = self.scenario.change, demands.name
        units, factors = self.units[name], self._factors(demands)
        wait = (demands.wait[units] if demands.turns is None else demands.turns.apart) * factors
        cpu = demands.cpu[units] * factors
        if name in self.scenario.hit_seconds:
            cpu += self.scenario.hit_seconds[name] * (factors == 0)
        if name in change.on_device:
            seconds = change.on_device[name] * (factors > 0)
            return seconds.tolist(), [0.0] * len(units), [0.0] * len(units)
        in_process = self.plan.stages[head.name].executor == "process"
        share = 0.0 if in_process else self.scenario.holds_gil.get(name, 0.0)
        gil = cpu * share
        if in_process and demands is head:
            machine, last = self.scenario.machine, self._last_of(head)
            moved = machine.bytes_in.get(name, 0.0) + machine.bytes_out.get(last, 0.0)
            gil = gil + _PROCESS_SECONDS + moved / _PROCESS_BYTES_PER_SECOND
            cpu = cpu + _CHILD_SECONDS + moved / _CHILD_BYTES_PER_SECOND
        return wait.tolist(), (cpu * (1.0 - share)).tolist(), gil.tolist()

    def _factors(self, demands: StageDemands) -> Array:
        """Return by what the times of each unit are multiplied; 0 where it is skipped."""
        change, count = self.scenario.change, len(self.units[demands.name])
        factors = np.full(count, 0.0 if demands.name in change.drop else self._left(demands))
        factors[_hits(change.skipped(demands.name), count)] = 0.0
        return factors

    def _turns(self, demands: StageDemands) -> list[Program]:
        """Return what each unit has to wait for in turn; empty where nothing serves one at a time."""
        if demands.turns is None or demands.name in self.scenario.change.on_device:
            return []
        number = None if demands.turns.with_work else self._resource(f"turns:{demands.name}", 1)
        units = self.units[demands.name]
        comes = demands.wait[units] + demands.cpu[units] > 0  # a posted job passes a first stage by
        each = self._factors(demands) * demands.turns.seconds * comes
        return [_locked(_phases(seconds, 0.0, 0.0), number) for seconds in each.tolist()]

    def _pipes(self, group: Sequence[StageDemands]) -> dict[str, int]:
        """Return {stage that writes to a pipe which is full: the number of that resource}."""
        writing = [one.name for one in group if one.turns is not None and one.turns.with_work]
        return {name: self._resource(f"turns:{name}", 1) for name in writing}

    def _last_of(self, head: StageDemands) -> str:
        """Return the stage that hands on what a station has done: inline stages between pass arrays within the process."""
        return next(group[-1].name for group in self.groups if group[0] is head)

    def _overhead_of(self, group: Sequence[StageDemands]) -> float:
        """Return what a station's worker spends on a unit outside its stages, without waking others."""
        settling = self.handoff.settling if group[-1].info.role == "deliver" else 0.0
        return self.handoff.visit + self.handoff.passage * len(group) + settling

    def _batch_program(self, group: Sequence[StageDemands], device: StageDemands) -> Callable[[int, int], Program]:
        """Return what gives a batch its program: inline stages for each of its units, the device once for all."""
        cost = self.scenario.costs[device.name]
        change = self.scenario.change
        factor = 0.0 if device.name in change.drop else self._left(device)
        units = self.units[device.name]
        residuals = (_residuals(device, self.scenario.recorded_costs[device.name])[units] * factor).tolist()
        largest = self.plan.stages[device.name].batch or 1
        seconds = [0.0, *(cost.at(size) for size in range(1, largest + 1))]
        share = cost.cpu_share
        spread = self.scenario.spreads.get(device.name)
        faster = 1.0 if spread is None else self._busy(device, group[0]) / spread.busy
        gil_share = self.scenario.holds_gil.get(device.name, 0.0)
        gil_acquisitions = self.scenario.gil_acquisitions.get(device.name) if self.gil_matters else None
        if self.plan.stages[group[0].name].executor == "process":
            gil_acquisitions = None
        usual = max(1e-12, cost.at(round(float(device.batch_size.mean()))))
        left = self._left(device)
        times = [0 if gil_acquisitions is None else gil_acquisitions.at(one / usual, left) for one in seconds]
        resource = None
        if device.has_own_device:
            resource = self._resource(f"device:{device.name}", 1)
        elif device.is_exclusive and not (device.is_emulated and self._uses(device)):
            resource = self._device()
        hits = np.concatenate([[0], np.cumsum(_hits(change.skipped(device.name), len(units)))])
        at = group.index(device)
        before, behind = (
            [(self._columns(demands, group[0]), demands.name, self._turns(demands)) for demands in part]
            for part in (group[:at], group[at + 1 :])
        )
        locks = self._moved(group) | self._pipes(group)
        overhead = self._overhead_of(group)
        aside = device is group[0] and largest > 1
        own_kind = GIL if self.gil_matters else CPU

        def program(size: int, unit: int) -> Program:
            # Batches are full of what has to be done: what is answered without it stands for no place in one.
            done = size - int(hits[min(unit + size, len(hits) - 1)] - hits[unit])
            total = seconds[size] * residuals[unit] * done / size
            cpu = total * share * (1.0 - gil_share)
            call = _phases(total * (1.0 - share), cpu, total * share * gil_share)
            if spread is not None:
                call = tuple((SPREAD, cpu / faster) if kind == CPU else (kind, amount) for kind, amount in call)
            call = _cut_by_gil(call, times[size])
            if resource is not None:
                call = ((TAKE, resource), *call, (GIVE, resource))
            phases: list[Phase] = []
            for columns, ahead in ((before, True), (behind, False)):
                if not ahead:
                    phases.extend(call)
                for (waits, cpus, gils), name, turns in columns:
                    for member in range(unit, min(unit + size, len(waits))):
                        own = (*(turns[member] if turns else ()), *_phases(waits[member], cpus[member], gils[member]))
                        phases.extend(_locked(own, locks.get(name)))
            if overhead > 0 and not aside:
                phases.append((own_kind, overhead * size))
            return tuple(phases)

        return program

    def _retries(self, group: Sequence[StageDemands]) -> dict[int, list[Retry]]:
        """Return {unit: tries of the group that fail}: each runs the stages up to the one that fails."""
        head, found = group[0], dict[int, list[Retry]]()
        for position, demands in enumerate(group):
            if not demands.tries or demands.name in self.scenario.change.drop:
                continue
            before = [self._columns(earlier, head) for earlier in group[:position] if earlier.info.kind != "device"]
            factor = self._left(demands)
            in_process = self.plan.stages[head.name].executor == "process"
            share = 0.0 if in_process else self.scenario.holds_gil.get(demands.name, 0.0)
            for unit, recorded in enumerate(self.units[demands.name].tolist()):
                for one in demands.tries.get(recorded, ()):
                    phases = [phase for column in before for phase in _phases(*(values[unit] for values in column))]
                    cpu = one.cpu * factor
                    phases.extend(_phases(one.wait * factor, cpu * (1.0 - share), cpu * share))
                    found.setdefault(unit, []).append(Retry(tuple(phases) or ((WAIT, 1e-6),), one.delay))
        return found

    def _moved(self, group: Sequence[StageDemands]) -> dict[str, int]:
        """Return {stage that runs on the device now: the number of that resource}."""
        return {one.name: self._device() for one in group if one.name in self.scenario.change.on_device}

    def _device(self) -> int:
        """Return the number of the device: one for all models and stages on it, as an accelerator is."""
        change = self.scenario.change
        owners = [one.name for one in self.scenario.demands.stages if one.is_exclusive or one.name in change.on_device]
        return self._resource(f"device:{','.join(owners)}", change.devices or self._num_devices())

    def _num_devices(self) -> int:
        """Return how many devices the Plan has the models run on, which share them: any of them does for any call."""
        stages = [one.info for one in self.scenario.demands.stages if one.is_exclusive]
        numbers = {number for info in stages for number in self.plan.model_of(info.task, info.name).devices or ()}
        return max(1, len(numbers))

    def _resource(self, name: str, capacity: int) -> int:
        if name not in self.named:
            self.named[name] = len(self.resources)
            self.resources.append(capacity)
        return self.named[name]

    def _gil_share(self) -> float:
        """Return seconds with the GIL per second of CPU demand, as the recorded run has it."""
        total = held = 0.0
        for demands in self.scenario.demands.stages:
            cpu_demand = float(demands.cpu_demand.sum())
            total += cpu_demand
            held += cpu_demand * self.scenario.holds_gil.get(demands.name, 0.0)
        return held / total if total > 0 else 0.0


def _children_of(num_children: Array, units: Array) -> Array:
    """Return the recorded children of recorded units, in order."""
    ends = np.cumsum(num_children)
    first = ends - num_children
    if not len(units):
        return np.zeros(0, np.int64)
    return np.concatenate([np.arange(first[unit], ends[unit]) for unit in units]).astype(np.int64)


def _phases(wait: float, cpu: float, gil: float) -> Program:
    """Return a program without phases of no length."""
    if gil <= 0.0:
        if wait <= 0.0:
            return ((CPU, cpu),) if cpu > 0.0 else ()
        return ((WAIT, wait), (CPU, cpu)) if cpu > 0.0 else ((WAIT, wait),)
    phases = ((WAIT, wait), (CPU, cpu), (GIL, gil))
    return tuple(phase for phase in phases if phase[1] > 0.0)


def _hits(share: float, count: int) -> Array:
    """Return which units are skipped, (count,) bool: evenly, whenever the running sum of the share passes a whole number."""
    return np.asarray(np.floor(np.arange(1, count + 1) * share + 1e-9) > np.floor(np.arange(count) * share + 1e-9))


def _locked(program: Program, resource: int | None) -> Program:
    """Return a program that holds a resource all the time; itself where there is none, or nothing to do."""
    if resource is None or not program:
        return program
    return ((TAKE, resource), *program, (GIVE, resource))


def _carried(wait: float, work: Program, thread: int) -> Program:
    """Return a program that waits by itself, and works in the one thread that carries calls."""
    return (*_phases(wait, 0.0, 0.0), *(((TAKE, thread), *work, (GIVE, thread)) if work else ()))


def _cut_by_gil(program: Program, times: int) -> Program:
    """Return a program whose CPU phases are cut so often by taking the GIL back for a moment, which is part of their time."""
    if times < 1:
        return program
    cut: list[Phase] = []
    for kind, amount in program:
        if kind not in (CPU, SPREAD):
            cut.append((kind, amount))
            continue
        moment = min(_TOUCH_SECONDS, amount / times / 2)
        cut += [(kind, amount / times - moment), (GIL, moment)] * times
    return tuple(cut)


def _chunk(programs: Sequence[Program]) -> int:
    if not programs:
        return 1
    return max(1, min(_MOST_AT_ONCE, int(_CHUNK_SECONDS / max(_mean_seconds(programs), 1e-7))))


def _mean_seconds(programs: Sequence[Program]) -> float:
    """Return what a unit takes on an average, alone; without programs any time."""
    total = sum(amount for program in programs for kind, amount in program if kind <= GIL)
    return total / len(programs) if programs else math.inf


def _residuals(device: StageDemands, cost: BatchCost) -> Array:
    """Return for each recorded unit how its batch's cost compared with the curve's."""
    expected = np.interp(device.batch_size, cost.sizes, cost.seconds)
    residuals = (device.cpu + device.wait) / np.maximum(expected, 1e-9)
    mean = float(residuals.mean()) if len(residuals) else 1.0
    return np.asarray(residuals / mean) if mean > 0 else np.ones(len(residuals))


def _shape_codes(device: StageDemands | None, units: dict[str, Array]) -> list[int] | None:
    if device is None or device.shapes is None:
        return None
    return [int(code) for code in device.shapes[units[device.name]]]
