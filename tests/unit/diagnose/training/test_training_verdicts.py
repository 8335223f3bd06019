"""Verdicts on trainings, from folders whose every duration is known: one fault, one verdict; none where nothing is wrong."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.cli.diagnosis_text import as_text
from headrace.diagnose.training.cost import WORTH_WORK
from headrace.diagnose.training.simulation_recorded import read_training
from headrace.diagnose.training.steps import BatchPassage
from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
from headrace.runs.formats.diagnosis import DiagnosisDocument
from headrace.runs.formats.training import process_file
from headrace.runs.reader import read_run
from headrace.runs.training_phases import Kind, LoaderWork, Phase, Stretch
from tests.unit.diagnose.training.made_runs import MadeRun, plain_steps

MODEL = {Phase.WAIT: 0.1, Phase.FORWARD: 3.0, Phase.BACKWARD: 6.0, Phase.OPTIMIZER: 0.5, Phase.AFTER: 0.1}


def diagnose(run: MadeRun, **about: object) -> DiagnosisDocument:
    """Close the folder and return its diagnosis."""
    return diagnose_training(TrainingAnalysis(read_run(run.finish(**about))))  # type: ignore[arg-type]


def _steps(run: MadeRun, **more: float) -> None:
    plain_steps(run, MODEL | {Phase(name): value for name, value in more.items()}, 80)


def _batches(run: MadeRun, work: dict[LoaderWork, tuple[float, float]]) -> None:
    for number in range(1, 80):
        run.batch(number, work)


def _no_workers(run: MadeRun) -> None:
    _steps(run, wait=8.0)


def _decode(run: MadeRun) -> None:
    _steps(run, wait=10.0)
    _batches(run, {LoaderWork.ITEMS: (35.0, 0.9), LoaderWork.DECODE: (30.0, 1.0), LoaderWork.COLLATE: (2.0, 1.0)})


def _read(run: MadeRun) -> None:
    _steps(run, wait=10.0)
    _batches(run, {LoaderWork.ITEMS: (36.0, 0.05), LoaderWork.COLLATE: (2.0, 1.0)})


def _head_of_line(run: MadeRun) -> None:
    for index in range(80):
        is_slow = index % 12 == 11
        run.stretch(MODEL | ({Phase.WAIT: 60.0} if is_slow else {}))
        run.batch(index, {LoaderWork.ITEMS: (90.0 if is_slow else 8.0, 1.0)})


def _epoch_restart(run: MadeRun) -> None:
    for _ in range(5):
        run.stretch({Phase.EPOCH_START: 60.0}, stretch=Stretch.BETWEEN)
        run.stretch(MODEL | {Phase.WAIT: 80.0}, kind=Kind.EPOCH_START)
        for _ in range(20):
            run.stretch(MODEL)


def _checkpoints(run: MadeRun) -> None:
    for index in range(80):
        run.stretch(MODEL | ({Phase.CHECKPOINT: 60.0} if index % 10 == 9 else {}))


def _between_epochs(run: MadeRun) -> None:
    for _ in range(4):
        plain_steps(run, MODEL, 20)
        run.stretch({Phase.OUTSIDE: 60.0}, stretch=Stretch.BETWEEN)


def _neighbour(run: MadeRun) -> None:
    for _ in range(60):
        run.stretch(MODEL, cpu_share=0.4, delay_share=0.6)


FAULTS: dict[str, tuple[Callable[[MadeRun], None], str, int]] = {
    "no workers": (_no_workers, "LOADING (no workers)", 0),
    "decode": (_decode, "LOADING (work) in decode", 2),
    "read": (_read, "LOADING (too few workers) in read", 2),
    "head of line": (_head_of_line, "LOADING (head of line) in items", 4),
    "epoch restart": (_epoch_restart, "LOADING (epoch start)", 2),
    "prepare": (lambda run: _steps(run, prepare=4.0), "LOADING (in the training thread) in prepare", 2),
    "optimizer": (lambda run: _steps(run, optimizer=6.0), "OPTIMIZER in optimizer", 2),
    "after": (lambda run: _steps(run, after=3.0), "SYNC (after the update) in after", 2),
    "before": (lambda run: _steps(run, before_update=3.0), "SYNC (before the update) in before_update", 2),
    "loss": (lambda run: _steps(run, loss=5.0), "SYNC (in the loss) in loss", 2),
    "checkpoint": (_checkpoints, "CHECKPOINT", 2),
    "between epochs": (_between_epochs, "SYNC (between epochs) in outside", 2),
    "neighbour": (_neighbour, "NEIGHBOUR", 0),
}


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Causes depend on free cores; `run.json` holds those of this machine."""
    monkeypatch.setattr("headrace.runs.reader.read_info", _with_two_cores)


