"""A recorded training, ready to be simulated: its needs, its loader, the machine, and what was measured of it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.profile import read_process, set_forks_apart
from headrace.diagnose.training.ranks import join_exchanges, read_exchanges
from headrace.diagnose.training.rate import epoch_starts, epoch_turns, find_rate, measure_rate, step_walls
from headrace.diagnose.training.recorded_exchange import (
    UNKNOWN_EXCHANGE,
    RecordedExchange,
    describe_exchange,
    measure_exchange,
)
from headrace.diagnose.training.simulation import LoaderModel
from headrace.diagnose.training.simulation_fresh import take_out_fresh_costs
from headrace.diagnose.training.simulation_machine import Need
from headrace.diagnose.training.simulation_needs import (
    PER_BATCH,
    PER_STEP,
    Needs,
    loading_needs,
    needs_of,
    standing_for,
)
from headrace.diagnose.training.steps import Array, RankSteps, Stretches, read_steps
from headrace.diagnose.training.trust import check_training
from headrace.runs.formats.training import LoaderInfo, TrainingProcess
from headrace.runs.hardware import Hardware
from headrace.runs.reader import Run
from headrace.runs.training_phases import LoaderWork, Phase

#: Steps that are simulated; of longer runs, the last ones.
MOST_STEPS = 800
#: Fewer steps say little of how much they differ.
LEAST_STEPS = 8
#: Above this share of the steps spent waiting, a run whose loading was not recorded cannot be simulated.
_MOST_UNEXPLAINED = 0.05
#: Taking a batch that is there blocks for no longer than this many seconds; more is waiting for it.
_MOST_HANDOFF = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTraining:
    """What is known of one training process."""

    phases: dict[Phase, Needs]
    """Of each step; here and in `loading` without what new workers cost, which is in `loader`."""
    microbatches: Array
    """int64: of each step, >= 1."""
    samples: Array
    """int64: of each step; 0: not known."""
    loading: dict[LoaderWork, Needs]
    """Of each micro-batch, in order of the steps."""
    is_loading_known: bool
    """False: the loader kept up, and what it cost was not recorded."""
    epoch_starts: Array
    """int64: places of the steps that began an epoch; the first is 0."""
    loader: LoaderModel
    threads: int
    """Of PyTorch's operators, in the training process."""
    cores: float
    rate: float
    """Of the steps that are simulated; see `rate.measure_rate`."""
    whole_rate: float
    """Of all steps, as `headrace diagnose` says it."""
    noise: float
    """Standard error of `rate`, as a share."""
    step_seconds: float
    """Mean wall time of a step but the first, with the turns of epochs, as `whole_rate` counts them."""
    walls: Array
    """float64 seconds: of each step; of one that stands for no other, that of its stand-in."""
    wait_share: float
    """Of the steps' time, in the training thread."""
    run_delay: float
    """Seconds: of the training thread and of loading together."""
    load_walls: Array
    """float64 seconds: of each micro-batch, waiting for cores included."""
    cores_of_others: float | None = None
    """That other programs used meanwhile, as the machine counted; None: not measured, or ranks were counted among them."""
    trains_on_cpu: bool = True
    """False: on a device of its own, for which the training thread waits."""
    distrust: tuple[str, ...] = ()
    """Which checks of the run failed, a sentence each."""
    exchange: RecordedExchange = UNKNOWN_EXCHANGE
    """Of gradients with other ranks."""
    peers: tuple[RecordedTraining, ...] = ()
    """The other ranks, with as many steps; `rate`, `whole_rate`, `cores` and `run_delay` of the first one are of all."""

    def __len__(self) -> int:
        return len(self.microbatches)


