"""Loaders that fail, and data sets that give odd things: the program sees what it would have seen."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # workers are real processes

from torch.utils.data import DataLoader, Dataset, get_worker_info  # noqa: E402

from headrace import train  # noqa: E402
from headrace.diagnose.training.steps import LoadedBatches, read_steps  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402
from headrace.train.recorder import Recorder  # noqa: E402


class Unlucky(Exception):
    """An error of the program's own."""


class Numbers(Dataset[Any]):
    """Numbers, of which one does something else."""

    def __init__(self, at: int = -1, action: Callable[[], Any] = lambda: None) -> None:
        self.at, self.action = at, action

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.action() if index == self.at else torch.tensor([float(index)])


def _raise() -> None:
    raise Unlucky("item 5 is broken")


class Unsendable:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("this is not for sending")


def _as_list(items: list[Any]) -> list[Any]:
    return items


def _train(loader: Any) -> list[Any]:
    weight = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    batches = []
    for batch in loader:
        batches.append(batch)
        weight(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    return batches


def _loaded(path: Path) -> LoadedBatches:
    (rank,) = read_steps(read_run(path))
    return rank.batches


def _error(loader: Any) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what is compared
        _train(loader)
    return caught.type, str(caught.value).splitlines()[0].split("(pid")[0]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_exception_in_an_item_is_the_programs_own(workers: int, tmp_path: Path) -> None:
    """Same type and message as without recording; the batches before it are recorded, and joined to their steps."""
    loader = DataLoader(Numbers(5, _raise), 2, num_workers=workers)
    bare = _error(loader)
    with train.profile(loader, output=tmp_path / "run") as same:
        assert _error(same) == bare
    loaded = _loaded(tmp_path / "run")
    assert loaded.step[loaded.step >= 0].tolist() == [0, 1]
    assert loaded.passage is not None
    assert loaded.passage.is_failed.sum() == 1


def test_a_program_that_goes_on_after_an_exception_keeps_the_join(tmp_path: Path) -> None:
    """The batch after a failed one has its own record, not that of the failed one."""
    loader = DataLoader(Numbers(5, _raise), 2, num_workers=2)
    with train.profile(loader, output=tmp_path / "run") as same:
        iterator = iter(same)
        came = []
        for _ in range(6):
            try:
                came.append(next(iterator)[0].item())
            except Unlucky:
                came.append(None)
        _train(range(2))
    loaded = _loaded(tmp_path / "run")
    assert came == [0, 2, None, 6, 8, 10]
    assert loaded.passage is not None
    # Failed batches are written at once, the others where their stretch ends.
    assert sorted(zip(loaded.passage.worker.tolist(), loaded.passage.number.tolist(), strict=True)) == [
        (worker, number) for worker in (0, 1) for number in (0, 1, 2)
    ]
    assert loaded.passage.is_failed.sum() == 1


_KILLED = """
import os, signal, sys, torch
from headrace import train

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([float(index)])

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with train.profile(torch.utils.data.DataLoader(Numbers(), 1, num_workers=1), output=sys.argv[1]) as loader:
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
"""


def test_a_worker_that_is_killed_ends_the_loop_with_pytorchs_error(tmp_path: Path) -> None:
    """The program ends by it; what came before is recorded, and the run says that it failed."""
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path / "run")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "Error" in done.stderr.splitlines()[-1]
    assert "headrace" not in done.stderr.splitlines()[-1]
    assert read_run(tmp_path / "run").info.status == "failed"
    assert len(_loaded(tmp_path / "run")) >= 1, done.stderr


def test_a_handler_that_raises_where_recording_ends_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's handler of SIGCHLD may raise behind the error that ended the loop, also within what closes the recording."""
    read = Recorder.training_ended

    def killed(recorder: Recorder) -> None:
        monkeypatch.setattr(Recorder, "training_ended", read)
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

    def record() -> None:
        with train.profile(DataLoader(Numbers(), 2), output=tmp_path / "run") as same:
            monkeypatch.setattr(Recorder, "training_ended", killed)
            _train(same)

    with pytest.raises(RuntimeError, match="is killed"):
        record()
    assert read_run(tmp_path / "run").info.status == "finished"
    assert len(_loaded(tmp_path / "run")) >= 5


