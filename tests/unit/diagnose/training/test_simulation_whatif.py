"""Predictions from constructed runs, against what a simulation of the changed training gives."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training import simulation_changes, simulation_whatif
from headrace.diagnose.training.change_settings import KEYS
from headrace.diagnose.training.simulation import (
    LoaderModel,
    Microbatch,
    SimulatedTraining,
    StepModel,
    TrainingModel,
    simulate_training,
)
from headrace.diagnose.training.simulation_batch import step_curve
from headrace.diagnose.training.simulation_changes import (
    WORKER_RECEIVE,
    WORKER_SEND,
    WORKER_TURN,
    WORKER_WARM_UP,
    build_model,
)
from headrace.diagnose.training.simulation_machine import Need
from headrace.diagnose.training.simulation_recorded import RecordedTraining, recorded_training
from headrace.diagnose.training.simulation_warmth import WARMTH
from headrace.diagnose.training.simulation_whatif import TrainingReplay, find_others
from headrace.diagnose.training.steps import LoadedBatches, RankSteps, Stretches, Times
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.training import LoaderInfo, TrainingProcess
from headrace.runs.hardware import Hardware
from headrace.runs.reader import Run, read_run
from headrace.runs.run_folder import RunFolder
from headrace.runs.training_phases import Kind, LoaderWork, Phase, Stretch

SAMPLES = 16


def _job(
    steps: int = 120, *, workers: int = 2, cores: float = 2.0, threads: int = 1, seed: int = 1, others: float = 0.0
) -> TrainingModel:
    """Return a training: reading 8 ms, decoding 12 ms and augmenting 6 ms a batch, a step of 4 + 6 + 3 ms, all +- 20 %."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(steps):
        read, decode, augment, forward, backward, update = (
            float(one) for one in rng.uniform(0.8, 1.2, 6) * np.array([8, 12, 6, 4, 6, 3]) / 1000
        )
        batch = Microbatch(
            samples=SAMPLES,
            load=(Need(read, 0.0), Need(0.0, decode), Need(0.0, augment)),
            compute=(Need(0.0, forward, threads), Need(0.0, backward, threads)),
        )
        made.append(StepModel(microbatches=(batch,), update=(Need(0.0, update),)))
    return TrainingModel(loader=LoaderModel(workers=workers), epochs=(tuple(made),), cores=cores, others=others)


def _changed_to(workers: int, was: int) -> TrainingModel:
    """Return the training with other workers; from none, what a worker costs is taken for granted."""
    if was:
        return _job(workers=workers)
    costs = LoaderModel(
        workers=workers, turn=WORKER_TURN, warm_up=WORKER_WARM_UP, send=WORKER_SEND, receive=WORKER_RECEIVE
    )
    return _job(workers=workers).replace(loader=costs)


def _times(values: list[Need], walls: list[float] | None = None) -> Times:
    cpu = np.array([one.cpu for one in values])
    wall = np.array([one.cpu + one.blocked for one in values]) if walls is None else np.array(walls)
    blocked = np.array([one.blocked for one in values])
    return Times(wall=wall, cpu=cpu, run_delay=np.maximum(wall - cpu - blocked, 0.0))


def _steps(job: TrainingModel, truth: SimulatedTraining) -> Stretches:
    """Return steps as they would have been recorded; what they waited for a core is in `forward`."""
    steps = list(job.steps)
    count = len(steps)
    walls = np.diff([0.0, *truth.ends])
    parts = {
        Phase.FORWARD: [step.microbatches[0].compute[0] for step in steps],
        Phase.BACKWARD: [step.microbatches[0].compute[1] for step in steps],
        Phase.OPTIMIZER: [step.update[0] for step in steps],
    }
    rest = walls - np.array(truth.waits) - sum(np.array([one.cpu for one in part]) for part in parts.values())
    phases = {phase: _times(part) for phase, part in parts.items()}
    forward = [one.cpu + float(left) for one, left in zip(parts[Phase.FORWARD], rest, strict=True)]
    phases[Phase.FORWARD] = _times(parts[Phase.FORWARD], forward)
    waits = np.array(truth.waits)
    phases[Phase.WAIT] = Times(wall=waits, cpu=np.zeros(count), run_delay=np.zeros(count))
    if not job.loader.workers:
        loads = [step.microbatches[0].load for step in steps]
        cpu = np.array([sum(need.cpu for need in load) for load in loads])
        blocked = np.array([sum(need.blocked for need in load) for load in loads])
        phases[Phase.WAIT] = Times(wall=waits, cpu=cpu, run_delay=np.maximum(waits - cpu - blocked, 0.0))
    return Stretches(
        unit=Stretch.STEP,
        number=np.arange(count),
        started=np.array([0.0, *truth.ends[:-1]]),
        wall=walls,
        samples=np.array([step.samples for step in steps]),
        kinds=(Kind.EPOCH_START, *[Kind.PLAIN] * (count - 1)),
        is_failed=np.zeros(count, bool),
        microbatches=np.ones(count, np.int64),
        phases=phases,
    )


