"""torch.profiler on a schedule within a recorded training: its traces, whose steps they are, and what stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import SettingsError
from headrace.diagnose.training.profile import training_document
from headrace.diagnose.training.steps import read_steps
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder
from headrace.runs.training_phases import Kind, Phase
from headrace.train.profiler_schedule import VARIABLE, ProfilerSchedule, parse_schedule
from headrace.train.trace.reading import read_traces

torch = pytest.importorskip("torch")


def train(folder: Path, steps: int) -> list[float]:
    """Record a training of so many steps and return its losses."""
    from headrace.train.session import Session

    run = RunFolder.create(folder, pipeline="train.py", unit="step")
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(folder)
    losses = []
    for batch in session.watch(torch.utils.data.DataLoader(torch.randn(steps * 4, 8), batch_size=4, shuffle=True)):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    session.close()
    run.finish("finished")
    return losses


def about(folder: Path) -> dict[str, Any]:
    """Return what the process said of itself."""
    (file,) = (folder / "training").glob("*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.full
def test_traces_hold_the_steps_of_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cycles leave two traces; their steps, and the two in which they are written, are in no figure."""
    bare = train(tmp_path / "bare", 24)
    monkeypatch.setenv(VARIABLE, "wait=4,warmup=1,active=3,repeat=2,stack=1")
    assert train(tmp_path / "run", 24) == bare
    found = about(tmp_path / "run")
    traces = found["details"]["torch_profiler"]["traces"]
    assert len(traces) == 2
    assert "trace of torch.profiler" not in found["not_measured"]
    (rank,) = read_steps(read_run(tmp_path / "run"))
    profiled = [number for number, kind in enumerate(rank.steps.kinds) if kind is Kind.PROFILED]
    # Step 0 ends, and the schedule begins with step 1.
    assert profiled == [5, 6, 7, 8, 9, 13, 14, 15, 16, 17]
    document = training_document(read_run(tmp_path / "run"))
    assert {one.what: one.count for one in document.ranks[0].apart}["profiled"] == 10
    traced = read_traces([tmp_path / "run" / name for name in traces], tmp_path / "traced")
    (other,) = read_steps(read_run(traced))
    assert other.steps.number.tolist() == [6, 7, 8, 14, 15, 16]
    for phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER):
        assert (other.steps.phases[phase].wall > 0).all()


@pytest.mark.full
def test_a_training_that_ends_within_a_cycle_has_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was recorded until then is written."""
    monkeypatch.setenv(VARIABLE, "wait=2,warmup=1,active=50")
    train(tmp_path / "run", 9)
    (trace,) = about(tmp_path / "run")["details"]["torch_profiler"]["traces"]
    assert (tmp_path / "run" / trace).is_file()


@pytest.mark.full
def test_a_program_that_profiles_itself_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two profilers at once are not possible: ours gives way, and says so."""
    monkeypatch.setenv(VARIABLE, "wait=2,warmup=1,active=2")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        train(tmp_path / "run", 9)
    assert own.key_averages()
    assert "the program itself profiles" in about(tmp_path / "run")["not_measured"]["trace of torch.profiler"]


def test_a_schedule_says_what_each_step_is() -> None:
    """Waiting, warming up, recording, and again."""
    schedule = ProfilerSchedule(wait=2, warmup=1, active=2, repeat=2)
    assert [schedule.phase(step) for step in range(11)] == [
        *("none", "none", "warmup", "active", "last") * 2,
        "none",
    ]


@pytest.mark.parametrize(
    "text", ["", "wait", "wait=-1", "later=3", "active=0", "wait=2;active=3", "active=99999999", "stack=2"]
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    """With what was expected."""
    with pytest.raises(SettingsError, match="--torch-profiler"):
        parse_schedule(text)


def test_what_a_schedule_leaves_out_is_usual() -> None:
    """Each part may be left out."""
    assert parse_schedule("active=7") == ProfilerSchedule(active=7)
