"""Simulated from a recorded run of a real `DataLoader`."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import headrace.train  # noqa: E402  (needs torch)
from headrace.diagnose.training.simulation import simulate_training  # noqa: E402
from headrace.diagnose.training.simulation_bounds import step_bounds  # noqa: E402
from headrace.diagnose.training.simulation_changes import build_model  # noqa: E402
from headrace.diagnose.training.simulation_recorded import read_training  # noqa: E402
from headrace.runs.formats.prediction import Change  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402
from headrace.runs.training_phases import LoaderWork  # noqa: E402

pytestmark = pytest.mark.full

_ITEM_SECONDS, _BATCH, _STEPS = 0.005, 4, 12


class Slow(torch.utils.data.Dataset):
    """Items that take 5 ms to read."""

    def __len__(self) -> int:
        return _BATCH * _STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return float32, (8,)."""
        time.sleep(_ITEM_SECONDS)
        return torch.full((8,), float(index))


def _record(path: Path, workers: int) -> None:
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=_BATCH, num_workers=workers)
    with headrace.train.profile(loader, output=path) as watched:
        for batch in watched:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_loader_slept_is_replayed(tmp_path: Path, workers: int) -> None:
    """Each batch needs the 20 ms that its items slept, as reading; so the rate is bounded by the number of workers."""
    _record(tmp_path / "run", workers)
    recorded = read_training(read_run(tmp_path / "run"))
    assert recorded.is_loading_known
    assert recorded.loader.workers == workers
    assert recorded.samples.tolist() == [_BATCH] * _STEPS
    assert len(recorded.loading[LoaderWork.ITEMS].cpu) == _STEPS
    slept = sum(needs.blocked for needs in recorded.loading.values())
    assert np.all(slept >= 0.9 * _ITEM_SECONDS * _BATCH)
    for count in (1, 3):
        model = build_model(recorded, Change(settings=(f"loader.workers={count}",)))
        assert step_bounds(model).workers >= 0.9 * _ITEM_SECONDS / count
        assert len(simulate_training(model).ends) == _STEPS
