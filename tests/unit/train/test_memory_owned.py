"""Bytes that a model and its optimizer hold, counted from tensors; and a recorded training that tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full

from headrace.diagnose.training.profile import training_document  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402
from headrace.train import profile  # noqa: E402
from headrace.train.memory_owned import count_owned  # noqa: E402


def test_bytes_are_those_of_the_tensors() -> None:
    """A part that is frozen has no gradients; Adam keeps two numbers a weight, and a step of 4 bytes for each tensor."""
    model = torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), torch.nn.BatchNorm1d(10, affine=False))
    model.append(torch.nn.Linear(10, 5, bias=False)).append(model[0])
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.Adam(model[0].parameters())
    model[0](torch.ones(1, 10)).sum().backward()
    optimizer.step()
    found = count_owned([model, model[0]], [optimizer])
    assert (found.parameters, found.gradients) == (4 * (100 + 50), 4 * 100)
    assert found.buffers == 4 * 20 + 8
    assert found.optimizer == 2 * 4 * 100 + 4


def test_a_recorded_training_tells_its_memory(tmp_path: Path) -> None:
    """Sampled from the first step to the end, with what the model and the optimizer hold."""
    model = torch.nn.Linear(8, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with profile([torch.ones(2, 8)] * 5, output=tmp_path / "run") as batches:
        for batch in batches:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    memory = training_document(read_run(tmp_path / "run")).ranks[0].memory
    assert memory is not None
    assert memory.num_samples >= 1
    assert memory.peak_bytes > 10**6
    assert memory.owned is not None
    assert (memory.owned.parameters, memory.owned.gradients, memory.owned.optimizer) == (128, 128, 128)
