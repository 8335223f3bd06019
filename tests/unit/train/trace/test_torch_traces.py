"""Traces that the installed PyTorch makes on the CPU: the names and the layout that are read are its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
from headrace.runs.reader import read_run
from headrace.runs.training_phases import Phase
from headrace.train.trace.reading import read_traces

torch = pytest.importorskip("torch")
profiler = pytest.importorskip("torch.profiler")

#: Its warning, as an error, would leave the profiler in the middle of recording, where it crashes.
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle")]

_SLEEP = 0.002


class _Slow(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        time.sleep(_SLEEP)
        return torch.ones(8), index % 2


def record(folder: Path, *, schedule: bool, every: int = 1, **options: Any) -> list[Path]:
    """Train for 16 batches of 4 and return the traces."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = torch.nn.CrossEntropyLoss()
    files: list[Path] = []

    def ready(found: Any) -> None:
        files.append(folder / f"cycle{len(files)}.json.gz")
        found.export_chrome_trace(str(files[-1]))

    plan = profiler.schedule(wait=1, warmup=1, active=5, repeat=2) if schedule else None
    activities = [profiler.ProfilerActivity.CPU]
    with profiler.profile(activities=activities, schedule=plan, on_trace_ready=ready, **options) as found:
        for number, (images, labels) in enumerate(torch.utils.data.DataLoader(_Slow(), batch_size=4)):
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            if number % every == every - 1:
                optimizer.step()
            if schedule:
                found.step()
    return files


def read(files: list[Path], folder: Path) -> TrainingAnalysis:
    """Return what is known of a training that was traced."""
    return TrainingAnalysis(read_run(read_traces(files, folder / "run")))


@pytest.mark.parametrize(
    "options",
    [{}, {"with_stack": True, "record_shapes": True, "profile_memory": True, "with_modules": True}],
    ids=["plain", "everything"],
)
def test_a_schedule_that_repeats(tmp_path: Path, options: dict[str, Any]) -> None:
    """Two files of five steps: waiting for data is at least what the items slept, and phases add up."""
    analysis = read(record(tmp_path, schedule=True, **options), tmp_path)
    (rank,) = analysis.ranks
    assert rank.steps.number.tolist() == [2, 3, 4, 5, 6, 9, 10, 11, 12, 13]
    assert (rank.steps.phases[Phase.WAIT].wall >= 4 * _SLEEP).all()
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert (rank.steps.phases[phase].wall > 0).all()
    assert (Phase.LOSS in rank.steps.phases) == bool(options)
    found = diagnose_training(analysis)
    assert found.trusted
    assert found.first.verdict == "LOADING"
    assert found.first.cause == "no workers"
    about = analysis.document.ranks[0].about
    assert about is not None
    assert about.optimizers == ("SGD",)
    trace = analysis.document.ranks[0].trace
    assert trace is not None
    assert trace.has_stacks == bool(options)
    assert any(one.name.startswith("aten::") for one in trace.operators)
    assert not trace.problems


def test_without_a_schedule_steps_are_inferred(tmp_path: Path) -> None:
    """Nobody calls `step()`: each request for a batch after an update begins one."""
    analysis = read(record(tmp_path, schedule=False, every=2), tmp_path)
    (rank,) = analysis.ranks
    assert len(rank.steps) == 8
    assert set(rank.steps.microbatches.tolist()) == {2}
    assert (rank.steps.phases[Phase.WAIT].wall >= 8 * _SLEEP).all()


def test_batches_that_are_accumulated_are_one_step(tmp_path: Path) -> None:
    """`step()` after each batch, an update after two."""
    analysis = read(record(tmp_path, schedule=True, every=2), tmp_path)
    (rank,) = analysis.ranks
    assert int(rank.steps.is_plain.sum()) == 4
    assert set(rank.steps.microbatches[rank.steps.is_plain].tolist()) == {2}