def _none(unit: Stretch) -> Stretches:
    empty = np.zeros(0)
    return Stretches(
        unit=unit, number=empty, started=empty, wall=empty, samples=empty, kinds=(), is_failed=empty.astype(bool),
        microbatches=empty, phases={},
    )  # fmt: skip


def _batches(job: TrainingModel) -> LoadedBatches:
    loads = [step.microbatches[0].load for step in job.steps]
    whole = [Need(load[0].blocked, load[1].cpu + load[2].cpu) for load in loads]
    work = {
        LoaderWork.ITEMS: _times(whole),
        LoaderWork.READ: _times([load[0] for load in loads]),
        LoaderWork.DECODE: _times([load[1] for load in loads]),
        LoaderWork.AUGMENT: _times([load[2] for load in loads]),
    }
    return LoadedBatches(step=np.arange(len(loads)), process=np.zeros(len(loads), np.int64), work=work)


def _process(job: TrainingModel, threads: int = 1) -> TrainingProcess:
    loader = LoaderInfo(
        kind="torch.utils.data.dataloader.DataLoader", dataset="Photos", num_items=None, workers=job.loader.workers,
        prefetch_factor=job.loader.prefetch if job.loader.workers else None, batch_size=SAMPLES,
        in_order=job.loader.in_order, persistent_workers=False, pin_memory=False,
    )  # fmt: skip
    return TrainingProcess(
        host="here", process=1, rank=0, world_size=1, script="train.py", framework="torch", torch_version="2", threads=threads,
        device="cpu", modules=(), num_parameters=1, parameter_bytes=4, optimizers=(), loaders=(loader,),
    )  # fmt: skip


def _record(
    job: TrainingModel,
    *,
    with_batches: bool = True,
    threads: int = 1,
    batches: LoadedBatches | None = None,
    truth: SimulatedTraining | None = None,
) -> RecordedTraining:
    """Return a training as it would be recorded, with its batches as they cost or others, as it runs or ran."""
    batches = batches or _batches(job)
    if not with_batches:
        batches = LoadedBatches(step=np.zeros(0), process=np.zeros(0), work={})
    rank = RankSteps(
        rank=0,
        host="here",
        process=1,
        steps=_steps(job, truth or simulate_training(job)),
        validation=_none(Stretch.VALIDATION),
        between=_none(Stretch.BETWEEN),
        batches=batches,
    )
    return recorded_training(rank, _process(job, threads), Hardware(num_cores=int(job.cores)))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run folder of a training, without steps in it."""
    RunFolder.create(tmp_path / "run", pipeline="train.py", unit="step").finish("finished")
    return read_run(tmp_path / "run")


@pytest.fixture(autouse=True)
def _equal_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cores are as fast together as each alone, and batches load in one piece, where a test does not say otherwise."""
    monkeypatch.setattr(simulation_whatif, "SPEED_IN_A_CROWD", 1.0)
    monkeypatch.setattr(simulation_changes, "_MOST_PIECES", 1)


