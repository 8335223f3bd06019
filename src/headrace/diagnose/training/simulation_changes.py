"""A recorded training with a change made, ready to be simulated."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.change_settings import TrainingChange, parse_change
from headrace.diagnose.training.simulation import LoaderModel, Microbatch, StepModel, TrainingModel
from headrace.diagnose.training.simulation_batch import STEP, change_batch, check_batch
from headrace.diagnose.training.simulation_elsewhere import add_on_device, change_format, check_format
from headrace.diagnose.training.simulation_machine import Need
from headrace.diagnose.training.simulation_needs import CACHED, IN_THREADS, LOADING, PARTS, PER_BATCH, PER_STEP, Needs
from headrace.diagnose.training.simulation_ranks import exchange_of, spread_places
from headrace.diagnose.training.simulation_recorded import RecordedTraining
from headrace.diagnose.training.simulation_warmth import loading_share, taken_share
from headrace.diagnose.training.steps import Array
from headrace.runs.formats.prediction import Change
from headrace.runs.training_phases import LoaderWork, Phase

#: What a loader process costs where the run had none: for the training thread to start and end it, for itself to begin, and
#: for both to pass a batch. Rounded from recorded runs of PyTorch 2.13 with `fork` and batches of 0.8 MB on two busy cores.
WORKER_TURN, WORKER_WARM_UP = Need(0.008, 0.012), Need(0.0, 0.010)
WORKER_SEND, WORKER_RECEIVE = Need(0.0, 0.0005), Need(0.0, 0.0008)


#: Pieces of a batch at most that are simulated one by one, and how long each is waited for at least, in seconds.
_MOST_PIECES, _LEAST_BLOCKED = 8, 0.0001


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast cores compute side by side."""

    of_a_core: float = 1.0
    """See `Machine`."""
    recorded: float = 1.0
    """By how much CPU times of the run are longer than those of one core that is busy alone, >= 1."""
    warmth: float = 0.0
    """See `simulation_warmth`."""

    def without(self, needs: Needs) -> Needs:
        """Return needs as they are on one core that is busy alone."""
        return Needs(needs.blocked, needs.cpu / self.recorded)


#: As if all cores were as fast together as each alone.
ALONE = Pace()


def build_model(
    recorded: RecordedTraining,
    change: Change,
    *,
    others: float = 0.0,
    order: Array | None = None,
    threads: int | None = None,
    pace: Pace = ALONE,
) -> TrainingModel:
    """Return a recorded training with a change made.

    Args:
        recorded: The training.
        change: What is done otherwise; `Change()` for the training as it was.
        others: Threads of other programs that are always runnable.
        order: int64, (steps,): which recorded step takes each place; None: each its own.
        threads: Threads that compute in forward, backward and optimizer; None: those of PyTorch.
        pace: How fast cores compute side by side.

    Raises:
        SettingsError: As `parse_change`.
        CannotReplay: If the run does not know what the change would cost.
    """
    settings = _leave_out_same(recorded, parse_change(change))
    places = np.arange(len(recorded)) if order is None else order
    exchange = exchange_of(recorded, settings)
    known = (recorded, *recorded.peers)
    count = settings.ranks or len(known)
    first, *peers = (
        _build_rank(
            known[rank % len(known)],
            settings,
            change,
            places if rank < len(known) else spread_places(places, rank, count),
            threads=threads,
            pace=pace,
            exchanges=exchange is not None,
        )
        for rank in range(count)
    )
    return first.replace(
        cores=change.cores or recorded.cores,
        others=0.0 if change.quiet else others,
        pace=pace.of_a_core,
        peers=tuple(peers),
        exchange=exchange,
    )


