"""A model that is being recorded is saved, copied and translated as any other; to read a file of it needs no headrace."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full

from headrace import train  # noqa: E402
from headrace.diagnose.training.profile import training_document  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402


@pytest.fixture
def model(tmp_path: Path) -> Any:
    """A model whose training is being recorded."""
    found = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(found.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=3)
    with train.profile(loader, output=tmp_path / "run") as same:
        for batch in same:
            optimizer.zero_grad()
            found(batch).sum().backward()
            optimizer.step()
        yield found


def test_a_model_is_copied(model: Any) -> None:
    """By `copy`, by pickle and as the moving average of PyTorch; copies answer alike."""
    x = torch.randn(2, 4)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), averaged):
        assert torch.equal(other(x), model(x))


def test_a_saved_model_is_read_where_headrace_is_not(model: Any, tmp_path: Path) -> None:
    """The file names nothing of headrace."""
    torch.save(model, tmp_path / "model.pt")
    program = (
        "import sys; sys.modules['headrace'] = None; import torch; "
        f"print(torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)(torch.ones(1, 4)).item())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(model(torch.ones(1, 4)).item())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_model_is_translated(model: Any) -> None:
    """`torch.jit.script` sees no hook, and those of the recording are there again afterwards."""
    before = [len(model._forward_hooks), len(model._forward_pre_hooks)]
    scripted = torch.jit.script(model)
    assert torch.equal(scripted(torch.ones(1, 4)), model(torch.ones(1, 4)))
    assert [len(model._forward_hooks), len(model._forward_pre_hooks)] == before == [1, 1]


def test_what_is_wrapped_is_found_by_pickle(model: Any) -> None:
    """`torch.save` is handed to another process by its name."""
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save
    assert pickle.loads(pickle.dumps(torch.autograd.backward)) is torch.autograd.backward


def test_nothing_stays_wrapped(tmp_path: Path) -> None:
    """Also not where a function is known under two names."""
    before = torch.save, torch.serialization.save, torch.jit.script, torch.autograd.backward
    with train.profile([torch.ones(1)], output=tmp_path / "run"):
        assert torch.save is torch.serialization.save is not before[0]
    assert (torch.save, torch.serialization.save, torch.jit.script, torch.autograd.backward) == before


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_model_is_trained_and_recorded(tmp_path: Path) -> None:
    """It takes no hooks of its own; its steps have their phases all the same."""
    model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with train.profile([torch.ones(2, 4)] * 12, output=tmp_path / "run") as batches:
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    (rank,) = training_document(read_run(tmp_path / "run")).ranks
    assert rank.steps == 12
    assert {"forward", "backward", "optimizer"} <= {phase.phase for phase in rank.phases}


def test_models_are_not_kept_alive(tmp_path: Path) -> None:
    """A program that trains one model after the other has memory for one; the record says what the last one was."""
    living: list[Any] = []

    def fit(width: int, batches: Any) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 1))
        optimizer = torch.optim.Adam(model.parameters())
        living.extend(map(weakref.ref, (model, model[0], optimizer)))
        for batch in batches:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

    with train.profile([torch.ones(2, 4)] * 3, output=tmp_path / "run") as batches:
        for width in (3, 5, 7):
            fit(width, batches)
            gc.collect()
            assert [refer() for refer in living] == [None] * len(living)
    document = training_document(read_run(tmp_path / "run"))
    about = document.ranks[0].about
    assert about is not None
    assert about.modules == ("Sequential",)
    assert about.optimizers == ("Adam",)
    assert about.num_parameters == 4 * 7 + 7 + 7 + 1