def _with_two_cores(path: Path) -> object:
    import json

    import msgspec

    from headrace.runs.run_folder import RunInfo

    content = json.loads((path / "run.json").read_text(encoding="utf-8"))
    content["hardware"]["num_cores"] = 2
    return msgspec.convert(content, RunInfo)


@pytest.mark.parametrize("name", list(FAULTS))
def test_each_fault_has_its_verdict(tmp_path: Path, name: str) -> None:
    """Class, cause and stage; a gain where one is known, a rule and something to do; confidence where steps are enough."""
    make, title, workers = FAULTS[name]
    run = MadeRun(tmp_path / "run")
    make(run)
    found = diagnose(run, workers=workers)
    assert found.first.title == title, found.first.says
    if found.first.verdict == "NEIGHBOUR":
        assert found.first.gain is None
    else:
        assert found.first.gain is not None
        assert found.first.gain > 1 / (1 - WORTH_WORK)
    assert found.first.remedies
    assert found.first.confidence == "high"
    if found.first.cause == "no workers":
        assert "workers, where there are some" in found.first.rule


@pytest.mark.parametrize("wait", [0.0, 0.2, 0.4])
def test_what_costs_little_is_not_worth_work(tmp_path: Path, wait: float) -> None:
    """The model is what takes the time, and the text says to stop."""
    run = MadeRun(tmp_path / "run")
    _steps(run, wait=wait)
    found = diagnose(run)
    assert found.first.verdict == "HEALTHY"
    assert "stop here" in found.first.says
    assert found.runner_up is None


def _diagnose_handed_over(run: MadeRun, ready_ms: float) -> DiagnosisDocument:
    """Diagnose waits of which each batch was ready so many milliseconds after it was asked for."""
    analysis = TrainingAnalysis(read_run(run.finish()))
    rank = analysis.ranks[0]
    asked = np.arange(len(rank.batches)) / 100
    zeros = np.zeros(len(asked), np.int64)
    passage = BatchPassage(
        worker=zeros, number=zeros, begun=asked - 0.1, ready=asked + ready_ms / 1e3, asked=asked, taken=asked + 0.001,
        num_items=zeros, num_bytes=zeros, is_failed=zeros.astype(bool),
    )  # fmt: skip
    analysis.ranks[0] = dataclasses.replace(rank, batches=dataclasses.replace(rank.batches, passage=passage))
    return diagnose_training(analysis)


@pytest.mark.parametrize(
    ("wait", "ready_ms", "verdict"), [(1.0, -5.0, "HEALTHY"), (1.0, 0.9, "LOADING"), (4.0, -5.0, "LOADING")]
)
def test_batches_that_are_ready_are_handed_over(tmp_path: Path, wait: float, ready_ms: float, verdict: str) -> None:
    """A tenth of the step for that is said and not accused, a third is; a tenth for batches that are not ready is."""
    run = MadeRun(tmp_path / "run")
    _steps(run, wait=wait)
    _batches(run, {LoaderWork.ITEMS: (2.0, 1.0)})
    found = _diagnose_handed_over(run, ready_ms)
    assert found.first.verdict == verdict, found.first.says
    assert (found.first.cause == "hand-over") is (wait == 4.0)
    assert any("handed over from process to process; below 20%" in text for text in found.warnings) is (
        verdict == "HEALTHY"
    )


