"""Scripts under `headrace train`: what is recorded of them, and that they do not notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.full  # a process that imports torch for each test

from headrace.diagnose.training.profile import training_document  # noqa: E402
from headrace.runs.reader import Run, read_run  # noqa: E402

PARTS = """
import sys
import torch
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 3))
data = torch.utils.data.TensorDataset(torch.randn(50, 8), torch.randint(0, 3, (50,)))
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = torch.nn.CrossEntropyLoss()

def learn(images, labels):
    optimizer.zero_grad()
    criterion(model(images), labels).backward()
    optimizer.step()

def tell():
    print([one.detach().sum().item().hex() for one in model.parameters()], torch.rand(1).item().hex())
"""

PLAIN = """
for _ in range(2):
    for batch in loader:
        learn(*batch)
tell()
"""


def train(folder: Path, script: str, *, armed: bool = True, first: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script, under `headrace train` into `folder/run` or bare; with lines before those that import PyTorch."""
    file = folder / "script.py"
    file.write_text(first + PARTS + script)
    before = [sys.executable, "-m", "headrace", "train", "-o", str(folder / "run")] if armed else [sys.executable]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE")}
    return subprocess.run(
        [*before, str(file)], capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )


def wholes(run: Run, unit: str = "step") -> list[dict[str, Any]]:
    """The span of each stretch of a unit."""
    return [span for span in run.spans().to_pylist() if (span["unit"], span["stage"]) == (unit, "whole")]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_does_not_notice(workers: int, tmp_path: Path) -> None:
    """Weights, state of random numbers, stdout and exit status are those of a bare start; its steps are recorded."""
    own = f"loader = torch.utils.data.DataLoader(data, 10, shuffle=True, num_workers={workers})"
    script = f"{own}\n{PLAIN}sys.exit(3)\n"
    bare, recorded = train(tmp_path, script, armed=False), train(tmp_path, script)
    assert (recorded.stdout, recorded.returncode) == (bare.stdout, bare.returncode)
    assert bare.returncode == 3
    run = read_run(tmp_path / "run")
    assert [step["batch_size"] for step in wholes(run)] == [10] * 10
    assert len(list((tmp_path / "run" / "training").iterdir())) == 1, "loader workers have nothing to say"
    assert (run.info.unit, run.info.status, run.problems) == ("step", "failed", [])


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_script_may_clear_its_environment(is_imported: bool, tmp_path: Path) -> None:
    """Before it imports PyTorch or after: what is asked of the process is known from its beginning."""
    clear = "import os\nos.environ.clear()\n"
    done = train(tmp_path, clear + PLAIN) if is_imported else train(tmp_path, PLAIN, first=clear)
    assert done.returncode == 0
    assert len(wholes(read_run(tmp_path / "run"))) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "script.py"]


def test_a_short_training_ends_without_stdout_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many scripts let only their first rank print, and take `sys.stdout` from the others."""
    from headrace.train import arming

    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr(arming, "_LEAVE_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stdout", None)
    arming._leave()
    assert ended == [0]


def test_a_look_for_pytorch_is_no_import_of_it(tmp_path: Path) -> None:
    """Packages ask whether it is there before anybody imports it, as `transformers` does: what trains later is recorded."""
    file = tmp_path / "looks.py"
    file.write_text(
        "from importlib.util import find_spec\nassert find_spec('torch') and find_spec('torch')\n" + PARTS + PLAIN
    )
    command = [sys.executable, "-m", "headrace", "train", "-o", str(tmp_path / "run"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(wholes(read_run(tmp_path / "run"))) == 10


def test_every_process_that_trains_is_recorded(tmp_path: Path) -> None:
    """Spawned and forked children have files of their own in the one run folder; their parent has none."""
    script = """
import multiprocessing, os
def work():
    for batch in loader:
        learn(*batch)
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    other = os.fork()
    if not other:
        work()
        os._exit(0)
    os.waitpid(other, 0)
