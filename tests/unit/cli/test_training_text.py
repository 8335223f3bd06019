"""The text on a training: eighty columns, a bar that is as long as the step, and the red flag of the field."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from headrace.cli.training_text import as_text
from headrace.runs.training_phases import LoaderWork, Phase
from tests.unit.diagnose.training.made_runs import MadeRun, plain_steps


def _text(path: Path, wait: float) -> str:
    run = MadeRun(path / "run")
    plain_steps(run, {Phase.WAIT: wait, Phase.FORWARD: 4.0, Phase.BACKWARD: 6.0})
    run.batch(3, {LoaderWork.ITEMS: (8.0, 1.0)})
    return as_text(run.finish())


@pytest.mark.parametrize(("wait", "flag"), [(1.0, ""), (2.6, "more than 20%"), (10.0, "more than 30%")])
def test_waiting_is_flagged_as_in_the_field(tmp_path: Path, wait: float, flag: str) -> None:
    """From 20 % and from 30 % of the step; not below."""
    text = _text(tmp_path, wait)
    assert ("Red flag" in text) is bool(flag)
    assert flag in text


def test_the_bar_is_the_step(tmp_path: Path) -> None:
    """As wide as the terminal allows, each phase by its share; nothing is wider than 80 columns."""
    lines = _text(tmp_path, 10.0).splitlines()
    bar = next(line for line in lines if line.startswith("|"))
    assert (bar.count("w"), bar.count("F"), bar.count("B")) == (36, 14, 22)
    assert max(len(line) for line in lines if "headrace whatif" not in line) <= 80


def test_what_was_not_measured_is_printed(tmp_path: Path) -> None:
    """With the reason, as the process gave it."""
    run = MadeRun(tmp_path / "run")
    plain_steps(run, {Phase.WAIT: 1.0, Phase.FORWARD: 4.0, Phase.BACKWARD: 6.0})
    path = run.finish()
    (file,) = (path / "training").iterdir()
    about = msgspec.json.decode(file.read_bytes())
    file.write_bytes(msgspec.json.encode({**about, "not_measured": {"optimizer": "nobody called it"}}))
    assert "not measured: optimizer: nobody called it" in as_text(path)


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    """Instead of a table of nothing."""
    assert "No training step was recorded" in as_text(MadeRun(tmp_path / "run").finish())


def _finished(path: Path) -> tuple[Path, list[Path]]:
    run = MadeRun(path / "run")
    for rank in range(2):
        for _ in range(30):
            run.stretch({Phase.WAIT: 1.0, Phase.FORWARD: 4.0, Phase.BACKWARD: 6.0}, rank=rank)
    return run.finish(), sorted((run.path / "training").iterdir())


def test_what_was_not_measured_is_said_once(tmp_path: Path) -> None:
    """With the reason; not again for each rank that says the same."""
    run, files = _finished(tmp_path)
    for file in files:
        said = json.loads(file.read_bytes())
        file.write_text(json.dumps({**said, "not_measured": {"forward": "a compiled function"}}))
    assert as_text(run).count("not measured: forward: a compiled function\n") == 1
