"""Two processes that exchange gradients, as they are recorded into one run folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # real processes that import torch

from headrace.cli.training_text import as_text  # noqa: E402
from headrace.diagnose.training.profile import training_document  # noqa: E402
from headrace.diagnose.training.ranks import join_exchanges, read_exchanges  # noqa: E402
from headrace.diagnose.training.steps import read_steps  # noqa: E402
from headrace.runs.formats.training_ranks import RanksJudged  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402
from headrace.runs.training_phases import Phase  # noqa: E402

#: A loop that sleeps in one phase on rank 1; between two buckets of gradients, if that is backward.
_SCRIPT = """
import sys, time
import torch
from headrace import train

where, seconds, folder = sys.argv[1], float(sys.argv[2]), sys.argv[3]
rank = int(sys.argv[4])
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}.group", rank=rank, world_size=2)

def late(place):
    if (rank, place) == (1, where):
        time.sleep(seconds)

class Late(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        late("forward")
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        late("backward")
        return gradient

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)

    def forward(self, images):
        return self.last(Late.apply(self.norm(self.first(images))))

def batches():
    for _ in range(24):
        late("wait")
        yield torch.randn(4, 8)

torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=25 if where == "compiled" else 0.0001)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if where == "compiled":
    model = torch.compile(model, backend="eager")
with train.profile(batches(), output=folder) as loader:
    for images in loader:
        if where == "accumulate":
            with model.no_sync():
                model(images).sum().backward()
        model(images).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""


def _train(folder: Path, where: str, seconds: float = 0.0) -> None:
    # One thread each, and no rendezvous over a port that somebody may have.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, where, str(seconds), str(folder), str(rank)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=200)
        assert rank.returncode == 0, errors


def _judge(folder: Path) -> RanksJudged:
    judged = training_document(read_run(folder)).together.judged
    assert judged is not None
    return judged


@pytest.mark.parametrize("where", ["wait", "forward", "backward"])
def test_a_rank_that_sleeps_is_named_with_the_phase(tmp_path: Path, where: str) -> None:
    """It makes the other wait in its exchange, which ends at the same time for both."""
    _train(tmp_path / "run", where, 0.2)
    straggler = _judge(tmp_path / "run").straggler
    assert straggler is not None
    assert (straggler.rank, straggler.phase) == (1, where)
    assert straggler.phase_seconds > 0.1
    assert f"STRAGGLER: the others wait for rank 1, which comes last in {straggler.share_last:.0%}" in " ".join(
        as_text(tmp_path / "run").split()
    )


def test_ranks_meet_where_gradients_and_buffers_are_exchanged(tmp_path: Path) -> None:
    """Both ranks record the same meetings, two in a step and none under `no_sync`; nobody leaves before the last has come."""
    _train(tmp_path / "run", "accumulate")
    run = read_run(tmp_path / "run")
    assert [one.rank for one in read_steps(run)] == [0, 1]
    exchanges = read_exchanges(run)
    meetings = join_exchanges(exchanges)
    assert meetings is not None
    assert meetings.ranks == (0, 1)
    assert meetings.uncertainty == 0
    assert np.all(meetings.rest > -0.001)
    counts = np.unique(meetings.step, return_counts=True)[1]
    # The buffers at the first of two forward passes, the gradients after the second. Step 0 is seen without its buffers.
    assert set(counts[1:].tolist()) == {2}
    for rank in read_steps(run):
        assert np.allclose(sum(times.wall for times in rank.steps.phases.values()), rank.steps.wall, atol=1e-9)
        assert Phase.EXCHANGE in rank.steps.phases


def test_a_compiled_module_says_what_is_not_seen(tmp_path: Path) -> None:
    """Its gradients are seen; its buffers are not, because no clock can be part of a graph."""
    _train(tmp_path / "run", "compiled")
    document = training_document(read_run(tmp_path / "run"))
    assert document.together.judged is not None
    for rank in document.ranks:
        assert rank.about is not None
        assert "exchange of buffers" in rank.about.not_measured
    counts = np.unique(read_exchanges(read_run(tmp_path / "run"))[0].step, return_counts=True)[1]
    assert set(counts[1:].tolist()) == {1}
