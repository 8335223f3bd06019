"""The steps of a training as NumPy columns, one record for each rank.

What is recorded stands in `headrace.runs.training_phases`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.base.errors import RunFolderError
from headrace.diagnose.training.span_rows import Array, Rows, SpanRows, read_rows
from headrace.runs.reader import Run
from headrace.runs.training_phases import DEVICE, Kind, LoaderWork, Phase, Stretch

__all__ = ["Array", "BatchPassage", "LoadedBatches", "RankSteps", "Stretches", "Times", "read_steps"]

#: Share of the steps whose times by the device are known, from which on these stand for the others; below it, for none.
_LEAST_KNOWN = 0.2
#: Stretches whose CPU time was read that stand for one in which it was not.
_NEIGHBOURS = 8
#: How the threads are named that are workers of a loader, and digits of their numbers.
_WORKER, _MOST_DIGITS = "worker ", 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What a phase took in each stretch: float64 seconds, one value for each stretch."""

    wall: Array
    cpu: Array
    """Of the training thread, or of the loader process; NaN where not measured."""
    run_delay: Array
    """Runnable and not running; NaN where not measured."""

    @property
    def blocked(self) -> Array:
        """Neither computing nor waiting for a core: sleeping, reading, or waiting for another thread or process."""
        return np.asarray(np.maximum(self.wall - self.cpu - self.run_delay, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """The stretches of one unit of one rank, in order of time."""

    unit: Stretch
    number: Array
    """int64, as in the spans' `unit_id`."""
    started: Array
    """float64, seconds on the run's clock since the run began."""
    wall: Array
    """float64, seconds."""
    samples: Array
    """int64; 0: not known."""
    kinds: tuple[Kind, ...]
    is_failed: Array
    """bool."""
    microbatches: Array
    """int64: batches that went into it."""
    phases: dict[Phase, Times]
    """Those that occurred in any stretch; 0 where one had none of it."""
    num_metered: int | None = None
    """Stretches whose CPU time was read, where it was not read in all; those stand for the others."""
    clock: str = ""
    """The device whose times `wall` and `phases` have, such as `cuda:0`; empty: those of the training thread."""
    host_walls: dict[Phase, Array] = field(default_factory=dict)
    """Where there is such a device: what the phases took in the training thread, which launches and runs ahead; float64."""
    clocks_missed: Array = field(default_factory=lambda: np.zeros(0))
    """float64 seconds: by how much CPU time or run delay of a stretch differs from the sum of its phases; 0 where not read."""

    def __len__(self) -> int:
        return len(self.number)

    @property
    def ended(self) -> Array:
        """float64, seconds since the run began, by the clock of the training thread."""
        return np.asarray(self.started + (sum(self.host_walls.values()) if self.host_walls else self.wall))

    @property
    def is_plain(self) -> Array:
        """bool: nothing sets it apart, and it ended well."""
        return np.asarray([kind is Kind.PLAIN for kind in self.kinds] & ~self.is_failed, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPassage:
    """Who loaded each batch, and when it was where; times are float64 seconds since the run began."""

    worker: Array
    """int64: number of the worker in its loader; -1: the thread that trains."""
    number: Array
    """int64: of the batch among those of this worker in this epoch."""
    begun: Array
    ready: Array
    """It was collated."""
    asked: Array
    """The loop asked for a batch, and got this one."""
    taken: Array
    num_items: Array
    """int64; 0: not known."""
    num_bytes: Array
    """int64; 0: no tensors were found."""
    is_failed: Array
    """bool: an exception came in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBatches:
    """What loading cost, one value for each batch, in the order in which they were used."""

    step: Array
    """int64: number of the step that used it; -1: none did."""
    process: Array
    """int64: where it was loaded."""
    work: dict[LoaderWork, Times]
    passage: BatchPassage | None = None
    """None in records that a test or a simulation made."""

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSteps:
    """One process that trained."""

    rank: int
    host: str
    process: int
    steps: Stretches
    validation: Stretches
    between: Stretches
    batches: LoadedBatches


def read_steps(run: Run) -> list[RankSteps]:
    """Return what each process that trained did, by rank; empty where no step was recorded.

    Args:
        run: Whose `info.unit` is `step`.

    Raises:
        RunFolderError: If the spans hold what no recorder writes.
    """
    try:
        rows = read_rows(run)
        workers = _number_workers(rows.batches.names["thread"])
    except (pa.ArrowException, OverflowError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise RunFolderError(f"the spans of {run.path} are damaged: {first}; record the training again") from error
    processes = _processes(rows)
    found = []
    for one in processes:
        shift = run.info.clock_offsets_ns.get(one.host, 0) - run.info.started_monotonic_ns
        own, parts = _rows_of(rows.stretches, one), _rows_of(rows.parts, one)
        kinds = {unit: _stretches(unit, own, parts, shift) for unit in Stretch}
        kinds[Stretch.STEP] = _on_device(kinds[Stretch.STEP], own, parts)
        if len(kinds[Stretch.STEP]):
            batches = _batches_of(rows.batches, one, own, processes)
            found.append(
                RankSteps(
                    rank=one.rank,
                    host=one.host,
                    process=one.process,
                    steps=kinds[Stretch.STEP],
                    validation=kinds[Stretch.VALIDATION],
                    between=kinds[Stretch.BETWEEN],
                    batches=_batches(batches, shift, workers),
                )
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Process:
    """Whose rows go together."""

    rank: int
    host: str
    process: int
    ranks: frozenset[int] = field(compare=False)
    """Ranks in these rows."""


def _processes(rows: SpanRows) -> list[_Process]:
    """Return the processes, in order of rank, host and number."""
    found: dict[tuple[str, int], tuple[set[int], set[int]]] = {}
    for one in (rows.stretches, rows.parts):
        columns = (one.codes["host"], one.numbers["process"], one.numbers["rank"], one.is_in("unit", Stretch.STEP))
        for code, process, rank, is_step in _distinct(columns):
            ranks, trained = found.setdefault((one.names["host"][code], process), (set(), set()))
            ranks.add(rank)
            trained |= {rank} if is_step else set()
    processes = []
    for (host, process), (ranks, trained) in found.items():
        if len(trained) == 1:
            # A rank that a program gives itself late: what came before its steps has that of whoever has none, 0.
            processes.append(_Process(rank=min(trained), host=host, process=process, ranks=frozenset(ranks)))
        else:
            processes += [_Process(rank=one, host=host, process=process, ranks=frozenset({one})) for one in ranks]
    return sorted(processes)


def _distinct(columns: Sequence[Array]) -> set[tuple[int, ...]]:
    """Return the different rows of columns; of rows that follow one another and are alike, as usual, only one is looked at."""
    is_new = np.ones(len(columns[0]), bool)
    is_new[1:] = np.logical_or.reduce([one[1:] != one[:-1] for one in columns])
    return set(zip(*(one[is_new].tolist() for one in columns), strict=True))


def _rows_of(rows: Rows, one: _Process) -> Rows:
    is_own = rows.is_in("host", one.host) & (rows.numbers["process"] == one.process)
    return rows.where(is_own & np.isin(rows.numbers["rank"], list(one.ranks)))


def _batches_of(batches: Rows, one: _Process, own: Rows, processes: Sequence[_Process]) -> Rows:
    """Return the batches of a rank that came to one process: their rows name the process that loaded them.

    Args:
        batches: All that there are.
        one: The process.
        own: Its stretches.
        processes: All of them.
    """
    is_own = batches.numbers["rank"] == one.rank
    if sum(other.rank == one.rank for other in processes) > 1:  # it was started again
        taken = batches.numbers["put"]
        is_own &= (taken >= own.numbers["started"].min()) & (taken <= own.numbers["ended"].max())
    if any(other.rank != one.rank and one.rank in other.ranks for other in processes):
        is_own &= batches.numbers["parent_id"] >= 0
    return batches.where(is_own)


def _stretches(unit: Stretch, stretches: Rows, phases: Rows, shift: int) -> Stretches:
    wholes = stretches.where(stretches.is_in("unit", unit))
    wholes = wholes.where(np.argsort(wholes.numbers["started"], kind="stable"))
    number = wholes.numbers["unit_id"].astype(np.int64)
    parts = phases.where(phases.is_in("unit", unit))
    place = _places(parts.numbers["unit_id"], number)
    parts, place = parts.where(place >= 0), place[place >= 0]
    times = _times(parts, Phase, place, len(number))
    return Stretches(
        unit=unit,
        number=number,
        started=(wholes.numbers["started"].astype(np.int64) + shift) / 1e9,
        wall=wholes.numbers["wall"] / 1e9,
        samples=wholes.numbers["batch_size"].astype(np.int64),
        kinds=tuple(map(_kind, wholes.text("release_reason"))),
        is_failed=~wholes.is_in("outcome", "ok"),
        microbatches=_count_microbatches(parts, place, len(number)),
        phases=_stand_in(times),
        num_metered=_count_metered(times),
        clocks_missed=_clocks_missed(wholes, times),
    )


def _clocks_missed(wholes: Rows, phases: Mapping[Phase, Times]) -> Array:
    """Return seconds by which the phases' CPU time and run delay miss the stretch's: the marks between them are the same."""
    missed = np.zeros(len(wholes))
    for name, values in wholes.seconds.items():
        summed = sum((np.nan_to_num(getattr(times, name)) for times in phases.values()), np.zeros(len(wholes)))
        missed = np.fmax(missed, np.abs(summed - values))
    return missed


def _on_device(steps: Stretches, stretches: Rows, phases: Rows) -> Stretches:
    """Return the steps by the device's clock where that was read; in traces it was for the exchange alone."""
    wholes = stretches.where(stretches.is_in("unit", DEVICE))
    if not len(wholes):
        return steps
    parts = phases.where(phases.is_in("unit", DEVICE))
    place = _places(parts.numbers["unit_id"], steps.number)
    times = _times(parts.where(place >= 0), Phase, place[place >= 0], len(steps))
    is_known = np.isin(steps.number, wholes.numbers["unit_id"])
    return _by_device(steps, {phase: one.wall for phase, one in times.items()}, is_known, wholes.text("thread")[0])


def _by_device(steps: Stretches, walls: Mapping[Phase, Array], is_known: Array, clock: str) -> Stretches:
    """Return steps whose phases are the device's.

    The training thread runs ahead of a device: its own times say where it launches, and where it waits. By the device's clock a
    wait for a batch is what the device stood still for, and `.item()` in a loss takes nothing while the device is at work.

    Args:
        steps: By the host's clock.
        walls: {phase: seconds by the device's clock}, 0 where they are not known.
        is_known: bool, (steps,): where they are.
        clock: Which device.

    Returns:
        The same steps. One whose times are not known has its own length and the others' shares. CPU time and run delay are the
        training thread's, as far as the device's phase goes.
    """
    total = np.sum(list(walls.values()), axis=0) if walls else np.zeros(len(steps))
    whole = float(total[is_known].sum())
    if not whole or is_known.mean() < _LEAST_KNOWN:
        return steps
    length = np.where(is_known, total, steps.wall)
    nothing = np.zeros(len(steps))
    phases = {}
    for phase in Phase:
        if phase not in walls and phase not in steps.phases:
            continue
        own = walls.get(phase, nothing)
        wall = np.where(is_known, own, length * (float(own[is_known].sum()) / whole))
        host = steps.phases.get(phase, Times(wall=nothing, cpu=nothing, run_delay=nothing))
        cpu = np.minimum(host.cpu, wall)
        phases[phase] = Times(wall=wall, cpu=cpu, run_delay=np.minimum(host.run_delay, wall - cpu))
    host_walls = {phase: times.wall for phase, times in steps.phases.items()}
    return dataclasses.replace(steps, wall=length, phases=phases, clock=clock, host_walls=host_walls)


def _count_metered(phases: dict[Phase, Times]) -> int | None:
    """Return in how many stretches CPU time was read; None: in all, in none, or there is no stretch."""
    if not phases:
        return None
    is_read = ~np.any([np.isnan(one.cpu) for one in phases.values()], axis=0)
    count = int(is_read.sum())
    return count if 0 < count < len(is_read) else None


def _stand_in(phases: dict[Phase, Times]) -> dict[Phase, Times]:
    """Let stretches whose CPU time was read stand for those where it was not: as large a share of the phase's wall time.

    Of the same phase those stand for one that lasted about as long: a few, in which the thread waited, would else make
    all others look as if they had waited, too.
    """
    return {
        phase: Times(
            wall=one.wall, cpu=_stand_in_for(one.cpu, one.wall), run_delay=_stand_in_for(one.run_delay, one.wall)
        )
        for phase, one in phases.items()
    }


def _stand_in_for(values: Array, walls: Array) -> Array:
    """Return values with those that are missing taken from others: as large a share of the wall time as beside it."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known) or len(known) == len(values):
        return values
    known = known[np.argsort(walls[known], kind="stable")]
    missing = np.flatnonzero(np.isnan(values))
    middle = np.searchsorted(walls[known], walls[missing])
    first = np.clip(middle - _NEIGHBOURS // 2, 0, max(0, len(known) - _NEIGHBOURS))
    last = np.minimum(first + _NEIGHBOURS, len(known))
    summed, wall = (np.concatenate([[0.0], np.cumsum(one[known])]) for one in (values, walls))
    of_wall = wall[last] - wall[first]
    of_all = summed[-1] / wall[-1] if wall[-1] > 0 else np.nan
    share = np.divide(summed[last] - summed[first], of_wall, out=np.full(len(missing), of_all), where=of_wall > 0)
    found = values.copy()
    found[missing] = walls[missing] * share
    return found


def _kind(text: str) -> Kind:
    """Return what sets a stretch apart; what a newer headrace may say is not plain in any case."""
    return Kind(text) if text in set(Kind) else Kind.UNEVEN


def _places(wanted: Array, numbers: Array) -> Array:
    """Return where each of the wanted stands among the numbers: int64, -1 where it does not."""
    if not len(numbers):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(numbers, kind="stable")
    at = order[np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)]
    return np.asarray(np.where(numbers[at] == wanted, at, -1), np.int64)


def _count_microbatches(parts: Rows, place: Array, count: int) -> Array:
    is_forward = parts.is_in("stage", Phase.FORWARD)
    pairs = np.unique(np.stack([place[is_forward], parts.numbers["batch_id"][is_forward]], dtype=np.int64), axis=1)
    return np.bincount(pairs[0], minlength=count).astype(np.int64)


def _number_workers(threads: Sequence[str]) -> dict[str, int]:
    """Return {thread: number of the worker} of the threads that are workers of a loader.

    Raises:
        ValueError: If one has no number.
    """
    found = {}
    for name in threads:
        if name.startswith(_WORKER):
            number = name.removeprefix(_WORKER)
            if not (number.isdecimal() and len(number) <= _MOST_DIGITS):
                raise ValueError(f"thread {name!r} is no worker with a number")
            found[name] = int(number)
    return found


def _batches(rows: Rows, shift: int, workers: Mapping[str, int]) -> LoadedBatches:
    number, first = np.unique(rows.numbers["unit_id"], return_index=True)
    place = np.searchsorted(number, rows.numbers["unit_id"])
    return LoadedBatches(
        step=rows.numbers["parent_id"][first].astype(np.int64),
        process=rows.numbers["process"][first].astype(np.int64),
        work=_times(rows, LoaderWork, place, len(number)),
        passage=_passage(rows, number, shift, workers),
    )


def _passage(rows: Rows, number: Array, shift: int, workers: Mapping[str, int]) -> BatchPassage | None:
    items = _in_order(rows.where(rows.is_in("stage", LoaderWork.ITEMS)), number)
    sent = _in_order(rows.where(rows.is_in("stage", LoaderWork.SEND)), number)
    if items is None or sent is None:
        return None
    return BatchPassage(
        worker=np.array([workers.get(name, -1) for name in items.text("thread")], np.int64),
        number=items.numbers["batch_id"].astype(np.int64),
        begun=(items.numbers["started"].astype(np.int64) + shift) / 1e9,
        ready=(sent.numbers["started"].astype(np.int64) + shift) / 1e9,
        asked=(items.numbers["arrived"].astype(np.int64) + shift) / 1e9,
        taken=(items.numbers["put"].astype(np.int64) + shift) / 1e9,
        num_items=items.numbers["batch_size"].astype(np.int64),
        num_bytes=sent.numbers["bytes_out"].astype(np.int64),
        is_failed=~items.is_in("outcome", "ok"),
    )


def _in_order(rows: Rows, number: Array) -> Rows | None:
    """Return the rows in the order of the batches' numbers; None if one has none, or several."""
    own = rows.numbers["unit_id"]
    return rows.where(np.argsort(own)) if len(own) == len(number) and np.array_equal(np.sort(own), number) else None


def _times(rows: Rows, names: type[Any], places: Array, count: int) -> dict[Any, Times]:
    """Return {name: what the rows of that stage took, summed for each place}."""
    wall = rows.numbers["wall"] / 1e9
    found: dict[Any, Times] = {}
    for code in np.unique(rows.codes["stage"]).tolist():
        if rows.names["stage"][code] not in set(names.__members__.values()):
            continue  # of a newer headrace
        mask = rows.codes["stage"] == code
        sums = (
            np.bincount(places[mask], values[mask], minlength=count)
            for values in (wall, rows.seconds["cpu"], rows.seconds["run_delay"])
        )
        found[names(rows.names["stage"][code])] = Times(**dict(zip(("wall", "cpu", "run_delay"), sums, strict=True)))
    return found