def _build_rank(
    recorded: RecordedTraining,
    settings: TrainingChange,
    change: Change,
    places: Array,
    *,
    threads: int | None,
    pace: Pace,
    exchanges: bool,
) -> TrainingModel:
    """Return one rank of a training; cores are those of the machine."""
    _refuse_unknown(recorded, settings, change)
    loads, phases = _warmed(
        recorded,
        settings,
        _change_loading(recorded, settings, change),
        {
            phase: _scaled(needs, _factor(change, str(phase)))
            for phase, needs in _change_phases(recorded, settings, change).items()
        },
        pace.warmth,
    )
    loads = {work: pace.without(needs) for work, needs in loads.items()}
    phases = {phase: pace.without(needs) for phase, needs in phases.items()}
    builder = _Builder(recorded, settings, phases, loads, threads or recorded.threads, exchanges=exchanges)
    return TrainingModel(
        loader=_change_loader(recorded.loader, settings),
        epochs=tuple(builder.build_epochs(places)),
        cores=recorded.cores,
    )


def _leave_out_same(recorded: RecordedTraining, settings: TrainingChange) -> TrainingChange:
    """Return the settings without a batch size that all steps had already; the last step of an epoch may have less."""
    if settings.batch is None:
        return settings
    last = np.append(recorded.epoch_starts[1:], len(recorded)) - 1
    sizes = np.delete(recorded.samples / recorded.microbatches, last)
    is_same = bool(len(sizes)) and bool((sizes == settings.batch).all())
    return dataclasses.replace(settings, batch=None) if is_same else settings


def _refuse_unknown(recorded: RecordedTraining, settings: TrainingChange, change: Change) -> None:
    loader = (settings.workers, settings.prefetch, settings.in_order, settings.persistent, settings.cache)
    faster = [name for name in (*change.speedups, *change.drop, *change.on_device) if name in LOADING]
    if not recorded.is_loading_known and (any(one is not None for one in (*loader, settings.format)) or faster):
        raise CannotReplay(
            "what loading a batch cost in the workers of this run was not recorded, only how long the training thread waited "
            "(`not_measured` in its training/HOST-PID.json may say why). Record it again with a `torch.utils.data.DataLoader`, "
            "or with num_workers=0, where the training thread loads"
        )
    missing = [name for name in faster if LoaderWork(name) not in recorded.loading]
    if missing:
        known = ", ".join(str(one) for one in recorded.loading)
        raise CannotReplay(
            f"the run does not say what {missing[0]} cost in loading a batch; it knows {known}. If the data set does that "
            "itself, outside of the libraries that headrace watches, ask for items"
        )
    if settings.cache and not set(CACHED) & set(recorded.loading):
        raise CannotReplay(
            "the run does not say what reading and decoding cost, so it is not known what a cache would save; record it again "
            "with loader workers"
        )
    if settings.format is not None:
        check_format(recorded, settings.format, change.format_costs)
    if settings.batch is not None:
        check_batch(recorded, settings.batch, change.cost_curves.get(STEP))


def _factor(change: Change, name: str) -> float:
    return 0.0 if name in change.drop else 1.0 / change.speedups.get(name, 1.0)


def _scaled(needs: Needs, factor: float) -> Needs:
    return Needs(needs.blocked * factor, needs.cpu * factor)


def _change_loading(recorded: RecordedTraining, settings: TrainingChange, change: Change) -> dict[LoaderWork, Needs]:
    found = {}
    for work, needs in recorded.loading.items():
        factor = _factor(change, str(work))
        if work in PARTS:
            factor *= _factor(change, LoaderWork.ITEMS)
        if (settings.cache and work in CACHED) or work in change.on_device:
            factor = 0.0
        found[work] = _scaled(needs, factor)
    return change_format(recorded, found, settings.format, change.format_costs)


def _change_phases(recorded: RecordedTraining, settings: TrainingChange, change: Change) -> dict[Phase, Needs]:
    """Return what the training thread needs for each step: of batches of another size, with what was moved to the device."""
    phases = change_batch(recorded, settings.batch, change.cost_curves.get(STEP))
    return add_on_device(recorded, phases, change.on_device, settings.batch)