def test_what_recording_took_is_said_and_no_fault_of_the_loader(tmp_path: Path) -> None:
    """Half of the wait is the recorder's, and the rest is not worth work; below 2 % of the step nothing is said."""
    run = MadeRun(tmp_path / "run")
    _steps(run, wait=0.8)
    recording = {"thread_seconds": 80 * 0.0005, "helper_seconds": 80 * 0.0002, "wait_seconds": 0.0004}
    found = diagnose(run, recording=recording)
    assert found.first.verdict == "HEALTHY"
    (said,) = (text for text in found.warnings if text.startswith("recording took "))
    assert said.startswith("recording took 7% of the step: 500 us of the training thread and 200 us of helper threads")
    validated = MadeRun(tmp_path / "validated")
    _steps(validated, wait=0.8)
    validated.stretch({Phase.FORWARD: 80 * 10.4}, stretch=Stretch.VALIDATION)
    (said,) = (text for text in diagnose(validated, recording=recording).warnings if text.startswith("recording took "))
    assert said.startswith("recording took 3% of the step: 250 us of the training thread")
    quick = MadeRun(tmp_path / "quick")
    _steps(quick)
    warnings = diagnose(quick, recording={name: value / 10 for name, value in recording.items()}).warnings
    assert not any("recording took" in text for text in warnings)


def test_a_cost_that_may_be_chance_is_not_named(tmp_path: Path) -> None:
    """Two slow steps of eighty take a twelfth of the time, and none of the other eight blocks has any."""
    run = MadeRun(tmp_path / "run")
    for index in range(80):
        run.stretch(MODEL | ({Phase.AFTER: 35.0} if index in (40, 41) else {}))
    found = diagnose(run).first
    assert (found.verdict, found.confidence) == ("HEALTHY", "low")
    assert "9% of this run went to a few bursts" in found.says


def test_validation_that_takes_the_time_is_named_with_what_less_of_it_buys(tmp_path: Path) -> None:
    """No step has a fault, and 75 % of the time that lasts goes to what is between them."""
    run = MadeRun(tmp_path / "run")
    for index in range(80):
        run.stretch(MODEL)
        if index % 10 == 9:
            run.stretch({Phase.FORWARD: 280.0}, stretch=Stretch.VALIDATION)
    found = diagnose(run).first
    assert (found.verdict, found.confidence) == ("VALIDATION", "high")
    assert found.says == "8 validations of 280 ms each take 75% of the time"
    assert "every 2nd time x1.59, every 4th time x2.27" in found.remedies[0].says
    assert "num_workers" not in " ".join(one.says for one in found.remedies)


def test_validation_that_waits_for_its_data_is_said_so(tmp_path: Path) -> None:
    """Its loader needs workers as that of the training does."""
    run = MadeRun(tmp_path / "run")
    for index in range(80):
        run.stretch(MODEL)
        if index % 10 == 9:
            run.stretch({Phase.WAIT: 200.0, Phase.FORWARD: 80.0}, stretch=Stretch.VALIDATION)
    assert "num_workers of its DataLoader" in diagnose(run).first.remedies[-1].says


def test_validation_after_the_last_step_is_no_share_of_a_longer_training(tmp_path: Path) -> None:
    """Nobody knows how often that would have it: it is noted."""
    run = MadeRun(tmp_path / "run")
    _steps(run)
    run.stretch({Phase.FORWARD: 2800.0}, stretch=Stretch.VALIDATION)
    found = diagnose(run)
    assert found.first.verdict == "HEALTHY"
    assert any(
        re.search(r"validation after the last step takes \d+% of the time of this run", one) for one in found.warnings
    )