def test_a_loader_works_where_no_memory_can_be_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of files, or of their size, costs what loading costs, and says so; never the training."""

    def refuse(name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with train.profile(DataLoader(Numbers(), 2, num_workers=1), output=tmp_path / "run") as same:
        assert len(_train(same)) == 6
    about = next((tmp_path / "run" / "training").iterdir()).read_text()
    assert "cannot share memory with its workers: Too many open files" in about
    assert not len(_loaded(tmp_path / "run"))


@pytest.mark.parametrize("value", [None, "text", object, {"a": [None, ("b", 2)]}])
def test_items_that_are_no_tensors_come_through(value: Any, tmp_path: Path) -> None:
    """The batch holds what the data set gave, and is recorded."""
    loader = DataLoader(Numbers(1, lambda: value), 2, num_workers=1, collate_fn=_as_list)
    with train.profile(loader, output=tmp_path / "run") as same:
        assert _train(same)[0][1] == value
    assert len(_loaded(tmp_path / "run")) == 6


def test_two_iterators_of_one_loader_are_kept_apart(tmp_path: Path) -> None:
    """Batches taken in turns are joined each to its own record."""
    loader = DataLoader(Numbers(), 2, num_workers=1)
    with train.profile(loader, output=tmp_path / "run") as same:
        pairs = [(one.tolist(), other.tolist()) for one, other in zip(same, same, strict=True)]
        _train(same)
    loaded = _loaded(tmp_path / "run")
    assert all(one == other for one, other in pairs)
    assert len(loaded) == 18
    assert len(set(loaded.process.tolist())) == 3


def test_a_copy_of_a_loader_is_one_of_the_programs_loader(tmp_path: Path) -> None:
    """Pickled or copied while it is recorded, also within an iteration: it works, and nothing of the recording is in it."""
    loader = DataLoader(Numbers(action=int), 2)
    with train.profile(loader, output=tmp_path / "run") as same:
        iterator = iter(same)
        next(iterator)
        for one in (pickle.loads(pickle.dumps(same)), copy.deepcopy(same), copy.copy(same)):
            assert type(one) is DataLoader
            assert len(list(one)) == 6
        _train(same)


def test_workers_that_ran_before_are_said_to_be_unknown(tmp_path: Path) -> None:
    """Persistent workers of before the recording cannot be reached; the training goes on, and the file says why."""
    loader = DataLoader(Numbers(), 2, num_workers=1, persistent_workers=True)
    bare = list(loader)
    with train.profile(loader, output=tmp_path / "run") as same:
        assert all(torch.equal(one, other) for one, other in zip(_train(same), bare, strict=True))
    assert len(_loaded(tmp_path / "run")) == 0
    (file,) = (tmp_path / "run" / "training").iterdir()
    assert b"before the recording began" in file.read_bytes()


def test_persistent_workers_go_on_after_the_recording(tmp_path: Path) -> None:
    """Epochs after the end of a recording, or with a break in the middle, give the same batches."""
    loader = DataLoader(Numbers(), 2, num_workers=2, persistent_workers=True)
    with train.profile(loader, output=tmp_path / "run") as same:
        for _ in same:
            break
        first = _train(same)
    later = list(loader)
    assert all(torch.equal(one, other) for one, other in zip(first, later, strict=True))
    assert "_process_data" not in vars(loader._iterator)
    loaded = _loaded(tmp_path / "run")
    assert loaded.step.tolist() == [0, 0, 1, 2, 3, 4, 5]
    assert loaded.passage is not None
    assert loaded.passage.number.tolist() == [0, 0, 0, 1, 1, 2, 2]


class Nested(Dataset[Any]):
    """Has a loader of its own in each worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        assert get_worker_info() is not None
        return sum(one.sum() for one in DataLoader(Numbers(), 4))


def test_a_loader_within_a_worker_is_part_of_the_item(tmp_path: Path) -> None:
    """Only the outer loader's batches are recorded."""
    loader = DataLoader(Nested(), 2, num_workers=2)
    with train.profile(loader, output=tmp_path / "run") as same:
        assert [batch.tolist() for batch in _train(same)] == [[66.0, 66.0]] * 4
    assert len(_loaded(tmp_path / "run")) == 4