@pytest.mark.usefixtures("cold_caches")
@pytest.mark.parametrize(("was", "becomes"), [(0, 2), (0, 4), (1, 3), (2, 0), (2, 1)])
def test_cores_that_are_slower_together_are_known(
    run: Run, monkeypatch: pytest.MonkeyPatch, was: int, becomes: int
) -> None:
    """Where each of two busy cores computes 15 % less, other workers are predicted within 4 %: less than it makes."""
    monkeypatch.setattr(simulation_whatif, "SPEED_IN_A_CROWD", 0.85)
    job, changed = (one.replace(pace=0.85) for one in (_job(workers=was), _changed_to(becomes, was)))
    truth, alone = simulate_training(job), sum(_cpu_of(step) for step in job.steps)
    recorded = _record(_with_longer_cpu(job, truth.cores_used / alone), truth=truth)
    replay = TrainingReplay(run, recorded)
    assert replay.pace.recorded == pytest.approx(truth.cores_used / alone, rel=0.01)
    ratio = replay.predict(Change(settings=(f"loader.workers={becomes}",))).throughput.ratio
    assert ratio is not None
    assert ratio.mid == pytest.approx(simulate_training(changed).rate / truth.rate, rel=0.04)


def _cpu_of(step: StepModel) -> float:
    (batch,) = step.microbatches
    return sum(need.cpu for need in (*batch.load, *batch.compute, *step.update))


def _with_longer_cpu(job: TrainingModel, factor: float) -> TrainingModel:
    """Return a training whose needs are as a system counts them whose cores were slower by a factor."""

    def longer(needs: tuple[Need, ...]) -> tuple[Need, ...]:
        return tuple(Need(need.blocked, need.cpu * factor, need.width) for need in needs)

    steps = tuple(
        StepModel(
            microbatches=tuple(
                Microbatch(samples=one.samples, load=longer(one.load), compute=longer(one.compute))
                for one in step.microbatches
            ),
            update=longer(step.update),
        )
        for step in job.steps
    )
    return job.replace(epochs=(steps,))


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_recorded_training_is_replayed(workers: int) -> None:
    """A recorded training, simulated from its needs alone, has the rate that was measured, but for its first step.

    With another first step, other threads may meet at the ticks of the kernel.
    """
    recorded = _record(_job(workers=workers))
    within = 2e-3 if workers < 2 else 0.015
    assert simulate_training(build_model(recorded, Change())).rate == pytest.approx(recorded.rate, rel=within)


@pytest.mark.usefixtures("cold_caches")
@pytest.mark.parametrize("was", [0, 1, 4])
@pytest.mark.parametrize("becomes", [1, 2, 3])
def test_other_workers_are_predicted(run: Run, was: int, becomes: int) -> None:
    """From any number of workers to another, on two shared cores: as the changed training itself, within 4 %."""
    job = _job(480, workers=was)
    change = Change(settings=(f"loader.workers={becomes}",))
    document = TrainingReplay(run, _record(job)).predict(change)
    changed = _job(480, workers=becomes).replace(loader=_changed_to(becomes, was).loader)
    truth = simulate_training(changed).rate
    assert document.throughput.predicted is not None
    assert document.throughput.predicted.mid == pytest.approx(truth, rel=0.04)
    if was != becomes:  # else nothing is changed, and there is nothing to doubt
        assert document.throughput.predicted.low < truth < document.throughput.predicted.high


@pytest.mark.usefixtures("cold_caches")
def test_faster_part_is_predicted_with_bounds(run: Run) -> None:
    """Decoding three times as fast: as the changed training, and no more than the bounds allow."""
    job = _job(workers=2)
    faster = tuple(
        StepModel(
            microbatches=(
                Microbatch(
                    samples=SAMPLES,
                    load=(one.load[0], one.load[1].scaled(1 / 3), one.load[2]),
                    compute=one.compute,
                ),
            ),
            update=step.update,
        )
        for step in job.steps
        for one in step.microbatches
    )
    document = TrainingReplay(run, _record(job)).predict(Change(speedups={"decode": 3.0}))
    truth = simulate_training(job.replace(epochs=(faster,))).rate / simulate_training(job).rate
    assert document.throughput.ratio is not None
    assert document.throughput.ratio.mid == pytest.approx(truth, rel=0.02)
    assert document.bound_ratio is not None
    assert document.says == "decode 3 times as fast"


