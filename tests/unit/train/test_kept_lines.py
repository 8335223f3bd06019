"""Which lines of the user's make what is kept of each step, by the allocations of a few of them."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full

from headrace.cli.diagnosis_text import as_text  # noqa: E402
from headrace.diagnose.training.steps import read_steps  # noqa: E402
from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402
from headrace.runs.training_phases import Kind  # noqa: E402
from headrace.train import memory_sampler, profile  # noqa: E402
from headrace.train.kept_lines import STEPS, KeptLines  # noqa: E402
from headrace.train.recorder import Recorder  # noqa: E402


def _follow(leak: list[object]) -> KeptLines:
    kept = KeptLines(Recorder(lambda spans: None))
    kept.is_wanted = True
    kept.step()
    for number in range(2 * STEPS):
        passing = [[one + number] for one in range(20)]  # more than there are steps, and gone with the next one
        leak.append([None])
        kept.step()
        assert len(passing) > STEPS
    return kept


def test_the_line_that_makes_what_is_kept_is_found() -> None:
    """One object a step is left there; twenty others are made in each step, and let go."""
    found = {
        str(line).rpartition(":")[2]: each for line, each in _follow([]).describe() if "test_kept_lines" in str(line)
    }
    number = next(at for at, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "leak.append" in text)
    assert list(found) == [str(number)]
    assert found[str(number)] >= 1.0
    assert not tracemalloc.is_tracing()


def test_a_program_that_traces_itself_is_left_alone() -> None:
    """Its tracing goes on, with what it has found."""
    tracemalloc.start()
    try:
        assert _follow([]).describe() == []
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_a_training_that_keeps_its_losses_is_told_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory grows by the activations of each step; the note names the line that made the loss, and the steps are apart."""
    monkeypatch.setattr(memory_sampler, "PAUSE_SECONDS", 0.02)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    losses = []
    was_traced = False
    with profile(itertools.repeat(torch.ones(256, 256), 3000), output=tmp_path / "run") as batches:
        for batch in batches:
            loss = model(batch).square().mean()  # the line
            loss.backward(retain_graph=True)
            optimizer.step()
            losses.append(loss)
            if was_traced and not tracemalloc.is_tracing():
                break
            was_traced = tracemalloc.is_tracing()
    run = read_run(tmp_path / "run")
    number = next(
        at for at, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# the line")
    )
    text = " ".join(as_text(diagnose_training(TrainingAnalysis(run))).split())
    assert "what each step keeps is made in" in text
    assert f"test_kept_lines.py:{number}" in text
    (rank,) = read_steps(run)
    assert sum(kind is Kind.PROFILED for kind in rank.steps.kinds) >= 2 * STEPS