def _warmed(
    recorded: RecordedTraining,
    settings: TrainingChange,
    loads: dict[LoaderWork, Needs],
    phases: dict[Phase, Needs],
    warmth: float,
) -> tuple[dict[LoaderWork, Needs], dict[Phase, Needs]]:
    """Return changed needs with less CPU time where less loading lies between them, and more where more does.

    See `simulation_warmth`.
    """
    # A batch of another size is not the same work with parts of it taken away.
    if not warmth or settings.batch is not None:
        return loads, phases
    was_in_thread = not recorded.loader.workers
    is_in_thread = not (recorded.loader.workers if settings.workers is None else settings.workers)
    others = recorded.phases.values() if was_in_thread else ()
    factor = 1.0 - warmth * taken_share(recorded.loading, loads, others)
    loads = _cheaper(loads, factor)
    phases = _cheaper(phases, factor) if was_in_thread else phases
    if was_in_thread == is_in_thread:
        return loads, phases
    loading = loading_share(loads, phases)
    of_loads, of_phases = (1.0 - warmth * share for share in (1.0 - loading, loading))
    if is_in_thread:
        of_loads, of_phases = 1.0 / of_loads, 1.0 / of_phases
    return _cheaper(loads, of_loads), _cheaper(phases, of_phases)


def _cheaper(needs: dict[Any, Needs], factor: float) -> dict[Any, Needs]:
    return {name: Needs(one.blocked, one.cpu * factor) for name, one in needs.items()}


def _change_loader(own: LoaderModel, settings: TrainingChange) -> LoaderModel:
    workers = own.workers if settings.workers is None else settings.workers
    changed = dataclasses.replace(
        own,
        workers=workers,
        prefetch=own.prefetch if settings.prefetch is None else settings.prefetch,
        in_order=own.in_order if settings.in_order is None else settings.in_order,
        persistent=own.persistent if settings.persistent is None else settings.persistent,
    )
    if workers and not own.workers:
        return dataclasses.replace(
            changed, turn=WORKER_TURN, warm_up=WORKER_WARM_UP, send=WORKER_SEND, receive=WORKER_RECEIVE
        )
    return changed


def exchanges_each_batch(recorded: RecordedTraining) -> bool:
    """Return whether batches that are accumulated are exchanged one by one: `no_sync` is missing.

    A second exchange in a step may be that of buffers, so two batches a step cannot be told.
    """
    usual = round(float(np.median(recorded.microbatches)))
    return usual > 2 and recorded.exchange.per_step >= usual