def test_part_that_nothing_waits_for_gains_nothing(run: Run) -> None:
    """With eight cores and workers enough, faster decoding changes nothing, and the training thread is named as the limit."""
    document = TrainingReplay(run, _record(_job(workers=4, cores=8.0))).predict(Change(speedups={"decode": 2.0}))
    assert document.throughput.ratio is not None
    assert document.throughput.ratio.mid == pytest.approx(1.0, abs=0.01)
    assert "training thread" in document.limit_after


def test_accumulating_saves_updates(run: Run) -> None:
    """Without workers, four batches for one update: 39 ms for each batch, and a quarter of 3 ms, instead of 42 ms."""
    document = TrainingReplay(run, _record(_job(workers=0))).predict(Change(settings=("accumulate=4",)))
    assert document.throughput.ratio is not None
    assert document.throughput.ratio.mid == pytest.approx(39 / 36.75, rel=0.02)
    assert any("no_sync" in one for one in document.assumes)


def test_accumulating_as_recorded_changes_nothing() -> None:
    """Two batches for most updates, as it was: steps that had one keep it."""
    counts = np.array([1] * 10 + [2] * 50 + [1] * 10)
    recorded = dataclasses.replace(_record(_job(workers=0)), microbatches=counts)
    made = build_model(recorded, Change(settings=("accumulate=2",)))
    assert [len(step.microbatches) for step in made.steps] == counts.tolist()


