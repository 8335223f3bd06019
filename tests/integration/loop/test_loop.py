"""`headrace loop` on a pipeline that sleeps: to its goal, with its ledger, and on again after SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from headrace.base.plan import Plan
from headrace.ledger.ledger import Ledger
from headrace.runs.formats.loop import LoopDocument

MODULE = """
import headrace as hr
from headrace.sources.finite import Entry, FiniteSource

class Numbers(FiniteSource):
    def entries(self):
        return (Entry(str(number), b"x") for number in range(600))

pipeline = hr.Pipeline(Numbers(), stages=[hr.emulated("work", seconds=0.008, kind="io")])
"""
#: Of 125 a second with one worker; four would do 500.
WORDS = [
    "loop",
    "looped.py:pipeline",
    "--plan",
    "slow.toml",
    "--goal",
    "throughput=300/s",
    "--seconds",
    "0.1s",
    "-o",
    "loop",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a pipeline and the Plan that nobody tuned."""
    (tmp_path / "looped.py").write_text(MODULE)
    (tmp_path / "slow.toml").write_text("[stages.work]\nworkers = 1\n\n[source]\nmax_in_flight = 8\n")
    return tmp_path


def start(folder: Path) -> subprocess.Popen[str]:
    """Begin the loop, or go on with it."""
    environment = {key: value for key, value in os.environ.items() if key != "HEADRACE_LEDGER"}
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", *WORDS], cwd=folder, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def read(folder: Path) -> LoopDocument:
    """Return what the loop has written down."""
    return msgspec.json.decode((folder / "loop" / "loop.json").read_bytes(), type=LoopDocument)


@pytest.mark.measures
def test_a_slow_pipeline_is_taken_to_its_goal_unattended_although_it_was_killed(folder: Path) -> None:
    """Killed after its first diagnosis, it goes on from there; the ledger holds what was predicted, measured and decided."""
    with start(folder) as first:
        while not (folder / "loop" / "loop.json").exists() or len(read(folder).steps) < 2:
            assert first.poll() is None, first.communicate()
            time.sleep(0.1)
        first.send_signal(signal.SIGKILL)
    with start(folder) as second:
        output, log = second.communicate()
    assert second.returncode == 0, output + log
    loop = read(folder)
    assert "going on with the loop in loop after step 2" in log
    assert [step.kind for step in loop.steps] == ["profile", "diagnose", "tune", "profile", "diagnose", "compare"]
    assert (loop.stopped, loop.is_met) == ("goal met", True)
    assert loop.ratio is not None
    assert loop.ratio.low > 2.0
    assert (Plan.load(folder / "loop" / "plan.toml").stages["work"].workers or 0) >= 3
    assert (folder / "slow.toml").read_text() == (folder / "loop" / "before.toml").read_text()
    with Ledger(folder / "runs" / "ledger.sqlite", must_exist=True) as ledger:
        assert all(entry.measured for entry in ledger.predictions())
        assert ledger.predictions()
        assert [decision.action for decision in ledger.attempts.decisions()] == ["accept"]
