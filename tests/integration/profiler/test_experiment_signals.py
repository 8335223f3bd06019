"""An experiment that a user or a process manager ends: the perturbation is undone, and the run folder can be read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.runs.reader import read_run

#: Threads that are left when the interpreter ends are those that nobody let go of.
JOBS = """
import atexit, threading, time
import headrace as hr

def tell_what_is_left():
    print("left:", sorted(one.name for one in threading.enumerate() if one is not threading.main_thread()), flush=True)

def work(item):
    time.sleep(0.01)
    return item

atexit.register(tell_what_is_left)
pipeline = hr.Pipeline(source=hr.items(range(60)), stages=[hr.stage("work", work, kind="io")], delivery=hr.jsonl("out.jsonl"))
"""
#: What the log says as a perturbation begins: a delay, and workers that take nothing.
BEGINS = {"delay": "each worker of work sleeps", "fewer": "workers of work work"}


@pytest.mark.parametrize(("kind", "how"), [("delay", signal.SIGINT), ("fewer", signal.SIGTERM)])
def test_a_signal_in_a_perturbation_ends_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: signal.Signals
) -> None:
    """The process ends by itself, no thread is left, and what was recorded can be diagnosed."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.py").write_text(JOBS)
    command = ["profile", "jobs.py:pipeline", "--experiment", "--budget", "300s", "-o", "run", "--deliver"]
    with Path("stdout.txt").open("w+") as said:
        everything = [sys.executable, "-m", "headrace", "--verbose", *command]
        with subprocess.Popen(everything, stdout=said, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            told = []
            for one in process.stderr:
                told.append(one)
                if "experiment: for" in one and BEGINS[kind] in one:
                    process.send_signal(how)
        said.seek(0)
        printed = said.read()
    assert process.returncode == 0, "".join(told)
    assert any("the experiment is over (interrupted)" in one for one in told)
    assert "left: []" in printed
    assert json.loads(Path("run/experiment.json").read_bytes())["ended"] == "interrupted"
    assert read_run("run").info.status == "finished"
    assert main(["diagnose", "run"]) in (0, 4)