@pytest.fixture
def cold_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left takes what it took: for what a change saves by itself."""
    monkeypatch.setattr(simulation_whatif, "WARMTH", 0.0)


@pytest.mark.usefixtures("cold_caches")
def test_cache_saves_reading_and_decoding(run: Run) -> None:
    """Without workers, kept items leave 6 ms of augmentation and 13 ms of the step out of 39 ms."""
    document = TrainingReplay(run, _record(_job(workers=0))).predict(Change(settings=("cache=ram",)))
    assert document.throughput.ratio is not None
    assert document.throughput.ratio.mid == pytest.approx(39 / 19, rel=0.03)


def test_what_is_left_is_cheaper_without_loading_in_between(run: Run) -> None:
    """20 of 39 ms are taken away: the other 19 take a tenth less CPU; the interval reaches to as much as they took."""
    document = TrainingReplay(run, _record(_job(workers=0))).predict(Change(settings=("cache=ram",)))
    ratio = document.throughput.ratio
    assert ratio is not None
    assert ratio.mid == pytest.approx(39 / (19 * (1 - WARMTH * 20 / 39)), rel=0.03)
    assert ratio.low < 39 / 19 < ratio.mid
    assert document.bound_ratio == pytest.approx(39 / 19, rel=0.03)
    assert any("caches" in one for one in document.assumes)


@pytest.mark.parametrize(("was", "becomes"), [(2, 0), (0, 2)])
def test_loading_between_training_costs_both_their_caches(run: Run, was: int, becomes: int) -> None:
    """26 of 39 ms are loading: by two thirds the training, and by a third the loading, find data of the other in the caches."""
    replay = TrainingReplay(run, _record(_job(workers=was)))
    change = Change(settings=(f"loader.workers={becomes}",))
    warm, cold = (replay._model(change, pace=pace) for pace in (replay.pace, replay._cold))
    for step, as_cold in zip(warm.steps, cold.steps, strict=True):
        one, other = step.microbatches[0], as_cold.microbatches[0]
        for needs, others, share in ((one.compute, other.compute, 26 / 39), (one.load, other.load, 13 / 39)):
            factor = 1 - WARMTH * share if becomes else 1 / (1 - WARMTH * share)
            got, had = (sum(need.cpu for need in given) for given in (needs, others))
            assert got == pytest.approx(had * factor, rel=0.02)


def test_a_worker_that_loads_less_does_not_make_the_training_thread_cheaper(run: Run) -> None:
    """With workers only what they compute themselves lies between what they load."""
    replay = TrainingReplay(run, _record(_job(workers=2)))
    before, after = (replay._model(change) for change in (Change(), Change(settings=("cache=ram",))))
    for was, now in zip(before.steps, after.steps, strict=True):
        assert now.microbatches[0].compute == was.microbatches[0].compute
        assert sum(one.cpu for one in now.microbatches[0].load) < was.microbatches[0].load[-1].cpu


@pytest.mark.usefixtures("cold_caches")
def test_a_cache_keeps_what_is_computed_before_the_transform(run: Run) -> None:
    """Opening an item is saved with reading and decoding; what comes after the transform is not."""
    job = _job(workers=0)
    batches = _batches(job)
    opened = [Need(0.0, 0.004) for _ in job.steps]
    whole = batches.work[LoaderWork.ITEMS]
    more = np.full(len(whole.wall), 0.007)  # 4 ms before and 3 ms after the transform
    items = Times(wall=whole.wall + more, cpu=whole.cpu + more, run_delay=whole.run_delay)
    work = {**batches.work, LoaderWork.ITEMS: items, LoaderWork.OPEN: _times(opened)}
    recorded = _record(job, batches=LoadedBatches(step=batches.step, process=batches.process, work=work))
    document = TrainingReplay(run, recorded).predict(Change(settings=("cache=ram",)))
    assert document.throughput.ratio is not None
    assert document.throughput.ratio.mid == pytest.approx(46 / 22, rel=0.03)
    assert not any("whole" in one for one in document.assumes)


def test_more_workers_may_get_no_more_of_a_shared_machine(run: Run) -> None:
    """Beside other programs the interval reaches to a kernel that shares cores among sessions; alone nothing is doubted."""
    change = Change(settings=("loader.workers=2",))
    beside = TrainingReplay(run, _record(_job(workers=0, cores=2, others=6.0))).predict(change)
    alone = TrainingReplay(run, _record(_job(workers=0))).predict(change)
    shares = "as much of a core as each thread of other programs"
    assert any(shares in one for one in beside.assumes)
    assert not any(shares in one for one in alone.assumes)
    assert beside.throughput.ratio is not None
    assert beside.throughput.ratio.low < 1.25 < 1.6 < beside.throughput.ratio.mid


def test_other_programs_are_found_by_waiting_for_cores() -> None:
    """A run beside one and a half busy threads shows them; one on a quiet machine shows none."""
    assert find_others(_record(_job(workers=0, cores=1.0))) == 0.0
    assert find_others(_record(_job(workers=0, cores=1.0, others=1.5))) == pytest.approx(1.5, abs=0.05)


@pytest.mark.parametrize(("used", "found"), [(None, 1.5), (0.6, 1.5), (0.002, 0.0)])
def test_others_are_no_more_than_the_machine_counted(used: float | None, found: float) -> None:
    """A thread that was woken waits for its core on an idle machine, too: where others used none, none are simulated."""
    recorded = _record(_job(workers=0, cores=1.0, others=1.5))
    assert find_others(dataclasses.replace(recorded, cores_of_others=used)) == pytest.approx(found, abs=0.05)


@pytest.mark.parametrize(
    ("details", "world_size", "used"),
    [
        ({"all_seconds": 4.0, "own_seconds": 3.0, "wall_seconds": 2.0}, 1, 0.5),
        ({"all_seconds": 3.0, "own_seconds": 3.1, "wall_seconds": 2.0}, 1, 0.0),
        ({"all_seconds": 4.0, "own_seconds": 3.0, "wall_seconds": 2.0}, 2, None),
        ({"all_seconds": 4.0, "own_seconds": "?", "wall_seconds": 2.0}, 1, None),
        ({}, 1, None),
        (None, 1, None),
    ],
)
def test_cores_of_others_are_what_the_process_counted(
    details: dict[str, object] | None, world_size: int, used: float | None
) -> None:
    """Cores that all programs used without its own; other ranks are not told from other programs."""
    job = _job(workers=0)
    said = msgspec.structs.replace(_process(job), details={"cores": details}, world_size=world_size)
    rank = RankSteps(
        rank=0, host="here", process=1, steps=_steps(job, simulate_training(job)),
        validation=_none(Stretch.VALIDATION), between=_none(Stretch.BETWEEN), batches=_batches(job),
    )  # fmt: skip
    assert recorded_training(rank, said, Hardware(num_cores=2)).cores_of_others == used


def test_threads_of_a_step_widen_the_interval(run: Run) -> None:
    """Threads of operators are not measured apart: the interval holds what comes if they compute side by side, and if not."""
    one = TrainingReplay(run, _record(_job(workers=4, threads=1))).predict(Change(speedups={"decode": 2.0}))
    two = TrainingReplay(run, _record(_job(workers=4, threads=2), threads=2)).predict(Change(speedups={"decode": 2.0}))
    assert one.throughput.ratio is not None
    assert two.throughput.ratio is not None
    assert two.throughput.ratio.high / two.throughput.ratio.low > one.throughput.ratio.high / one.throughput.ratio.low
    assert any("threads compute side by side" in says for says in two.assumes)


def test_unknown_keys_list_those_of_a_training(run: Run) -> None:
    """A key of a pipeline's Plan is refused, with the keys that a training has."""
    replay = TrainingReplay(run, _record(_job()))
    with pytest.raises(SettingsError, match=r"fetch\.workers") as caught:
        replay.predict(Change(settings=("fetch.workers=4",)))
    assert all(key in str(caught.value) for key in KEYS)
    with pytest.raises(SettingsError, match="expected a whole number"):
        replay.predict(Change(settings=("loader.workers=-1",)))
    with pytest.raises(SettingsError, match="augment"):
        replay.predict(Change(speedups={"augmentation": 2.0}))
    with pytest.raises(SettingsError, match="--arrival-rate is for pipelines"):
        replay.predict(Change(arrival_rate=5.0))