def read_training(run: Run) -> RecordedTraining:
    """Return the training of a run folder whose unit is `step`.

    Raises:
        CannotReplay: If it has too few steps, is of a trace, has ranks that exchange nothing, or loading costs are not known.
    """
    if run.info.window:
        raise CannotReplay(
            f"{run.path} cannot be simulated: it holds {run.info.window}, which say neither CPU time nor what loading "
            "cost; record "
            "the training with `headrace train SCRIPT.py`"
        )
    ranks, _ = set_forks_apart(run, read_steps(run))
    if not ranks:
        raise CannotReplay(
            f"{run.path} cannot be simulated: no step was recorded; record a training of at least {LEAST_STEPS} steps"
        )
    processes = [read_process(run.path, rank.host, rank.process) for rank in ranks]
    distrust = check_training(run, ranks, processes).distrust
    if len(ranks) == 1:
        return dataclasses.replace(recorded_training(ranks[0], processes[0], run.info.hardware), distrust=distrust)
    return dataclasses.replace(_read_ranks(run, ranks, processes), distrust=distrust)


def _read_ranks(run: Run, ranks: list[RankSteps], processes: list[TrainingProcess | None]) -> RecordedTraining:
    """Return the training of several ranks: the first of them, with its peers."""
    meetings = join_exchanges({rank: one for rank, one in read_exchanges(run).items() if rank in _numbers(ranks)})
    if meetings is None or len(_numbers(ranks)) < len(ranks) or len(meetings.ranks) < len(ranks):
        raise CannotReplay(
            f"{run.path} cannot be simulated: {len(ranks)} processes trained, and no exchange of gradients was recorded that "
            "all of them have in common; record one process, or ranks of DistributedDataParallel that were not started again"
        )
    exchange = measure_exchange(describe_exchange(processes[0]), ranks, meetings)
    least = min(len(rank.steps) for rank in ranks)
    first, *peers = (
        _without_exchange(recorded_training(_last_steps(rank, least), process, run.info.hardware))
        for rank, process in zip(ranks, processes, strict=True)
    )
    # All ranks begin their epochs together; what was cut off at the front of one may have moved a place.
    peers = [dataclasses.replace(one, epoch_starts=first.epoch_starts, exchange=exchange) for one in peers]
    all_of_them = (first, *peers)
    return dataclasses.replace(
        first,
        peers=tuple(peers),
        exchange=exchange,
        rate=sum(one.rate for one in all_of_them),
        whole_rate=sum(find_rate(rank) for rank in ranks),
        run_delay=sum(one.run_delay for one in all_of_them),
        cores=first.cores * len({rank.host for rank in ranks}),
    )


def _numbers(ranks: list[RankSteps]) -> set[int]:
    return {rank.rank for rank in ranks}


def _without_exchange(recorded: RecordedTraining) -> RecordedTraining:
    """Return it without what the exchange took, which is simulated."""
    phases = dict(recorded.phases)
    phases.pop(Phase.EXCHANGE, None)
    return dataclasses.replace(recorded, phases=phases)


