"""`headrace ladder` and `headrace capacity` on a pipeline that sleeps: what they measure, write, say and refuse."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from headrace.cli import main
from headrace.ledger.ledger import Ledger
from headrace.runs.formats.capacity import CapacityDocument
from headrace.runs.formats.tuning import LadderDocument

MODULE = """
import headrace as hr
from headrace.sources.finite import Entry, FiniteSource

class Device(hr.Module):
    input = hr.ArrayInput()

    def load(self, context):
        self.device = context.open_model()

    def process(self, batch):
        return [{"score": float(value)} for value in self.device(batch)[:, 0]]

class Numbers(FiniteSource):
    def entries(self):
        return (Entry(str(number), b"") for number in range(100_000))

def moody(value):
    moody.count += 1
    return moody.count

moody.count = 0
parts = [hr.emulated("fetch", kind="io", seconds=0.008), hr.emulated("preprocess", seconds=0.002)]
pipeline = hr.Pipeline(Numbers(), stages=[*parts, *Device().stages()])
changing = hr.Pipeline(Numbers(), stages=[*parts, hr.stage("moody", moody)])
queued = hr.Pipeline(hr.queue("sqlite:///jobs.db"), stages=[hr.stage("size", len)])
"""
PLAN = """
[stages.fetch]
workers = 4
[stages.preprocess]
workers = 2
[stages.process]
batch = 4
[model]
engine = "emulated"
[model.options]
launch_seconds = 0.002
item_seconds = 0.0005
"""
FAST = ["--blocks", "6", "--items", "24"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the working folder."""
    (tmp_path / "sleepy.py").write_text(MODULE)
    (tmp_path / "best.toml").write_text(PLAN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "sleepy", raising=False)
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    return tmp_path


@pytest.mark.measures
@pytest.mark.slow
def test_the_ladder_predicts_then_measures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each step has a rate, a ratio and a prediction that was in the ledger before; capacity is planned from its profile."""
    command = [
        "ladder",
        "sleepy:pipeline",
        "--plan",
        "best.toml",
        "--price",
        "0.5/h",
        "--run",
        "first",
        "-o",
        "out.json",
    ]
    assert main([*command, *FAST]) == 0
    out = capsys.readouterr().out
    document = msgspec.json.decode((folder / "out.json").read_bytes(), type=LadderDocument)
    assert [step.name for step in document.steps] == ["sequential", "threads", "overlap", "batch"]
    first, *others = document.steps
    assert (first.ratio_before, first.ratio_alone, first.predicted) == (None, None, None)
    for step in others:
        assert step.throughput is not None
        assert step.ratio_before is not None
        assert step.ratio_alone is not None
        assert step.prediction_id
        assert step.cost_per_thousand == pytest.approx(0.5 / 3600 / step.throughput * 1000)
        assert (step.num_agreeing, step.num_checked) == (24, 24)
    assert document.is_emulated
    with Ledger.open() as ledger:
        entries = {entry.id: entry for entry in ledger.predictions()}
        for step in others:
            entry = entries[step.prediction_id]
            assert entry.measured is not None
            assert entry.measured.ratio == step.ratio_first
            assert entry.created_unix_seconds < entry.measured.measured_unix_seconds
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "sequential" in out
    assert "#" in out

    assert main(["capacity", "first", "--rate", "3M/h", "--price", "0.75/h", "--untrusted", "--json"]) == 0
    plan = msgspec.json.decode(capsys.readouterr().out, type=CapacityDocument)
    base = plan.options[0]
    assert base.name == "as recorded"
    assert base.machines is not None
    assert base.usable_throughput is not None
    assert (base.machines - 1) * base.usable_throughput < plan.rate <= base.machines * base.usable_throughput
    assert plan.is_emulated
    assert plan.record.num == 3
    best = plan.options[1]
    assert best.machines is not None
    assert best.machines < base.machines

    own = ["--change", "quick: --speedup fetch=4", "--only", "--untrusted"]
    assert main(["capacity", "first", "--rate", "10/s", *own]) == 0
    assert "quick" in capsys.readouterr().out
    for arguments, message in (
        (["--rate", "fast"], "expected a rate"),
        (["--rate", "10/s", "--price", "cheap"], "expected the price"),
        (["--rate", "10/s", "--headroom", "100%"], "--headroom"),
        (["--rate", "10/s", "--slo", "p99"], "expected a goal"),
        (["--rate", "10/s", "--change", "x: --speedup decode=2"], "decode"),
        (["--rate", "10/s", "--change", "x: --faster"], "--change"),
        (["--rate", "10/s", "--change", "x:"], "changes nothing"),
        (["--rate", "10/s", "--only"], "--only"),
        (["--rate", "10/s", "--arrival-rate", "5/s"], "--rate says what comes"),
    ):
        assert main(["capacity", "first", "--untrusted", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_results_that_change_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stage that answers by the order of calls gives other results in threads; the ladder says that it must not."""
    assert main(["ladder", "sleepy:changing", "--no-predict", "--no-alone", *FAST]) == 0
    out = capsys.readouterr().out
    assert "0 of 24 results agree" in " ".join(out.split())
    assert "must not change any" in " ".join(out.split())


@pytest.mark.smoke
def test_misuse_is_told_before_anything_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue, too few blocks, contradicting options and a file that exists are status 2."""
    (folder / "there.json").write_text("")
    for arguments, message in (
        (["sleepy:queued"], "cannot be read twice"),
        (["sleepy:pipeline", "--blocks", "3"], "--blocks"),
        (["sleepy:pipeline", "--no-predict", "--run", "x"], "--no-predict"),
        (["sleepy:pipeline", "-o", "there.json"], "there.json exists"),
    ):
        assert main(["ladder", *arguments]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["ladder", "sleepy:pipeline", "--seconds", "soon"])
    assert "expected a duration" in capsys.readouterr().err


def test_ctrl_c_keeps_the_rounds_that_were_measured(folder: Path) -> None:
    """After the first round Ctrl-C ends with status 130 and a document that says how little it knows."""
    arguments = ["sleepy:pipeline", "--plan", "best.toml", "--no-predict", "--no-alone", "--items", "64", "--json"]
    program = "import sys; from headrace.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "ladder", *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "round 1:" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    document = msgspec.json.decode(out, type=LadderDocument)
    assert document.interrupted
    assert 1 <= document.num_rounds < 8
    assert all(step.throughput for step in document.steps)
    assert any("interrupted" in line for line in document.says)