def test_what_happens_once_before_the_first_step_does_not_hide_validation(tmp_path: Path) -> None:
    """A minute in which data is prepared is no share of a long training."""
    run = MadeRun(tmp_path / "run")
    run.stretch({Phase.OUTSIDE: 60_000.0}, stretch=Stretch.BETWEEN)
    for index in range(80):
        run.stretch(MODEL)
        if index % 10 == 9:
            run.stretch({Phase.FORWARD: 280.0}, stretch=Stretch.VALIDATION)
    found = diagnose(run)
    assert found.first.says.endswith("each take 75% of the time")


def test_a_warm_up_within_a_trace_is_no_share_of_the_training(tmp_path: Path) -> None:
    """Its first steps take a minute each, and the others wait for nine tenths of their time: nobody is told to stop there."""
    run = MadeRun(tmp_path / "run")
    for index in range(20):
        run.stretch(MODEL | ({Phase.FORWARD: 60_000.0} if index < 4 else {Phase.WAIT: 90.0}))
    folder = run.finish()
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(info | {"window": "steps in 1 trace of torch.profiler"}))
    found = diagnose_training(TrainingAnalysis(read_run(folder))).first
    assert found.verdict == "LOADING"


def test_the_line_that_saves_is_named(tmp_path: Path) -> None:
    """As that of each other phase is."""
    run = MadeRun(tmp_path / "run")
    _checkpoints(run)
    found = diagnose(run, lines={"checkpoint": [["train.py:67", 0.9]]}).first
    assert found.says.endswith("while they are written; 90% of it in train.py:67")
    assert found.gain is not None
    half = 1 / (1 - (1 - 1 / found.gain) / 2)
    assert found.remedies[0].says.startswith(f"save less often: every 2nd time x{half:.2f}, every 4th time")


