"""The profile of a training, from folders whose every duration is known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from headrace.base.errors import RunFolderError
from headrace.base.records import Span
from headrace.diagnose.training.profile import training_document
from headrace.runs.formats.training import process_file
from headrace.runs.formats.training_profile import TrainingDocument
from headrace.runs.reader import read_run
from headrace.runs.span_files import SpanWriter
from headrace.runs.training_phases import Kind, LoaderWork, Phase, Stretch
from tests.unit.diagnose.training.made_runs import MadeRun, names, plain_steps

STEP = {Phase.WAIT: 2.0, Phase.FORWARD: 3.0, Phase.BACKWARD: 4.0, Phase.OPTIMIZER: 1.0}


def read(run: MadeRun, **about: object) -> TrainingDocument:
    """Close the folder and return its profile."""
    return training_document(read_run(run.finish(**about)))  # type: ignore[arg-type]


def test_phases_add_up_to_the_step(tmp_path: Path) -> None:
    """Mean seconds and shares of all phases; CPU, run delay and blocked of each; samples per second."""
    run = MadeRun(tmp_path / "run")
    for _ in range(20):
        run.stretch(STEP, cpu_share=0.5, delay_share=0.1)
    document = read(run)
    (rank,) = document.ranks
    assert document.trusted
    assert document.distrust == ()
    assert names(rank.phases) == ["wait", "forward", "backward", "optimizer"]
    assert sum(one.seconds for one in rank.phases) == pytest.approx(0.010)
    assert sum(one.share for one in rank.phases) == pytest.approx(1.0)
    backward = rank.phases[2]
    assert (backward.cpu_seconds, backward.run_delay_seconds) == (pytest.approx(0.002), pytest.approx(0.0004))
    assert backward.blocked_seconds == pytest.approx(0.0016)
    assert rank.samples_per_second == pytest.approx(800.0)
    assert (rank.step.count, rank.step.median, rank.step.p99) == (20, pytest.approx(0.010), pytest.approx(0.010))


@pytest.mark.parametrize(
    ("pipeline", "options", "name"),
    [
        ("train.py", ["train.py", "--config", "other.py"], "train.py"),
        ("torchrun", ["--standalone", "--nproc-per-node", "2", "two.py", "--lr", "1"], "two.py (torchrun)"),
        ("mypackage.train", ["-m", "mypackage.train", "--config", "other.py"], "mypackage.train"),
        ("torchrun", ["--standalone", "-m", "mypackage.train"], "torchrun"),
    ],
)
def test_a_launcher_is_not_what_trained(pipeline: str, options: list[str], name: str, tmp_path: Path) -> None:
    """The script that it starts is named first."""
    run = MadeRun(tmp_path / "run")
    plain_steps(run, STEP, 4)
    folder = run.finish()
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(info | {"pipeline": pipeline, "options": options}))
    assert training_document(read_run(folder)).pipeline == name


def test_what_is_apart_is_not_averaged(tmp_path: Path) -> None:
    """Warm-up, first steps of epochs, compiled, uneven, failed, checkpoints, validation: each counted, none in the mean."""
    run = MadeRun(tmp_path / "run")
    slow = {phase: 50 * value for phase, value in STEP.items()}
    run.stretch({Phase.EPOCH_START: 5.0, Phase.OUTSIDE: 1.0}, stretch=Stretch.BETWEEN)
    run.stretch(slow, kind=Kind.EPOCH_START)
    for _ in range(3):
        run.stretch(slow)
    plain_steps(run, STEP, 40)
    for kind in (Kind.RECOMPILED, Kind.UNEVEN):
        run.stretch(slow, kind=kind)
    run.stretch({**STEP, Phase.CHECKPOINT: 100.0})
    run.stretch({Phase.OUTSIDE: 20.0}, stretch=Stretch.VALIDATION)
    run.stretch(slow, failed=True)
    (rank,) = read(run).ranks
    counts = {one.what: one.count for one in rank.apart}
    assert counts == {
        "warm_up": 3, "epoch_start": 2, "recompiled": 1, "uneven": 1, "checkpoint": 1, "failed": 1, "validation": 1,
        "between": 1,
    }  # fmt: skip
    assert rank.step.count == 39
    assert rank.step.mean == pytest.approx(0.010)
    assert rank.checkpoints == 1
    assert rank.checkpoint_seconds == pytest.approx(0.1)
    assert sum(one.seconds for one in rank.apart) + 39 * 0.010 == pytest.approx(rank.total_seconds)


def test_a_step_that_was_cut_is_in_no_rate(tmp_path: Path) -> None:
    """The whole step before it stands for it: the rate of 8 samples in 10 ms stays."""
    run = MadeRun(tmp_path / "run")
    plain_steps(run, STEP, 10)
    run.stretch({Phase.WAIT: 2.0, Phase.FORWARD: 3.0}, kind=Kind.CUT)
    (rank,) = read(run).ranks
    assert {one.what: one.count for one in rank.apart}["cut"] == 1
    assert rank.samples_per_second == pytest.approx(800.0)


def test_a_single_slow_step_at_the_beginning_is_no_warm_up_of_many(tmp_path: Path) -> None:
    """The warm-up ends where two steps in a row are as the later ones."""
    run = MadeRun(tmp_path / "run")
    for factor in (30, 1, 20, *[1] * 40):
        run.stretch({phase: factor * value for phase, value in STEP.items()})
    (rank,) = read(run).ranks
    assert {one.what: one.count for one in rank.apart} == {"warm_up": 3}


def test_loading_costs_what_its_work_adds_up_to(tmp_path: Path) -> None:
    """Parts are taken off the items; what the workers are busy is cost over workers and step."""
    run = MadeRun(tmp_path / "run")
    for _ in range(20):
        number = run.stretch(STEP)
        work = {LoaderWork.ITEMS: (8.0, 0.75), LoaderWork.DECODE: (5.0, 1.0), LoaderWork.COLLATE: (1.0, 1.0)}
        run.batch(number, {**work, LoaderWork.SEND: (30.0, 0.0)})
    loading = read(run, workers=3).ranks[0].loading
    assert loading is not None
    assert names(loading.work) == ["decode", "items", "collate"]
    assert sum(one.seconds for one in loading.work) == pytest.approx(loading.seconds) == pytest.approx(0.009)
    assert loading.work[1].blocked_seconds == pytest.approx(0.002)
    assert loading.busy_share == pytest.approx(0.3)
    # The model takes 8 of the 10 ms; fewer cores than workers make the room smaller.
    assert loading.headroom is not None
    assert 0 <= loading.headroom <= 0.008 / (0.009 / 3) + 1e-6


@pytest.mark.parametrize(
    ("step", "about", "says"),
    [
        ({"whole": 11.0}, {}, "miss the step by up to 9.1%"),
        ({"cpu_share": 1.0, "delay_share": 0.2}, {}, "are 120% of the phase"),
        ({}, {"lost": 3}, "3 spans could not be written"),
        ({}, {"world_size": 3}, "2 ranks of 3 left no steps: 1, 2"),
    ],
)
def test_an_identity_that_does_not_hold_makes_it_untrusted(
    tmp_path: Path, step: dict[str, float], about: dict[str, int], says: str
) -> None:
    """Phases and step, the clocks of a phase, lost spans, ranks that are missing."""
    run = MadeRun(tmp_path / "run")
    for _ in range(5):
        run.stretch(STEP, **step)  # type: ignore[arg-type]
    document = read(run, **about)
    assert not document.trusted
    assert any(says in text for text in document.distrust), document.distrust


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_steps_that_are_not_there_make_it_untrusted(tmp_path: Path, lost: int) -> None:
    """Whichever file of spans is gone: the first, one between, or the last, of which the process itself tells."""
    run = MadeRun(tmp_path / "run")
    for _ in range(3):
        for _ in range(5):
            run.stretch(STEP)
        run._writer.flush()
    folder = run.finish()
    about = process_file(folder, "here", 100)
    text = json.loads(about.read_text())
    about.write_text(json.dumps({**text, "steps": 15}))
    sorted((folder / "spans").glob("*.parquet"))[lost].unlink()
    document = training_document(read_run(folder))
    assert not document.trusted
    assert "5 of 15 steps of rank 0 are not in the run folder" in document.distrust[0]


@pytest.mark.parametrize("name", ["worker x", "worker 99999999999999999999", "worker "])
def test_a_worker_without_a_number_is_damage(tmp_path: Path, name: str) -> None:
    """An error that names the folder, and no traceback."""
    run = MadeRun(tmp_path / "run")
    run.stretch(STEP)
    spans = run.spans_of_batch(0, {LoaderWork.ITEMS: (1.0, 1.0)})
    run._writer.stage_finished([msgspec.structs.replace(one, thread=name) for one in spans])
    with pytest.raises(RunFolderError, match="are damaged: thread 'worker"):
        read(run)


def _no_cpu(spans: list[Span]) -> list[Span]:
    return [msgspec.structs.replace(one, cpu=0) for one in spans]


def _no_cpu_in_forward(spans: list[Span]) -> list[Span]:
    return [msgspec.structs.replace(one, cpu=0) if one.stage == Phase.FORWARD else one for one in spans]


def _unknown_parents(spans: list[Span]) -> list[Span]:
    return [msgspec.structs.replace(one, parent_id="12345") if one.unit == "batch" else one for one in spans]


def _one_parent(spans: list[Span]) -> list[Span]:
    return [msgspec.structs.replace(one, parent_id="7") if one.unit == "batch" else one for one in spans]


def _batches_that_compute(spans: list[Span]) -> list[Span]:
    return [msgspec.structs.replace(one, cpu=10 * (one.cpu or 0)) if one.unit == "batch" else one for one in spans]


def _twice(spans: list[Span]) -> list[Span]:
    return spans + [msgspec.structs.replace(one, unit_id=str(int(one.unit_id) + 20)) for one in spans]


def _without_ten_steps(spans: list[Span]) -> list[Span]:
    kept = [one for one in spans if not 5 <= int(one.unit_id) < 15]
    return [
        msgspec.structs.replace(one, unit_id=str(int(one.unit_id) - 10)) if int(one.unit_id) > 5 else one
        for one in kept
    ]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (_no_cpu, "the steps of rank 0 have no CPU time at all"),
        (_no_cpu_in_forward, "CPU time or run delay of 20 steps of rank 0 is not the sum of that of their phases"),
        (
            _unknown_parents,
            "20 of 20 batches of rank 0 came at a time at which the step that used them was not in progress",
        ),
        (_one_parent, "18 of 20 batches of rank 0 came at a time at which the step that used them was not in progress"),
        (_batches_that_compute, "CPU time and run delay of items of the batches of rank 0 are 500% of what it took"),
        (_twice, "does not begin where the one before it ended"),
        (_without_ten_steps, "does not begin where the one before it ended"),
    ],
)
def test_spans_that_no_recorder_writes_make_it_untrusted(
    edit: Callable[[list[Span]], list[Span]], said: str, tmp_path: Path
) -> None:
    """What holds of every recording by construction holds of none of these."""
    run, work = MadeRun(tmp_path / "run"), dict.fromkeys(("items", "collate", "send"), (0.5, 0.5))
    for _ in range(20):
        run.batch(run.stretch(STEP), {LoaderWork(name): one for name, one in work.items()})
    assert read(run).trusted
    folder = run.path / "spans"
    rows = pq.read_table(folder).to_pylist()
    written = [Span(**row) for row in rows]
    shutil.rmtree(folder)
    folder.mkdir()
    writer = SpanWriter(folder)
    writer.stage_finished(edit(written))
    writer.close()
    assert said in " ".join(training_document(read_run(run.path)).distrust)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"steps": 3}, "rank 0 has 20 steps, and ended 3, as it says"),
        ({"rank": 1}, "is rank 0 in its spans, and rank 1 of 1 as it says"),
        ({"world_size": 0}, "is rank 0 in its spans, and rank 0 of 0 as it says"),
        ({"lost_spans": -5}, "5 spans could not be written"),
    ],
)
def test_a_process_that_says_otherwise_makes_it_untrusted(about: dict[str, int], said: str, tmp_path: Path) -> None:
    """Its file or its spans were edited, or are of another run."""
    run = MadeRun(tmp_path / "run")
    for _ in range(20):
        run.stretch(STEP)
    path = run.finish()
    (file,) = (path / "training").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_bytes()), **about}))
    assert said in " ".join(training_document(read_run(path)).distrust)


@pytest.mark.parametrize(
    ("lost", "said"), [(0, "it was killed before they were written"), (160, "160 spans could not be written")]
)
def test_steps_that_a_process_only_tells_of_are_said_to_be_lost(lost: int, said: str, tmp_path: Path) -> None:
    """A disk was full from the start: that a training is too short is not what is wrong."""
    run = MadeRun(tmp_path / "run")
    for _ in range(20):
        run.stretch(STEP)
    path = run.finish(lost=lost)
    for file in (path / "spans").iterdir():
        file.unlink()
    document = training_document(read_run(path))
    assert document.ranks == ()
    assert f"no step of process 100 is in the run folder, and it made 20 or more: {said}" in " ".join(document.distrust)


def test_a_core_that_is_lost_between_two_clocks_is_no_contradiction(tmp_path: Path) -> None:
    """A delay of 2 ms in a phase of 1 ms, once in 60 steps of 10 ms: three thousandths of the training."""
    run = MadeRun(tmp_path / "run")
    for _ in range(59):
        run.stretch({Phase.FORWARD: 9.0, Phase.AFTER: 1.0})
    run.stretch({Phase.FORWARD: 9.0, Phase.AFTER: 1.0}, delay_share=2.0)
    assert read(run).trusted


def test_samples_below_none_make_it_untrusted(tmp_path: Path) -> None:
    """No recorder writes them."""
    run = MadeRun(tmp_path / "run", samples=-8)
    for _ in range(3):
        run.stretch(STEP)
    assert "3 steps of rank 0 have fewer than 0 samples" in read(run).distrust[0]


@pytest.mark.parametrize(
    ("stage", "ended_later", "put_later"), [("items", 1.0, 0.0), ("collate", -0.001, 0.0), ("items", 0.0, -1.0)]
)
def test_batches_whose_times_contradict_each_other_make_it_untrusted(
    tmp_path: Path, stage: str, ended_later: float, put_later: float
) -> None:
    """Items and collating fill the time until a batch is ready, and nobody uses it before; seconds."""
    run, work = MadeRun(tmp_path / "run"), dict.fromkeys(("items", "collate", "send"), (2.0, 0.5))
    for _ in range(20):
        spans = run.spans_of_batch(run.stretch(STEP), {LoaderWork(name): one for name, one in work.items()})
        run._writer.stage_finished(
            [
                msgspec.structs.replace(
                    one, ended=one.ended + int(ended_later * 1e9), put=one.put + int(put_later * 1e9)
                )
                if one.stage == stage
                else one
                for one in spans
            ]
        )
    assert "the times of 20 of 20 batches of rank 0 contradict each other" in read(run).distrust[0]


@pytest.mark.parametrize(
    ("cut", "is_trusted", "said"),
    [
        ((1,), False, "no end in process 101 of rank 1 after 20 steps"),
        ((0, 1), True, "no end in process 100 of rank 0 after 30 steps, process 101 of rank 1 after 20 steps"),
        ((), True, ""),
    ],
)
def test_a_rank_without_an_end_is_said_to_have_none(
    cut: tuple[int, ...], is_trusted: bool, said: str, tmp_path: Path
) -> None:
    """If others have theirs, ranks differ by what is missing, and the run is not trusted; all alike are a warning."""
    run = MadeRun(tmp_path / "run")
    for rank, count in ((0, 30), (1, 20)):
        for _ in range(count):
            run.stretch(STEP, rank=rank)
    document = read(run, cut=cut)
    assert document.trusted is is_trusted
    assert said in " ".join(document.warnings if is_trusted else document.distrust)
    assert ("the end of the training" in document.unchecked) is (len(cut) == 2)


def test_a_damaged_description_is_named(tmp_path: Path) -> None:
    """Not taken for a process that was killed; what it recorded is read."""
    run = MadeRun(tmp_path / "run")
    for _ in range(5):
        run.stretch(STEP)
    path = run.finish()
    (file,) = (path / "training").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    document = training_document(read_run(path))
    assert [text for text in document.warnings if f"{file.name} cannot be read" in text]
    assert not [text for text in document.warnings if "did not live" in text]
    assert document.ranks[0].steps == 5


def test_a_run_without_steps_has_no_ranks(tmp_path: Path) -> None:
    """Only what was between them was recorded."""
    run = MadeRun(tmp_path / "run")
    run.stretch({Phase.OUTSIDE: 3.0}, stretch=Stretch.BETWEEN)
    assert read(run).ranks == ()
