"""Upper limits of the throughput that a person can work out by hand: a check on the simulator, and an explanation.

Each resource that a job needs for so many seconds lets at most so many jobs through: X <= m / D, the utilization law with a
utilization of one. The least of them is the asymptotic bound of the whole.

References:
    P. J. Denning, J. P. Buzen, "The operational analysis of queueing network models", ACM Computing Surveys 10(3), 1978.
    E. D. Lazowska et al., "Quantitative System Performance", 1984, chapter 5: asymptotic bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration
from headrace.diagnose.replay import Replay
from headrace.diagnose.replay.structure import Scenario, build
from headrace.diagnose.simulator.system import CPU, GIL, SPREAD, TAKE, WAIT, Program, Station, System
from headrace.runs.formats.diagnosis import Bound
from headrace.runs.formats.prediction import Change

#: Batches that the mean cost of one is taken over.
_BATCHES = 64


@dataclass(frozen=True, slots=True)
class Demand:
    """What one job needs of a station, in seconds."""

    wait: float
    cpu: float
    gil: float
    taken: dict[int, float]
    """{exclusive resource: seconds it is kept}."""
    beside: float = 0.0
    """Of cores, for threads that work beside the worker's own."""

    @property
    def total(self) -> float:
        """Seconds of one of its workers."""
        return self.wait + self.cpu + self.gil


def find_bounds(replay: Replay, change: Change | None = None) -> list[Bound]:
    """Return the limits of a run, or of a changed one, tightest first; raises what `Replay.simulate` raises."""
    scenario = replay.scenario(change or Change())
    system = build(scenario)
    jobs = system.num_jobs
    units = _units(system)
    demands = [
        (station, _station_demand(station, members, jobs))
        for station, members in zip(system.stations, units, strict=True)
    ]
    inline, reading = _receiver_demand(system), _reader_demand(system)
    everything = [reading, inline, *(demand for _, demand in demands)]
    found = [*_bound_shared(system, everything)]
    for station, demand in demands:
        found += _workers(station, demand, replay.compute_added_workers(station.name))
    found += _resources(system, everything)
    found += _outside(system, scenario, inline, reading)
    return sorted(found, key=lambda bound: bound.throughput)


def bound_ratio(replay: Replay, change: Change) -> float:
    """Return the tightest limit of a changed run over that of the run as recorded."""
    before, after = find_bounds(replay), find_bounds(replay, change)
    return after[0].throughput / before[0].throughput if before and after else 1.0


def _bound_shared(system: System, demands: Sequence[Demand]) -> list[Bound]:
    found = []
    cpu = sum(demand.cpu + demand.gil + demand.beside for demand in demands)
    gil = sum(demand.gil for demand in demands)
    if cpu > 0:
        rate = system.cores / cpu
        found.append(
            Bound(
                name="cores",
                stage=None,
                throughput=rate,
                says=f"{system.cores:g} cores / {format_duration(cpu)} of CPU per job = {rate:.4g}/s",
            )
        )
    if gil > 0:
        rate = 1.0 / gil
        says = f"1 GIL / {format_duration(gil)} with it per job = {rate:.4g}/s"
        found.append(Bound(name="gil", stage=None, throughput=rate, says=says))
    return found


def _workers(station: Station, demand: Demand, times: float) -> list[Bound]:
    """Return what a station's workers can do, with those that may be added while some wait for slow calls."""
    if demand.total <= 0:
        return []
    workers = round(station.workers * times)
    rate = workers / demand.total
    says = f"{pluralize(workers, 'worker')} of {station.name} / {format_duration(demand.total)} per job = {rate:.4g}/s"
    return [Bound(name=f"workers:{station.name}", stage=station.name, throughput=rate, says=says)]


def _resources(system: System, demands: Sequence[Demand]) -> list[Bound]:
    found = []
    for number, (name, capacity) in enumerate(zip(system.resource_names, system.resources, strict=True)):
        kept = sum(demand.taken.get(number, 0.0) for demand in demands)
        if kept <= 0:
            continue
        rate = capacity / kept
        what, _, stage = name.removeprefix("uses ").partition(":")
        only = stage if "," not in stage else None
        says = f"{pluralize(capacity, what)}{f' of {stage}' if stage else ''} / {format_duration(kept)} per job = {rate:.4g}/s"
        found.append(Bound(name=name, stage=only, throughput=rate, says=says))
    return found