def test_loading_that_was_not_recorded_is_not_guessed(run: Run) -> None:
    """Steps that wait for workers nobody watched cannot be replayed; if they do not wait, only loader changes are refused."""
    with pytest.raises(CannotReplay, match="what loading cost in the workers was not recorded"):
        _record(_job(workers=1), with_batches=False)
    kept_up = _record(_job(workers=4, cores=8.0), with_batches=False)
    assert not kept_up.is_loading_known
    replay = TrainingReplay(run, kept_up)
    with pytest.raises(CannotReplay, match="num_workers=0"):
        replay.predict(Change(settings=("loader.workers=8",)))
    document = replay.predict(Change(speedups={"forward": 2.0}))
    assert document.throughput.ratio is not None
    assert document.throughput.ratio.low < 1.0 < document.throughput.ratio.mid


def test_batch_size_needs_recorded_sizes(run: Run) -> None:
    """One size alone does not say what another costs; the error says what to record."""
    with pytest.raises(CannotReplay, match=r"--curve step=batch\.json or --curve step=RUN"):
        TrainingReplay(run, _record(_job())).predict(Change(settings=("batch=64",)))


def test_interval_reaches_to_storage_that_is_limited(run: Run) -> None:
    """Storage may be limited in rate: then reading takes two workers twice as long as one, and a warning says what comes."""
    replay = TrainingReplay(run, _record(_job(workers=1, cores=8.0)))
    document = replay.predict(Change(settings=("loader.workers=2",)))
    limited = replay.predict(Change(settings=("loader.workers=2",), speedups={"read": 0.5})).throughput.ratio
    assert document.throughput.ratio is not None
    assert limited is not None
    assert document.throughput.ratio.low < limited.mid < document.throughput.ratio.mid
    assert any(warning.startswith(f"x{limited.mid:.3g} if it is not so that storage") for warning in document.warnings)
    fewer = replay.predict(Change(settings=("loader.workers=0",)))
    assert not any("storage" in one for one in (*fewer.assumes, *fewer.warnings))


@pytest.mark.parametrize("batch", [16, 24, 32])
def test_batch_between_recorded_sizes_is_predicted(run: Run, batch: int) -> None:
    """Batches of 16 and 32 in turn, 36 ms for 16 samples and 30 ms for each update: a size has n / (36 n / 16 + 30)."""
    job = _job(workers=0)
    steps = []
    for number, step in enumerate(job.steps):
        (one,), times = step.microbatches, 1 + number % 2
        load, compute = ([need.scaled(times) for need in needs] for needs in (one.load, one.compute))
        microbatch = Microbatch(samples=SAMPLES * times, load=tuple(load), compute=tuple(compute))
        steps.append(StepModel(microbatches=(microbatch,), update=(step.update[0].scaled(10),)))
    document = TrainingReplay(run, _record(job.replace(epochs=(tuple(steps),)))).predict(
        Change(settings=(f"batch={batch}",))
    )
    assert document.throughput.ratio is not None
    truth = batch / (36 * batch / 16 + 30) / (48 / (66 + 102))
    assert document.throughput.ratio.mid == pytest.approx(truth, rel=0.03)


