"""Trainings on a device: whose clock the figures are by, and what that changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.training_text import profile_text
from headrace.diagnose.training.profile import training_document
from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.formats.training_profile import TrainingDocument
from headrace.runs.reader import read_run
from headrace.runs.training_phases import Kind, Phase
from tests.unit.diagnose.training.made_runs import MadeRun

#: The host waits for the device where it reads the loss; the device waits for nobody.
HOST = {Phase.WAIT: 1, Phase.FORWARD: 2, Phase.LOSS: 35, Phase.BACKWARD: 2}
BUSY = {Phase.FORWARD: 14, Phase.BACKWARD: 26}
#: The same host, which is late with the next batch.
STARVED = {Phase.WAIT: 15, Phase.FORWARD: 9, Phase.BACKWARD: 16}


def record(path: Path, device: dict[Phase, float], *, one_in: int = 1, count: int = 60) -> Path:
    """Record a training whose device told its times in one step of so many."""
    run = MadeRun(path)
    for index in range(count):
        kind = Kind.EPOCH_START if index == 0 else Kind.PLAIN
        number = run.stretch(HOST, kind=kind, asleep=[Phase.LOSS])
        if number % one_in == 0:
            run.on_device(number, device)
    return run.finish(workers=2)


def shares(document: TrainingDocument) -> dict[str, float]:
    """Return {phase: share of the step}, of those that took any time."""
    return {one.phase: one.share for one in document.ranks[0].phases if one.share}


@pytest.mark.parametrize("one_in", [1, 4])
def test_phases_are_by_the_devices_clock(tmp_path: Path, one_in: int) -> None:
    """They add up to the step; steps without the device's times have the shares of the others."""
    document = training_document(read_run(record(tmp_path / "run", BUSY, one_in=one_in)))
    assert document.trusted
    assert document.ranks[0].clock == "cuda:0"
    assert shares(document) == pytest.approx({"forward": 0.35, "backward": 0.65})
    host = {one.phase: one.host_seconds for one in document.ranks[0].phases}
    assert host == pytest.approx({"wait": 0.001, "forward": 0.002, "loss": 0.035, "backward": 0.002})
    assert document.ranks[0].step.mean == pytest.approx(0.04)


def test_few_times_stand_for_nobody(tmp_path: Path) -> None:
    """Where the device told its times in less than a fifth of the steps, all is by the host's clock."""
    document = training_document(read_run(record(tmp_path / "run", BUSY, one_in=6)))
    assert document.ranks[0].clock == ""
    assert shares(document) == pytest.approx({"wait": 0.025, "forward": 0.05, "loss": 0.875, "backward": 0.05})
    assert all(one.host_seconds is None for one in document.ranks[0].phases)


def test_reading_the_loss_is_not_blamed_while_the_device_works(tmp_path: Path) -> None:
    """By the host's clock the loss is seven eighths of the step; the device has no gap there."""
    by_host = diagnose_training(TrainingAnalysis(read_run(record(tmp_path / "host", BUSY, one_in=100))))
    by_device = diagnose_training(TrainingAnalysis(read_run(record(tmp_path / "device", BUSY))))
    assert by_host.first.verdict == VerdictClass.SYNC
    assert by_device.first.verdict != VerdictClass.SYNC


def test_a_device_that_waits_for_batches_is_seen(tmp_path: Path) -> None:
    """The host gets each batch within a millisecond of asking, as it asks late; the device stood still meanwhile."""
    document = training_document(read_run(record(tmp_path / "run", STARVED)))
    assert shares(document)["wait"] == pytest.approx(15 / 40)
    found = diagnose_training(TrainingAnalysis(read_run(tmp_path / "run")))
    assert found.first.verdict == VerdictClass.LOADING


def test_the_text_says_whose_clock(tmp_path: Path) -> None:
    """One line names the device, and a column has the host's times."""
    text = profile_text(training_document(read_run(record(tmp_path / "run", BUSY))))
    assert "by the clock of cuda:0" in text
    assert "in the host" in text
    assert "clock of" not in profile_text(training_document(read_run(record(tmp_path / "other", BUSY, one_in=100))))