def test_a_cost_at_the_edge_of_what_is_worth_work_is_no_burst(tmp_path: Path) -> None:
    """It is in all steps, some more and some less, and chance decides on which side of 5 % it comes out."""
    run = MadeRun(tmp_path / "run")
    for index in range(80):
        run.stretch(MODEL | {Phase.AFTER: 0.42 if index // 8 % 2 else 0.72})
    found = diagnose(run).first
    assert (found.verdict, found.confidence) == ("HEALTHY", "low")
    assert "one thing took about as much, 6% of this run" in found.says
    assert "record a longer run to be sure" in found.says


def test_what_comes_once_or_after_the_training_is_no_cost_between_epochs(tmp_path: Path) -> None:
    """Code before the first step, behind the last one, and a single turn that took a tenth of the time."""
    run = MadeRun(tmp_path / "run")
    run.stretch({Phase.OUTSIDE: 500.0}, stretch=Stretch.BETWEEN)
    plain_steps(run, MODEL, 40)
    run.stretch({Phase.OUTSIDE: 90.0}, stretch=Stretch.BETWEEN)
    plain_steps(run, MODEL, 40)
    run.stretch({Phase.OUTSIDE: 90.0}, stretch=Stretch.BETWEEN)
    found = diagnose(run).first
    assert found.verdict == "HEALTHY"
    assert "the loop's own code takes 90.0 ms from one epoch to the next (1 turn)" in found.says


@pytest.mark.parametrize("every", [20, 50])
def test_bursts_that_take_much_of_the_run_are_named(tmp_path: Path, every: int) -> None:
    """A shard that is read each so many steps: few blocks have one, and a third of the time went to them."""
    run = MadeRun(tmp_path / "run")
    for index in range(3 * every):
        run.stretch(MODEL | {Phase.WAIT: 5.0 * every if index % every == every // 2 else 0.1})
    found = diagnose(run).first
    assert (found.verdict, found.confidence) == ("LOADING", "low")
    assert "it came in a few bursts" in found.says


def test_little_of_others_is_not_to_blame_beside_much_of_ones_own(tmp_path: Path) -> None:
    """The thread lacks a core for 0.15 of the time; its workers used 1.1 of the two, and other programs 0.13."""
    run = MadeRun(tmp_path / "run")
    for _ in range(60):
        run.stretch(MODEL, cpu_share=0.3, delay_share=0.15)
    run.finish(cores={"wall_seconds": 10.0, "own_seconds": 14.0, "all_seconds": 15.3})
    found = diagnose_training(TrainingAnalysis(read_run(run.path))).first
    assert found.title == "OVERSUBSCRIPTION (training)"
    assert "and use 1.4 of 2 cores; other programs use 0.13" in found.says


@pytest.mark.parametrize(("others", "verdict"), [(0.1, "OVERSUBSCRIPTION"), (1.2, "NEIGHBOUR")])
def test_other_programs_are_blamed_if_they_had_the_cores(tmp_path: Path, others: float, verdict: str) -> None:
    """A core that is missing for 0.6 of the time was another program's only if one used it."""
    run = MadeRun(tmp_path / "run")
    _neighbour(run)
    used = {"wall_seconds": 10.0, "own_seconds": 5.0, "all_seconds": 5.0 + 10 * others}
    assert diagnose(run, cores=used).first.verdict == verdict


def test_a_fork_that_trains_for_itself_is_no_rank(tmp_path: Path) -> None:
    """Of a process that trains: its steps are in no figure, and that is said."""
    run = MadeRun(tmp_path / "run")
    for rank in (0, 1):
        for _ in range(40):
            run.stretch(MODEL, rank=rank)
    file = process_file(run.finish(world_size=1), "here", 101)
    about = json.loads(file.read_text())
    file.write_text(json.dumps(about | {"rank": 0, "details": {"forked_from": 100}}))
    document = TrainingAnalysis(read_run(run.path)).document
    assert [(rank.process, rank.steps) for rank in document.ranks] == [(100, 40)]
    assert any(
        "process 101 was forked from one that trains, and trained 40 steps" in text for text in document.warnings
    )
    assert len(read_training(read_run(run.path)).walls) == 40


@pytest.mark.parametrize("said", [[1], {"a": 1}, "100", None])
def test_a_parent_that_is_no_process_is_none(tmp_path: Path, said: object) -> None:
    """Whatever an edited file has there, the process is read."""
    run = MadeRun(tmp_path / "run")
    for _ in range(40):
        run.stretch(MODEL)
    file = process_file(run.finish(), "here", 100)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"details": {"forked_from": said}}))
    assert len(TrainingAnalysis(read_run(run.path)).document.ranks) == 1


def test_two_costs_of_one_size_are_both_named(tmp_path: Path) -> None:
    """The second stands in the sentence of the first, and is the runner-up."""
    run = MadeRun(tmp_path / "run")
    _steps(run, wait=4.0, after=3.9)
    found = diagnose(run)
    assert found.runner_up is not None
    assert {found.first.verdict, found.runner_up.verdict} == {"LOADING", "SYNC"}
    assert found.runner_up.title in found.first.says
    assert found.first.confidence == "medium"


def test_a_first_step_is_no_verdict(tmp_path: Path) -> None:
    """Starting workers, compiling and a first batch happen once, however long they take."""
    run = MadeRun(tmp_path / "run")
    run.stretch({Phase.EPOCH_START: 4000.0}, stretch=Stretch.BETWEEN)
    run.stretch(MODEL | {Phase.WAIT: 5000.0}, kind=Kind.EPOCH_START)
    run.stretch(MODEL | {Phase.FORWARD: 3000.0}, kind=Kind.RECOMPILED)
    for _ in range(40):
        run.stretch(MODEL)
    found = diagnose(run)
    assert found.first.verdict == "HEALTHY"
    assert any("warm-up and compiling" in text for text in found.warnings)


def test_few_steps_are_inconclusive_with_the_command(tmp_path: Path) -> None:
    """No guess from a handful of steps."""
    run = MadeRun(tmp_path / "run")
    plain_steps(run, MODEL | {Phase.WAIT: 20.0}, 10)
    found = diagnose(run)
    assert found.first.verdict == "INCONCLUSIVE"
    assert found.experiment.startswith("headrace train -o ")
    assert found.experiment.endswith("train.py --lr 0.1")


def test_steps_that_nothing_tells_apart_are_not_blamed_on_a_short_run(tmp_path: Path) -> None:
    """Without an optimizer and a loader a longer run shows no more steps, so none is proposed."""
    run = MadeRun(tmp_path / "run")
    plain_steps(run, MODEL, 1)
    (file,) = (run.finish() / "training").glob("*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"optimizers": [], "loaders": []}))
    found = diagnose_training(TrainingAnalysis(read_run(run.path)))
    assert found.first.verdict == "INCONCLUSIVE"
    assert "no optimizer of torch.optim and no DataLoader was seen" in found.first.says
    assert not found.experiment


def test_figures_that_cannot_be_believed_give_no_verdict(tmp_path: Path) -> None:
    """The reason stands in the verdict."""
    run = MadeRun(tmp_path / "run")
    _steps(run, wait=20.0)
    found = diagnose(run, lost=7)
    assert found.first.verdict == "UNTRUSTED"
    assert "7 spans" in found.first.says


def test_the_line_of_the_user_is_named(tmp_path: Path) -> None:
    """Where the training thread was sampled in that phase."""
    run = MadeRun(tmp_path / "run")
    _steps(run, after=5.0)
    found = diagnose(run, lines={"after": [["train.py:41", 0.9]]})
    assert "90% of it in train.py:41" in found.first.says


def test_ranks_that_wait_for_one_are_said_so(tmp_path: Path) -> None:
    """The last to have its gradients is named, with the phase in which it is late; the others only wait."""
    run = MadeRun(tmp_path / "run")
    for _ in range(40):
        run.stretch({Phase.FORWARD: 3.0, Phase.BACKWARD: 6.0, Phase.EXCHANGE: 4.5, Phase.OPTIMIZER: 0.5}, rank=0)
        run.stretch({Phase.FORWARD: 7.0, Phase.BACKWARD: 6.0, Phase.EXCHANGE: 0.5, Phase.OPTIMIZER: 0.5}, rank=1)
    found = diagnose(run)
    assert found.first.title == "STRAGGLER in forward"
    assert "rank 1" in found.first.says
    assert re.search(r"Measured [0-9.]+/s on each of 2 ranks", as_text(found))
    assert "costs within steps are those of rank 1, which has most work of its own" in found.warnings


def test_what_is_won_without_a_straggler_is_not_bounded_by_its_own_work(tmp_path: Path) -> None:
    """x5 at most is not said beside a limit that the run has reached; one for loading is, where only loading is named."""
    run = MadeRun(tmp_path / "run")
    for _ in range(40):
        run.stretch({Phase.FORWARD: 3.0, Phase.BACKWARD: 6.0, Phase.EXCHANGE: 41.0, Phase.OPTIMIZER: 0.5}, rank=0)
        run.stretch({Phase.FORWARD: 43.0, Phase.BACKWARD: 6.0, Phase.EXCHANGE: 1.0, Phase.OPTIMIZER: 0.5}, rank=1)
    found = diagnose(run)
    assert found.first.gain is not None
    assert found.first.gain > 4
    assert not found.bounds
    loading = MadeRun(tmp_path / "loading")
    _no_workers(loading)
    assert diagnose(loading, workers=0).bounds


def test_beside_a_neighbour_the_training_has_its_own_remedies(tmp_path: Path) -> None:
    """Other programs cannot always be stopped: what costs most in the training itself follows, with what to do."""
    run = MadeRun(tmp_path / "run")
    for _ in range(60):
        run.stretch(MODEL | {Phase.AFTER: 4.0}, cpu_share=0.4, delay_share=0.6)
    found = diagnose(run, workers=0)
    assert found.first.verdict == "NEIGHBOUR"
    assert found.runner_up is not None
    text = as_text(found)
    assert text.index("If they cannot be stopped") < text.index(found.runner_up.remedies[0].says[:30])


def test_more_workers_say_what_they_would_buy(tmp_path: Path) -> None:
    """A worker that sleeps 20 ms a batch beside a model of 9.6 ms: three of them would let the model run all the time."""
    run = MadeRun(tmp_path / "run")
    for _ in range(80):
        run.stretch(MODEL | {Phase.WAIT: 10.4}, asleep=[Phase.WAIT])
    _batches(run, {LoaderWork.ITEMS: (19.5, 0.01), LoaderWork.COLLATE: (0.5, 1.0)})
    remedy = diagnose(run, workers=1).first.remedies[0]
    assert remedy.settings == ("loader.workers=3", "loader.persistent=true")
    assert remedy.ratio is not None
    assert remedy.ratio.low <= 20.0 / 9.6 <= remedy.ratio.high


def test_first_batches_of_epochs_are_part_of_what_faster_loading_brings(tmp_path: Path) -> None:
    """They come sooner, too: what is won at most is no less than the limit by hand."""
    run = MadeRun(tmp_path / "run")
    for index in range(80):
        is_first = index % 8 == 0
        run.stretch(MODEL | {Phase.WAIT: 60.0 if is_first else 10.0}, kind=Kind.EPOCH_START if is_first else Kind.PLAIN)
    _batches(run, {LoaderWork.ITEMS: (19.5, 0.01), LoaderWork.COLLATE: (0.5, 1.0)})
    first = diagnose(run, workers=1).first
    assert first.title == "LOADING (too few workers) in read"
    assert first.gain == pytest.approx(1 / (1 - 1240 / 1998), rel=0.02)


@pytest.mark.parametrize(("used", "cause"), [(1.9, "work"), (1.2, "too few workers"), (7.0, "work")])
def test_whether_a_core_is_free_is_what_was_measured(tmp_path: Path, used: float, cause: str) -> None:
    """A worker that computes half of its time would find half a core, or not; 7 of 2 cores are those of another machine."""
    run = MadeRun(tmp_path / "run")
    _steps(run, wait=10.0)
    _batches(run, {LoaderWork.ITEMS: (36.0, 0.5), LoaderWork.COLLATE: (2.0, 1.0)})
    cores = {"wall_seconds": 10.0, "all_seconds": 10.0 * used, "own_seconds": 10.0}
    found = diagnose(run, workers=2, cores=cores).first
    assert found.cause == cause
    assert ("of 2 cores 1.9 are in use" in found.says) == (used == 1.9)
    assert ("was not measured" in found.says) == (used == 7.0)


def test_the_line_in_which_workers_load_is_named(tmp_path: Path) -> None:
    """Not that in which the training thread waits for them, which is the loop itself."""
    run = MadeRun(tmp_path / "run")
    _decode(run)
    lines = {"wait": [["train.py:78", 1.0]], "workers": [["train.py:44", 0.93], ["train.py:51", 0.07]]}
    says = diagnose(run, lines=lines).first.says
    assert "93% of what they do in train.py:44" in says
    assert "train.py:78" not in says


def test_workers_that_sleep_long_are_no_reason_for_a_hundred_processes(tmp_path: Path) -> None:
    """Each is a process with its own memory: eight are proposed on two cores."""
    run = MadeRun(tmp_path / "run")
    for _ in range(80):
        run.stretch(MODEL | {Phase.WAIT: 990.0}, asleep=[Phase.WAIT])
    _batches(run, {LoaderWork.ITEMS: (999.5, 0.001), LoaderWork.COLLATE: (0.5, 1.0)})
    assert diagnose(run, workers=1).first.remedies[0].settings[0] == "loader.workers=8"


def test_no_bound_is_said_where_none_is_known(tmp_path: Path) -> None:
    """Threads that refuse one another a core cost more than the wait that was measured: one thread may be far faster."""
    run = MadeRun(tmp_path / "run")
    _neighbour(run)
    run.finish()
    (file,) = (run.path / "training").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "threads": 2}))
    found = diagnose_training(TrainingAnalysis(read_run(run.path)))
    assert found.first.title == "OVERSUBSCRIPTION (training)"
    assert found.first.gain is None
    text = " ".join(as_text(found).split())
    assert "at most" not in text
    assert "cannot be more than" not in text
    assert "what more would be won without it is not known" in text