def test_loader_of_the_steps_is_taken() -> None:
    """Of a loader for validation and one for training, the one with the batch size of the steps is replayed."""
    job = _job(workers=2)
    process = _process(job)
    (training,) = process.loaders
    other = msgspec.structs.replace(training, batch_size=64, workers=7)
    rank = RankSteps(
        rank=0,
        host="here",
        process=1,
        steps=_steps(job, simulate_training(job)),
        validation=_none(Stretch.VALIDATION),
        between=_none(Stretch.BETWEEN),
        batches=_batches(job),
    )
    both = msgspec.structs.replace(process, loaders=(other, training))
    assert recorded_training(rank, both, Hardware(num_cores=2)).loader.workers == 2
    neither = msgspec.structs.replace(process, loaders=(other,))
    assert recorded_training(rank, neither, Hardware(num_cores=2)).loader.workers == 7


def _with_batch(job: TrainingModel, samples: int, fixed: float) -> TrainingModel:
    """Return a training without workers whose batches have so many samples: a forward pass has a fixed part, too."""
    steps = []
    for step in job.steps:
        (one,), times = step.microbatches, samples / SAMPLES
        forward, backward = one.compute
        compute = (Need(0.0, forward.cpu * times + fixed), backward.scaled(times))
        load = tuple(need.scaled(times) for need in one.load)
        steps.append(
            StepModel(microbatches=(Microbatch(samples=samples, load=load, compute=compute),), update=step.update)
        )
    return job.replace(epochs=(tuple(steps),))


@pytest.mark.parametrize("batch", [4, 32, 64])
@pytest.mark.parametrize("slower", [1.0, 1.3])
def test_batch_by_a_curve_that_was_measured_elsewhere(run: Run, batch: int, slower: float) -> None:
    """A run with one size and a curve of steps give another size, also where the curve's machine was 1.3 times as slow."""
    job = _job(workers=0)
    curve = {size: slower * ((4 + 6) * size / SAMPLES + 5 + 3) / 1e3 for size in (4, 16, 64)}
    replay = TrainingReplay(run, _record(_with_batch(job, SAMPLES, 0.005)))
    document = replay.predict(Change(settings=(f"batch={batch}",), cost_curves={"step": curve}))
    before, after = (simulate_training(_with_batch(job, size, 0.005)).rate for size in (SAMPLES, batch))
    assert document.throughput.ratio is not None
    assert document.throughput.ratio.mid == pytest.approx(after / before, rel=0.02)
    assert any("--curve" in one for one in document.assumes)


def test_curve_of_another_run_needs_no_size_of_this_one(run: Run) -> None:
    """A run with batches of 64 knows what those cost, and this one its own."""
    job = _job(workers=0)
    other = step_curve(_record(_with_batch(job, 64, 0.005)))
    assert list(other) == [64]
    replay = TrainingReplay(run, _record(_with_batch(job, SAMPLES, 0.005)))
    ratio = replay.predict(Change(settings=("batch=40",), cost_curves={"step": other})).throughput.ratio
    before, after = (simulate_training(_with_batch(job, size, 0.005)).rate for size in (SAMPLES, 40))
    assert ratio is not None
    assert ratio.mid == pytest.approx(after / before, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "curve", "why"),
    [
        (("batch=128",), {16: 0.013, 64: 0.05}, "know batches of 16, 64"),
        (("batch=32",), {16: 0.1, 64: 0.4}, "another model, machine"),
    ],
)
def test_curve_that_does_not_fit_is_refused(
    run: Run, settings: tuple[str, ...], curve: dict[int, float], why: str
) -> None:
    """Neither a size beyond the curve nor a curve of another model gives a figure."""
    replay = TrainingReplay(run, _record(_job(workers=0)))
    with pytest.raises(CannotReplay, match=why):
        replay.predict(Change(settings=settings, cost_curves={"step": curve}))