class _Builder:
    """Puts recorded needs together to steps."""

    def __init__(
        self,
        recorded: RecordedTraining,
        settings: TrainingChange,
        phases: dict[Phase, Needs],
        loads: dict[LoaderWork, Needs],
        threads: int,
        *,
        exchanges: bool,
    ) -> None:
        usual = round(float(np.median(recorded.microbatches)))
        if settings.accumulate == usual and settings.batch is None and not exchanges_each_batch(recorded):
            settings = dataclasses.replace(settings, accumulate=None)  # that is what was recorded
        self._recorded, self._settings, self._phases, self._loads = recorded, settings, phases, loads
        self._threads = threads
        self._first_batch = np.concatenate([[0], np.cumsum(recorded.microbatches)])
        # With `no_sync` gradients are exchanged once for each update: what was once a batch becomes once a step.
        is_moved = settings.accumulate is not None
        self._per_batch = tuple(phase for phase in PER_BATCH if not (is_moved and phase is Phase.EXCHANGE))
        self._per_step = (*((Phase.EXCHANGE,) if is_moved else ()), *PER_STEP)
        self._backward: tuple[Phase, ...] = ()
        self._each_exchanges = not is_moved and recorded.exchange.per_step > 1
        if exchanges:  # the exchange is simulated, as what the backward pass fills
            self._per_batch = tuple(one for one in PER_BATCH if one not in (Phase.BACKWARD, Phase.EXCHANGE))
            self._backward, self._per_step = (Phase.BACKWARD,), PER_STEP

    def build_epochs(self, places: Array) -> Iterator[tuple[StepModel, ...]]:
        bounds = [*(start for start in self._recorded.epoch_starts if start < len(places)), len(places)]
        for begin, end in itertools.pairwise(bounds):
            own = [int(place) for place in places[begin:end]]
            if self._settings.accumulate is None and self._settings.batch is None:
                yield tuple(self._step(place, self._batches(place)) for place in own)
            else:
                yield tuple(self._regroup(own))

    def _regroup(self, places: list[int]) -> Iterator[StepModel]:
        """Yield the steps of an epoch with as many samples in batches of another size, or other steps of them."""
        batches = [(place, one) for place in places for one in self._batches(place)]
        batch = self._settings.batch
        if batch is not None:
            total = sum(one.samples for _, one in batches)
            wanted = max(1, round(total / batch))
            batches = [self._resized(batches[number % len(batches)], batch) for number in range(wanted)]
        each = self._settings.accumulate or round(float(self._recorded.microbatches.mean()))
        for first in range(0, len(batches), each):
            own = batches[first : first + each]
            yield self._step(own[-1][0], tuple(one for _, one in own))

    def _resized(self, pair: tuple[int, Microbatch], batch: int) -> tuple[int, Microbatch]:
        place, one = pair
        factor = batch / one.samples if one.samples else 1.0
        load = tuple(need.scaled(factor) for need in one.load)
        return place, dataclasses.replace(one, samples=batch, load=load)

    def _step(self, place: int, batches: tuple[Microbatch, ...]) -> StepModel:
        *first, last = batches
        if not self._each_exchanges:
            first = [dataclasses.replace(one, exchanges=False) for one in first]
        return StepModel(microbatches=(*first, last), update=self._needs(self._per_step, place, 1))

    def _batches(self, place: int) -> tuple[Microbatch, ...]:
        count = int(self._recorded.microbatches[place])
        samples = int(self._recorded.samples[place])
        compute = self._needs(self._per_batch, place, count)
        backward = self._needs(self._backward, place, count)
        first = int(self._first_batch[place])
        return tuple(
            Microbatch(
                samples=samples // count + (1 if number < samples % count else 0),
                load=self._load(first + number, samples // count),
                compute=compute,
                backward=backward,
            )
            for number in range(count)
        )

    def _load(self, batch: int, samples: int) -> tuple[Need, ...]:
        works = [self._loads[work] for work in LOADING if work in self._loads]
        needs = _joined([Need(float(one.blocked[batch]), float(one.cpu[batch])) for one in works])
        return _by_item(needs, samples)

    def _needs(self, phases: tuple[Phase, ...], place: int, count: int) -> tuple[Need, ...]:
        found = [
            Need(
                float(self._phases[phase].blocked[place]) / count,
                float(self._phases[phase].cpu[place]) / count,
                float(self._threads if phase in IN_THREADS else 1),
            )
            for phase in phases
            if phase in self._phases
        ]
        return _joined(found)


def _by_item(needs: tuple[Need, ...], items: int) -> tuple[Need, ...]:
    """Return the needs of a batch item by item, where each is waited for: so a worker comes and goes in small pieces."""
    blocked, cpu = sum(need.blocked for need in needs), sum(need.cpu for need in needs)
    pieces = min(items, _MOST_PIECES)
    if pieces <= 1 or blocked < _LEAST_BLOCKED * pieces or not cpu:
        return needs
    return (Need(blocked / pieces, cpu / pieces),) * pieces


def _joined(needs: list[Need]) -> tuple[Need, ...]:
    """Return the same needs with neighbours made one where only one is blocked, so that a simulation has fewer events."""
    found: list[Need] = []
    for need in needs:
        if need.blocked == need.cpu == 0.0:
            continue
        if found and found[-1].width == need.width and (need.blocked == 0.0 or found[-1].cpu == 0.0):
            found[-1] = Need(found[-1].blocked + need.blocked, found[-1].cpu + need.cpu, need.width)
        else:
            found.append(need)
    return tuple(found)