"""
    done = train(tmp_path, script)
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    assert Counter(Counter(step["process"] for step in wholes(run)).values()) == {5: 2}
    assert len(list((tmp_path / "run" / "training").iterdir())) == 2


@pytest.mark.parametrize("leave", ["os._exit(3)", "sys.exit(3)"])
def test_a_script_that_leaves_in_a_step_had_no_error_there(leave: str, tmp_path: Path) -> None:
    """However it leaves: the end of that step was not seen."""
    done = train(
        tmp_path, f"import os, sys\nfor batch in loader:\n    model(batch[0]).mean().backward()\n    {leave}\n"
    )
    assert done.returncode == 3
    (step,) = wholes(read_run(tmp_path / "run"))
    assert (step["outcome"], step["release_reason"]) == ("ok", "cut")


def test_a_script_that_is_killed_early_is_said_to_be(tmp_path: Path) -> None:
    """Not that it does not train."""
    done = train(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert done.returncode == 137
    assert "script.py: ended by SIGKILL, and no training step is in" in done.stderr
    assert "no training step was seen" not in done.stderr


def test_ranks_write_into_one_folder(tmp_path: Path) -> None:
    """Two processes of `mp.spawn` that exchange gradients over gloo know their ranks, and their steps are apart.

    They know them at the end, too, when they have left their group; and what was before they had one is theirs.
    """
    script = """
import os
def work(rank, address):
    mean = sum(batch[0].mean() for batch in loader)
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    global model
    model = torch.nn.parallel.DistributedDataParallel(model)
    for batch in loader:
        learn(*batch)
    torch.distributed.destroy_process_group()
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (f"file://{os.getcwd()}/met",), 2)
"""
    done = train(tmp_path, script)
    assert done.returncode == 0, done.stderr
    steps = wholes(read_run(tmp_path / "run"))
    assert Counter(step["rank"] for step in steps) == {0: 5, 1: 5}
    assert len({step["process"] for step in steps}) == 2
    about = [json.loads(file.read_bytes()) for file in (tmp_path / "run" / "training").iterdir()]
    assert sorted((one["rank"], one["world_size"], one["has_ended"]) for one in about) == [(0, 2, True), (1, 2, True)]
    document = training_document(read_run(tmp_path / "run"))
    assert (document.trusted, document.distrust) == (True, ())


def test_a_killed_script_leaves_what_was_written(tmp_path: Path) -> None:
    """After a SIGKILL in the middle the run folder is readable, and says what ended the script."""
    script = """
import glob, os, signal
while not glob.glob("run/spans/*.parquet") or not glob.glob("run/training/*.json"):
    for batch in loader:
        learn(*batch)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert train(tmp_path, script).returncode == 137
    run = read_run(tmp_path / "run")
    assert (run.info.status, run.info.ended_by) == ("failed", "ended by SIGKILL")
    assert wholes(run)
    (about,) = (tmp_path / "run" / "training").glob("*.json")
    assert json.loads(about.read_bytes())["has_ended"] is False


def test_an_uncaught_exception_is_the_scripts_own(tmp_path: Path) -> None:
    """Its traceback and exit status are those of a bare start; the step in which it came is marked."""
    script = """
for number, batch in enumerate(loader):
    if number == 3:
        raise ValueError("enough")
    learn(*batch)
"""
    bare, recorded = train(tmp_path, script, armed=False), train(tmp_path, script)
    assert recorded.returncode == bare.returncode == 1
    assert bare.stderr in recorded.stderr
    run = read_run(tmp_path / "run")
    assert len(wholes(run)) == 3
    assert wholes(run, "between")[-1]["outcome"] == "failed"


def test_a_loop_is_recorded_once(tmp_path: Path) -> None:
    """`profile` within a script that is recorded already makes no second folder, and no wait is counted twice."""
    script = """
import headrace.train
with headrace.train.profile(loader, output="second") as same:
    for batch in same:
        learn(*batch)
import os
os._exit(0)
"""
    done = train(tmp_path, script)
    assert (done.returncode, (tmp_path / "second").exists()) == (0, False)
    spans = read_run(tmp_path / "run").spans().to_pylist()
    assert Counter(span["stage"] for span in spans if span["unit"] == "step")["wait"] == 5