def recorded_training(rank: RankSteps, process: TrainingProcess | None, hardware: Hardware) -> RecordedTraining:
    """Return what is known of a training process.

    Args:
        rank: Its steps.
        process: What it says of itself; None if it did not live to write that.
        hardware: Its machine.

    Raises:
        CannotReplay: See `read_training`.
    """
    if len(rank.steps) < LEAST_STEPS:
        raise CannotReplay(
            f"the run has {len(rank.steps)} steps, and {LEAST_STEPS} are needed to tell how much they differ; train for longer"
        )
    info = training_loader(process, rank.steps)
    whole_rate = find_rate(rank)
    rank = _last_steps(rank)
    stands = standing_for(rank.steps)
    workers = info.workers if info is not None else 0
    loading, is_known = loading_needs(rank, workers), True
    wait_share = _wait_share(rank.steps)
    counts = np.maximum(rank.steps.microbatches, 1)
    if loading is None:
        if wait_share > _MOST_UNEXPLAINED:
            raise CannotReplay(
                f"the steps waited {wait_share:.0%} of their time for batches, and what loading cost in the workers was not "
                "recorded; record the training again with a `torch.utils.data.DataLoader` that headrace can watch"
            )
        zeros = np.zeros(int(counts.sum()))
        loading, is_known = {LoaderWork.ITEMS: Needs(zeros, zeros)}, False
    walls = step_walls(rank)
    samples = rank.steps.samples[stands]
    rate, noise = measure_rate(rank)
    phases = {
        phase: needs_of(times)[stands] for phase, times in rank.steps.phases.items() if phase in (*PER_BATCH, *PER_STEP)
    }
    starts = epoch_starts(rank.steps)
    loader = _loader(rank, info, hardware.num_cores) if is_known else LoaderModel(workers=0)
    if loader.workers:
        fresh = take_out_fresh_costs(
            loading, phases, counts, starts[: 1 if loader.persistent else None], loader.workers
        )
        loading, phases = fresh.loading, fresh.phases
        loader = dataclasses.replace(
            loader,
            first_batches=tuple(Need(0.0, one) for one in fresh.batches),
            first_steps=tuple(Need(0.0, one) for one in fresh.steps),
        )
    return RecordedTraining(
        phases=phases,
        microbatches=counts,
        samples=samples,
        loading=loading,
        is_loading_known=is_known,
        epoch_starts=starts,
        loader=loader,
        threads=max(1, process.threads) if process is not None else 1,
        cores=min(float(hardware.num_cores), hardware.cpu_quota or math.inf),
        rate=rate,
        whole_rate=whole_rate,
        exchange=describe_exchange(process),
        noise=noise,
        step_seconds=float(walls[1:].mean()),
        walls=walls,
        wait_share=wait_share,
        run_delay=_run_delay(rank, workers),
        load_walls=_load_walls(rank),
        cores_of_others=_cores_of_others(process),
        trains_on_cpu=process is None or process.device in ("", "cpu"),
    )