def _outside(system: System, scenario: Scenario, inline: Demand, reading: Demand) -> list[Bound]:
    found = []
    receivers = system.receivers
    per_call = min(receivers.jobs_per_call, scenario.plan.source.receive_batch)
    per_job = receivers.call_seconds / per_call + inline.total
    if per_job > 0:
        rate = receivers.num / per_job
        says = (
            f"{pluralize(receivers.num, 'receiver')} / ({format_duration(receivers.call_seconds)} per call of "
            f"{pluralize(per_call, 'job')} + {format_duration(inline.total)} of stages that they run, per job) = {rate:.4g}/s"
        )
        found.append(Bound(name="receiving", stage=None, throughput=rate, says=says))
    if reading.total > 0:
        rate = 1.0 / reading.total
        says = f"1 thread of the source / {format_duration(reading.total)} per job = {rate:.4g}/s"
        found.append(Bound(name="receiving", stage=None, throughput=rate, says=says))
    if system.arrivals is not None and len(system.arrivals) > 1:
        rate = (len(system.arrivals) - 1) / max(system.arrivals[-1] - system.arrivals[0], 1e-9)
        found.append(Bound(name="arrivals", stage=None, throughput=rate, says=f"{rate:.4g} jobs come per second"))
    return found


def _units(system: System) -> list[Sequence[int]]:
    """Return which units each station has to serve: jobs, those of its tasks alone, or what a fan-out made of them."""
    level: Sequence[int] = range(system.num_jobs)
    found: list[Sequence[int]] = []
    outer: list[tuple[Sequence[int], Sequence[int]]] = []
    route_of = system.route_of
    for number, station in enumerate(system.stations):
        if station.joins:
            level, route_of = outer.pop()
        routes = system.routes
        found.append(level if routes is None else [unit for unit in level if number in routes[route_of[unit]]])
        if station.children is not None:
            outer.append((level, route_of))
            level = range(sum(station.children))
            route_of = [route for route, number in zip(route_of, station.children, strict=False) for _ in range(number)]
    return found


def _receiver_demand(system: System) -> Demand:
    """Return what a job needs of the receiver that runs stages itself."""
    receivers, jobs = system.receivers, system.num_jobs
    if receivers.batch_program is not None:
        starts = range(0, max(1, jobs - receivers.batch), max(1, jobs // _BATCHES))
        programs = [receivers.batch_program(receivers.batch, start) for start in starts]
        return _sum(programs, 1.0 / (len(programs) * receivers.batch), receivers.threads)
    return _sum(receivers.programs or (), 1.0 / jobs)


def _reader_demand(system: System) -> Demand:
    """Return what a job needs of the source's own thread."""
    reader = system.receivers.reader
    return _sum((), 1.0) if reader is None else _sum([reader.program], 1.0, reader.threads)


def _station_demand(station: Station, units: Sequence[int], jobs: int) -> Demand:
    if station.batch_program is None:
        return _sum([station.programs[unit] for unit in units], 1.0 / jobs)
    size = station.batching.max_size if station.batching is not None else 1
    starts = units[: max(1, len(units) - size) : max(1, len(units) // _BATCHES)]
    programs = [station.batch_program(size, start) for start in starts]
    demand = _sum(programs, len(units) / jobs / (max(1, len(programs)) * size), station.threads)
    return dataclasses.replace(demand, taken=demand.taken | {one: demand.total * much for one, much in station.claims})


def _sum(programs: Iterable[Program], scale: float, threads: float = 1.0) -> Demand:
    seconds = [0.0, 0.0, 0.0]
    beside = 0.0
    taken: dict[int, float] = {}
    for program in programs:
        held: set[int] = set()
        for kind, amount in program:
            if kind in (WAIT, CPU, GIL, SPREAD):
                seconds[CPU if kind == SPREAD else kind] += amount
                beside += amount * (threads - 1.0) if kind == SPREAD else 0.0
                for number in held:
                    taken[number] = taken.get(number, 0.0) + amount
            elif kind == TAKE:
                held.add(int(amount))
            else:
                held.discard(int(amount))
    return Demand(
        seconds[WAIT] * scale,
        seconds[CPU] * scale,
        seconds[GIL] * scale,
        {number: value * scale for number, value in taken.items()},
        beside * scale,
    )
