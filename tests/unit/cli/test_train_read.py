"""`headrace train read`: from traces to a verdict, and what other commands say of traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import main
from tests.unit.train.trace.made_traces import cuda_trace


def test_traces_become_a_run_folder_that_diagnose_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict is printed, and is the same when the folder is diagnosed later."""
    trace = cuda_trace(5, wait=5000.0).write(tmp_path / "t.json.gz")
    folder = str(tmp_path / "run")
    assert main(["train", "read", str(trace), "-o", folder]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("LOADING")
    assert f"run folder: {folder}" in said.err
    assert main(["diagnose", folder]) == 0
    assert capsys.readouterr().out == said.out


def test_json_is_a_diagnosis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One document on stdout."""
    trace = cuda_trace(4, kernel=500.0).write(tmp_path / "t.json")
    assert main(["train", "read", str(trace), "-o", str(tmp_path / "run"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "headrace.diagnosis/1"
    assert document["first"]["verdict"] == "HEALTHY"


def test_a_trace_of_one_step_is_inconclusive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two are needed, and the reason is given."""
    trace = cuda_trace(1).write(tmp_path / "t.json")
    assert main(["train", "read", str(trace), "-o", str(tmp_path / "run")]) == 4
    assert "expected at least 2" in capsys.readouterr().out


def test_what_is_no_trace_is_an_error_without_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, the reason, and nothing left behind."""
    file = tmp_path / "t.json"
    file.write_text("[]")
    assert main(["train", "read", str(file), "-o", str(tmp_path / "run")]) == 2
    assert "no training step is in 1 trace" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_earlier_run_is_kept_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As everywhere."""
    trace = cuda_trace(3).write(tmp_path / "t.json")
    arguments = ["train", "read", str(trace), "-o", str(tmp_path / "run")]
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0


def test_diagnose_names_the_command_for_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file is no run folder."""
    trace = cuda_trace(3).write(tmp_path / "t.json")
    assert main(["diagnose", str(trace)]) == 2
    assert "headrace train read" in capsys.readouterr().err


def test_whatif_refuses_what_a_trace_cannot_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No CPU time, no cost of loading: nothing to simulate from."""
    trace = cuda_trace(30).write(tmp_path / "t.json")
    assert main(["train", "read", str(trace), "-o", str(tmp_path / "run")]) == 0
    assert main(["whatif", str(tmp_path / "run"), "--set", "loader.workers=4"]) != 0
    said = capsys.readouterr()
    assert "steps in 1 trace of torch.profiler, which say neither CPU time" in said.err + said.out


def test_steps_become_scalars_for_tensorboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder for each rank, and the timeline beside them."""
    trace = cuda_trace(5).write(tmp_path / "t.json")
    folder, logs = str(tmp_path / "run"), tmp_path / "logs"
    assert main(["train", "read", str(trace), "-o", folder]) == 0
    assert main(["report", folder, "--tensorboard", str(logs), "--trace", str(tmp_path / "line.json")]) == 0
    assert "1 event file: tensorboard --logdir" in capsys.readouterr().err
    (file,) = (logs / "rank0").iterdir()
    assert file.read_bytes().count(b"phase_seconds/backward") == 5
    slices = json.loads((tmp_path / "line.json").read_text())["traceEvents"]
    assert sum(one["name"] == "backward" and one["ph"] == "X" for one in slices) == 5
    assert main(["report", folder, "--force", "--tensorboard", str(logs)]) == 0
    assert main(["report", folder, "-o", str(tmp_path / "again.html"), "--tensorboard", str(logs)]) == 2
    assert "is not empty" in capsys.readouterr().err