def test_augmentation_on_the_device_that_trains(run: Run) -> None:
    """6 ms a batch in two workers become 16 times 0.1 ms in the training thread; loading is what limits."""
    job = _job(workers=2, cores=8.0)
    replay = TrainingReplay(run, _record(job))
    document = replay.predict(Change(on_device={"augment": 0.0001}))
    moved = []
    for step in job.steps:
        (one,) = step.microbatches
        batch = dataclasses.replace(one, load=one.load[:2], compute=(Need(0.0, 0.0016), *one.compute))
        moved.append(StepModel(microbatches=(batch,), update=step.update))
    truth = simulate_training(job.replace(epochs=(tuple(moved),))).rate / simulate_training(job).rate
    assert document.throughput.ratio is not None
    assert document.throughput.ratio.mid == pytest.approx(truth, rel=0.02)
    assert any("augment takes 100 us an item on the device" in one for one in document.assumes)


def test_device_of_its_own_is_waited_for(run: Run) -> None:
    """What a GPU does takes no core of the workers."""
    recorded = _record(_job(workers=2, cores=1.0))
    seconds = Change(on_device={"augment": 0.001})
    on_cpu = TrainingReplay(run, recorded).predict(seconds).throughput.ratio
    on_gpu = TrainingReplay(run, dataclasses.replace(recorded, trains_on_cpu=False)).predict(seconds).throughput.ratio
    assert on_cpu is not None
    assert on_gpu is not None
    assert on_gpu.mid > 1.2 * on_cpu.mid


def test_format_saves_what_it_was_measured_to_save(run: Run) -> None:
    """Files took 0.5 ms an item, cold; in shards 0.1 ms. Of warm figures, which are far from what the run did, none is used."""
    job = _job(workers=1, cores=8.0)
    costs = {
        "random, cold": {"folder": 0.0005, "tar": 0.0001, "parquet": 0.001},
        "random, warm": {"folder": 0.00002, "tar": 0.000005},
    }
    replay = TrainingReplay(run, _record(job))
    document = replay.predict(Change(settings=("format=tar",), format_costs=costs))
    faster = replay.predict(Change(speedups={"read": 8.0 / (8.0 - 16 * 0.4)})).throughput.ratio
    assert document.throughput.ratio is not None
    assert faster is not None
    assert document.throughput.ratio.mid == pytest.approx(faster.mid, rel=0.03)
    assert any("random, cold" in one for one in document.assumes)
    slower = replay.predict(Change(settings=("format=parquet",), format_costs=costs)).throughput.ratio
    assert slower is not None
    assert slower.mid < 0.85


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Change(settings=("format=tar",)), "headrace pack FOLDER --try"),
        (Change(settings=("format=",)), "expected a format"),
        (Change(settings=("format=zip",), format_costs={"random, warm": {"folder": 1e-5, "tar": 1e-5}}), "zip"),
        (Change(settings=("format=tar",), format_costs={"random, warm": {"tar": 1e-5}}), "no costs of 'folder'"),
        (Change(format_costs={"random, warm": {"folder": 1e-5}}), "--set format=NAME"),
        (
            Change(
                settings=("format=lmdb",),
                format_costs={
                    "random, warm": {"folder": 1e-5, "tar": 1e-5},
                    "sequential, cold": {"folder": 1e5, "lmdb": 1e-5},
                },
            ),
            "no cost of lmdb there; it has folder, tar",
        ),
        (Change(cost_curves={"step": {8: 0.1}}), "--set batch=N"),
        (Change(settings=("batch=8",), cost_curves={"model": {8: 0.1}}), "model"),
        (Change(on_device={"read": 0.1}), "read"),
        (Change(on_device={"augment": 0.1}, drop=("augment",)), "contradict"),
    ],
)
def test_costs_that_are_missing_or_ask_for_nothing(run: Run, change: Change, why: str) -> None:
    """What is told must fit to what is asked."""
    with pytest.raises(SettingsError, match=why):
        TrainingReplay(run, _record(_job())).predict(change)
