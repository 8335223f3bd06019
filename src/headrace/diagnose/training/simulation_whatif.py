"""Predicts what a change of a recorded training would do, with an interval, and says when it cannot.

The prediction is the measured throughput, in samples per second, times the ratio of two simulations: changed and as recorded.
Its interval joins the spread of the run by resampled blocks of steps, the misfit of the recorded run's own replay, and what
predictions of that kind are usually off by (`prediction_interval`). Where the answer rests on what the run cannot know, the
interval reaches to what comes otherwise.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.formatting import pluralize
from headrace.base.settings import unknown_key
from headrace.base.units import format_duration, format_size
from headrace.diagnose.prediction_interval import interval, times_as_wide
from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.change_settings import TrainingChange, parse_change
from headrace.diagnose.training.simulation import SimulatedTraining, TrainingModel, simulate_training
from headrace.diagnose.training.simulation_batch import STEP
from headrace.diagnose.training.simulation_bounds import bound_ratio, naive_ratio
from headrace.diagnose.training.simulation_changes import ALONE, Pace, build_model
from headrace.diagnose.training.simulation_elsewhere import FOLDER, MOVABLE, nearest_state
from headrace.diagnose.training.simulation_ranks import needs_exchange, recorded_bandwidth
from headrace.diagnose.training.simulation_recorded import RecordedTraining, read_training
from headrace.diagnose.training.simulation_warmth import WARMTH
from headrace.diagnose.training.steps import Array
from headrace.diagnose.whatif import in_words
from headrace.runs.formats.prediction import Change, PredictedMetric, PredictionDocument, TrackRecord
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import Run
from headrace.runs.run_folder import headrace_version
from headrace.runs.training_phases import LoaderWork

#: Simulations of resampled steps that an interval is made of.
_RESAMPLED = 12
#: Steps of all ranks in one of them, at most, and of one rank at least: a hundred ranks would take minutes.
_MOST_RESAMPLED, _LEAST_RESAMPLED = 3200, 40
#: A run whose replay is off by more is not understood.
MOST_MISFIT = 0.40
#: Below this share of the computing, waiting for cores needs no other programs to explain it.
_LEAST_DELAY = 0.03
#: What a core computes while all are busy, over what it computes alone. On two virtual cores of an AMD EPYC of family 26 the
#: same work was 0.97 to 1.0 as fast side by side, and the workers of a training took up to 9 % more CPU time per batch.
SPEED_IN_A_CROWD = 0.95
#: Repetitions until what that adds to a run is known to a thousandth.
_ROUNDS = 4
#: Threads of other programs, at most, for each core.
_MOST_OTHERS = 8.0
#: What comes if an assumption is wrong is looked at from this change on, as a logarithm.
_MATTERS = math.log(1.02)

#: An exchange that takes less of the time limits nothing.
_MUCH_EXCHANGE = 0.1

#: Workers that hand over their batches in turn make steps of two kinds, with a wait and without. A median then jumps from one
#: kind to the other with a small change of how many there are; the mean does not.
_NO_PERCENTILE = PredictedMetric(
    base=None, predicted=None, ratio=None, refused="of a training only the mean step is predicted"
)

_SAME = "nothing is changed: the run was recorded like that"


@dataclass(frozen=True, slots=True)
class _Assumption:
    """What is taken for granted."""

    says: str
    other_ratio: float | None = None
    """The ratio if it is not so; None: nobody can say."""
    learn: str = ""
    """How to find out."""


class TrainingReplay:
    """A recorded training that can be simulated, as it was and changed.

    Attributes:
        run: The folder that it came from.
        recorded: What is known of it.
        others: Threads of other programs that its waiting for cores shows.
        pace: How fast its cores compute side by side.
        base: It, simulated as recorded.
    """

    def __init__(self, run: Run, recorded: RecordedTraining | None = None) -> None:
        """Read a run, and simulate it.

        Args:
            run: Whose unit is `step`.
            recorded: What `read_training` returns for it, if that is there already.

        Raises:
            CannotReplay: If it cannot be simulated.
        """
        self.run = run
        self.recorded = recorded or read_training(run)
        self.others = find_others(self.recorded)
        self.pace = find_pace(self.recorded, self.others)
        self.base = self._simulate(Change())

    @property
    def misfit(self) -> float:
        """The rate of the recorded run as simulated over the measured one, less 1."""
        return self.base.rate / self.recorded.rate - 1.0

    def predict(self, change: Change, record: TrackRecord | None = None) -> PredictionDocument:
        """Return what a change would do.

        Args:
            change: What is done otherwise.
            record: How earlier predictions did; it makes the interval.

        Raises:
            SettingsError: If the change names what a training does not have, or is impossible.
            CannotReplay: If the run does not know what the change would cost, or is not understood.
        """
        record = record or TrackRecord(num=0)
        check_options(change)
        before, after = self._model(Change()), self._model(change)
        if abs(math.log1p(self.misfit)) > math.log1p(MOST_MISFIT):
            raise CannotReplay(
                f"the recorded run is simulated at {self.base.rate:.4g}/s, and {self.recorded.rate:.4g}/s was measured: what "
                f"is recorded of its steps does not explain them (at most {MOST_MISFIT:.0%} off); record it again on a quiet "
                "machine, or for longer"
            )
        simulated = simulate_training(after)
        by_hand = self._model(change, pace=self._cold)
        is_same = after == before and not change.quiet
        granted = [] if is_same else self._assumptions(change)
        ratio = Estimate(1.0, 1.0, 1.0) if is_same else self._ratio(change, simulated, granted, record)
        info = self.run.info
        return PredictionDocument(
            created_unix_seconds=time.time(),
            headrace_version=headrace_version(),
            run=self.run.path.name,
            pipeline=info.pipeline,
            unit=info.unit,
            plan_id="",
            change=change,
            says=in_words(change),
            plan={},
            throughput=_metric(self.recorded.whole_rate, ratio),
            latency_p50=_NO_PERCENTILE,
            latency_p99=_NO_PERCENTILE,
            step=self._step_time(simulated, ratio),
            cpu_per_item=_cpu_per_sample(self.base, simulated),
            bound_ratio=bound_ratio(before, by_hand),
            naive_ratio=naive_ratio(self.recorded, before, by_hand),
            limit_after=limit_in_words(after, simulated),
            simulated_base=self.recorded.whole_rate * (1.0 + self.misfit),
            record=record,
            widened=times_as_wide(change.kinds, record),
            assumes=tuple(one.says for one in granted),
            warnings=(*([_SAME] if is_same else []), *self._warnings(granted, simulated)),
        )

    @property
    def _cold(self) -> Pace:
        """As `pace`, where less loading makes nothing else cheaper."""
        return dataclasses.replace(self.pace, warmth=0.0)

    def _model(
        self, change: Change, order: Array | None = None, threads: int | None = None, pace: Pace | None = None
    ) -> TrainingModel:
        return build_model(
            self.recorded, change, others=self.others, order=order, threads=threads, pace=pace or self.pace
        )

    def _simulate(
        self, change: Change, order: Array | None = None, threads: int | None = None, pace: Pace | None = None
    ) -> SimulatedTraining:
        return simulate_training(self._model(change, order, threads, pace))

    def _ratio(
        self, change: Change, simulated: SimulatedTraining, granted: list[_Assumption], record: TrackRecord
    ) -> Estimate:
        mid = simulated.rate / self.base.rate
        logs = []
        most = max(_LEAST_RESAMPLED, _MOST_RESAMPLED // (parse_change(change).ranks or 1))
        for seed in range(1, _RESAMPLED + 1):
            order = resampled_order(len(self.recorded), seed)[:most]
            logs.append(math.log(self._simulate(change, order).rate / self._simulate(Change(), order).rate))
        found = interval(
            mid,
            logs,
            self.misfit,
            kinds=change.kinds,
            noise=self.recorded.noise,
            times=times_as_wide(change.kinds, record),
        )
        low, high = found.low, found.high
        for other in (one.other_ratio for one in granted if one.other_ratio is not None):
            if abs(math.log(other / mid)) > _MATTERS:
                low, high = min(low, other * found.low / mid), max(high, other * found.high / mid)
        return Estimate(low, mid, high)

    def _step_time(self, simulated: SimulatedTraining, ratio: Estimate) -> PredictedMetric:
        means = [float(np.mean(one.step_seconds)) for one in (self.base, simulated)]
        if not means[0] or not means[1]:
            return PredictedMetric(
                base=self.recorded.step_seconds, predicted=None, ratio=None, refused="steps take no time"
            )
        mid = means[1] / means[0]
        by = Estimate(mid * ratio.mid / ratio.high, mid, mid * ratio.mid / ratio.low)
        return _metric(self.recorded.step_seconds, by)

    def _assumptions(self, change: Change) -> list[_Assumption]:
        return [
            *_settings_granted(self.recorded, change),
            *self._storage_granted(change),
            *self._cache_granted(change),
            *self._machine_granted(change),
        ]

    def _warnings(self, granted: list[_Assumption], simulated: SimulatedTraining) -> Iterator[str]:
        ratio = simulated.rate / self.base.rate
        for one in granted:
            if one.other_ratio is not None and one.learn and abs(math.log(one.other_ratio / ratio)) > _MATTERS:
                yield f"x{one.other_ratio:.3g} if it is not so that {one.says}; {one.learn}"
        if self.recorded.distrust:
            yield f"the run is not trusted: {'; '.join(self.recorded.distrust)}"
        for problem in self.run.problems:
            yield f"not all of the run could be read: {problem}"

    def _storage_granted(self, change: Change) -> Iterator[_Assumption]:
        """Yield what more workers take for granted: reading that is limited in rate takes each of them longer."""
        workers, own = parse_change(change).workers, max(1, self.recorded.loader.workers)
        if workers is None or workers <= own or LoaderWork.READ not in self.recorded.loading:
            return
        read = change.speedups.get(LoaderWork.READ, 1.0) * own / workers
        slower = msgspec.structs.replace(change, speedups={**change.speedups, LoaderWork.READ: read})
        yield _Assumption(
            "storage serves more workers side by side as fast as before",
            self._simulate(slower).rate / self.base.rate,
            f"record the training with loader.workers={workers}, or read with {workers} processes at once",
        )

    def _cache_granted(self, change: Change) -> Iterator[_Assumption]:
        """Yield what a cache takes for granted where no transform says where it ends: all of an item may be kept."""
        loading = self.recorded.loading
        if parse_change(change).cache is None or {LoaderWork.OPEN, LoaderWork.AUGMENT} & set(loading):
            return
        whole = msgspec.structs.replace(change, drop=(*change.drop, LoaderWork.ITEMS))
        yield _Assumption(
            "of an item the cache keeps what was read and decoded, and not what else the data set computes",
            self._simulate(whole).rate / self.base.rate,
            "give the data set its random part as `transform`, and record it again",
        )

    def _machine_granted(self, change: Change) -> Iterator[_Assumption]:
        if self.pace.of_a_core < 1.0:
            alike = dataclasses.replace(ALONE, warmth=self.pace.warmth)
            as_fast = self._simulate(change, pace=alike).rate / self._simulate(Change(), pace=alike).rate
            if abs(math.log(as_fast * self.base.rate / self._simulate(change).rate)) > _MATTERS:
                yield _Assumption(
                    f"a core computes at {self.pace.of_a_core:.0%} of its speed while all of them are busy", as_fast
                )
        as_cold = self._simulate(change, pace=self._cold).rate
        if abs(math.log(as_cold / self._simulate(change).rate)) > _MATTERS:
            yield _Assumption(
                f"what the thread that loads does besides takes up to {WARMTH:.0%} less CPU time with less loading in "
                "between, which pushes its data out of the caches, and as much more with more",
                as_cold / self.base.rate,
            )
        threads = self.recorded.threads
        if threads > 1:
            one = self._simulate(change, threads=1).rate / self._simulate(Change(), threads=1).rate
            yield _Assumption(
                f"PyTorch's {threads} threads compute side by side in forward, backward and optimizer (only the training "
                "thread's time was measured)",
                one,
            )
        if self.others and not change.quiet:
            yield _Assumption(
                f"other programs go on to use the machine, as {self.others:.2g} threads that always compute"
            )
            yield _Assumption(
                "the kernel gives each of this training's processes as much of a core as each thread of other programs",
                self._ratio_by_group(change),
                "where it shares among sessions or containers, more processes get no more; record on a quiet machine",
            )

    def _ratio_by_group(self, change: Change) -> float:
        """Return the ratio where cores are shared among sessions or containers, not among threads."""
        others = find_others(self.recorded, by_group=True)
        before, after = (
            build_model(self.recorded, one, others=others).replace(by_group=True) for one in (Change(), change)
        )
        return simulate_training(after).rate / simulate_training(before).rate


def check_options(change: Change) -> None:
    """Raise SettingsError if a change has what a training cannot: several devices, arrivals, shares of a cache.

    Raises:
        SettingsError: Also for unknown keys and impossible values, and for costs that nothing asks for.
    """
    settings = parse_change(change)
    given = {
        "--cache": change.cache_hits,
        "--every": change.every,
        "--devices": change.devices,
        "--arrival-rate": change.arrival_rate,
        "--deadline": change.deadline_seconds,
    }
    for option in (option for option, value in given.items() if value):
        raise SettingsError(
            f"{option} is for pipelines; a training run takes --set, --speedup, --drop, --to-device, --curve, --cores and "
            "--quiet-machine"
            + (" (--set cache=ram keeps the items of a data set in memory)" if option == "--cache" else "")
        )
    for name in change.on_device:
        if name not in MOVABLE:
            raise unknown_key(name, "--to-device: parts of loading that a device can do", list(map(str, MOVABLE)))
        if name in change.speedups or name in change.drop:
            raise SettingsError(
                f"--to-device {name} and another cost of {name} contradict one another; give one of them"
            )
    for name in change.cost_curves:
        if name != STEP:
            raise unknown_key(name, "--curve: of a training", [STEP])
        if settings.batch is None:
            raise SettingsError(
                f"--curve {STEP} says what a step costs with other batches; say which with --set batch=N"
            )
    if change.format_costs and settings.format is None:
        raise SettingsError("--formats says what an item costs in each format; say which with --set format=NAME")


def find_others(recorded: RecordedTraining, *, by_group: bool = False) -> float:
    """Return the threads of other programs that explain how long the run waited for cores.

    Its own threads wait for one another in the simulation; what is left of the recorded run delay others made. Found by
    bisection, to a hundredth of a thread. No more than used what the machine says others used: a thread that was woken waits
    for its core a little on a machine that does nothing else, too.

    Args:
        recorded: The training.
        by_group: As of `Machine`.
    """
    computing = sum(
        needs.cpu.sum()
        for rank in (recorded, *recorded.peers)
        for needs in (*rank.phases.values(), *rank.loading.values())
    )

    def delay(others: float) -> float:
        model = build_model(recorded, Change(), others=others).replace(by_group=by_group)
        return simulate_training(model).run_delay

    if recorded.run_delay - delay(0.0) < _LEAST_DELAY * computing:
        return 0.0
    low, high = 0.0, min(_MOST_OTHERS * recorded.cores, _most_others(recorded))
    if delay(high) < recorded.run_delay:
        return high
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if delay(middle) < recorded.run_delay else (low, middle)
    return (low + high) / 2


def _most_others(recorded: RecordedTraining) -> float:
    """Return how many threads that always want a core others had at most: each gets its share beside those of the run."""
    used = recorded.cores_of_others
    if used is None or recorded.peers:
        return math.inf
    own = recorded.loader.workers + 1
    left = recorded.cores - used
    return math.inf if left <= 0 else used * max(1.0, own / left)


def find_pace(recorded: RecordedTraining, others: float) -> Pace:
    """Return how fast the cores of a run compute side by side, and what that adds to its CPU times.

    The speed is a constant; what it added to the run is found by repetition: the simulated run has to take the CPU time that
    was recorded.
    """
    found = Pace(1.0 if recorded.cores <= 1.0 else SPEED_IN_A_CROWD, warmth=WARMTH)
    computing = simulate_training(build_model(recorded, Change(), others=others)).cores_used
    for _ in range(_ROUNDS if found.of_a_core < 1.0 and computing else 0):
        seen = simulate_training(build_model(recorded, Change(), others=others, pace=found)).cores_used
        found = dataclasses.replace(found, recorded=max(1.0, found.recorded * seen / computing))
    return found


def resampled_order(count: int, seed: int) -> Array:
    """Return places of recorded steps, drawn with repetition in blocks of neighbours: int64, (count,)."""
    length = max(1, round(math.sqrt(count)))
    starts = np.random.default_rng(seed).integers(0, count, math.ceil(count / length))
    return np.asarray(((starts[:, None] + np.arange(length)) % count).ravel()[:count])


def limit_in_words(model: TrainingModel, simulated: SimulatedTraining) -> str:
    """Return what limits a simulated training."""
    seconds = simulated.seconds
    waited, cores = sum(simulated.waits) / seconds, simulated.cores_used / seconds / model.cores
    of_cores = f"the cores, busy {cores:.0%} of the time with this training alone"
    exchanged = simulated.exchange_seconds / seconds
    if exchanged > max(waited, _MUCH_EXCHANGE) and cores <= 0.9:
        return f"the exchange between ranks, for which they wait {exchanged:.0%} of the time"
    if waited < 0.05:
        return f"the training thread: it waits {waited:.0%} of the time for batches" + (
            f", and {of_cores}" if cores > 0.9 else ""
        )
    if cores > 0.9:
        return of_cores
    if not model.loader.workers:
        return f"the training thread, which loads batches itself {waited:.0%} of the time"
    busy = simulated.worker_seconds / seconds / model.loader.workers
    return f"loading: {pluralize(model.loader.workers, 'worker')} busy {busy:.0%}, and the training thread waits {waited:.0%}"


def _settings_granted(recorded: RecordedTraining, change: Change) -> Iterator[_Assumption]:
    settings, own = parse_change(change), recorded.loader.workers
    if not recorded.is_loading_known:
        yield _Assumption("the loader keeps up: what it costs was not recorded", 1.0)
    if settings.workers and not own:
        yield _Assumption(
            "a loader process costs what it did elsewhere: 30 ms to start and end, and 1.3 ms of CPU to pass a batch of 1 MB"
        )
    if settings.persistent is False and recorded.loader.persistent:
        yield _Assumption("starting workers costs in each epoch what it cost in the first")
    if settings.cache:
        yield _Assumption(
            "all items fit into memory, kept once for all workers; the rate is that of the epochs after the first"
        )
    if settings.accumulate is not None:
        yield _Assumption(
            "gradients are exchanged once for each update (`no_sync`), and what comes after the backward pass is done once, too"
        )
    yield from _ranks_granted(recorded, settings)
    yield from _costs_granted(recorded, settings, change)


def _costs_granted(recorded: RecordedTraining, settings: TrainingChange, change: Change) -> Iterator[_Assumption]:
    """Yield what costs that were measured elsewhere, or at other batch sizes, take for granted."""
    if change.cost_curves:
        yield _Assumption(
            "a step grows with its batch as --curve says, on a line between two sizes, and an item costs the same to load"
        )
    elif settings.batch is not None:
        yield _Assumption(
            "between the recorded sizes the cost of a batch is on a line, and an item costs the same to load"
        )
    for part, seconds in change.on_device.items():
        where = "the training thread computes it" if recorded.trains_on_cpu else "the training thread waits for it"
        yield _Assumption(
            f"{part} takes {format_duration(seconds)} an item on the device, and {where} before the model is called"
        )
    if settings.format is not None:
        state = nearest_state(recorded, change.format_costs)
        before, after = (format_duration(change.format_costs[state][name]) for name in (FOLDER, settings.format))
        yield _Assumption(
            f"the run read a folder of files ({state}: what it took comes nearest to that), an item of which takes {before}, "
            f"and one in {settings.format} {after}, as `headrace pack --try` measured"
        )


def _ranks_granted(recorded: RecordedTraining, settings: TrainingChange) -> Iterator[_Assumption]:
    if not needs_exchange(recorded, settings):
        return
    ranks = settings.ranks or len(recorded.peers) + 1
    if ranks != len(recorded.peers) + 1:
        yield _Assumption(
            "each rank has batches as large as those recorded, and work of its own like that recorded; all ranks share the "
            f"{recorded.cores:g} cores of the recorded run (--cores says how many there are in all)"
        )
    yield _Assumption(
        "gradients become complete evenly over the backward pass, and each exchange is a ring: 2 (ranks - 1) messages, and "
        "2 (ranks - 1) / ranks times the bytes over the link of each rank"
    )
    if settings.bandwidth is None:
        bandwidth = recorded_bandwidth(recorded)
        if bandwidth is not None:
            said = "no limit" if math.isinf(bandwidth) else f"{format_size(bandwidth)}/s"
            yield _Assumption(f"the link has the bandwidth that explains the recorded exchanges: {said}")
    if settings.gradients:
        yield _Assumption("converting gradients to two bytes and back costs nothing")


def _metric(base: float, ratio: Estimate) -> PredictedMetric:
    predicted = Estimate(base * ratio.low, base * ratio.mid, base * ratio.high)
    return PredictedMetric(base=base, predicted=predicted, ratio=ratio)


def _cpu_per_sample(base: SimulatedTraining, after: SimulatedTraining) -> PredictedMetric:
    """Return the CPU of a sample, as simulated: that of PyTorch's other threads was not measured."""
    before, then = (one.cores_used / (sum(one.samples) or len(one.samples)) for one in (base, after))
    ratio = then / before if before > 0 else 1.0
    return PredictedMetric(base=None, predicted=Estimate(then, then, then), ratio=Estimate(ratio, ratio, ratio))
