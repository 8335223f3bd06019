"""A comparison in a process of its own: interrupted, and with workers that are processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from headrace.runs.formats.comparison import ComparisonDocument

MODULE = """
import headrace as hr

def spin(value):
    return sum(range(30_000))

def pipeline_of(stage):
    return hr.Pipeline(hr.folder("files", patterns=["*.bin"]), stages=[hr.fetch("fetch"), stage])

light = pipeline_of(hr.emulated("work", seconds=0.002))
busy = pipeline_of(hr.stage("work", spin))
"""
COMMAND = """
import sys
from headrace.cli import COMMANDS, main
COMMANDS.setdefault("compare", "say whether B is really faster than A")
sys.exit(main(["compare", *sys.argv[1:]]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with two pipelines and a file to run them over."""
    (tmp_path / "speeds.py").write_text(MODULE)
    (tmp_path / "command.py").write_text(f"if __name__ == '__main__':\n{COMMAND.replace(chr(10), chr(10) + '    ')}")
    (tmp_path / "processes.toml").write_text('[stages.work]\nexecutor = "process"\n')
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one.bin").write_bytes(b"x")
    return tmp_path


def test_ctrl_c_keeps_what_was_measured(folder: Path) -> None:
    """After the first pair Ctrl-C ends it with status 130 and a document of the pairs at hand."""
    command = [sys.executable, "command.py", "speeds:light", "speeds:light", "--items", "200", "--json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "pair 1:" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    document = msgspec.json.decode(out, type=ComparisonDocument)
    assert document.interrupted
    assert document.num_pairs >= 1
    assert document.verdict == "underpowered" or document.num_pairs >= 6  # where this process waited long for a core
    assert len(document.a.values) == len(document.b.values) == document.num_pairs


@pytest.mark.smoke
def test_ctrl_c_in_the_pilot_knows_nothing(folder: Path) -> None:
    """Before the first pair there is nothing to keep: status 130 and one sentence, no document."""
    command = [sys.executable, "command.py", "speeds:light", "speeds:light", "--items", "2000", "--json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "pilot of" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert "interrupted" in err


@pytest.mark.measures
def test_cpu_of_worker_processes_counts(folder: Path) -> None:
    """A stage that computes in processes costs more CPU per item than one that sleeps: its children are counted."""
    command = [
        sys.executable,
        "command.py",
        "speeds:light",
        "speeds:busy@processes.toml",
        "--metric",
        "cpu",
        "--blocks",
        "6",
    ]
    command += ["--items", "24", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    document = msgspec.json.decode(done.stdout, type=ComparisonDocument)
    assert (document.metric, document.verdict) == ("cpu_per_item", "worse")
    assert document.a.median is not None
    assert document.b.median is not None
    assert document.b.median > 2 * document.a.median