def training_loader(process: TrainingProcess | None, steps: Stretches) -> LoaderInfo | None:
    """Return the loader that steps were made of: that of most batches learnt from, else one with their batch size."""
    loaders = process.loaders if process is not None else ()
    learnt = max(loaders, key=lambda one: one.num_learnt or 0, default=None)
    if learnt is not None and learnt.num_learnt:
        return learnt
    size = int(np.median(steps.samples // np.maximum(steps.microbatches, 1)))
    return next((one for one in loaders if one.batch_size == size), loaders[0] if loaders else None)


def _last_steps(rank: RankSteps, most: int = MOST_STEPS) -> RankSteps:
    """Return the rank with its last steps only."""
    count = len(rank.steps)
    if count <= most:
        return rank
    kept = slice(count - most, count)
    steps = rank.steps
    cut = dataclasses.replace(
        steps,
        number=steps.number[kept],
        started=steps.started[kept],
        wall=steps.wall[kept],
        samples=steps.samples[kept],
        kinds=steps.kinds[kept],
        is_failed=steps.is_failed[kept],
        microbatches=steps.microbatches[kept],
        phases={
            phase: dataclasses.replace(one, wall=one.wall[kept], cpu=one.cpu[kept], run_delay=one.run_delay[kept])
            for phase, one in steps.phases.items()
        },
        host_walls={phase: walls[kept] for phase, walls in steps.host_walls.items()},
    )
    return dataclasses.replace(rank, steps=cut)


def _wait_share(steps: Stretches) -> float:
    wait = steps.phases.get(Phase.WAIT)
    return 0.0 if wait is None else float(wait.wall[1:].sum() / steps.wall[1:].sum())


def _run_delay(rank: RankSteps, workers: int) -> float:
    """Return how long the training thread and loading waited for cores; without workers loading lies in the thread's wait."""
    works = (LoaderWork.ITEMS, LoaderWork.COLLATE) if workers else ()
    loading = [rank.batches.work[work] for work in works if work in rank.batches.work]
    phases = [times for phase, times in rank.steps.phases.items() if not workers or phase is not Phase.WAIT]
    stands, used = standing_for(rank.steps), np.isin(rank.batches.step, rank.steps.number)
    return float(
        sum(np.nan_to_num(one.run_delay[stands]).sum() for one in phases)
        + sum(np.nan_to_num(one.run_delay[used]).sum() for one in loading)
    )


def _cores_of_others(process: TrainingProcess | None) -> float | None:
    used: Any = None if process is None or process.world_size > 1 else process.details.get("cores")
    try:
        everybody, own, wall = (float(used[f"{name}_seconds"]) for name in ("all", "own", "wall"))
    except (KeyError, TypeError, ValueError):
        return None
    return max(everybody - own, 0.0) / wall if wall > 0 else None


def _load_walls(rank: RankSteps) -> Array:
    walls = [times.wall for work, times in rank.batches.work.items() if work in (LoaderWork.ITEMS, LoaderWork.COLLATE)]
    return np.asarray(sum(walls)) if walls else np.zeros(0)


def _loader(rank: RankSteps, info: LoaderInfo | None, cores: int) -> LoaderModel:
    if info is None or not info.workers:
        return LoaderModel(workers=0)
    turns, later = epoch_turns(rank), len(epoch_starts(rank.steps)) - 1
    own = LoaderModel(
        workers=info.workers,
        prefetch=info.prefetch_factor or 2,
        in_order=info.in_order,
        persistent=info.persistent_workers,
        receive=_receive(rank.steps),
        send=_send(rank),
        warm_up=_warm_up(rank, info, cores),
    )
    if info.persistent_workers or not later:
        turns, later = _first_turn(rank), 1
    each = later * info.workers
    return dataclasses.replace(own, turn=Need(float(turns.blocked.sum()) / each, float(turns.cpu.sum()) / each))


def _first_turn(rank: RankSteps) -> Needs:
    if Phase.EPOCH_START not in rank.between.phases:
        return Needs(np.zeros(1), np.zeros(1))
    return needs_of(rank.between.phases[Phase.EPOCH_START])[np.arange(1)]


def _receive(steps: Stretches) -> Need:
    """Return what taking a batch that is there needs: the usual CPU of a wait, and its shortest time blocked."""
    if Phase.WAIT not in steps.phases:
        return Need(0.0, 0.0)
    counts = np.maximum(steps.microbatches, 1)
    wait = needs_of(steps.phases[Phase.WAIT])
    blocked = float(np.percentile(wait.blocked / counts, 5))
    return Need(blocked if blocked <= _MOST_HANDOFF else 0.0, float(np.median(wait.cpu / counts)))


def _send(rank: RankSteps) -> Need:
    """Return what handing a batch over needs: the CPU of the worker's other threads, of which one sends."""
    if LoaderWork.SEND not in rank.batches.work:
        return Need(0.0, 0.0)
    cpu = rank.batches.work[LoaderWork.SEND].cpu
    return Need(0.0, 0.0 if np.isnan(cpu).all() else float(np.nanmedian(cpu)))


def _warm_up(rank: RankSteps, info: LoaderInfo, cores: int) -> Need:
    """Return what a worker needs before its first batch: of the first wait of an epoch, what loading does not explain."""
    starts = epoch_starts(rank.steps)
    starts = starts[1:] if len(starts) > 1 and not info.persistent_workers else starts[:1]
    if Phase.WAIT not in rank.steps.phases or not len(rank.batches):
        return Need(0.0, 0.0)
    walls = _load_walls(rank)
    waits = rank.steps.phases[Phase.WAIT].wall[starts]
    loads = [
        walls[found[0]] if len(found := np.flatnonzero(rank.batches.step == rank.steps.number[start])) else walls.mean()
        for start in starts
    ]
    left = max(0.0, float(np.median(waits - np.array(loads))))
    # Workers start side by side, and computing: with more of them than cores each had its share only.
    return Need(0.0, left * min(1.0, cores / info.workers))