@pytest.mark.parametrize(("short", "is_named"), [(30, True), (38, False)])
def test_uneven_shards_are_named(short: int, is_named: bool, tmp_path: Path) -> None:
    """One rank has 40 steps an epoch, the other 30: both are idle for 12.5 % on average. 38 are not worth a word."""
    run = MadeRun(tmp_path / "run")
    for rank, count in ((0, 40), (1, short)):
        for _ in range(2):
            for index in range(count):
                run.stretch(MODEL, rank=rank, kind=Kind.PLAIN if index else Kind.EPOCH_START)
        run.stretch(MODEL, rank=rank, kind=Kind.EPOCH_START)
    first = diagnose(run).first
    assert (first.title == "STRAGGLER (uneven shards)") is is_named
    if is_named:
        assert "an epoch has 40 steps in rank 0 and 30 in rank 1" in first.says
        assert first.gain == pytest.approx(1 / 0.875)


def test_ranks_that_were_killed_have_no_uneven_shards(tmp_path: Path) -> None:
    """Each misses its last steps, as many as it had not written."""
    run = MadeRun(tmp_path / "run")
    for rank, count in ((0, 40), (1, 25)):
        for index in range(count):
            run.stretch(MODEL, rank=rank, kind=Kind.PLAIN if index else Kind.EPOCH_START)
    assert diagnose(run, cut=(0, 1)).first.title == "HEALTHY"


