"""From a profiled run to a prediction, its proof and the record: the commands as a user types them, on an emulated stage."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from headrace.cli import main
from headrace.runs.formats.ledger import LedgerDocument
from headrace.runs.formats.prediction import PredictionDocument, PredictionsDocument

pytestmark = pytest.mark.measures

MODULE = """
import headrace as hr

pipeline = hr.Pipeline(
    hr.folder("files", patterns=["*.bin"]),
    stages=[hr.fetch("fetch"), hr.emulated("work", seconds=0.01)],
    delivery=hr.jsonl("results.jsonl"),
)
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a pipeline of one worker that sleeps 10 ms, 200 files, and a profile of it."""
    folder = tmp_path_factory.mktemp("workplace")
    (folder / "jobs.py").write_text(MODULE)
    (folder / "files").mkdir()
    for number in range(200):
        (folder / "files" / f"{number:03}.bin").write_bytes(b"x")
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, patch)
        assert main(["profile", "jobs:pipeline", "--set", "work.workers=1", "-o", "runs/first"]) == 0
    return folder


def enter(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Work in the folder, with the modules that it holds."""
    patch.chdir(folder)
    patch.setattr(sys, "path", list(sys.path))
    patch.delitem(sys.modules, "jobs", raising=False)
    patch.delenv("HEADRACE_LEDGER", raising=False)


@pytest.fixture(autouse=True)
def _inside(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(workplace, monkeypatch)


def predicted(capsys: pytest.CaptureFixture[str], *arguments: str) -> PredictionDocument:
    """Return what `headrace whatif runs/first` answers; a busy machine must not fail the test."""
    capsys.readouterr()
    assert main(["whatif", "runs/first", *arguments, "--untrusted", "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=PredictionDocument)


def test_predicted_then_measured(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three workers that sleep do more than one: predicted, proved by a comparison, and in the record."""
    document = predicted(capsys, "--set", "work.workers=3", "--ledger", "proof.sqlite")
    assert document.throughput.ratio is not None
    assert 1.05 < document.throughput.ratio.mid < 4  # 3 on a quiet machine
    ledger = ["--ledger", "proof.sqlite"]
    assert main(["ledger", "show", document.id, "--plan", *ledger]) == 0
    (workplace / "changed.toml").write_text(capsys.readouterr().out)
    compare = ["compare", "runs/first", "changed.toml", "--pipeline", "jobs:pipeline", "--items", "60", "--blocks", "8"]
    assert main([*compare, "-o", "compare.json"]) == 0
    capsys.readouterr()
    assert main(["ledger", "measured", document.id, "compare.json", *ledger, "--json"]) == 0
    held = msgspec.json.decode(capsys.readouterr().out, type=LedgerDocument)
    measured = held.predictions[0].measured
    assert measured is not None
    assert measured.how == "8 interleaved pairs"
    assert held.record.num == 1
    assert (held.record.num_with_sign, held.record.num_sign_right) == (1, 1)


def test_two_run_folders_are_a_measurement_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that was profiled after the prediction counts; the one that it was made from, given as the change, does not."""
    document = predicted(capsys, "--speedup", "work=1.0001", "--ledger", "runs.sqlite")
    ledger = ["--ledger", "runs.sqlite"]
    assert main(["ledger", "measured", document.id, "runs/first", "runs/first", *ledger]) == 2
    assert "is no prediction" in capsys.readouterr().err
    again = ["profile", "jobs:pipeline", "--set", "work.workers=1", "-o", "runs/second", "--force"]
    assert main(again) == 0
    capsys.readouterr()
    assert main(["ledger", "measured", document.id, "runs/first", "runs/second", *ledger, "--json"]) == 0
    measured = msgspec.json.decode(capsys.readouterr().out, type=LedgerDocument).predictions[0].measured
    assert measured is not None
    assert measured.how == "two recorded runs, so drift of the machine is in it"


def test_several_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The more workers that sleep, the more is predicted; workers of half the speed do less."""
    capsys.readouterr()
    assert main(["whatif", "runs/first", "--vary", "work.workers=1,2,4", "--untrusted", "--json"]) == 0
    document = msgspec.json.decode(capsys.readouterr().out, type=PredictionsDocument)
    ratios = [one.throughput.ratio.mid for one in document.predictions if one.throughput.ratio]
    assert ratios[0] == pytest.approx(1, rel=0.05)
    assert ratios[0] < ratios[1] <= ratios[2] < 6
    slower = predicted(capsys, "--speedup", "work=0.5", "--no-ledger")
    assert slower.throughput.ratio is not None
    assert 0.4 < slower.throughput.ratio.mid < 0.9
    assert slower.id == ""


def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A batch on a stage that takes none is misuse; a run without CPU times cannot be simulated."""
    assert main(["whatif", "runs/first", "--set", "work.batch=4", "--untrusted"]) == 2
    assert "only on device stages" in capsys.readouterr().err
    assert main(["run", "jobs:pipeline", "-o", "runs/unprofiled", "--force"]) == 0
    assert main(["whatif", "runs/unprofiled", "--set", "work.workers=2"]) == 4
    assert "headrace profile" in capsys.readouterr().err