@pytest.mark.parametrize(("later", "is_noted"), [(2.0, True), (9.0, False)])
def test_a_cold_first_epoch_is_noted(later: float, is_noted: bool, tmp_path: Path) -> None:
    """Reading took 10 ms a batch, and then 2 ms; a little less is no other storage."""
    run = MadeRun(tmp_path / "run")
    for epoch in range(2):
        for index in range(30):
            number = run.stretch(MODEL, kind=Kind.PLAIN if index else Kind.EPOCH_START)
            read = later if epoch else 10.0
            run.batch(number, {LoaderWork.ITEMS: (read + 1.0, 0.1), LoaderWork.READ: (read, 0.0)})
    notes = [text for text in diagnose(run).warnings if "in the first epoch" in text]
    assert len(notes) == is_noted


def test_a_checkpoint_in_each_step_is_what_costs(tmp_path: Path) -> None:
    """Where most steps save, no longer run has twenty others: those that save are compared, and saving is named."""
    run = MadeRun(tmp_path / "run")
    for index in range(80):
        run.stretch(MODEL | ({Phase.CHECKPOINT: 5.0} if index % 10 else {}))
    found = diagnose(run)
    assert found.first.verdict == "CHECKPOINT"
    assert found.first.gain == pytest.approx((9.7 + 0.9 * 5.0) / 9.7, rel=0.02)


def test_workers_that_are_kept_are_not_to_be_kept(tmp_path: Path) -> None:
    """They wait for the first batch of an epoch all the same: nothing was loaded ahead."""
    run = MadeRun(tmp_path / "run")
    _epoch_restart(run)
    (file,) = (run.finish() / "training").iterdir()
    about = json.loads(file.read_bytes())
    about["loaders"][0]["persistent_workers"] = True
    file.write_text(json.dumps(about))
    first = diagnose_training(TrainingAnalysis(read_run(run.path))).first
    assert first.title == "LOADING (epoch start)"
    assert "start again" not in first.says
    assert not any("persistent_workers" in one.says for one in first.remedies)


def test_profiled_steps_are_no_part_of_a_share(tmp_path: Path) -> None:
    """Without the wait that is half of each step, steps come twice as fast, however many of them were looked at closely."""
    run = MadeRun(tmp_path / "run")
    for index in range(80):
        run.stretch(MODEL | {Phase.WAIT: 9.6}, kind=Kind.PROFILED if 10 <= index < 40 else Kind.PLAIN)
    assert diagnose(run).first.gain == pytest.approx(2.0, rel=0.03)
